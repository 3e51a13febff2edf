//! Stage: the addresses that belong to the cluster itself: of the API server, of Services, of nodes
//! and of the pods' networks. No object of a tenant makes them a Gateway's, or a backend. Only
//! objects count that tenants cannot forge: the API server allocates the addresses of Services,
//! kubelets and administrators write the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::{AddressRange, ObjectName};

use super::changes::{ChangedObjects, service_of};
use super::relation::Relation;
use crate::Settings;
use crate::feedback::Observations;
use crate::infra::{carried_addresses, cluster_addresses, generated_for};

/// The Service of the API server, in namespace `default`.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

#[derive(Debug, Default)]
pub(super) struct Owners {
    by_address: Relation<IpAddr, ObjectKey>,
    addresses: BTreeMap<ObjectKey, BTreeSet<IpAddr>>,
    /// Services that were not generated for a Gateway, by each of their addresses: those of load
    /// balancers, too.
    foreign: Relation<IpAddr, ObjectName>,
    foreign_addresses: BTreeMap<ObjectName, BTreeSet<IpAddr>>,
    /// By node, the addresses of its pods.
    pods: BTreeMap<ObjectName, Vec<AddressRange>>,
    /// Those by which this agent reaches the API server.
    api_server: BTreeSet<IpAddr>,
    /// Those of the network that this agent forwards from.
    own: BTreeSet<IpAddr>,
    /// True if there may be nodes of which nothing is known.
    are_nodes_unread: bool,
}

/// The owner of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner<'o> {
    ApiServer,
    Service(&'o ObjectName),
    Node,
    /// One of the first two of the range of a node's pods: the usual networks give them to a tunnel
    /// and a bridge, and no Node's status lists them.
    Bridge,
    Pods,
}

#[derive(Debug, Default)]
pub(super) struct ChangedOwners {
    addresses: BTreeSet<IpAddr>,
    /// Addresses that another Service has now, or has no longer.
    foreign: BTreeSet<IpAddr>,
    pods: Vec<AddressRange>,
    /// Any address may be a node's, or may not any more.
    all: bool,
}

// === impl Owners ===

impl Owners {
    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        objects: &Objects,
        settings: &Settings,
        observations: &Observations,
    ) -> ChangedOwners {
        let api_server = observations.api_server().unwrap_or(&settings.api_server);
        let own = observations.own_addresses();
        let are_nodes_unread = observations.is_unread(Kind::Node);
        let mut now_changed = ChangedOwners::default();
        now_changed.addresses.extend(self.api_server.symmetric_difference(api_server));
        now_changed.addresses.extend(self.own.symmetric_difference(own));
        now_changed.all = self.are_nodes_unread != are_nodes_unread;
        self.api_server.clone_from(api_server);
        self.own.clone_from(own);
        self.are_nodes_unread = are_nodes_unread;
        for kind in [Kind::Service, Kind::Node, Kind::EndpointSlice] {
            for name in changed.of(kind) {
                let key = ObjectKey { kind, name: name.clone() };
                let now = addresses_of(&key, objects);
                let before = self.addresses.remove(&key).unwrap_or_default();
                self.by_address.update(&key, &before, &now);
                now_changed.addresses.extend(before.symmetric_difference(&now));
                if !now.is_empty() {
                    self.addresses.insert(key, now);
                }
            }
        }
        for service in changed.of(Kind::Service) {
            let now = foreign_addresses_of(service, objects);
            let before = self.foreign_addresses.remove(service).unwrap_or_default();
            self.foreign.update(service, &before, &now);
            now_changed.foreign.extend(before.symmetric_difference(&now));
            if !now.is_empty() {
                self.foreign_addresses.insert(service.clone(), now);
            }
        }
        for node in changed.of(Kind::Node) {
            let now = pods_of(node, objects);
            let before = self.pods.remove(node).unwrap_or_default();
            if before != now {
                now_changed.pods.extend(before.into_iter().chain(now.iter().cloned()));
            }
            if !now.is_empty() {
                self.pods.insert(node.clone(), now);
            }
        }
        now_changed
    }

    /// The owner of an address, the first of several.
    pub(super) fn of(&self, address: &IpAddr) -> Option<Owner<'_>> {
        if self.api_server.contains(address) {
            return Some(Owner::ApiServer);
        }
        let mut owners = self.by_address.of(address).map(|key| match key.kind {
            Kind::Service => Owner::Service(&key.name),
            Kind::Node => Owner::Node,
            _ => Owner::ApiServer,
        });
        owners.next().or_else(|| {
            let range = self.pods.values().flatten().find(|range| range.contains(address))?;
            Some(if range.begins_with(address) { Owner::Bridge } else { Owner::Pods })
        })
    }

    /// True if the agent would lose its API server with the address.
    pub(super) fn is_api_servers(&self, address: &IpAddr) -> bool {
        let is_its_service = |key: &ObjectKey| (&*key.name.namespace, &*key.name.name) == API_SERVER;
        self.api_server.contains(address)
            || self.by_address.of(address).any(|key| key.kind == Kind::EndpointSlice || is_its_service(key))
    }

    pub(super) fn is_node(&self, address: &IpAddr) -> bool {
        self.by_address.of(address).any(|key| key.kind == Kind::Node)
    }

    /// True if a Service that was not generated for a Gateway has the address.
    pub(super) fn is_foreign(&self, address: &IpAddr) -> bool {
        self.foreign.of(address).next().is_some()
    }

    /// True if this agent's own network has the address, be it listed anywhere or not: that of a
    /// bridge, or of a second interface.
    pub(super) fn is_own(&self, address: &IpAddr) -> bool {
        self.own.contains(address)
    }

    /// True if any address may be a node's, because no node can be read.
    pub(super) fn are_nodes_unread(&self) -> bool {
        self.are_nodes_unread
    }
}

// === impl ChangedOwners ===

impl ChangedOwners {
    /// Addresses that another Service has now, or has no longer.
    pub(super) fn foreign(&self) -> &BTreeSet<IpAddr> {
        &self.foreign
    }

    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.pods.is_empty() && !self.all
    }

    /// True if the address has another owner now, or none any more.
    pub(super) fn concerns(&self, address: &IpAddr) -> bool {
        self.all || self.addresses.contains(address) || self.pods.iter().any(|range| range.contains(address))
    }
}

fn addresses_of(key: &ObjectKey, objects: &Objects) -> BTreeSet<IpAddr> {
    let name = &key.name;
    match key.kind {
        Kind::Service => {
            objects.services.get(name).into_iter().flat_map(|it| cluster_addresses(it)).collect()
        }
        Kind::Node => {
            let node = objects.nodes.get(name).into_iter();
            let addresses = node.flat_map(|node| &node.status.addresses);
            addresses.filter_map(|it| it.address.parse().ok()).collect()
        }
        _ if *name.namespace != *API_SERVER.0 => BTreeSet::new(),
        _ => {
            let slice = objects.get(key);
            let service = slice.as_ref().and_then(service_of);
            let is_api_servers = service.is_some_and(|it| (&*it.namespace, &*it.name) == API_SERVER);
            let slice = objects.endpoint_slices.get(name).filter(|_| is_api_servers);
            let endpoints = slice.into_iter().flat_map(|slice| &slice.endpoints);
            endpoints.flat_map(|it| &it.addresses).filter_map(|address| address.parse().ok()).collect()
        }
    }
}

fn foreign_addresses_of(service: &ObjectName, objects: &Objects) -> BTreeSet<IpAddr> {
    let service = objects.services.get(service).filter(|service| generated_for(service).is_none());
    service.into_iter().flat_map(|service| carried_addresses(service)).collect()
}

fn pods_of(node: &ObjectName, objects: &Objects) -> Vec<AddressRange> {
    let spec = objects.nodes.get(node).map(|node| &node.spec);
    let ranges = spec.into_iter().flat_map(|spec| spec.pod_cidrs.iter().chain(&spec.pod_cidr));
    ranges.filter_map(|range| range.parse().ok()).collect()
}
