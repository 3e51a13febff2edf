//! Services in front of Gateways, as far as traffic arrives from them with another address. A load
//! balancer may publish nodes' addresses as its own (ServiceLB of k3s does): traffic to them is
//! brought to the Gateway by other means, and a node that made another's address local could not
//! reach it any more.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use portcullis_api::Objects;

/// True if traffic to an address of a Service does not arrive with that address: it is a node's, or
/// "the destination set to the node's IP and node port or the pod's IP" (`ipMode: Proxy`).
pub(crate) fn is_delivered_otherwise(address: &IpAddr, service: &Service, objects: &Objects) -> bool {
    let nodes = objects.nodes.values();
    nodes.flat_map(|node| &node.status.addresses).any(|it| it.address.parse() == Ok(*address))
        || is_proxied(address, service)
}

fn is_proxied(address: &IpAddr, service: &Service) -> bool {
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let mut ingress = balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
    ingress.any(|ingress| {
        ingress.ip_mode.as_deref() == Some("Proxy")
            && ingress.ip.as_deref().and_then(|ip| ip.parse().ok()) == Some(*address)
    })
}
