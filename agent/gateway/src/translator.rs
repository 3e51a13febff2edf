//! From objects to what the data plane runs, incrementally. Each stage is a value that owns its
//! state, takes what changed in the stages before it and hands on only what came out different;
//! [`Translator::apply`] is their order. Nothing is kept that could not be computed from the
//! objects alone; a test changes random objects and compares with a translation from scratch.

mod admissions;
mod attachments;
mod auth_services;
mod backend_policies;
mod backends;
mod changes;
mod client_certificates;
mod conflicts;
mod counts;
mod default_gateways;
mod external_endpoints;
mod externals;
mod families;
mod frontends;
mod gateways;
mod generated;
mod health_checks;
mod hierarchy;
mod in_force;
mod known_services;
mod listener_filters;
mod listeners;
mod needs;
mod owners;
mod parsed;
mod policies;
mod ports;
mod published;
mod relation;
mod remote_key_sets;
mod route_filters;
mod routes;
mod shared_names;
mod snapshot;
mod statuses;
mod tables;
mod traffic_policies;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{Change, Kind, ObjectKey, Objects};
use portcullis_model::{ObjectName, Snapshot};

use crate::delegate::Family;
use crate::feedback::{Feedback, Observations};
use crate::infra::DesiredObjects;
use crate::policy::authorities::{Holders, TrustBundles};
use crate::status::Status;
use crate::{AgentRole, Settings};
use admissions::Admissions;
use attachments::Parents;
use backend_policies::BackendPolicies;
use backends::{Backends, ChangedBackends};
use changes::ChangedObjects;
use conflicts::KindConflicts;
use default_gateways::DefaultGateways;
use external_endpoints::{ChangedExternals, ExternalEndpoints};
use externals::Externals;
use frontends::Frontends;
use gateways::{Gateways, MergedGateway};
use generated::Generated;
use health_checks::HealthChecks;
use hierarchy::Hierarchy;
use known_services::KnownServices;
use listener_filters::ListenerFilters;
use listeners::Listeners;
use needs::Needs;
use owners::Owners;
use parsed::ParsedRoutes;
use policies::Policies;
use ports::Ports;
use route_filters::RouteFilters;
use routes::{ChangedRoutes, Routes};
use shared_names::SharedNames;
use snapshot::NextSnapshot;
use statuses::Statuses;
use tables::Tables;
use traffic_policies::TrafficPolicies;
use view::View;

pub use needs::ChangedNeeds;

/// The outcome of a translation, or of a change to one.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub snapshot: Arc<Snapshot>,
    /// The statuses that are different from before; from scratch, all.
    pub statuses: BTreeMap<ObjectKey, Status>,
    /// Objects that had a status of ours and have none any more: gone, or another controller's now.
    pub forgotten: BTreeSet<ObjectKey>,
    /// Gateways that had a status of ours and whose class does not exist any more, and ListenerSets
    /// whose Gateway or its class does not, with the last word on them. An earlier agent's have a
    /// Service that it generated. Of those that never had one nothing is said: they may be another
    /// controller's.
    pub orphaned: BTreeMap<ObjectKey, Status>,
    /// Routes that delegation computed, if different from before, by the parent route they stand
    /// for. `None`: no longer.
    pub ephemeral: BTreeMap<ObjectKey, Option<Arc<Family>>>,
    /// The objects to be generated in a cluster for a Gateway, if different from before. `None`:
    /// nothing any more.
    pub generated: BTreeMap<ObjectName, Option<DesiredObjects>>,
    /// The objects of kinds that are read on demand ([`portcullis_api::Reading`]) whose contents
    /// translation needs and did not before, and those that it no longer does; from scratch, all.
    pub needs: ChangedNeeds,
    /// The names of hosts that are to be looked up, if they are others than before: what comes of
    /// it is to be observed ([`Feedback::Names`]).
    pub names: Option<BTreeSet<Arc<str>>>,
    /// Problems that no status can report, if different from before; an empty list: all is well
    /// now.
    pub problems: BTreeMap<ObjectKey, Vec<String>>,
}

/// Translates objects, and keeps what is needed to translate the next change at a cost that is
/// proportional to it.
#[derive(Debug, Default)]
pub struct Translator {
    settings: Settings,
    objects: Objects,
    /// To be applied before the next changes.
    backlog: Vec<Change>,
    stages: Stages,
    snapshot: Arc<Snapshot>,
    observations: Observations,
    statuses: Statuses,
    generated: Generated,
    needs: Needs,
}

/// The state of the stages, in their order.
#[derive(Debug, Default)]
struct Stages {
    trust_bundles: TrustBundles,
    listeners: Listeners,
    hierarchy: Hierarchy,
    owners: Owners,
    gateways: Gateways,
    admissions: Admissions,
    traffic: TrafficPolicies,
    policies: Policies,
    backend_policies: BackendPolicies,
    externals: Externals,
    filters: ListenerFilters,
    defaults: DefaultGateways,
    route_filters: RouteFilters,
    parsed: ParsedRoutes,
    routes: Routes,
    conflicts: KindConflicts,
    shared_names: SharedNames,
    tables: Tables,
    ports: Ports,
    frontends: Frontends,
    health_checks: HealthChecks,
    backends: Backends,
    external_endpoints: ExternalEndpoints,
}

/// Translates objects from scratch.
pub fn translate(objects: &Objects, settings: &Settings) -> Outcome {
    Translator::new(settings.clone()).apply(objects.iter().map(Change::Set).collect())
}

// === impl Translator ===

impl Translator {
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    // As long as there are stages: the flow of data is read here, on one screen.
    pub fn apply(&mut self, changes: Vec<Change>) -> Outcome {
        let changes = std::mem::take(&mut self.backlog).into_iter().chain(changes);
        let (changed, rewritten) = ChangedObjects::apply(changes, &mut self.objects);
        let (objects, settings) = (&self.objects, &self.settings);
        let mut next = NextSnapshot::after(&self.snapshot);
        let Stages {
            trust_bundles,
            listeners,
            hierarchy,
            owners,
            gateways,
            admissions,
            traffic,
            policies,
            backend_policies,
            externals,
            filters,
            defaults,
            route_filters,
            parsed,
            routes,
            conflicts,
            shared_names,
            tables,
            ports,
            frontends,
            health_checks,
            backends,
            external_endpoints,
        } = &mut self.stages;

        trust_bundles.update(changed.of(Kind::ClusterTrustBundle), objects);
        let holders = Holders { objects, bundles: trust_bundles };

        // Gateways and ListenerSets: each on its own, then as parents and children, then merged.
        let recertified = self.observations.recertified();
        let renamed = self.observations.renamed();
        let sources = listeners::Sources { objects, settings, observations: &self.observations };
        let judged = listeners.update(&changed, &recertified, sources);
        let attached = hierarchy.update(&changed, &judged, listeners, objects);
        let owned = owners.update(&changed, objects, settings, &self.observations);
        let readdressed = self.observations.readdressed();
        let observations = &self.observations;
        let sources =
            gateways::Sources { listeners, hierarchy, owners, holders, objects, settings, observations };
        let merged = gateways.update(&changed, &judged, &attached, &owned, readdressed, sources);

        let changes = admissions::Changes {
            objects: &changed,
            listeners: &judged,
            hierarchy: &attached,
            gateways: &merged,
        };
        let admitted = admissions.update(changes, hierarchy, objects, observations);

        // Policies: of Services, which others may refer to, and of requests.
        let targeted = policies.update(&changed, holders, observations);
        let respoken = backend_policies.update(&changed, objects);
        let services = KnownServices { objects, policies };
        let protected = traffic.update(&changed, &targeted, hierarchy, services, observations);
        if let Some(key_sets) = &protected.key_sets {
            next.edit().key_sets = key_sets.clone();
        }
        let agents = match &settings.role {
            _ if !traffic.are_sharing() => None,
            AgentRole::Node => observations.agents(),
            // Pods of one Gateway know of each other only how many there are to be.
            AgentRole::Dedicated(gateway) => gateways.get(gateway).and_then(MergedGateway::pods),
        };
        if next.get().agents != agents {
            next.edit().agents = agents;
        }

        // Routes: those that may fare differently with their families, attached, and in conflict
        // with other kinds.
        let recompiled = route_filters.update(&changed, objects);
        let mut changed_externals = externals.update(&changed, holders, settings);
        let parents = Parents {
            listeners,
            hierarchy,
            gateways,
            objects,
            traffic,
            services,
            externals,
            route_filters,
            backend_policies,
        };
        let refiltered = filters.update(&changed, &judged, &attached, &targeted, parents);
        let mut affected = routes.affected(rewritten, &changed, &judged, &attached, parsed, parents);
        affected.extend(routes.of_parents(&merged.claims).cloned());
        affected.extend(routes.targeted(&targeted));
        affected.extend(routes.with_services(&respoken.sessions));
        affected.extend(routes.retargeted(&protected.routes));
        affected.extend(routes.filtered(&recompiled));
        affected.extend(routes.with_externals(&changed_externals));
        let redefaulted = defaults.update(&judged, listeners, objects);
        if !redefaulted.gateways.is_empty() {
            affected.extend(parsed.defaulted().cloned());
        }
        let affected = parsed.update(affected, defaults, objects);
        let routed = routes.update(affected, parsed, parents);
        let ChangedRoutes {
            statuses,
            families,
            parents,
            listeners: reattached,
            mut services,
            policies: mut referred,
            referred: mut services_referred_to,
            externals: referred_externals,
        } = routed;
        changed_externals.extend(referred_externals);
        referred.extend(refiltered.services.iter().flat_map(|service| policies.on(service)).cloned());
        services_referred_to.extend(refiltered.services.iter().cloned());
        services.extend(routes.count_backends(&refiltered.used, &refiltered.unused));
        services.extend(routes.count_backends(&protected.uses.used, &protected.uses.unused));
        let turned = conflicts.update(&reattached, routes);
        let sharing = shared_names.update(&reattached, &turned, routes, conflicts);

        // What is served: tables into listeners, these into ports, and ports on addresses.
        let sources = tables::Sources { listeners, routes, conflicts };
        let rebuilt = tables.update(reattached, &turned, &judged, sources);
        let sources = ports::Sources { listeners, hierarchy, gateways, admissions, traffic, filters, tables };
        let changes = ports::Changes {
            listeners: &judged,
            hierarchy: &attached,
            gateways: &merged,
            admissions: &admitted,
            traffic: &protected,
            filters: &refiltered,
            tables: &rebuilt,
        };
        let opened = ports.update(changes, sources);
        let sources = frontends::Sources { gateways, ports, owners, objects, settings };
        let claimed = frontends.update(&changed, &merged, &opened.gateways, &owned, sources, &mut next);
        health_checks.update(&claimed, sources, &mut next);
        let changes = backends::Changes {
            objects: &changed,
            services: &services,
            owners: &owned,
            gateways: &merged,
            frontends: &claimed,
            policies: &targeted,
            backend_policies: &respoken,
        };
        let uses = routes.backend_uses();
        let sources =
            backends::Sources { uses, owners, gateways, policies, backend_policies, objects, settings };
        let ChangedBackends { refused, reproved } = backends.update(changes, sources, &mut next);
        let changes = external_endpoints::Changes {
            backends: changed_externals,
            names: renamed,
            owners: &owned,
            gateways: &merged,
            frontends: &claimed,
        };
        let uses = routes.external_uses();
        let sources =
            external_endpoints::Sources { externals, uses, owners, gateways, observations, settings };
        let ChangedExternals { backends: externals, names } =
            external_endpoints.update(changes, sources, &mut next);
        let sources = client_certificates::Sources { listeners, hierarchy };
        client_certificates::update(&judged, &attached, sources, &mut next);
        self.snapshot = next.finish();

        // Statuses: planned from the state of all stages, and from what was observed of earlier
        // outcomes.
        let observed = self.observations.assign(&self.snapshot);
        let changes = statuses::Changes {
            objects: &changed,
            listeners: &judged,
            hierarchy: &attached,
            gateways: &merged,
            admissions: &admitted,
            traffic: &protected,
            defaults: &redefaulted,
            filters: &refiltered,
            routes: statuses,
            policies: &referred,
            targeted: &targeted,
            respoken: &respoken,
            referred: &services_referred_to,
            route_filters: &recompiled,
            externals: &externals,
            services: &refused,
            parents: &parents,
            conflicts: &turned,
            sharing: &sharing,
            oldest: &rebuilt.oldest,
            frontends: &claimed,
            retold: &opened.retold,
            observed: &observed,
        };
        let view = self.stages.view(objects, settings, &self.observations);
        let planned = self.statuses.update(changes, view);

        let changes = needs::Changes {
            objects: &changed,
            listeners: &judged,
            hierarchy: &attached,
            targeted: &targeted.policies,
            referred: &referred,
            traffic: &protected.policies,
            externals: &externals,
            services: &reproved,
        };
        let (needs, needing) = self.needs.update(&changes, view);
        let generated = self.generated.update(needing, &claimed, &self.needs, view);
        let ephemeral = families.into_iter();
        Outcome {
            snapshot: self.snapshot.clone(),
            statuses: planned.statuses,
            forgotten: planned.forgotten,
            orphaned: planned.orphaned,
            problems: planned.problems,
            ephemeral: ephemeral.map(|parent| (parent.clone(), view.routes.family(&parent))).collect(),
            generated,
            needs,
            names,
        }
    }

    /// Takes note of what became of an outcome, and of what the cluster assigned; the next `apply`
    /// follows it to frontends and statuses.
    pub fn observe(&mut self, feedback: Feedback) {
        self.observations.observe(feedback, &self.objects);
    }

    /// After a panic in `apply`, which leaves what was computed in an unknown state: forgets
    /// everything but the objects. The next `apply` takes these changes first, and translates from
    /// scratch.
    pub fn begin_again(&mut self, changes: Vec<Change>) {
        let mut backlog: Vec<_> = self.objects.iter().map(Change::Set).collect();
        backlog.extend(changes);
        let observations = std::mem::take(&mut self.observations).restart();
        let settings = std::mem::take(&mut self.settings);
        *self = Self { settings, backlog, observations, ..Self::default() };
    }

    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// The status that an object should have; `None` if the object is gone or not ours to speak
    /// about.
    pub fn status_of(&self, key: &ObjectKey) -> Option<Status> {
        self.stages.view(&self.objects, &self.settings, &self.observations).status_of(key)
    }

    /// All statuses as they should be now.
    pub fn statuses(&self) -> BTreeMap<ObjectKey, Status> {
        self.statuses.keys().filter_map(|key| Some((key.clone(), self.status_of(key)?))).collect()
    }

    /// Everything that is wrong and that no status can say.
    pub fn problems(&self) -> &BTreeMap<ObjectKey, Vec<String>> {
        self.statuses.problems()
    }
}

// === impl Stages ===

impl Stages {
    fn view<'s>(
        &'s self,
        objects: &'s Objects,
        settings: &'s Settings,
        observations: &'s Observations,
    ) -> View<'s> {
        let Self {
            listeners,
            hierarchy,
            gateways,
            admissions,
            traffic,
            policies,
            backend_policies,
            externals,
            filters,
            defaults,
            route_filters,
            parsed,
            routes,
            conflicts,
            shared_names,
            tables,
            ports,
            frontends,
            backends,
            external_endpoints,
            ..
        } = self;
        View {
            settings,
            objects,
            listeners,
            hierarchy,
            gateways,
            admissions,
            traffic,
            policies,
            backend_policies,
            externals,
            filters,
            defaults,
            route_filters,
            parsed,
            routes,
            conflicts,
            shared_names,
            tables,
            ports,
            frontends,
            backends,
            external_endpoints,
            observations,
        }
    }
}
