//! Stage: hosts outside the cluster (XBackends), and of their addresses those that may be sent to.
//! Whose name leads where is up to whoever serves the name, so each address is judged whenever a
//! name was looked up again, and whenever addresses of the cluster change hands.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::{Affinity, Backend, BackendProtocol, Encryption, ObjectName, Snapshot};

use super::backends::is_frontend;
use super::changes::ChangedObjects;
use super::counts::Counts;
use super::frontends::ChangedFrontends;
use super::gateways::{ChangedGateways, Gateways};
use super::owners::{ChangedOwners, Owner, Owners};
use super::relation::Relation;
use super::snapshot::NextSnapshot;
use crate::external::{Declared, ExternalHost};
use crate::feedback::Observations;
use crate::route::{ExternalUse, ProtocolSource};
use crate::special_address::meant;
use crate::{Fault, Reason, Settings};

/// Addresses that one message names; others are counted.
const IN_ONE_MESSAGE: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Externals {
    declared: BTreeMap<ObjectName, Arc<Declared>>,
    /// XBackends by the objects with their authorities and client certificates.
    by_holder: Relation<ObjectKey, ObjectName>,
    by_host: Relation<Arc<str>, ObjectName>,
    /// Those in the snapshot.
    live: BTreeSet<ExternalUse>,
    /// By XBackend, the addresses of its name that are not used, and why.
    refused: BTreeMap<ObjectName, BTreeMap<IpAddr, &'static str>>,
    /// The names that are to be looked up.
    names: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
pub(super) struct ChangedExternals {
    /// XBackends with another status, as far as this stage knows.
    pub(super) backends: BTreeSet<ObjectName>,
    /// The names that are to be looked up, if they are others than before.
    pub(super) names: Option<BTreeSet<Arc<str>>>,
}

/// The changes that endpoints follow from.
pub(super) struct Changes<'c> {
    /// XBackends that changed, or that came into use or went out of use.
    pub(super) backends: BTreeSet<ObjectName>,
    /// Names that have other addresses.
    pub(super) names: BTreeSet<Arc<str>>,
    pub(super) owners: &'c ChangedOwners,
    pub(super) gateways: &'c ChangedGateways,
    pub(super) frontends: &'c ChangedFrontends,
}

/// The state that endpoints follow from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) uses: &'s Counts<ExternalUse>,
    pub(super) owners: &'s Owners,
    pub(super) gateways: &'s Gateways,
    pub(super) observations: &'s Observations,
    pub(super) settings: &'s Settings,
}

// === impl Externals ===

impl Externals {
    /// Reads what changed. Returns the XBackends that are other than they were.
    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        objects: &Objects,
        settings: &Settings,
    ) -> BTreeSet<ObjectName> {
        let mut affected: BTreeSet<_> = changed.of(Kind::XBackend).cloned().collect();
        for kind in [Kind::ConfigMap, Kind::Secret] {
            for name in changed.of(kind) {
                affected.extend(self.by_holder.of(&ObjectKey { kind, name: name.clone() }).cloned());
            }
        }
        affected.retain(|name| self.replace(name, objects, settings));
        affected
    }

    fn replace(&mut self, name: &ObjectName, objects: &Objects, settings: &Settings) -> bool {
        let backend = objects.x_backends.get(name);
        let now = backend.map(|backend| Declared::of(name, backend, objects, &settings.external));
        let before = self.declared.remove(name);
        let [hosts_before, hosts_now] = [before.as_deref(), now.as_ref()].map(host_of);
        self.by_host.update(name, &hosts_before, &hosts_now);
        let [holders_before, holders_now] = [before.as_deref(), now.as_ref()]
            .map(|declared| declared.map(|it| it.holders.clone()).unwrap_or_default());
        self.by_holder.update(name, &holders_before, &holders_now);
        let is_same = before.as_deref() == now.as_ref();
        let kept = before.filter(|_| is_same).or_else(|| now.map(Arc::new));
        if let Some(kept) = kept {
            self.declared.insert(name.clone(), kept);
        }
        !is_same
    }

    pub(super) fn get(&self, backend: &ObjectName) -> Option<&Declared> {
        self.declared.get(backend).map(|declared| &**declared)
    }

    /// Puts those in use into the snapshot, with the addresses that may be sent to.
    pub(super) fn serve(
        &mut self,
        changes: Changes<'_>,
        sources: Sources<'_>,
        next: &mut NextSnapshot,
    ) -> ChangedExternals {
        let Changes { backends: mut affected, names, owners, gateways, frontends } = changes;
        affected.extend(names.iter().flat_map(|name| self.by_host.of(name)).cloned());
        let is_other_owner = !owners.is_empty() || !owners.foreign().is_empty();
        if is_other_owner || !gateways.addresses.is_empty() || !frontends.addresses.is_empty() {
            affected.extend(self.live.iter().map(|used| used.backend.clone()));
        }
        for backend in &affected {
            let host = self.declared.get(backend).and_then(|declared| declared.host.as_ref().ok()).cloned();
            let mut refused = BTreeMap::new();
            let endpoints = host.as_ref().map(|host| sources.endpoints(host, next.get(), &mut refused));
            self.refused.remove(backend);
            if !refused.is_empty() {
                self.refused.insert(backend.clone(), refused);
            }
            for protocol in [ProtocolSource::Service, ProtocolSource::RouteKind] {
                let used = ExternalUse { backend: backend.clone(), protocol };
                let name = used.name();
                let now = host.as_ref().zip(endpoints.as_ref()).filter(|_| sources.uses.contains(&used));
                match now.map(|(host, endpoints)| served(&used, host, endpoints)) {
                    Some(now) => {
                        if next.get().backends.get(name.as_str()).is_none_or(|before| **before != now) {
                            next.edit().backends.insert(name.0, Arc::new(now));
                        }
                        self.live.insert(used);
                    }
                    None => {
                        if self.live.remove(&used) {
                            next.edit().backends.remove(name.as_str());
                        }
                    }
                }
            }
        }
        let hosts = self.live.iter().filter_map(|used| self.declared.get(&used.backend));
        let names: BTreeSet<_> = hosts.flat_map(|declared| host_of(Some(&**declared))).collect();
        let is_other = names != self.names;
        self.names.clone_from(&names);
        ChangedExternals { backends: affected, names: is_other.then_some(names) }
    }

    pub(super) fn is_live(&self, backend: &ObjectName) -> bool {
        [ProtocolSource::Service, ProtocolSource::RouteKind]
            .into_iter()
            .any(|protocol| self.live.contains(&ExternalUse { backend: backend.clone(), protocol }))
    }

    /// The fault of a name that leads nowhere, or to what may not be sent to.
    pub(super) fn name_fault(&self, backend: &ObjectName, observations: &Observations) -> Option<Fault> {
        let host = self.declared.get(backend)?.host.as_ref().ok()?;
        if !self.is_live(backend) || !observations.are_names_looked_up() {
            return None;
        }
        let name = &host.name;
        let Some(answer) = observations.name(name) else {
            let message = format!("the addresses of {name} are being looked up; until then, nothing is sent");
            return Some(Fault::unresolved(Reason::Pending, message));
        };
        if let Some(refused) = self.refused.get(backend) {
            let mut reasons: Vec<_> =
                refused.iter().map(|(address, why)| format!("{address} is {why}")).collect();
            let left_out = reasons.split_off(reasons.len().min(IN_ONE_MESSAGE)).len();
            if left_out > 0 {
                reasons.push(format!("and {left_out} more"));
            }
            let message = format!(
                "addresses of {name} are not used: {}; the agents' operator can allow addresses that are not public, but \
                 none of the cluster's, with --external-ranges",
                reasons.join(", ")
            );
            return Some(Fault::unresolved(Reason::RefNotPermitted, message));
        }
        let why = answer.failure.as_deref().unwrap_or("the answer holds none");
        let message = format!("{name} has no address: {why}; requests are answered 503");
        answer.addresses.is_empty().then(|| Fault::unresolved(Reason::NameNotResolved, message))
    }
}

fn host_of(declared: Option<&Declared>) -> BTreeSet<Arc<str>> {
    let host = declared.and_then(|declared| declared.host.as_ref().ok());
    host.map(|host| host.name.clone()).into_iter().collect()
}

fn served(used: &ExternalUse, host: &ExternalHost, endpoints: &[SocketAddr]) -> Backend {
    let inferred = match (used.protocol, &host.encryption) {
        (ProtocolSource::RouteKind, _) => BackendProtocol::H2c,
        (ProtocolSource::Service, Encryption::Tls(_)) => BackendProtocol::Negotiated,
        (ProtocolSource::Service, Encryption::None | Encryption::Unavailable) => BackendProtocol::Http1,
    };
    Backend {
        name: used.name(),
        protocol: host.protocol.unwrap_or(inferred),
        encryption: host.encryption.clone(),
        affinity: Affinity::None,
        endpoints: endpoints.to_vec(),
    }
}

// === impl Sources ===

impl Sources<'_> {
    fn endpoints(
        self,
        host: &ExternalHost,
        snapshot: &Snapshot,
        refused: &mut BTreeMap<IpAddr, &'static str>,
    ) -> Vec<SocketAddr> {
        let answer = self.observations.name(&host.name);
        let mut endpoints = Vec::new();
        for address in answer.into_iter().flat_map(|answer| &answer.addresses) {
            match self.objection(address, snapshot) {
                Some(why) => drop(refused.insert(*address, why)),
                None => endpoints.push(SocketAddr::new(*address, host.port)),
            }
        }
        endpoints
    }

    /// The reason why an address is sent nothing. Of one that stands for another, both count.
    fn objection(self, address: &IpAddr, snapshot: &Snapshot) -> Option<&'static str> {
        if !self.settings.external.allows(address) {
            return Some("not public");
        }
        let meant = meant(address);
        [*address, meant].iter().find_map(|address| {
            let owner = self.owners.of(address).map(|owner| match owner {
                Owner::ApiServer => "the API server's",
                Owner::Service(_) => "a Service's",
                Owner::Node => "a node's",
                Owner::Bridge | Owner::Pods => "of the pods' network",
            });
            let is_gateways = self.gateways.have(address) || is_frontend(address, snapshot);
            let is_nodes =
                self.owners.is_own(address) || self.observations.node_addresses().contains(address);
            owner
                .or_else(|| self.owners.is_foreign(address).then_some("a Service's"))
                .or_else(|| is_gateways.then_some("a Gateway's"))
                .or_else(|| is_nodes.then_some("a node's"))
                .or_else(|| {
                    self.owners.are_nodes_unread().then_some("perhaps a node's (Nodes cannot be read)")
                })
        })
    }
}
