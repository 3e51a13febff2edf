//! The Service of a Gateway. In mode Node it has no selector, because the agents serve its
//! addresses themselves, on every node; in mode Dedicated it is an ordinary one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_api::types::gateways::Gateway;
use portcullis_model::PortKey;
use serde_json::{Value, json};

use super::{CLUSTER, MANAGER, Mode, NodePorts, Parameters, SERVICE_PROXY_LABEL, ServiceType, pods};

pub(super) fn service(
    gateway: &Gateway,
    ports: &BTreeSet<PortKey>,
    parameters: &Parameters,
    metadata: &ObjectMeta,
) -> Value {
    let mut metadata = metadata.clone();
    let mut spec = spec(gateway, ports, parameters);
    match parameters.mode {
        Mode::Node => {
            let labels = metadata.labels.get_or_insert_default();
            labels.insert(SERVICE_PROXY_LABEL.to_owned(), MANAGER.to_owned());
            // Most load balancers lead traffic to the addresses, and node ports are few.
            let balanced = parameters.service_type == ServiceType::LoadBalancer;
            spec.allocate_load_balancer_node_ports = balanced.then_some(false);
        }
        Mode::Dedicated => spec.selector = Some(pods::selector(&metadata)),
    }
    if let Some(node_ports) = parameters.node_ports {
        spec.allocate_load_balancer_node_ports = Some(node_ports == NodePorts::On);
    }
    json!(Service { metadata, spec: Some(spec), status: None })
}

fn spec(gateway: &Gateway, ports: &BTreeSet<PortKey>, parameters: &Parameters) -> ServiceSpec {
    let mut spec =
        ServiceSpec { ports: Some(ports.iter().map(service_port).collect()), ..ServiceSpec::default() };
    let [addresses, in_cluster] = ["", CLUSTER].map(|routability| requested(gateway, routability));
    spec.ip_family_policy.clone_from(&parameters.ip_family_policy);
    spec.ip_families = (!parameters.ip_families.is_empty()).then(|| parameters.ip_families.clone());
    spec.type_ = Some(parameters.service_type.as_str().to_owned());
    match parameters.service_type {
        ServiceType::ClusterIp | ServiceType::NodePort => {
            take_cluster_addresses(&mut spec, one_of_each_family(addresses.into_iter().chain(in_cluster)));
            spec.external_traffic_policy = parameters.external_traffic_policy.clone();
        }
        ServiceType::LoadBalancer => {
            take_cluster_addresses(&mut spec, in_cluster);
            spec.load_balancer_ip = addresses.first().map(ToString::to_string);
            spec.external_traffic_policy = parameters.external_traffic_policy.clone();
            spec.load_balancer_class = parameters.load_balancer_class.clone();
        }
    }
    spec
}

fn take_cluster_addresses(spec: &mut ServiceSpec, addresses: Vec<IpAddr>) {
    spec.cluster_ip = addresses.first().map(ToString::to_string);
    if addresses.len() == 2 {
        spec.cluster_ips = Some(addresses.iter().map(ToString::to_string).collect());
        spec.ip_family_policy = Some("RequireDualStack".to_owned());
    }
}

/// "This would generate a `Service` with `clusterIP` or `loadBalancerIP`": the first address of
/// each family, which is all that a Service can take.
fn requested(gateway: &Gateway, routability: &str) -> Vec<IpAddr> {
    let addresses = gateway.spec.addresses.iter().flatten();
    let addresses = addresses.filter(|address| {
        address.r#type.as_deref().unwrap_or("IPAddress") == "IPAddress"
            && address.routability.as_deref().unwrap_or_default() == routability
    });
    one_of_each_family(addresses.filter_map(|address| address.value.as_deref()?.parse().ok()))
}

fn one_of_each_family(addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut families = Vec::<IpAddr>::new();
    for address in addresses {
        if families.iter().all(|known| known.is_ipv4() != address.is_ipv4()) {
            families.push(address);
        }
    }
    families
}

/// Without `nodePort` and `targetPort`: the first is the cluster's to choose, the second is the
/// port itself.
fn service_port(port: &PortKey) -> ServicePort {
    ServicePort {
        name: Some(port.to_string()),
        port: port.number.into(),
        protocol: Some(port.protocol.as_str().to_owned()),
        ..ServicePort::default()
    }
}
