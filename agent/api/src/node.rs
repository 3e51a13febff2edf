//! Nodes, as far as they have addresses.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// The part of a Node that matters here; it is written back as it was read.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Node {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub status: NodeStatus,
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
