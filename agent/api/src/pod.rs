//! Pods, as far as they prove whose an address is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// The part of a Pod that matters here; it is written back as it was read.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Pod {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default)]
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// It has the addresses of its node.
    #[serde(default)]
    pub host_network: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct PodStatus {
    #[serde(default, rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct PodIp {
    pub ip: String,
}
