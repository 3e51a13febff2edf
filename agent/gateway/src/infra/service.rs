//! The Service of a Gateway: no selector, because the agents serve its addresses themselves, on every node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use portcullis_model::L4Protocol;

use super::address::is_assigned;
use super::{Parameters, Port, ServiceType, annotations, generated_name, labels};
use crate::GATEWAY_GROUP;
use crate::api::gateways::Gateway;

pub(super) fn service(
    gateway: &Gateway,
    ports: &BTreeSet<Port>,
    parameters: &Parameters,
    controller_name: &str,
) -> Service {
    let name = gateway.metadata.name.as_deref().unwrap_or_default();
    let metadata = ObjectMeta {
        name: Some(generated_name(name, &gateway.spec.gateway_class_name)),
        namespace: gateway.metadata.namespace.clone(),
        labels: Some(labels(gateway, parameters)),
        annotations: Some(annotations(gateway, parameters, controller_name)),
        owner_references: Some(vec![owner(gateway)]),
        ..ObjectMeta::default()
    };
    Service { metadata, spec: Some(spec(gateway, ports, parameters)), status: None }
}

/// So that nothing is left when the Gateway goes.
fn owner(gateway: &Gateway) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GATEWAY_GROUP}/v1"),
        kind: "Gateway".to_owned(),
        name: gateway.metadata.name.clone().unwrap_or_default(),
        uid: gateway.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

fn spec(gateway: &Gateway, ports: &BTreeSet<Port>, parameters: &Parameters) -> ServiceSpec {
    let mut spec =
        ServiceSpec { ports: Some(ports.iter().map(service_port).collect()), ..ServiceSpec::default() };
    let addresses = requested(gateway);
    match parameters.service_type {
        ServiceType::ClusterIp => {
            spec.type_ = Some("ClusterIP".to_owned());
            spec.cluster_ip = addresses.first().map(ToString::to_string);
            spec.cluster_ips =
                (addresses.len() == 2).then(|| addresses.iter().map(ToString::to_string).collect());
            spec.ip_family_policy = (addresses.len() == 2).then(|| "RequireDualStack".to_owned());
        }
        ServiceType::LoadBalancer => {
            spec.type_ = Some("LoadBalancer".to_owned());
            spec.load_balancer_ip = addresses.first().map(ToString::to_string);
            spec.external_traffic_policy = parameters.external_traffic_policy.clone();
            spec.load_balancer_class = parameters.load_balancer_class.clone();
            // Nobody serves node ports: traffic enters at the addresses.
            spec.allocate_load_balancer_node_ports = Some(false);
        }
    }
    spec
}

/// "This would generate a `Service` with `clusterIP` or `loadBalancerIP`": the first address of each family, which is all
/// that a Service can take.
fn requested(gateway: &Gateway) -> Vec<IpAddr> {
    let addresses = gateway.spec.addresses.iter().flatten();
    let addresses =
        addresses.filter(|address| address.r#type.as_deref().unwrap_or("IPAddress") == "IPAddress");
    let mut families = Vec::<IpAddr>::new();
    let addresses = addresses.filter_map(|address| address.value.as_deref()?.parse::<IpAddr>().ok());
    for address in addresses.filter(|address| !is_assigned(gateway, address)) {
        if families.iter().all(|known| known.is_ipv4() != address.is_ipv4()) {
            families.push(address);
        }
    }
    families
}

/// Without `nodePort` and `targetPort`: the first is not served, the second is the port itself.
fn service_port(port: &Port) -> ServicePort {
    let (protocol, prefix) = match port.protocol {
        L4Protocol::Tcp => ("TCP", "tcp"),
        L4Protocol::Udp => ("UDP", "udp"),
    };
    ServicePort {
        name: Some(format!("{prefix}-{}", port.number)),
        port: port.number.into(),
        protocol: Some(protocol.to_owned()),
        ..ServicePort::default()
    }
}
