//! From objects to what the data plane runs, incrementally. Each stage is a value that owns its
//! state, takes what changed in the stages before it and hands on only what came out different;
//! [`Translator::apply`] and its [`steps`] are their order. Nothing is kept that could not be
//! computed from the objects alone; a test changes random objects and compares with a translation
//! from scratch.

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
mod steps;
mod tables;
mod traffic_policies;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{Change, ObjectKey, Objects};
use portcullis_model::{ObjectName, Snapshot};

use crate::Settings;
use crate::delegate::Family;
use crate::feedback::{Feedback, Observations};
use crate::infra::DesiredObjects;
use crate::policy::authorities::TrustBundles;
use crate::status::Status;
use admissions::Admissions;
use backend_policies::BackendPolicies;
use backends::Backends;
use changes::ChangedObjects;
use conflicts::KindConflicts;
use default_gateways::DefaultGateways;
use external_endpoints::ExternalEndpoints;
use externals::Externals;
use frontends::Frontends;
use gateways::Gateways;
use generated::Generated;
use health_checks::HealthChecks;
use hierarchy::Hierarchy;
use listener_filters::ListenerFilters;
use listeners::Listeners;
use needs::Needs;
use owners::Owners;
use parsed::ParsedRoutes;
use policies::Policies;
use ports::Ports;
use route_filters::RouteFilters;
use routes::Routes;
use shared_names::SharedNames;
use snapshot::NextSnapshot;
use statuses::Statuses;
use steps::{ChangedStages, Inputs};
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

    /// The [`steps`], in their order.
    pub fn apply(&mut self, changes: Vec<Change>) -> Outcome {
        let changes = std::mem::take(&mut self.backlog).into_iter().chain(changes);
        let (changed, rewritten) = ChangedObjects::apply(changes, &mut self.objects);
        let (recertified, renamed) = (self.observations.recertified(), self.observations.renamed());
        let readdressed = self.observations.readdressed();
        let (objects, settings, observations) = (&self.objects, &self.settings, &self.observations);
        let inputs = Inputs { changed: &changed, objects, settings, observations };
        let (stages, mut next) = (&mut self.stages, NextSnapshot::after(&self.snapshot));

        let parents = stages.merge_gateways(inputs, &recertified, readdressed);
        let mut terms = stages.read_policies(inputs, &mut next);
        let mut attached = stages.attach_routes(inputs, rewritten, &parents, &terms);
        stages.fetch_key_sets(inputs, &mut terms, &mut next);
        let served = stages.serve(inputs, &parents, &terms, &mut attached, &mut next);
        let services = &attached.routes.services;
        let backends =
            stages.reach_services(inputs, &parents, &terms, services, &served.frontends, &mut next);
        let externals = std::mem::take(&mut attached.externals);
        let externals =
            stages.reach_externals(inputs, &parents, (externals, renamed), &served.frontends, &mut next);
        self.snapshot = next.finish();
        self.report(&changed, ChangedStages { parents, terms, attached, served, backends, externals })
    }

    /// Statuses, needs and generated objects, planned from the state of all stages, and from what
    /// was observed of earlier outcomes.
    fn report(&mut self, changed: &ChangedObjects, stages: ChangedStages) -> Outcome {
        let ChangedStages { parents, terms, attached, served, backends, externals } = stages;
        let routes = attached.routes;
        let observed = self.observations.assign(&self.snapshot);
        let changes = statuses::Changes {
            objects: changed,
            listeners: &parents.listeners,
            hierarchy: &parents.hierarchy,
            gateways: &parents.gateways,
            admissions: &parents.admissions,
            traffic: &terms.traffic,
            defaults: &attached.defaults,
            filters: &attached.filters,
            routes: routes.statuses,
            policies: &routes.policies,
            targeted: &terms.tls,
            respoken: &terms.backends,
            referred: &routes.referred,
            route_filters: &attached.route_filters,
            externals: &externals.backends,
            services: &backends.refused,
            parents: &routes.parents,
            conflicts: &attached.conflicts,
            sharing: &attached.sharing,
            oldest: &served.tables.oldest,
            frontends: &served.frontends,
            retold: &served.ports.retold,
            observed: &observed,
        };
        let view = self.stages.view(&self.objects, &self.settings, &self.observations);
        let planned = self.statuses.update(changes, view);
        let changes = needs::Changes {
            objects: changed,
            listeners: &parents.listeners,
            hierarchy: &parents.hierarchy,
            targeted: &terms.tls.policies,
            referred: &routes.policies,
            traffic: &planned.traffic,
            externals: &externals.backends,
            services: &backends.reproved,
        };
        let (needs, needing) = self.needs.update(&changes, view);
        let generated = self.generated.update(needing, &served.frontends, &self.needs, view);
        let families = routes.families.into_iter();
        Outcome {
            snapshot: self.snapshot.clone(),
            statuses: planned.statuses,
            forgotten: planned.forgotten,
            orphaned: planned.orphaned,
            problems: planned.problems,
            ephemeral: families.map(|parent| (parent.clone(), view.routes.family(&parent))).collect(),
            generated,
            needs,
            names: externals.names,
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
