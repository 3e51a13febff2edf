//! The way back: the addresses that the cluster assigned to a generated Service are the Gateway's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use portcullis_model::ObjectName;

use super::object::{is_generated, owner_of};
use crate::api::gateways::{Gateway, GatewayAddresses};

/// An annotation that no object in the cluster has: which of a Gateway's addresses nobody asked for.
const ASSIGNED: &str = "portcullis.dev/assigned-addresses";
/// And another: all addresses of its Service.
const GRANTED: &str = "portcullis.dev/granted-addresses";

/// Whether the address came from the Service: asking the Service for it would make it a wish.
pub(super) fn is_assigned(gateway: &Gateway, address: &IpAddr) -> bool {
    lists(gateway, ASSIGNED, address).unwrap_or(false)
}

/// Whether the Gateway may be served on an address that it asks for. In a cluster its Service decides: else whoever may create
/// a Gateway could take any address from its owner, on every node. Without a cluster nobody does.
pub(crate) fn is_granted(gateway: &Gateway, address: &IpAddr) -> bool {
    lists(gateway, GRANTED, address).unwrap_or(true)
}

fn lists(gateway: &Gateway, annotation: &str, address: &IpAddr) -> Option<bool> {
    let listed = gateway.metadata.annotations.as_ref()?.get(annotation)?;
    Some(listed.split(',').any(|listed| listed.parse() == Ok(*address)))
}

/// The Gateway for which a Service was generated.
pub fn generated_for(service: &Service) -> Option<ObjectName> {
    let owner = owner_of(&service.metadata).filter(|_| is_generated(&service.metadata))?;
    Some(ObjectName::new(service.metadata.namespace.as_deref().unwrap_or("default"), owner.name.as_str()))
}

/// The Gateway, with the addresses of its Service wherever it leaves the choice to us: `spec.addresses` is empty, or has
/// an entry without value. Of those that it asks for it may have what the Service has. A Service that was not generated for
/// this very Gateway gives it nothing.
pub fn with_assigned_addresses(gateway: &Arc<Gateway>, service: Option<&Service>) -> Arc<Gateway> {
    let service = service.filter(|service| {
        is_generated(&service.metadata)
            && owner_of(&service.metadata)
                .is_some_and(|owner| Some(&owner.uid) == gateway.metadata.uid.as_ref())
    });
    let assigned = service.map(assigned).unwrap_or_default();
    let written = assigned.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut addressed = (**gateway).clone();
    let annotations: &mut BTreeMap<_, _> = addressed.metadata.annotations.get_or_insert_default();
    annotations.remove(ASSIGNED);
    annotations.insert(GRANTED.to_owned(), written.clone());
    let requested = gateway.spec.addresses.as_deref().unwrap_or_default();
    if !assigned.is_empty() && (requested.is_empty() || requested.iter().any(is_open)) {
        annotations.insert(ASSIGNED.to_owned(), written);
        let fixed = requested.iter().filter(|address| !is_open(address)).cloned();
        addressed.spec.addresses = Some(fixed.chain(assigned.iter().map(entry)).collect());
    }
    Arc::new(addressed)
}

/// Of a load balancer, if it gave any; else the cluster's.
fn assigned(service: &Service) -> Vec<IpAddr> {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let balanced = balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
    let balanced: Vec<IpAddr> = balanced.filter_map(|ingress| ingress.ip.as_deref()?.parse().ok()).collect();
    let Some(spec) = service.spec.as_ref() else { return balanced };
    let cluster = spec.cluster_ips.as_deref().unwrap_or_default();
    let cluster: Vec<IpAddr> = cluster.iter().filter_map(|address| address.parse().ok()).collect();
    balanced.into_iter().chain(cluster).collect()
}

fn is_open(address: &GatewayAddresses) -> bool {
    address.r#type.as_deref().unwrap_or("IPAddress") == "IPAddress"
        && address.value.as_deref().unwrap_or_default().is_empty()
}

fn entry(address: &IpAddr) -> GatewayAddresses {
    GatewayAddresses {
        r#type: Some("IPAddress".to_owned()),
        value: Some(address.to_string()),
        ..GatewayAddresses::default()
    }
}
