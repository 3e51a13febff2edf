//! Stage: which Gateway has which address and port. Two Gateways may ask for the same one; the
//! older keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use portcullis_api::{Kind, Objects, created};
use portcullis_model::{FrontendKey, L4Protocol, ObjectName, PortKey};

use super::changes::ChangedObjects;
use super::gateways::{ChangedGateways, Gateways, MergedGateway};
use super::owners::{ChangedOwners, Owners};
use super::ports::Ports;
use super::snapshot::NextSnapshot;
use crate::infra::{self, HostPorts, Mode, Parameters};
use crate::{AgentRole, Settings, parent};

/// All addresses, of the node or of a pod.
const EVERYWHERE: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

#[derive(Debug, Default)]
pub(super) struct Frontends {
    claims: Claims,
    /// By Gateway, its addresses by port that an older one has.
    lost: BTreeMap<ObjectName, Lost>,
    /// By Gateway, the ports of the nodes that it asks for and has no right to.
    withheld: BTreeMap<ObjectName, Withheld>,
}

pub(super) type Lost = BTreeMap<PortKey, BTreeSet<IpAddr>>;

/// The reason for each port.
pub(super) type Withheld = BTreeMap<PortKey, String>;

#[derive(Debug, Default)]
pub(super) struct ChangedFrontends {
    /// Gateways that may claim other frontends than before.
    pub(super) claimants: BTreeSet<ObjectName>,
    /// Gateways that lost others to older ones, or have no right to others, than before.
    pub(super) lost: BTreeSet<ObjectName>,
    /// Addresses on which another Gateway may be served now, or none.
    pub(super) addresses: BTreeSet<IpAddr>,
}

/// The state that claims follow from: the ports and addresses of Gateways.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) gateways: &'s Gateways,
    pub(super) ports: &'s Ports,
    pub(super) owners: &'s Owners,
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
    /// The Gateway's port that is served there.
    port: PortKey,
}

// === impl Frontends ===

impl Frontends {
    /// The addresses by port that an older Gateway has.
    pub(super) fn lost_by(&self, gateway: &ObjectName) -> Option<&Lost> {
        self.lost.get(gateway)
    }

    /// The ports of the nodes that a Gateway asks for in vain.
    pub(super) fn withheld_from(&self, gateway: &ObjectName) -> Option<&Withheld> {
        self.withheld.get(gateway)
    }

    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        merged: &ChangedGateways,
        ports: &BTreeSet<ObjectName>,
        owners: &ChangedOwners,
        sources: Sources<'_>,
        next: &mut NextSnapshot,
    ) -> ChangedFrontends {
        let mut claimants: BTreeSet<_> = merged.merged.union(ports).cloned().collect();
        claimants.extend(changed.generated_for.iter().cloned());
        if changed.any_of(Kind::Node) {
            claimants.extend(sources.gateways.names().cloned());
        }
        let (mut touched, mut lost) = (BTreeSet::new(), BTreeSet::new());
        for name in &claimants {
            let Wanted { claims, withheld } = sources.wanted(name);
            touched.extend(self.claims.replace(name, claims));
            if self.update_withheld(name, withheld) {
                lost.insert(name.clone());
            }
        }
        let mut concerned = claimants.clone();
        let addresses: BTreeSet<_> = touched.iter().map(|key| key.address).collect();
        for key in touched {
            concerned.extend(self.claims.claimants(&key).cloned());
            self.set_frontend(key, sources.ports, next);
        }
        for address in addresses.union(owners.foreign()) {
            self.set_shared(*address, sources.owners, next);
        }
        lost.extend(concerned.into_iter().filter(|name| self.update_lost(name)));
        ChangedFrontends { claimants, lost, addresses }
    }

    fn set_frontend(&self, key: FrontendKey, ports: &Ports, next: &mut NextSnapshot) {
        let port = self.claims.winner(&key).and_then(|claim| ports.get(&claim.gateway, claim.port));
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

    /// An address is shared while Gateways and other Services have it.
    fn set_shared(&self, address: IpAddr, owners: &Owners, next: &mut NextSnapshot) {
        let is_shared = self.claims.have(address) && owners.is_foreign(&address);
        if next.get().shared_addresses.contains(&address) != is_shared {
            let shared = &mut next.edit().shared_addresses;
            _ = if is_shared { shared.insert(address) } else { shared.remove(&address) };
        }
    }

    /// Returns whether it is another than before.
    fn update_lost(&mut self, name: &ObjectName) -> bool {
        let mut lost = Lost::new();
        for (key, claim) in self.claims.lost_by(name) {
            lost.entry(claim.port).or_default().insert(key.address);
        }
        if lost.is_empty() {
            return self.lost.remove(name).is_some();
        }
        self.lost.insert(name.clone(), lost.clone()).is_none_or(|before| before != lost)
    }

    /// Returns whether it is another than before.
    fn update_withheld(&mut self, name: &ObjectName, withheld: Withheld) -> bool {
        if withheld.is_empty() {
            return self.withheld.remove(name).is_some();
        }
        self.withheld.insert(name.clone(), withheld.clone()).is_none_or(|before| before != withheld)
    }
}

pub(super) fn asks_for_host_ports(settings: &Settings, merged: &MergedGateway) -> bool {
    let Parameters { mode, host_ports, .. } = merged.parameters;
    (&settings.role, mode, host_ports) == (&AgentRole::Node, Mode::Node, HostPorts::On)
}

/// The frontends that a Gateway asks for, and what it asks for without a right.
#[derive(Default)]
struct Wanted {
    claims: BTreeMap<FrontendKey, Claim>,
    withheld: Withheld,
}

// === impl Sources ===

impl Sources<'_> {
    /// Each port of a Gateway on each of its addresses and, with host ports, on all of the node's;
    /// and on all of the node's, too, at its node port.
    fn wanted(self, name: &ObjectName) -> Wanted {
        let Some(merged) = self.gateways.get(name).filter(|merged| merged.refusal.is_none()) else {
            return Wanted::default();
        };
        let Some(gateway) = self.objects.gateways.get(name) else { return Wanted::default() };
        let claim = |port| Claim {
            created: created(&gateway.metadata),
            written: name.to_string(),
            gateway: name.clone(),
            port,
        };
        let node_ports = self.node_ports(name, merged);
        let addresses = self.served_addresses(name, merged);
        let mut wanted = Wanted::default();
        for port in self.ports.of(name) {
            let mut served = addresses.clone();
            if asks_for_host_ports(self.settings, merged) {
                let class = &gateway.spec.gateway_class_name;
                match self.settings.host_ports.refusal(class, &name.namespace, port) {
                    None => served.extend(EVERYWHERE),
                    Some(reason) => drop(wanted.withheld.insert(port, reason)),
                }
            }
            let keys = served.into_iter().map(|address| FrontendKey::new(address, port));
            let at_node_port = node_ports.get(&port).into_iter();
            let at_node_port =
                at_node_port.flat_map(|node_port| EVERYWHERE.map(|it| FrontendKey::new(it, *node_port)));
            wanted.claims.extend(keys.chain(at_node_port).map(|key| (key, claim(port))));
        }
        wanted
    }

    /// By port, the node port that the API server gave it. It is the Service's alone, on all nodes,
    /// so no right to a port of theirs is needed.
    fn node_ports(self, name: &ObjectName, merged: &MergedGateway) -> BTreeMap<PortKey, PortKey> {
        if (&self.settings.role, merged.parameters.mode) != (&AgentRole::Node, Mode::Node) {
            return BTreeMap::new();
        }
        let spec = self.service_of(name).and_then(|service| service.spec.as_ref());
        let ports = spec.into_iter().flat_map(|spec| spec.ports.iter().flatten());
        ports.filter_map(node_port).collect()
    }

    /// The address of a pod is nothing that the Gateway knows.
    fn served_addresses(self, name: &ObjectName, merged: &MergedGateway) -> BTreeSet<IpAddr> {
        match (&self.settings.role, merged.parameters.mode) {
            (AgentRole::Node, Mode::Node) => self.own_addresses(name, merged),
            (AgentRole::Dedicated(only), Mode::Dedicated) if only == name => EVERYWHERE.into(),
            (AgentRole::Node, Mode::Dedicated) | (AgentRole::Dedicated(_), _) => BTreeSet::new(),
        }
    }

    /// The usable addresses; traffic that does not arrive with the address it was sent to arrives
    /// with the cluster's.
    fn own_addresses(self, name: &ObjectName, merged: &MergedGateway) -> BTreeSet<IpAddr> {
        let usable = merged.addresses.usable.iter().copied();
        let Some(service) = self.service_of(name) else { return usable.collect() };
        let (otherwise, mut own): (BTreeSet<_>, BTreeSet<_>) = usable
            .partition(|address: &IpAddr| parent::is_delivered_otherwise(address, service, self.objects));
        if !otherwise.is_empty() {
            let cluster = infra::cluster_addresses(service);
            own.extend(cluster.filter(|address| !self.owners.is_api_servers(address)));
        }
        own
    }

    /// The Service generated for the Gateway; `None` without a cluster.
    pub(super) fn service_of(&self, name: &ObjectName) -> Option<&Service> {
        let gateway = self.objects.gateways.get(name)?;
        let service = infra::generated_name(&name.name, &gateway.spec.gateway_class_name);
        let service = self.objects.services.get(&ObjectName::new(&*name.namespace, service))?;
        (infra::generated_for(service).as_ref() == Some(name)).then_some(service)
    }
}

/// The port of a Service, with its node port if it has one.
fn node_port(port: &ServicePort) -> Option<(PortKey, PortKey)> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let protocol = L4Protocol::ALL.into_iter().find(|known| known.as_str() == protocol)?;
    let key = |number: i32| Some(PortKey { number: u16::try_from(number).ok()?, protocol });
    Some((key(port.port)?, key(port.node_port.filter(|number| *number != 0)?)?))
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

    /// True if a Gateway claims a port of the address.
    fn have(&self, address: IpAddr) -> bool {
        L4Protocol::ALL.into_iter().any(|protocol| {
            let at = |port| FrontendKey { protocol, address, port };
            self.by_frontend.range(at(0)..=at(u16::MAX)).next().is_some()
        })
    }

    fn winner(&self, key: &FrontendKey) -> Option<&Claim> {
        self.by_frontend.get(key)?.first()
    }

    fn claimants(&self, key: &FrontendKey) -> impl Iterator<Item = &ObjectName> {
        self.by_frontend.get(key).into_iter().flatten().map(|claim| &claim.gateway)
    }

    fn lost_by(&self, gateway: &ObjectName) -> impl Iterator<Item = (&FrontendKey, &Claim)> {
        let claimed = self.by_gateway.get(gateway).into_iter().flatten();
        claimed.filter(move |(key, _)| self.winner(key).is_none_or(|claim| claim.gateway != *gateway))
    }
}
