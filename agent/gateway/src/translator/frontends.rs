//! Part of serving: which Gateway has which address and port. Two Gateways may ask for the same one; the older keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use portcullis_model::{FrontendKey, ObjectName, PortKey, Snapshot};

use super::Translator;
use super::unit::Root;
use crate::infra::{self, HostPorts, Mode};
use crate::{Serves, created, node};

/// Who asks for an address and port, the oldest first, then by `namespace/name`.
#[derive(Debug, Default)]
pub(super) struct Claims {
    by_frontend: BTreeMap<FrontendKey, BTreeSet<Claim>>,
    by_gateway: BTreeMap<ObjectName, BTreeMap<FrontendKey, Claim>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    created: i64,
    written: String,
    gateway: ObjectName,
}

impl Translator {
    pub(super) fn update_frontends(&mut self, next: &mut Option<Snapshot>) {
        let mut touched = BTreeSet::new();
        let mut concerned = BTreeSet::new();
        for name in std::mem::take(&mut self.dirty.frontends) {
            let claims = self.wanted(&name);
            touched.extend(self.serving.claims.replace(&name, claims));
            self.dirty.generated.insert(name.clone());
            concerned.insert(name);
        }
        for key in touched {
            concerned.extend(self.serving.claims.claimants(&key).cloned());
            self.set_frontend(key, next);
        }
        for name in concerned {
            self.update_lost(&name);
        }
    }

    /// The frontends that a Gateway asks for: each of its ports on each of its addresses.
    fn wanted(&self, name: &ObjectName) -> BTreeMap<FrontendKey, Claim> {
        let Some(root) = self.roots.get(name).filter(|root| root.refusal.is_none()) else {
            return BTreeMap::new();
        };
        let Some(gateway) = self.objects.gateways.get(name) else { return BTreeMap::new() };
        let claim =
            Claim { created: created(&gateway.metadata), written: name.to_string(), gateway: name.clone() };
        let ports = self.serving.ports_of(name);
        let addresses = self.served_addresses(name, root);
        let keys = ports.flat_map(|port| addresses.iter().map(move |it| FrontendKey::new(*it, port)));
        keys.map(|key| (key, claim.clone())).collect()
    }

    /// With host ports, all of the node's as well. The address of a pod is nothing that the Gateway knows.
    fn served_addresses(&self, name: &ObjectName, root: &Root) -> BTreeSet<IpAddr> {
        let everywhere = BTreeSet::from([Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]);
        let own = self.own_addresses(name, root).into_iter();
        match (&self.settings.serves, root.parameters.mode) {
            (Serves::Node, Mode::Node) if root.parameters.host_ports == HostPorts::On => {
                own.chain(everywhere).collect()
            }
            (Serves::Node, Mode::Node) => own.collect(),
            (Serves::Dedicated(only), Mode::Dedicated) if only == name => everywhere,
            (Serves::Node, Mode::Dedicated) | (Serves::Dedicated(_), _) => BTreeSet::new(),
        }
    }

    /// What does not arrive with the address that it was sent to arrives with the cluster's.
    fn own_addresses(&self, name: &ObjectName, root: &Root) -> BTreeSet<IpAddr> {
        let usable = root.addresses.usable.iter().copied();
        let Some(service) = self.service_of(name) else { return usable.collect() };
        let arrives = |address: &IpAddr| !node::is_delivered_otherwise(address, service, &self.objects);
        let (mut own, otherwise): (BTreeSet<_>, BTreeSet<_>) = usable.partition(arrives);
        if !otherwise.is_empty() {
            own.extend(infra::cluster_addresses(service));
        }
        own
    }

    /// What was generated for the Gateway; nothing without a cluster.
    fn service_of(&self, name: &ObjectName) -> Option<&Service> {
        let gateway = self.objects.gateways.get(name)?;
        let service = infra::generated_name(&name.name, &gateway.spec.gateway_class_name);
        let service = self.objects.services.get(&ObjectName::new(&*name.namespace, service))?;
        (infra::generated_for(service).as_ref() == Some(name)).then_some(service)
    }

    fn set_frontend(&self, key: FrontendKey, next: &mut Option<Snapshot>) {
        let winner = self.serving.claims.winner(&key);
        let port = winner.and_then(|gateway| self.serving.port(gateway, key.port_key()));
        let before = self.snapshot.frontends.get(&key);
        let same = match (before, port) {
            (Some(before), Some(port)) => Arc::ptr_eq(before, port),
            (before, port) => before.is_none() && port.is_none(),
        };
        if same {
            return;
        }
        let frontends = &mut self.next(next).frontends;
        match port {
            Some(port) => frontends.insert(key, port.clone()),
            None => frontends.remove(&key),
        };
    }

    fn update_lost(&mut self, name: &ObjectName) {
        let mut lost: BTreeMap<PortKey, BTreeSet<IpAddr>> = BTreeMap::new();
        for key in self.serving.claims.lost_by(name) {
            lost.entry(key.port_key()).or_default().insert(key.address);
        }
        let Some(root) = self.roots.get_mut(name) else { return };
        if root.lost != lost {
            root.lost = lost;
            self.dirty_member_statuses(name);
        }
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
