//! The steps of a translation: which stages each has, in which order, and what they have from each
//! other. The flow of data is read here, from top to bottom.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::ObjectName;

use super::Stages;
use super::admissions::{self, ChangedAdmissions};
use super::attachments::Parents;
use super::backend_policies::ChangedBackendPolicies;
use super::backends::{self, ChangedBackends};
use super::changes::ChangedObjects;
use super::client_certificates;
use super::conflicts::ChangedConflicts;
use super::default_gateways::ChangedDefaults;
use super::external_endpoints::{self, ChangedExternals};
use super::frontends::{self, ChangedFrontends};
use super::gateways::{self, ChangedGateways, MergedGateway};
use super::hierarchy::ChangedHierarchy;
use super::known_services::KnownServices;
use super::listener_filters::ChangedFilters;
use super::listeners::{self, ChangedListeners};
use super::owners::ChangedOwners;
use super::policies::ChangedPolicies;
use super::ports::{self, ChangedPorts};
use super::routes::ChangedRoutes;
use super::snapshot::NextSnapshot;
use super::tables::{self, ChangedTables};
use super::traffic_policies::ChangedTraffic;
use crate::feedback::Observations;
use crate::policy::authorities::Holders;
use crate::{AgentRole, Settings};

/// The state that every step reads besides the stages before it.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'i> {
    pub(super) changed: &'i ChangedObjects,
    pub(super) objects: &'i Objects,
    pub(super) settings: &'i Settings,
    pub(super) observations: &'i Observations,
}

/// The differences that came out, step by step.
pub(super) struct ChangedStages {
    pub(super) parents: ChangedParents,
    pub(super) terms: ChangedTerms,
    pub(super) attached: ChangedAttachments,
    pub(super) served: ChangedServing,
    pub(super) backends: ChangedBackends,
    pub(super) externals: ChangedExternals,
}

/// Of Gateways and ListenerSets.
pub(super) struct ChangedParents {
    pub(super) listeners: ChangedListeners,
    pub(super) hierarchy: ChangedHierarchy,
    pub(super) owners: ChangedOwners,
    pub(super) gateways: ChangedGateways,
    pub(super) admissions: ChangedAdmissions,
}

/// Of policies of Services and of requests.
pub(super) struct ChangedTerms {
    pub(super) tls: ChangedPolicies,
    pub(super) backends: ChangedBackendPolicies,
    pub(super) traffic: ChangedTraffic,
}

/// Of routes, and of what has to do with them before they are served.
pub(super) struct ChangedAttachments {
    pub(super) route_filters: BTreeSet<ObjectName>,
    pub(super) filters: ChangedFilters,
    pub(super) defaults: ChangedDefaults,
    pub(super) routes: ChangedRoutes,
    pub(super) conflicts: ChangedConflicts,
    /// Routes that may take other names from other namespaces' than before.
    pub(super) sharing: BTreeSet<ObjectKey>,
    /// XBackends that changed, or that came into use or went out of use.
    pub(super) externals: BTreeSet<ObjectName>,
}

/// Of ports and what they serve.
pub(super) struct ChangedServing {
    pub(super) tables: ChangedTables,
    pub(super) ports: ChangedPorts,
    pub(super) frontends: ChangedFrontends,
}

// === impl Stages ===

impl Stages {
    /// Gateways and ListenerSets: each on its own, then as parents and children, then merged; and
    /// who may come in. `recertified` are Secrets of which another certificate is kept,
    /// `readdressed` Gateways with other addresses.
    pub(super) fn merge_gateways(
        &mut self,
        inputs: Inputs<'_>,
        recertified: &BTreeSet<ObjectName>,
        readdressed: BTreeSet<ObjectName>,
    ) -> ChangedParents {
        let Inputs { changed, objects, settings, observations } = inputs;
        let Self { trust_bundles, listeners, hierarchy, owners, gateways, admissions, .. } = self;
        trust_bundles.update(changed.of(Kind::ClusterTrustBundle), objects);
        let holders = Holders { objects, bundles: trust_bundles };
        let sources = listeners::Sources { objects, settings, observations };
        let judged = listeners.update(changed, recertified, sources);
        let attached = hierarchy.update(changed, &judged, listeners, objects);
        let owned = owners.update(changed, objects, settings, observations);
        let sources =
            gateways::Sources { listeners, hierarchy, owners, holders, objects, settings, observations };
        let merged = gateways.update(changed, &judged, &attached, &owned, readdressed, sources);
        let changes = admissions::Changes {
            objects: changed,
            listeners: &judged,
            hierarchy: &attached,
            gateways: &merged,
        };
        let admitted = admissions.update(changes, hierarchy, objects, observations);
        ChangedParents {
            listeners: judged,
            hierarchy: attached,
            owners: owned,
            gateways: merged,
            admissions: admitted,
        }
    }

    /// Policies: of Services, which others may refer to, and of requests.
    pub(super) fn read_policies(&mut self, inputs: Inputs<'_>, next: &mut NextSnapshot) -> ChangedTerms {
        let Inputs { changed, objects, settings, observations } = inputs;
        let Self { trust_bundles, hierarchy, gateways, traffic, policies, backend_policies, .. } = self;
        let holders = Holders { objects, bundles: trust_bundles };
        let targeted = policies.update(changed, holders, observations);
        let respoken = backend_policies.update(changed, objects);
        let services = KnownServices { objects, policies };
        let protected = traffic.update(changed, &targeted, hierarchy, services, observations);
        let agents = match &settings.role {
            _ if !traffic.are_sharing() => None,
            AgentRole::Node => observations.agents(),
            // Pods of one Gateway know of each other only how many there are to be.
            AgentRole::Dedicated(gateway) => gateways.get(gateway).and_then(MergedGateway::pods),
        };
        if next.get().agents != agents {
            next.edit().agents = agents;
        }
        ChangedTerms { tls: targeted, backends: respoken, traffic: protected }
    }

    /// Routes: those that may fare differently with their families, attached, and in conflict with
    /// other kinds. `rewritten` are those that changed themselves.
    pub(super) fn attach_routes(
        &mut self,
        inputs: Inputs<'_>,
        rewritten: BTreeSet<ObjectKey>,
        changed_parents: &ChangedParents,
        terms: &ChangedTerms,
    ) -> ChangedAttachments {
        let Inputs { changed, objects, settings, .. } = inputs;
        let ChangedParents { listeners: judged, hierarchy: attached, gateways: merged, .. } = changed_parents;
        let ChangedTerms { tls: targeted, backends: respoken, traffic: protected } = terms;
        let Self {
            trust_bundles,
            listeners,
            hierarchy,
            gateways,
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
            ..
        } = self;
        let recompiled = route_filters.update(changed, objects);
        let mut changed_externals =
            externals.update(changed, Holders { objects, bundles: trust_bundles }, settings);
        let parents = Parents {
            listeners,
            hierarchy,
            gateways,
            objects,
            traffic,
            services: KnownServices { objects, policies },
            externals,
            route_filters,
            backend_policies,
        };
        let refiltered = filters.update(changed, judged, attached, targeted, parents);
        let mut affected = routes.affected(rewritten, changed, judged, attached, parsed, parents);
        affected.extend(routes.of_parents(&merged.claims).cloned());
        affected.extend(routes.targeted(targeted));
        affected.extend(routes.with_services(&respoken.sessions));
        affected.extend(routes.retargeted(&protected.routes));
        affected.extend(routes.filtered(&recompiled));
        affected.extend(routes.with_externals(&changed_externals));
        let redefaulted = defaults.update(judged, listeners, objects);
        if !redefaulted.gateways.is_empty() {
            affected.extend(parsed.defaulted().cloned());
        }
        let affected = parsed.update(affected, defaults, objects);
        let mut routed = routes.update(affected, parsed, parents);
        changed_externals.append(&mut routed.externals);
        let asked = &refiltered.services;
        routed.policies.extend(asked.iter().flat_map(|service| policies.on(service)).cloned());
        routed.referred.extend(asked.iter().cloned());
        routed.services.extend(routes.count_backends(&refiltered.used, &refiltered.unused));
        routed.services.extend(routes.count_backends(&protected.uses.used, &protected.uses.unused));
        let turned = conflicts.update(&routed.listeners, routes);
        let sharing = shared_names.update(&routed.listeners, &turned, routes, conflicts);
        ChangedAttachments {
            route_filters: recompiled,
            filters: refiltered,
            defaults: redefaulted,
            routes: routed,
            conflicts: turned,
            sharing,
            externals: changed_externals,
        }
    }

    /// The key sets that agents fetch: of policies with effect, which follows from listeners and
    /// routes.
    pub(super) fn fetch_key_sets(
        &mut self,
        inputs: Inputs<'_>,
        terms: &mut ChangedTerms,
        next: &mut NextSnapshot,
    ) {
        let Inputs { objects, settings, observations, .. } = inputs;
        let view = self.view(objects, settings, observations);
        let (policies, remote) = (view.traffic.policies(), view.traffic.remote_key_sets());
        let in_line = remote.policies().filter(|name| view.is_in_line(name, policies)).cloned().collect();
        if let Some(key_sets) = self.traffic.fetch(in_line, &mut terms.traffic)
            && next.get().key_sets != key_sets
        {
            next.edit().key_sets = key_sets;
        }
    }

    /// The way to the data plane: tables into listeners, these into ports, and ports on addresses.
    pub(super) fn serve(
        &mut self,
        inputs: Inputs<'_>,
        parents: &ChangedParents,
        terms: &ChangedTerms,
        attached: &mut ChangedAttachments,
        next: &mut NextSnapshot,
    ) -> ChangedServing {
        let Inputs { changed, objects, settings, .. } = inputs;
        let Self {
            listeners,
            hierarchy,
            owners,
            gateways,
            admissions,
            traffic,
            filters,
            routes,
            conflicts,
            tables,
            ports,
            frontends,
            health_checks,
            ..
        } = self;
        let reattached = std::mem::take(&mut attached.routes.listeners);
        let sources = tables::Sources { listeners, routes, conflicts };
        let rebuilt = tables.update(reattached, &attached.conflicts, &parents.listeners, sources);
        let sources = ports::Sources { listeners, hierarchy, gateways, admissions, traffic, filters, tables };
        let changes = ports::Changes {
            listeners: &parents.listeners,
            hierarchy: &parents.hierarchy,
            gateways: &parents.gateways,
            admissions: &parents.admissions,
            traffic: &terms.traffic,
            filters: &attached.filters,
            tables: &rebuilt,
        };
        let opened = ports.update(changes, sources);
        let sources = frontends::Sources { gateways, ports, owners, objects, settings };
        let (merged, owned) = (&parents.gateways, &parents.owners);
        let claimed = frontends.update(changed, merged, &opened.gateways, owned, sources, next);
        health_checks.update(&claimed, sources, next);
        let sources = client_certificates::Sources { listeners, hierarchy };
        client_certificates::update(&parents.listeners, &parents.hierarchy, sources, next);
        ChangedServing { tables: rebuilt, ports: opened, frontends: claimed }
    }

    /// The endpoints of Services. `services` have a port that came into use, or went out of use.
    pub(super) fn reach_services(
        &mut self,
        inputs: Inputs<'_>,
        parents: &ChangedParents,
        terms: &ChangedTerms,
        services: &BTreeSet<ObjectName>,
        frontends: &ChangedFrontends,
        next: &mut NextSnapshot,
    ) -> ChangedBackends {
        let Inputs { changed, objects, settings, .. } = inputs;
        let Self { owners, gateways, policies, backend_policies, routes, backends, .. } = self;
        let changes = backends::Changes {
            objects: changed,
            services,
            owners: &parents.owners,
            gateways: &parents.gateways,
            frontends,
            policies: &terms.tls,
            backend_policies: &terms.backends,
        };
        let uses = routes.backend_uses();
        let sources =
            backends::Sources { uses, owners, gateways, policies, backend_policies, objects, settings };
        backends.update(changes, sources, next)
    }

    /// The endpoints of hosts outside the cluster: of XBackends that changed, and those whose names
    /// have other addresses.
    pub(super) fn reach_externals(
        &mut self,
        inputs: Inputs<'_>,
        parents: &ChangedParents,
        (changed, renamed): (BTreeSet<ObjectName>, BTreeSet<Arc<str>>),
        frontends: &ChangedFrontends,
        next: &mut NextSnapshot,
    ) -> ChangedExternals {
        let Inputs { settings, observations, .. } = inputs;
        let Self { owners, gateways, externals, routes, external_endpoints, .. } = self;
        let changes = external_endpoints::Changes {
            backends: changed,
            names: renamed,
            owners: &parents.owners,
            gateways: &parents.gateways,
            frontends,
        };
        let uses = routes.external_uses();
        let sources =
            external_endpoints::Sources { externals, uses, owners, gateways, observations, settings };
        external_endpoints.update(changes, sources, next)
    }
}
