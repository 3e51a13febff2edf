//! The way back: the addresses that the cluster assigned to a generated Service are the Gateway's.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use portcullis_model::ObjectName;

use super::object::{is_generated, owner_of};
use crate::api::gateways::{Gateway, GatewayAddresses};

/// An annotation that no object in the cluster has: which of a Gateway's addresses were not asked
/// for.
const ASSIGNED: &str = "portcullis.dev/assigned-addresses";
/// And another: all addresses of its Service.
const GRANTED: &str = "portcullis.dev/granted-addresses";
/// And one more, of a Gateway that leaves the choice to a load balancer: what that has given so
/// far.
const BALANCED: &str = "portcullis.dev/balanced-addresses";

/// The place where traffic enters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ingress {
    Ip(IpAddr),
    Hostname(String),
}

/// True if the address came from the Service: asking the Service for it would make it a wish.
pub(crate) fn is_assigned(gateway: &Gateway, address: &IpAddr) -> bool {
    annotation(gateway, ASSIGNED).is_some_and(|list| lists(list, address))
}

/// True if the Gateway may be served on an address that it asks for. In a cluster its Service
/// decides: else a tenant who may create a Gateway could take any address from its owner, on every
/// node. Without a cluster all may.
pub(crate) fn is_granted(gateway: &Gateway, address: &IpAddr) -> bool {
    annotation(gateway, GRANTED).is_none_or(|list| lists(list, address))
}

/// True if a Service decides about the Gateway's addresses.
pub(crate) fn is_in_cluster(gateway: &Gateway) -> bool {
    annotation(gateway, GRANTED).is_some()
}

/// The addresses of the load balancer in front of the Gateway; `None` without one. None as long as
/// it has given nothing.
pub(crate) fn balanced(gateway: &Gateway) -> Option<Vec<Ingress>> {
    let written = annotation(gateway, BALANCED)?.split(',').filter(|written| !written.is_empty());
    Some(written.map(Ingress::from).collect())
}

fn lists(list: &str, address: &IpAddr) -> bool {
    list.split(',').any(|listed| listed.parse() == Ok(*address))
}

fn annotation<'g>(gateway: &'g Gateway, name: &str) -> Option<&'g str> {
    gateway.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The Gateway for which a Service was generated.
pub fn generated_for(service: &Service) -> Option<ObjectName> {
    let owner = owner_of(&service.metadata).filter(|_| is_generated(&service.metadata))?;
    Some(ObjectName::new(service.metadata.namespace.as_deref().unwrap_or("default"), owner.name.as_str()))
}

/// The Gateway, with the addresses of its Service wherever it leaves the choice to us:
/// `spec.addresses` is empty, or has an entry without value. Of those that it asks for it may have
/// what the Service has. A Service that was not generated for this very Gateway gives it nothing.
pub fn with_assigned_addresses(gateway: &Arc<Gateway>, service: Option<&Service>) -> Arc<Gateway> {
    let service = service.filter(|service| {
        is_generated(&service.metadata)
            && owner_of(&service.metadata)
                .is_some_and(|owner| Some(&owner.uid) == gateway.metadata.uid.as_ref())
    });
    let mut addressed = (**gateway).clone();
    let granted = service.map(addresses).unwrap_or_default();
    let annotations: &mut BTreeMap<_, _> = addressed.metadata.annotations.get_or_insert_default();
    annotations.retain(|name, _| name != ASSIGNED && name != BALANCED);
    annotations.insert(GRANTED.to_owned(), listed(&granted));
    let requested = gateway.spec.addresses.as_deref().unwrap_or_default();
    if let Some(service) = service.filter(|_| requested.is_empty() || requested.iter().any(is_open)) {
        let (open, fixed): (Vec<_>, Vec<_>) = requested.iter().cloned().partition(is_open);
        let assigned = granted.into_iter().filter(|address| !fixed.iter().any(|it| is(it, address)));
        let assigned: Vec<IpAddr> = assigned.collect();
        annotations.insert(ASSIGNED.to_owned(), listed(&assigned));
        annotations.extend(is_balanced(service).then(|| (BALANCED.to_owned(), listed(&ingress(service)))));
        let choice = if assigned.is_empty() { open } else { assigned.iter().map(entry).collect() };
        addressed.spec.addresses = Some(fixed.into_iter().chain(choice).collect());
    }
    Arc::new(addressed)
}

/// Of a load balancer, if it gave any, and the cluster's.
fn addresses(service: &Service) -> Vec<IpAddr> {
    let balanced = ingress(service).into_iter().filter_map(|ingress| match ingress {
        Ingress::Ip(address) => Some(address),
        Ingress::Hostname(_) => None,
    });
    balanced.chain(cluster_addresses(service)).collect()
}

pub(crate) fn cluster_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    let addresses = service.spec.as_ref().and_then(|spec| spec.cluster_ips.as_deref()).unwrap_or_default();
    addresses.iter().filter_map(|address| address.parse().ok())
}

/// An ingress point has an IP address or a hostname.
fn ingress(service: &Service) -> Vec<Ingress> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
    points.filter_map(|point| point.ip.as_deref().or(point.hostname.as_deref())).map(Ingress::from).collect()
}

fn is_balanced(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
}

/// True if the choice of an address is left to the cluster. An address with a routability is one
/// that cannot be had.
fn is_open(address: &GatewayAddresses) -> bool {
    let is_empty = |field: &Option<String>| field.as_deref().unwrap_or_default().is_empty();
    address.r#type.as_deref().unwrap_or("IPAddress") == "IPAddress"
        && is_empty(&address.value)
        && is_empty(&address.routability)
}

fn is(requested: &GatewayAddresses, address: &IpAddr) -> bool {
    requested.value.as_deref().and_then(|value| value.parse().ok()) == Some(*address)
}

fn listed(addresses: &[impl ToString]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn entry(address: &IpAddr) -> GatewayAddresses {
    GatewayAddresses {
        r#type: Some("IPAddress".to_owned()),
        value: Some(address.to_string()),
        ..GatewayAddresses::default()
    }
}

// === impl Ingress ===

impl Ingress {
    /// As the Gateway API names it.
    pub(crate) fn address_type(&self) -> &'static str {
        match self {
            Self::Ip(_) => "IPAddress",
            Self::Hostname(_) => "Hostname",
        }
    }
}

impl From<&str> for Ingress {
    fn from(written: &str) -> Self {
        written.parse().map_or_else(|_| Self::Hostname(written.to_owned()), Self::Ip)
    }
}

impl fmt::Display for Ingress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Hostname(name) => f.write_str(name),
        }
    }
}
