//! The way back: the addresses that the cluster assigned to a generated Service are the Gateway's.

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use portcullis_api::Objects;
use portcullis_model::ObjectName;

use super::name::generated_name;
use super::object::{is_generated, is_of_controller, owner_of};

/// The `routability` of addresses that are reached within the cluster only.
pub(crate) const CLUSTER: &str = "Cluster";

/// `maxItems` of a Gateway's `status.addresses`: a status with more is refused as a whole.
pub(crate) const MOST_PUBLISHED: usize = 16;

/// The addresses of a Gateway's Service. In a cluster these decide: else a tenant who may create a
/// Gateway could take any address from its owner, on every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AssignedAddresses {
    /// Of a load balancer, if it gave any, and the cluster's.
    pub(crate) all: Vec<IpAddr>,
    /// The cluster's own.
    pub(crate) cluster: Vec<IpAddr>,
    /// The places where a load balancer lets traffic in, none as long as it has given nothing;
    /// `None` without a load balancer.
    pub(crate) balanced: Option<Vec<Ingress>>,
    /// Those that a writer of the Service's status published, and that are to be taken literally:
    /// not the cluster's own, which the API server allocates, and not those that a proxy has.
    pub(crate) published: Vec<IpAddr>,
}

/// The place where traffic enters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ingress {
    Ip(IpAddr),
    Hostname(String),
}

/// The Gateway for which a Service was generated.
pub fn generated_for(service: &Service) -> Option<ObjectName> {
    let owner = owner_of(&service.metadata).filter(|_| is_generated(&service.metadata))?;
    Some(ObjectName::new(service.metadata.namespace.as_deref().unwrap_or("default"), owner.name.as_str()))
}

/// The Gateway whose agents answer at a Service themselves: it was generated, and not for pods.
pub(crate) fn served_at(service: &Service) -> Option<ObjectName> {
    let has_pods = service.spec.as_ref().is_some_and(|spec| spec.selector.is_some());
    generated_for(service).filter(|_| !has_pods)
}

/// True if agents of this controller generated a Service for the Gateway, and it is still there.
pub(crate) fn is_generated_by(controller_name: &str, gateway: &ObjectName, objects: &Objects) -> bool {
    let service = service_of(gateway, objects);
    service.is_some_and(|service| is_of_controller(&service.metadata, controller_name))
}

/// The Service that was generated for this very Gateway.
fn service_of<'o>(gateway: &ObjectName, objects: &'o Objects) -> Option<&'o Service> {
    let object = objects.gateways.get(gateway)?;
    let service = generated_name(&gateway.name, &object.spec.gateway_class_name);
    let service = objects.services.get(&ObjectName::new(gateway.namespace.clone(), service))?;
    let is_owner = |owner: &OwnerReference| Some(&owner.uid) == object.metadata.uid.as_ref();
    let is_its = is_generated(&service.metadata) && owner_of(&service.metadata).is_some_and(is_owner);
    is_its.then_some(service)
}

// === impl AssignedAddresses ===

impl AssignedAddresses {
    /// Those of a Gateway's Service. One that was not generated for this very Gateway gives it
    /// nothing.
    pub fn of(gateway: &ObjectName, objects: &Objects) -> Self {
        service_of(gateway, objects).map_or_else(Self::default, |service| Self {
            all: addresses(service),
            cluster: cluster_addresses(service).collect(),
            balanced: is_balanced(service).then(|| ingress(service)),
            published: published(service),
        })
    }
}

impl AssignedAddresses {
    /// Those that a writer of the Service's status published, and that are made local on nodes.
    pub fn published(&self) -> &[IpAddr] {
        &self.published
    }
}

/// Without a load balancer.
impl FromIterator<IpAddr> for AssignedAddresses {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let cluster: Vec<_> = addresses.into_iter().collect();
        Self { all: cluster.clone(), cluster, ..Self::default() }
    }
}

/// Of a load balancer, if it gave any, and the cluster's.
fn addresses(service: &Service) -> Vec<IpAddr> {
    let balanced = ingress(service).into_iter().filter_map(|ingress| match ingress {
        Ingress::Ip(address) => Some(address),
        Ingress::Hostname(_) => None,
    });
    balanced.chain(cluster_addresses(service)).collect()
}

/// An API server has `clusterIP` among `clusterIPs`; a file may have it alone.
pub(crate) fn cluster_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    let spec = service.spec.as_ref();
    let addresses = spec.and_then(|spec| spec.cluster_ips.as_deref()).unwrap_or_default();
    let single = spec.and_then(|spec| spec.cluster_ip.as_ref()).filter(|_| addresses.is_empty());
    addresses.iter().chain(single).filter_map(|address| address.parse().ok())
}

/// Every address that a Service may be reached at: the cluster's, those of its status, and those
/// that its owner wants for it.
pub(crate) fn carried_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    let external = service.spec.iter().flat_map(|spec| spec.external_ips.iter().flatten());
    addresses(service).into_iter().chain(external.filter_map(|address| address.parse().ok()))
}

fn published(service: &Service) -> Vec<IpAddr> {
    let own: Vec<_> = cluster_addresses(service).collect();
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
    let literal = points.filter(|point| point.ip_mode.as_deref() != Some("Proxy"));
    let addresses = literal.filter_map(|point| point.ip.as_deref()?.parse().ok());
    addresses.filter(|address| !own.contains(address)).collect()
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
