//! Stage: which Gateway has which address and port. Two Gateways may ask for the same one; the
//! older keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use portcullis_api::{Kind, Objects, created};
use portcullis_model::{FrontendKey, ObjectName, PortKey};

use super::changes::ChangedObjects;
use super::gateways::{ChangedGateways, Gateways, MergedGateway};
use super::ports::{ChangedPorts, Ports};
use super::snapshot::NextSnapshot;
use crate::infra::{self, HostPorts, Mode};
use crate::{AgentRole, Settings, parent};

#[derive(Debug, Default)]
pub(super) struct Frontends {
    claims: Claims,
    /// By Gateway, its addresses by port that an older one has.
    lost: BTreeMap<ObjectName, Lost>,
}

pub(super) type Lost = BTreeMap<PortKey, BTreeSet<IpAddr>>;

#[derive(Debug, Default)]
pub(super) struct ChangedFrontends {
    /// Gateways that may claim other frontends than before.
    pub(super) claimants: BTreeSet<ObjectName>,
    /// Gateways that lost others to older ones.
    pub(super) lost: BTreeSet<ObjectName>,
}

/// The state that claims follow from: the ports and addresses of Gateways.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) gateways: &'s Gateways,
    pub(super) ports: &'s Ports,
    pub(super) objects: &'s Objects,
    pub(super) settings: &'s Settings,
}

/// The Gateways that ask for an address and port, the oldest first, then by `namespace/name`.
#[derive(Debug, Default)]
struct Claims {
    by_frontend: BTreeMap<FrontendKey, BTreeSet<Claim>>,
    by_gateway: BTreeMap<ObjectName, BTreeMap<FrontendKey, Claim>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    created: i64,
    written: String,
    gateway: ObjectName,
}

// === impl Frontends ===

impl Frontends {
    /// The addresses by port that an older Gateway has.
    pub(super) fn lost_by(&self, gateway: &ObjectName) -> Option<&Lost> {
        self.lost.get(gateway)
    }

    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        merged: &ChangedGateways,
        ports: &ChangedPorts,
        sources: Sources<'_>,
        next: &mut NextSnapshot,
    ) -> ChangedFrontends {
        let mut claimants: BTreeSet<_> = merged.merged.union(ports).cloned().collect();
        claimants.extend(changed.generated_for.iter().cloned());
        if changed.any_of(Kind::Node) {
            claimants.extend(sources.gateways.names().cloned());
        }
        let mut touched = BTreeSet::new();
        for name in &claimants {
            touched.extend(self.claims.replace(name, sources.wanted(name)));
        }
        let mut concerned = claimants.clone();
        for key in touched {
            concerned.extend(self.claims.claimants(&key).cloned());
            self.set_frontend(key, sources.ports, next);
        }
        let lost = concerned.into_iter().filter(|name| self.update_lost(name)).collect();
        ChangedFrontends { claimants, lost }
    }

    fn set_frontend(&self, key: FrontendKey, ports: &Ports, next: &mut NextSnapshot) {
        let winner = self.claims.winner(&key);
        let port = winner.and_then(|gateway| ports.get(gateway, key.port_key()));
        let same = match (next.get().frontends.get(&key), port) {
            (Some(before), Some(port)) => Arc::ptr_eq(before, port),
            (before, port) => before.is_none() && port.is_none(),
        };
        if same {
            return;
        }
        match port {
            Some(port) => next.edit().frontends.insert(key, port.clone()),
            None => next.edit().frontends.remove(&key),
        };
    }

    /// Returns whether it is another than before.
    fn update_lost(&mut self, name: &ObjectName) -> bool {
        let mut lost = Lost::new();
        for key in self.claims.lost_by(name) {
            lost.entry(key.port_key()).or_default().insert(key.address);
        }
        if lost.is_empty() {
            return self.lost.remove(name).is_some();
        }
        self.lost.insert(name.clone(), lost.clone()).is_none_or(|before| before != lost)
    }
}

// === impl Sources ===

impl Sources<'_> {
    /// The frontends that a Gateway asks for: each of its ports on each of its addresses.
    fn wanted(self, name: &ObjectName) -> BTreeMap<FrontendKey, Claim> {
        let Some(merged) = self.gateways.get(name).filter(|merged| merged.refusal.is_none()) else {
            return BTreeMap::new();
        };
        let Some(gateway) = self.objects.gateways.get(name) else { return BTreeMap::new() };
        let claim =
            Claim { created: created(&gateway.metadata), written: name.to_string(), gateway: name.clone() };
        let addresses = self.served_addresses(name, merged);
        let ports = self.ports.of(name);
        let keys = ports.flat_map(|port| addresses.iter().map(move |it| FrontendKey::new(*it, port)));
        keys.map(|key| (key, claim.clone())).collect()
    }

    /// With host ports, all of the node's as well. The address of a pod is nothing that the Gateway
    /// knows.
    fn served_addresses(self, name: &ObjectName, merged: &MergedGateway) -> BTreeSet<IpAddr> {
        let everywhere = BTreeSet::from([Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]);
        let own = self.own_addresses(name, merged).into_iter();
        match (&self.settings.role, merged.parameters.mode) {
            (AgentRole::Node, Mode::Node) if merged.parameters.host_ports == HostPorts::On => {
                own.chain(everywhere).collect()
            }
            (AgentRole::Node, Mode::Node) => own.collect(),
            (AgentRole::Dedicated(only), Mode::Dedicated) if only == name => everywhere,
            (AgentRole::Node, Mode::Dedicated) | (AgentRole::Dedicated(_), _) => BTreeSet::new(),
        }
    }

    /// The usable addresses; traffic that does not arrive with the address it was sent to arrives
    /// with the cluster's.
    fn own_addresses(self, name: &ObjectName, merged: &MergedGateway) -> BTreeSet<IpAddr> {
        let usable = merged.addresses.usable.iter().copied();
        let Some(service) = self.service_of(name) else { return usable.collect() };
        let arrives = |address: &IpAddr| !parent::is_delivered_otherwise(address, service, self.objects);
        let (mut own, otherwise): (BTreeSet<_>, BTreeSet<_>) = usable.partition(arrives);
        if !otherwise.is_empty() {
            own.extend(infra::cluster_addresses(service));
        }
        own
    }

    /// The Service generated for the Gateway; `None` without a cluster.
    fn service_of(&self, name: &ObjectName) -> Option<&Service> {
        let gateway = self.objects.gateways.get(name)?;
        let service = infra::generated_name(&name.name, &gateway.spec.gateway_class_name);
        let service = self.objects.services.get(&ObjectName::new(&*name.namespace, service))?;
        (infra::generated_for(service).as_ref() == Some(name)).then_some(service)
    }
}

// === impl Claims ===

impl Claims {
    /// Returns every frontend that the Gateway claims or claimed.
    fn replace(&mut self, gateway: &ObjectName, now: BTreeMap<FrontendKey, Claim>) -> BTreeSet<FrontendKey> {
        let before = self.by_gateway.remove(gateway).unwrap_or_default();
        for (key, claim) in &before {
            if let Some(claims) = self.by_frontend.get_mut(key) {
                claims.remove(claim);
            }
        }
        for (key, claim) in &now {
            self.by_frontend.entry(*key).or_default().insert(claim.clone());
        }
        let touched: BTreeSet<_> = before.keys().chain(now.keys()).copied().collect();
        for key in &touched {
            if self.by_frontend.get(key).is_some_and(BTreeSet::is_empty) {
                self.by_frontend.remove(key);
            }
        }
        if !now.is_empty() {
            self.by_gateway.insert(gateway.clone(), now);
        }
        touched
    }

    fn winner(&self, key: &FrontendKey) -> Option<&ObjectName> {
        self.by_frontend.get(key)?.first().map(|claim| &claim.gateway)
    }

    fn claimants(&self, key: &FrontendKey) -> impl Iterator<Item = &ObjectName> {
        self.by_frontend.get(key).into_iter().flatten().map(|claim| &claim.gateway)
    }

    fn lost_by(&self, gateway: &ObjectName) -> impl Iterator<Item = &FrontendKey> {
        let claimed = self.by_gateway.get(gateway).into_iter().flat_map(BTreeMap::keys);
        claimed.filter(move |key| self.winner(key) != Some(gateway))
    }
}
