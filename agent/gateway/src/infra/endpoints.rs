//! The endpoints of a Gateway's Service, so that load balancers see where it is served: the nodes
//! whose agent is ready, as EndpointSlices by address family.
//!
//! The Service is labelled as another service proxy's than kube-proxy, and so are its slices:
//! kube-proxy and its replacements leave all of its addresses and ports alone, with endpoints as
//! without, in whatever mode they run. Packets arrive at an agent with the address that they were
//! sent to. What reads the slices is the Service's load balancer, which wants nodes and conditions,
//! and perhaps a client that sends to endpoints by itself. For that one the port is one at which
//! the agent answers on its node's own address: the node port. Without one it is the Service's,
//! which is answered there where `hostPorts` are granted.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ObjectReference, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::agents::{AgentState, Agents, NodeAgent};
use super::{DesiredObjects, Generated, GeneratedKind};

/// Endpoints of a slice, as Kubernetes' own controller has them: few enough that a change of one is
/// cheap, and all together may be many.
const IN_ONE_SLICE: usize = 100;

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
const SLICE_MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
const SLICE_MANAGER: &str = "portcullis.dev";

/// The EndpointSlices that are no agent's: of those that agents write they need not be told.
pub const OTHERS_SLICES: &str = "endpointslice.kubernetes.io/managed-by!=portcullis.dev";

impl DesiredObjects {
    /// Adds the EndpointSlices of the Service, as it is there. Pods of mode Dedicated have theirs
    /// from Kubernetes.
    #[must_use]
    pub fn with_endpoints(mut self, there: Option<&Generated>, agents: &Agents) -> Self {
        let slices = self.endpoint_slices(there, agents);
        if let Some(objects) = &mut self.objects {
            objects.extend(slices.unwrap_or_default());
        }
        self
    }

    fn endpoint_slices(&self, there: Option<&Generated>, agents: &Agents) -> Option<Vec<Generated>> {
        let wanted = self.object(GeneratedKind::Service)?;
        let there = there.filter(|there| there.gateway_uid() == Some(&self.uid))?;
        let service: Service = serde_json::from_value(there.manifest.clone()).ok()?;
        let spec = service.spec.filter(|spec| spec.selector.is_none())?;
        let ports: Vec<_> = spec.ports.iter().flatten().map(endpoint_port).collect();
        let families = spec.ip_families.unwrap_or_default();
        let slices = families.iter().flat_map(|family| {
            let endpoints: Vec<_> = agents
                .iter()
                .filter_map(|(node, agent)| Some(endpoint(node, agent, address(agent, family)?)))
                .collect();
            let slices = endpoints.chunks(IN_ONE_SLICE).enumerate().map(|(at, endpoints)| EndpointSlice {
                metadata: metadata(&wanted.metadata, family, at),
                address_type: family.clone(),
                endpoints: endpoints.to_vec(),
                ports: Some(ports.clone()),
            });
            slices.collect::<Vec<_>>()
        });
        Some(slices.filter_map(|slice| Generated::read(GeneratedKind::EndpointSlice, json!(slice))).collect())
    }
}

/// Of the Service, whose owner is the slice's too, and goes with all that was generated.
fn metadata(service: &ObjectMeta, family: &str, at: usize) -> ObjectMeta {
    let name = service.name.clone().unwrap_or_default();
    let mut labels = service.labels.clone().unwrap_or_default();
    labels.insert(SLICE_MANAGED_BY_LABEL.to_owned(), SLICE_MANAGER.to_owned());
    labels.insert(SERVICE_NAME_LABEL.to_owned(), name.clone());
    ObjectMeta {
        name: Some(format!("{name}-{}-{at}", family.to_ascii_lowercase())),
        labels: Some(labels),
        ..service.clone()
    }
}

fn endpoint_port(port: &ServicePort) -> EndpointPort {
    EndpointPort {
        name: port.name.clone(),
        port: port.node_port.filter(|number| *number != 0).or(Some(port.port)),
        protocol: port.protocol.clone(),
        ..EndpointPort::default()
    }
}

/// Consumers take all addresses of an endpoint to be the same, so there is one.
fn address(agent: &NodeAgent, family: &str) -> Option<IpAddr> {
    let is_v4 = family == "IPv4";
    agent.addresses.iter().copied().find(|address| address.is_ipv4() == is_v4)
}

/// With its pod: ServiceLB of k3s takes no other endpoint for ready.
///
/// "ready [...] should never be true for terminating endpoints"; "serving is identical to ready
/// except that it is set regardless of the terminating state" (EndpointConditions).
fn endpoint(node: &str, agent: &NodeAgent, address: IpAddr) -> Endpoint {
    let state = agent.state;
    Endpoint {
        addresses: vec![address.to_string()],
        node_name: Some(node.to_owned()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(agent.pod.name.namespace.to_string()),
            name: Some(agent.pod.name.name.to_string()),
            uid: agent.pod.uid.as_deref().map(str::to_owned),
            ..ObjectReference::default()
        }),
        conditions: Some(EndpointConditions {
            ready: Some(state == AgentState::Ready),
            serving: Some(matches!(state, AgentState::Ready | AgentState::Leaving)),
            terminating: Some(matches!(state, AgentState::Leaving | AgentState::Ended)),
        }),
        ..Endpoint::default()
    }
}

#[cfg(test)]
#[path = "endpoints_tests.rs"]
mod tests;
