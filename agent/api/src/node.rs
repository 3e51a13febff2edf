//! Nodes, as far as they have addresses.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// The part of a Node that matters here; it is written back as it was read.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Node {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: NodeSpec,
    #[serde(default)]
    pub status: NodeStatus,
}

/// The ranges from which the node's pods have addresses, where Kubernetes assigns them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct NodeSpec {
    #[serde(default, rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<String>,
    #[serde(default, rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct NodeStatus {
    #[serde(default)]
    pub addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct NodeAddress {
    pub address: String,
}
