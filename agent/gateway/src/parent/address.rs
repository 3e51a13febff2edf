//! The addresses of a Gateway: `spec.addresses`, or, where these leave the choice open, those that
//! the cluster assigned or that were given to the agent at its start; and what the Gateway's status
//! says of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use portcullis_api::types::gateways::{Gateway, GatewayAddresses, GatewayStatusAddresses};

use crate::infra::{AssignedAddresses, CLUSTER, Ingress, MOST_PUBLISHED};
use crate::{Fault, Reason, Settings};

/// The addresses of a Gateway, with what is wrong with those asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// The addresses it is served on.
    pub(crate) usable: Vec<IpAddr>,
    /// The addresses that clients are to use. Behind a load balancer they are where it is reached,
    /// not the cluster's address behind it.
    published: Vec<Ingress>,
    /// Those asked for with routability `Cluster`.
    clustered: Vec<IpAddr>,
    /// Published ones at which nothing of the Gateway is served.
    lost: Vec<IpAddr>,
    /// An address of a type that is not supported: the Gateway is not accepted.
    pub(crate) unsupported: Option<Fault>,
    /// An address that cannot be used: the Gateway is not (fully) programmed.
    pub(crate) unusable: Option<Fault>,
}

/// The outcome of the requests so far.
#[derive(Default)]
struct Draft<'a> {
    /// The addresses that the cluster assigned; `None` without a cluster, where all may be used.
    assigned: Option<&'a AssignedAddresses>,
    /// The published addresses that no Gateway may have, with the reason.
    foreign: BTreeMap<IpAddr, String>,
    usable: Vec<IpAddr>,
    clustered: Vec<IpAddr>,
    unsupported: Vec<Fault>,
    unusable: Vec<Fault>,
}

#[derive(PartialEq)]
enum Request {
    Ip(IpAddr),
    /// An entry without value: "the implementation assigns" one.
    Any,
    /// "An IPAddress is a Kubernetes Service ClusterIP" (`GatewayAddressRoutabilityCluster`), this
    /// one or whichever the Gateway's Service has.
    Cluster(Option<IpAddr>),
    Unsupported(String),
    Unusable(String),
}

// === impl Addresses ===

impl Addresses {
    /// `assigned` is what the cluster assigned; `None` without a cluster. What was published has to
    /// be the Gateway's to have: `foreign` is the reason why an address is not.
    pub(crate) fn of(
        gateway: &Gateway,
        assigned: Option<&AssignedAddresses>,
        settings: &Settings,
        foreign: impl Fn(&IpAddr) -> Option<String>,
    ) -> Self {
        let written = gateway.spec.addresses.as_deref().unwrap_or_default();
        let requests: Vec<_> = written.iter().map(Request::of).collect();
        let is_open = requests.is_empty() || requests.contains(&Request::Any);
        let chosen = assigned.filter(|_| is_open);
        let in_cluster = requests.iter().any(|request| matches!(request, Request::Cluster(_)));
        let asks_for = |address: &IpAddr| {
            let is_cluster = || assigned.is_some_and(|assigned| assigned.cluster.contains(address));
            (in_cluster && is_cluster())
                || written
                    .iter()
                    .any(|it| it.value.as_deref().and_then(|value| value.parse().ok()) == Some(*address))
        };
        let all = chosen.into_iter().flat_map(|chosen| &chosen.all).copied();
        let others: Vec<IpAddr> = all.filter(|address| !asks_for(address)).collect();
        let given = assigned.into_iter().flat_map(|it| it.published.iter().chain(&it.cluster));
        let foreign = given.filter_map(|address| Some((*address, foreign(address)?))).collect();
        let mut draft = Draft { assigned, foreign, ..Draft::default() };
        // Where the cluster's own address is asked for, a load balancer's is all that is open.
        if others.is_empty() && !(in_cluster && assigned.is_some()) {
            let default = requests.is_empty().then_some(Request::Any);
            requests.into_iter().chain(default).for_each(|request| draft.add(request, settings));
        } else {
            let fixed = requests.into_iter().filter(|request| *request != Request::Any);
            let others = others.iter().copied().map(Request::ip);
            fixed.chain(others).for_each(|request| draft.add(request, settings));
        }
        draft.finish(chosen.and_then(|chosen| chosen.balanced.as_deref()), &others)
    }

    /// Publishes the node's addresses, as far as they are known, in place of the one that stands
    /// for all of a family: no client can use that.
    pub(crate) fn reached_at(mut self, node: &[IpAddr]) -> Self {
        if node.is_empty() {
            return self;
        }
        let mut published = Vec::new();
        for ingress in std::mem::take(&mut self.published) {
            match ingress {
                Ingress::Ip(all) if all.is_unspecified() => {
                    let of_family = node.iter().filter(|address| address.is_ipv4() == all.is_ipv4());
                    published.extend(of_family.copied().map(Ingress::Ip));
                }
                other => published.push(other),
            }
        }
        for ingress in published {
            if !self.published.contains(&ingress) {
                self.published.push(ingress);
            }
        }
        self
    }

    /// Publishes those of nodes that serve it on all of theirs, after its own.
    pub(crate) fn and_at(mut self, nodes: &[IpAddr]) -> Self {
        for address in nodes.iter().copied().map(Ingress::Ip) {
            if !self.published.contains(&address) {
                self.published.push(address);
            }
        }
        self
    }

    /// Does not list those at which nothing of the Gateway is served.
    pub(crate) fn without(mut self, is_lost: impl Fn(&IpAddr) -> bool) -> Self {
        self.lost = self.usable.iter().filter(|address| is_lost(address)).copied().collect();
        self
    }

    /// A node's address may stand for all of its family.
    fn is_lost(&self, address: &IpAddr) -> bool {
        let stands_for = |all: &IpAddr| {
            all.is_unspecified() && all.is_ipv4() == address.is_ipv4() && !self.usable.contains(address)
        };
        self.lost.iter().any(|lost| lost == address || stands_for(lost))
    }

    /// True if there is none, be it one that another Gateway has.
    pub(crate) fn are_none(&self) -> bool {
        self.published.is_empty()
    }

    /// As `status.addresses` lists them.
    pub(crate) fn status(&self) -> Vec<GatewayStatusAddresses> {
        let is_lost = |ingress: &&Ingress| matches!(ingress, Ingress::Ip(address) if self.is_lost(address));
        let published = self.published.iter().filter(|ingress| !is_lost(ingress)).take(MOST_PUBLISHED);
        published
            .map(|ingress| GatewayStatusAddresses {
                r#type: Some(ingress.address_type().to_owned()),
                value: ingress.to_string(),
                routability: match ingress {
                    Ingress::Ip(address) if self.clustered.contains(address) => Some(CLUSTER.to_owned()),
                    _ => None,
                },
            })
            .collect()
    }
}

// === impl Draft ===

impl Draft<'_> {
    fn add(&mut self, request: Request, settings: &Settings) {
        match request {
            Request::Ip(address)
                if self.assigned.is_some_and(|assigned| !assigned.all.contains(&address)) =>
            {
                let message = format!(
                    "address {address} is not one of the Gateway's Service, which has at most one of each family"
                );
                self.unusable.push(Fault::not_programmed(Reason::AddressNotAssigned, message));
            }
            Request::Ip(address) => self.take_own(address),
            Request::Cluster(value) => self.take_of_cluster(value),
            Request::Any => self.take_defaults(settings),
            Request::Unsupported(message) => {
                self.unsupported.push(Fault::not_accepted(Reason::UnsupportedAddress, message));
            }
            Request::Unusable(message) => {
                self.unusable.push(Fault::not_programmed(Reason::AddressNotUsable, message));
            }
        }
    }

    /// Addresses of the Gateway's Service that only clients within the cluster reach.
    fn take_of_cluster(&mut self, value: Option<IpAddr>) {
        let Some(assigned) = self.assigned else {
            let message = "routability \"Cluster\" means the address of a Service, and there is no cluster here: leave it out";
            return self.unusable.push(Fault::not_programmed(Reason::AddressNotUsable, message));
        };
        let is_meant = |address: &&IpAddr| value.is_none_or(|value| value == **address);
        let found: Vec<_> = assigned.cluster.iter().filter(is_meant).copied().collect();
        if let Some(value) = value.filter(|_| found.is_empty()) {
            let message = format!("address {value} is not the Gateway's Service's own in the cluster");
            self.unusable.push(Fault::not_programmed(Reason::AddressNotAssigned, message));
        }
        for address in found {
            self.clustered.push(address);
            self.take_own(address);
        }
    }

    fn take_own(&mut self, address: IpAddr) {
        match self.foreign.get(&address) {
            None => self.take(address),
            Some(reason) => {
                let message =
                    format!("address {address} was published for the Gateway's Service, but {reason}");
                self.unusable.push(Fault::not_programmed(Reason::AddressNotUsable, message));
            }
        }
    }

    fn take_defaults(&mut self, settings: &Settings) {
        settings.default_addresses.iter().for_each(|address| self.take(*address));
    }

    fn take(&mut self, address: IpAddr) {
        if !self.usable.contains(&address) {
            self.usable.push(address);
        }
    }

    /// Behind a load balancer what it has `balanced` is published, instead of the `others` that
    /// were not asked for.
    fn finish(mut self, balanced: Option<&[Ingress]>, others: &[IpAddr]) -> Addresses {
        let usable = self.usable.iter().copied();
        let published: Vec<_> = match balanced {
            None => usable.map(Ingress::Ip).collect(),
            Some(balanced) => {
                let asked_for = usable.filter(|address| !others.contains(address)).map(Ingress::Ip);
                let asked_for: Vec<_> = asked_for.collect();
                let is_foreign = |ingress: &&Ingress| matches!(ingress, Ingress::Ip(address) if self.foreign.contains_key(address));
                let others = balanced.iter().filter(|ingress| !asked_for.contains(ingress));
                let others = others.filter(|ingress| !is_foreign(ingress));
                asked_for.iter().chain(others).cloned().collect()
            }
        };
        if published.is_empty() && self.unusable.is_empty() {
            let message = unassigned(self.assigned, balanced);
            self.unusable.push(Fault::not_programmed(Reason::AddressNotAssigned, message));
        }
        Addresses {
            usable: self.usable,
            published,
            clustered: self.clustered,
            lost: Vec::new(),
            unsupported: Fault::summary(self.unsupported),
            unusable: Fault::summary(self.unusable),
        }
    }
}

/// "SHOULD provide a clear message explaining the underlying problem, ideally with some hints"
/// (`AddressNotAssigned`).
fn unassigned(assigned: Option<&AssignedAddresses>, balanced: Option<&[Ingress]>) -> &'static str {
    if balanced.is_some() {
        "the load balancer has assigned no address yet: see the events of the Gateway's Service, or set service.type \
         ClusterIP in its GatewayParameters if the cluster has no load balancer"
    } else if assigned.is_some() {
        "the Gateway's Service has no address yet: it is made as soon as a listener, of the Gateway or attached to it, is valid"
    } else {
        "no address is assigned to the Gateway: set spec.addresses, or give the agent a default address"
    }
}

// === impl Request ===

impl Request {
    fn of(request: &GatewayAddresses) -> Self {
        let r#type = request.r#type.as_deref().unwrap_or("IPAddress");
        if r#type != "IPAddress" {
            return Self::Unsupported(format!("addresses of type {type} are not supported; use IPAddress"));
        }
        match request.routability.as_deref() {
            None | Some("") => {}
            Some(CLUSTER) => {
                let value = request.value.as_deref().filter(|value| !value.is_empty());
                return match value.map(str::parse).transpose() {
                    Ok(value) => Self::Cluster(value),
                    Err(_) => {
                        Self::Unusable(format!("address {:?} is no IP address", value.unwrap_or_default()))
                    }
                };
            }
            Some(other) => {
                return Self::Unusable(format!(
                    "routability {other:?} of an address is not supported: use Cluster, or leave it out"
                ));
            }
        }
        let Some(value) = request.value.as_deref().filter(|value| !value.is_empty()) else {
            return Self::Any;
        };
        value.parse().map_or_else(|_| Self::Unusable(format!("address {value:?} is no IP address")), Self::ip)
    }

    fn ip(address: IpAddr) -> Self {
        if address.is_multicast() {
            return Self::Unusable(format!(
                "address {address} cannot be used on this node: choose one that is routed to it"
            ));
        }
        Self::Ip(address)
    }
}
