//! Stage: the backends that rules refer to, with their endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use portcullis_api::admission::is_subdomain;
use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::{Backend, FrontendKey, L4Protocol, ObjectName, PortKey, Snapshot};

use super::backend_policies::{BackendPolicies, ChangedBackendPolicies};
use super::changes::{ChangedObjects, service_of};
use super::counts::Counts;
use super::frontends::ChangedFrontends;
use super::gateways::{ChangedGateways, Gateways};
use super::owners::{ChangedOwners, Owner, Owners};
use super::policies::{ChangedPolicies, Policies};
use super::relation::Relation;
use super::snapshot::NextSnapshot;
use crate::route::{BackendUse, ProtocolSource, backend};
use crate::special_address::is_special;
use crate::{AgentPlace, AgentRole, EndpointRule, Settings};

/// Endpoints of a Service that one message names; others are counted.
const IN_ONE_MESSAGE: usize = 8;

/// The label of a Node that says in which zone it is.
const ZONE: &str = "topology.kubernetes.io/zone";

const PERHAPS_A_NODES: &str =
    "perhaps a node's (the agents cannot read Nodes: give them the rights of the chart's ClusterRole)";
const BRIDGES: &str =
    "a bridge's or tunnel's of a node (it begins the range of its pods, and no pod in its targetRef has it)";

#[derive(Debug, Default)]
pub(super) struct Backends {
    slices_by_service: Relation<ObjectName, ObjectName>,
    /// Those in the snapshot.
    live: BTreeSet<BackendUse>,
    /// By backend, the endpoints that are not used, and why.
    refused: BTreeMap<BackendUse, RefusedEndpoints>,
    /// By backend, the pods that its endpoints with addresses of nodes name, one for each address:
    /// they are read, and prove them or not.
    pods: BTreeMap<BackendUse, BTreeMap<IpAddr, ObjectName>>,
    /// The agent's node, and the zone that its Node names.
    place: AgentPlace,
}

#[derive(Debug, Default)]
pub(super) struct ChangedBackends {
    /// Services of which other endpoints are refused than before.
    pub(super) refused: BTreeSet<ObjectName>,
    /// Services whose endpoints name other pods to prove them.
    pub(super) reproved: BTreeSet<ObjectName>,
}

/// The endpoints of a backend that need more than an address.
#[derive(Default)]
struct Judged {
    refused: RefusedEndpoints,
    pods: BTreeMap<IpAddr, ObjectName>,
}

type RefusedEndpoints = BTreeMap<IpAddr, &'static str>;

/// The changes that backends follow from.
pub(super) struct Changes<'c> {
    pub(super) objects: &'c ChangedObjects,
    /// Services of which another port came into use, or went out of use.
    pub(super) services: &'c BTreeSet<ObjectName>,
    pub(super) owners: &'c ChangedOwners,
    pub(super) gateways: &'c ChangedGateways,
    pub(super) frontends: &'c ChangedFrontends,
    pub(super) policies: &'c ChangedPolicies,
    pub(super) backend_policies: &'c ChangedBackendPolicies,
}

/// The state that backends follow from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) uses: &'s Counts<BackendUse>,
    pub(super) owners: &'s Owners,
    pub(super) gateways: &'s Gateways,
    pub(super) policies: &'s Policies,
    pub(super) backend_policies: &'s BackendPolicies,
    pub(super) objects: &'s Objects,
    pub(super) settings: &'s Settings,
}

// === impl Backends ===

impl Backends {
    pub(super) fn update(
        &mut self,
        changes: Changes<'_>,
        sources: Sources<'_>,
        next: &mut NextSnapshot,
    ) -> ChangedBackends {
        let changed = changes.objects;
        let mut services: BTreeSet<_> = changed.of(Kind::Service).chain(changes.services).cloned().collect();
        services.extend(self.update_slices(changed, sources.objects));
        services.extend(self.with_other_owners(&changes, sources, next.get()));
        services.extend(self.proved_by(changed));
        services.extend(changes.policies.services.iter().chain(&changes.backend_policies.services).cloned());
        let before = std::mem::replace(&mut self.place, sources.place());
        let has_moved = self.place != before;
        if changes.policies.all || has_moved {
            services.extend(self.live.iter().map(|used| used.service.clone()));
        }
        let mut now_changed = ChangedBackends::default();
        for used in services.iter().flat_map(|it| self.uses_of(it, sources.uses)).collect::<Vec<_>>() {
            let name = used.name();
            let mut judged = Judged::default();
            if sources.uses.contains(&used) {
                let now = self.backend(&used, sources, next.get(), &mut judged);
                if next.get().backends.get(name.as_str()).is_none_or(|before| **before != now) {
                    next.edit().backends.insert(name.0, Arc::new(now));
                }
                self.live.insert(used.clone());
            } else {
                self.live.remove(&used);
                next.edit().backends.remove(name.as_str());
            }
            self.keep(used, judged, &mut now_changed);
        }
        now_changed
    }

    fn keep(&mut self, used: BackendUse, judged: Judged, changed: &mut ChangedBackends) {
        let Judged { refused, pods } = judged;
        if self.refused.remove(&used).unwrap_or_default() != refused {
            changed.refused.insert(used.service.clone());
        }
        if self.pods.remove(&used).unwrap_or_default() != pods {
            changed.reproved.insert(used.service.clone());
        }
        if !refused.is_empty() {
            self.refused.insert(used.clone(), refused);
        }
        if !pods.is_empty() {
            self.pods.insert(used, pods);
        }
    }

    /// The pods that a Service's endpoints name to prove them, in order.
    pub(super) fn pods_of(&self, service: &ObjectName) -> impl Iterator<Item = ObjectKey> {
        let first = first_use(service);
        let of_service = self.pods.range(first..).take_while(move |(used, _)| used.service == *service);
        let pods: BTreeSet<_> = of_service.flat_map(|(_, pods)| pods.values().cloned()).collect();
        pods.into_iter().map(|name| ObjectKey { kind: Kind::Pod, name })
    }

    /// The Services with an endpoint that a changed pod may prove.
    fn proved_by(&self, changed: &ChangedObjects) -> BTreeSet<ObjectName> {
        let pods: BTreeSet<_> = changed.of(Kind::Pod).collect();
        if pods.is_empty() {
            return BTreeSet::new();
        }
        let uses = self.pods.iter().filter(|(_, named)| named.values().any(|pod| pods.contains(pod)));
        uses.map(|(used, _)| used.service.clone()).collect()
    }

    /// The endpoints of a Service that are no backends, with the reasons; `None` if all are.
    pub(super) fn refused_of(&self, service: &ObjectName) -> Option<String> {
        let first = first_use(service);
        let of_service = self.refused.range(first..).take_while(|(used, _)| used.service == *service);
        let refused: BTreeMap<_, _> = of_service.flat_map(|(_, refused)| refused).collect();
        let mut reasons: Vec<_> =
            refused.iter().map(|(address, why)| format!("{address} is {why}")).collect();
        let left_out = reasons.split_off(reasons.len().min(IN_ONE_MESSAGE)).len();
        if left_out > 0 {
            reasons.push(format!("and {left_out} more"));
        }
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }

    /// The Services with an endpoint whose address has come to belong to the cluster, or does no
    /// longer.
    fn with_other_owners(
        &self,
        changes: &Changes<'_>,
        sources: Sources<'_>,
        snapshot: &Snapshot,
    ) -> BTreeSet<ObjectName> {
        let Changes { owners, gateways, frontends, .. } = changes;
        if sources.settings.endpoints == EndpointRule::Any
            || owners.is_empty() && gateways.addresses.is_empty() && frontends.addresses.is_empty()
        {
            return BTreeSet::new();
        }
        let concerns = |address: &IpAddr| {
            owners.concerns(address)
                || gateways.addresses.contains(address)
                || frontends.addresses.contains(address)
        };
        let uses = self.live.iter().filter(|used| {
            let backend = snapshot.backends.get(used.name().as_str());
            let endpoints = backend.into_iter().flat_map(|backend| &backend.endpoints);
            endpoints.map(SocketAddr::ip).any(|address| concerns(&address))
                || self.refused.get(used).is_some_and(|refused| refused.keys().any(concerns))
        });
        uses.map(|used| used.service.clone()).collect()
    }

    /// Returns the Services that have other EndpointSlices, or had them.
    fn update_slices(&mut self, changed: &ChangedObjects, objects: &Objects) -> BTreeSet<ObjectName> {
        let mut services = BTreeSet::new();
        for (slice, service) in &changed.left_services {
            self.slices_by_service.remove(service, slice);
            services.insert(service.clone());
        }
        for slice in changed.of(Kind::EndpointSlice) {
            let object = objects.get(&ObjectKey { kind: Kind::EndpointSlice, name: slice.clone() });
            if let Some(service) = object.as_ref().and_then(service_of) {
                self.slices_by_service.insert(service.clone(), slice.clone());
                services.insert(service);
            }
        }
        services
    }

    fn backend(
        &self,
        used: &BackendUse,
        sources: Sources<'_>,
        snapshot: &Snapshot,
        judged: &mut Judged,
    ) -> Backend {
        let objects = sources.objects;
        let service = objects.services.get(&used.service).map(|service| &**service);
        let slices = self.slices_by_service.of(&used.service);
        let slices = slices.filter_map(|name| objects.endpoint_slices.get(name)).map(|slice| &**slice);
        let port = service.and_then(|service| used.port_name(service));
        let encryption = sources.policies.encryption(&used.service, port);
        let backend = backend(used, service, encryption, slices, &self.place, |slice, endpoint, address| {
            let Some(mut why) = sources.objection(slice, &address, snapshot) else { return true };
            // Pods of Gateways have no right to read others: nothing is proved to them.
            if sources.may_be_proved(&address)
                && sources.settings.role == AgentRole::Node
                && let Some(pod) = named_pod(slice, endpoint)
            {
                // The first is enough: pods of the host's network have their node for themselves.
                let pod = judged.pods.entry(address).or_insert(pod);
                if sources.proves(pod, &address) {
                    return true;
                }
                if why != BRIDGES {
                    why = "a node's (by no pod of the host's network in its targetRef)";
                }
            }
            judged.refused.insert(address, why);
            false
        });
        let retry_budget = sources.backend_policies.retry_budget(&used.service);
        let backend = Backend { retry_budget, ..backend };
        match sources.backend_policies.terms(&used.service, port) {
            Some(terms) => terms.applied(backend, used.port.protocol),
            None => backend,
        }
    }

    /// The uses of a Service, present and past.
    fn uses_of(&self, service: &ObjectName, uses: &Counts<BackendUse>) -> BTreeSet<BackendUse> {
        let first = first_use(service);
        let of_service = |used: &&BackendUse| used.service == *service;
        let now = uses.from(&first).take_while(of_service);
        now.chain(self.live.range(&first..).take_while(of_service)).cloned().collect()
    }
}

// === impl Sources ===

impl Sources<'_> {
    fn place(self) -> AgentPlace {
        let mut place = self.settings.place.clone();
        if place.zone.is_none()
            && let Some(node) = &place.node
        {
            let node = self.objects.nodes.get(&ObjectName::new("", node.clone()));
            let zone = node.and_then(|node| node.metadata.labels.as_ref()?.get(ZONE));
            place.zone = zone.filter(|zone| !zone.is_empty()).map(|zone| zone.as_str().into());
        }
        place
    }

    fn may_be_proved(self, address: &IpAddr) -> bool {
        self.is_nodes(address) || self.owners.of(address) == Some(Owner::Bridge)
    }

    fn is_nodes(self, address: &IpAddr) -> bool {
        self.owners.is_node(address) || self.owners.is_own(address)
    }

    /// Tenants write EndpointSlices; what a pod's status says of its addresses they do not.
    fn proves(self, pod: &ObjectName, address: &IpAddr) -> bool {
        let pod = self.objects.pods.get(pod);
        let pod = pod.filter(|pod| pod.spec.host_network || !self.is_nodes(address));
        pod.is_some_and(|pod| pod.status.pod_ips.iter().any(|it| it.ip.parse() == Ok(*address)))
    }

    /// The reason why an endpoint is no backend.
    fn objection(self, slice: &EndpointSlice, address: &IpAddr, snapshot: &Snapshot) -> Option<&'static str> {
        let EndpointRule::Foreign { allowed } = &self.settings.endpoints else { return None };
        if slice.metadata.namespace.as_ref().is_some_and(|namespace| allowed.contains(namespace)) {
            return None;
        }
        if is_special(address) {
            return Some("loopback, link-local or otherwise no pod's");
        }
        let owner = self.owners.of(address).and_then(|owner| match owner {
            Owner::ApiServer => Some("the API server's"),
            Owner::Service(_) => Some("a Service's"),
            Owner::Node => Some("a node's"),
            Owner::Bridge if self.settings.role == AgentRole::Node => Some(BRIDGES),
            // Pods of Gateways send from a pod's network, and have no right to read the pods that a
            // network without bridges gives such addresses.
            Owner::Bridge | Owner::Pods => None,
        });
        let is_gateways = || self.gateways.have(address) || is_frontend(address, snapshot);
        owner
            .or_else(|| is_gateways().then_some("a Gateway's"))
            .or_else(|| self.owners.is_own(address).then_some("a node's"))
            .or_else(|| self.owners.are_nodes_unread().then_some(PERHAPS_A_NODES))
    }
}

/// The pod that an endpoint names, of the same namespace.
fn named_pod(slice: &EndpointSlice, endpoint: &Endpoint) -> Option<ObjectName> {
    let target = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"))?;
    let namespace = slice.metadata.namespace.as_deref()?;
    let is_own = target.namespace.as_deref().is_none_or(|written| written == namespace);
    let name = target.name.as_deref().filter(|name| is_subdomain(name))?;
    is_own.then(|| ObjectName::new(namespace, name))
}

pub(super) fn is_frontend(address: &IpAddr, snapshot: &Snapshot) -> bool {
    L4Protocol::ALL.into_iter().any(|protocol| {
        let first = FrontendKey { protocol, address: *address, port: 0 };
        let next = snapshot.frontends.range(first..).next();
        next.is_some_and(|(key, _)| key.protocol == protocol && key.address == *address)
    })
}

fn first_use(service: &ObjectName) -> BackendUse {
    BackendUse { service: service.clone(), port: PortKey::FIRST, protocol: ProtocolSource::Service }
}

#[cfg(test)]
#[path = "backends_tests.rs"]
mod tests;
