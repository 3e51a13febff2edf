//! The addresses of a Gateway: `spec.addresses`, or those that the agent was told to use; and what
//! its status says of that.

use std::net::IpAddr;

use crate::api::gateways::{Gateway, GatewayAddresses, GatewayStatusAddresses};
use crate::infra::{self, Ingress};
use crate::{Fault, Reason, Settings};

/// `maxItems` of `status.addresses`: a status with more is refused as a whole.
const MOST_PUBLISHED: usize = 16;

/// The addresses of a Gateway, with what is wrong with those asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// The addresses it is served on.
    pub(crate) usable: Vec<IpAddr>,
    /// The addresses that clients are told. Behind a load balancer they are where it is reached,
    /// not the cluster's address behind it.
    published: Vec<Ingress>,
    /// An address of a type that is not supported: the Gateway is not accepted.
    pub(crate) unsupported: Option<Fault>,
    /// An address that cannot be used: the Gateway is not (fully) programmed.
    pub(crate) unusable: Option<Fault>,
}

/// The outcome of the requests so far.
#[derive(Default)]
struct Draft {
    usable: Vec<IpAddr>,
    unsupported: Vec<Fault>,
    unusable: Vec<Fault>,
}

enum Request {
    Ip(IpAddr),
    /// An entry without value: "the implementation assigns" one.
    Any,
    /// The cluster has not given it to the Gateway, or not yet.
    NotGranted(String),
    Unsupported(String),
    Unusable(String),
}

// === impl Addresses ===

impl Addresses {
    pub(crate) fn of(gateway: &Gateway, settings: &Settings) -> Self {
        let requests = gateway.spec.addresses.as_deref().unwrap_or_default();
        let mut draft = Draft::default();
        if requests.is_empty() {
            draft.take_defaults(settings);
        }
        for request in requests {
            draft.add(Request::of(request).granted_to(gateway), settings);
        }
        draft.finish(gateway)
    }

    /// As `status.addresses` lists them.
    pub(crate) fn status(&self) -> Vec<GatewayStatusAddresses> {
        let entry = |ingress: &Ingress| GatewayStatusAddresses {
            r#type: Some(ingress.address_type().to_owned()),
            value: ingress.to_string(),
            routability: None,
        };
        self.published.iter().take(MOST_PUBLISHED).map(entry).collect()
    }
}

// === impl Draft ===

impl Draft {
    fn add(&mut self, request: Request, settings: &Settings) {
        match request {
            Request::Ip(address) => self.take(address),
            Request::Any => self.take_defaults(settings),
            Request::NotGranted(message) => {
                self.unusable.push(Fault::not_programmed(Reason::AddressNotAssigned, message));
            }
            Request::Unsupported(message) => {
                self.unsupported.push(Fault::not_accepted(Reason::UnsupportedAddress, message));
            }
            Request::Unusable(message) => {
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

    fn finish(mut self, gateway: &Gateway) -> Addresses {
        let published = published(gateway, &self.usable);
        if published.is_empty() && self.unusable.is_empty() {
            self.unusable.push(Fault::not_programmed(Reason::AddressNotAssigned, unassigned(gateway)));
        }
        Addresses {
            usable: self.usable,
            published,
            unsupported: Fault::summary(self.unsupported),
            unusable: Fault::summary(self.unusable),
        }
    }
}

fn published(gateway: &Gateway, usable: &[IpAddr]) -> Vec<Ingress> {
    let usable = usable.iter().copied();
    let Some(balanced) = infra::balanced(gateway) else { return usable.map(Ingress::Ip).collect() };
    let asked_for = usable.filter(|address| !infra::is_assigned(gateway, address)).map(Ingress::Ip);
    let asked_for: Vec<_> = asked_for.collect();
    let others = balanced.into_iter().filter(|ingress| !asked_for.contains(ingress)).collect::<Vec<_>>();
    [asked_for, others].concat()
}

/// "SHOULD provide a clear message explaining the underlying problem, ideally with some hints"
/// (`AddressNotAssigned`).
fn unassigned(gateway: &Gateway) -> &'static str {
    if infra::balanced(gateway).is_some() {
        "the load balancer has assigned no address yet: see the events of the Gateway's Service, or set service.type \
         ClusterIP in its GatewayParameters if the cluster has no load balancer"
    } else if infra::is_in_cluster(gateway) {
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
        if let Some(routability) = request.routability.as_deref().filter(|it| !it.is_empty()) {
            return Self::Unusable(format!(
                "routability {routability:?} of an address is not supported: leave it out"
            ));
        }
        let Some(value) = request.value.as_deref().filter(|value| !value.is_empty()) else {
            return Self::Any;
        };
        match value.parse::<IpAddr>() {
            Err(_) => Self::Unusable(format!("address {value:?} is no IP address")),
            Ok(address) if address.is_multicast() => Self::Unusable(format!(
                "address {address} cannot be used on this node: choose one that is routed to it"
            )),
            Ok(address) => Self::Ip(address),
        }
    }

    fn granted_to(self, gateway: &Gateway) -> Self {
        match self {
            Self::Ip(address) if !infra::is_granted(gateway, &address) => Self::NotGranted(format!(
                "address {address} is not one of the Gateway's Service, which has at most one of each family"
            )),
            other => other,
        }
    }
}
