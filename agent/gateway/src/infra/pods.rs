//! The pods of a Gateway in mode Dedicated, and the ServiceAccount they run as. The Deployment's name and the pods' labels are
//! what the specification's HorizontalPodAutoscaler and PodDisruptionBudget refer to.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_model::L4Protocol;
use serde_json::{Map, Value, json};

use super::{GATEWAY_NAME_LABEL, Parameters, Port};

/// What GEP-1762's example of a PodDisruptionBudget selects by.
const METADATA_NAME_LABEL: &str = "gateway.networking.k8s.io/metadata.name";

/// Of the image; Kubernetes' convention for nobody.
const USER: u32 = 65532;
/// Longer than the agent's drain timeout and the pause before it.
const GRACE_SECONDS: u32 = 45;
/// Service proxies need a moment to learn that a pod is going.
const PAUSE_SECONDS: u32 = 5;

const RUN: &str = "/run/portcullis";
const STATE: &str = "/var/lib/portcullis";

pub(super) fn service_account(metadata: &ObjectMeta) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
}

/// By what the Service and the Deployment find the pods. Of a Deployment it can never change.
pub(super) fn selector(metadata: &ObjectMeta) -> BTreeMap<String, String> {
    let labels = metadata.labels.iter().flatten();
    let name = labels.filter(|(key, _)| *key == GATEWAY_NAME_LABEL);
    name.map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub(super) fn deployment(
    metadata: &ObjectMeta,
    ports: &BTreeSet<Port>,
    parameters: &Parameters,
    gateway: &str,
    controller_name: &str,
) -> Value {
    let selector = selector(metadata);
    let mut labels = metadata.labels.clone().unwrap_or_default();
    let name = selector.get(GATEWAY_NAME_LABEL).cloned().unwrap_or_default();
    labels.insert(METADATA_NAME_LABEL.to_owned(), name);
    let template = json!({
        "metadata": {"labels": labels, "annotations": metadata.annotations},
        "spec": {
            "serviceAccountName": metadata.name,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "securityContext": pod_security(),
            "containers": [container(ports, parameters, gateway, controller_name)],
            "volumes": [{"name": "run", "emptyDir": {}}, {"name": "state", "emptyDir": {}}],
        },
    });
    let mut spec = Map::new();
    // An autoscaler's, where the parameters leave it out.
    spec.extend(parameters.replicas.map(|replicas| ("replicas".to_owned(), json!(replicas))));
    spec.insert("selector".to_owned(), json!({"matchLabels": selector}));
    spec.insert("template".to_owned(), template);
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
}

/// No capability is needed for ports below 1024: in a network namespace of its own they can be anybody's.
fn pod_security() -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
        "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}],
    })
}

fn container(ports: &BTreeSet<Port>, parameters: &Parameters, gateway: &str, controller_name: &str) -> Value {
    let variable = |name: &str, value: &str| json!({"name": format!("PORTCULLIS_{name}"), "value": value});
    json!({
        "name": "gateway",
        "image": parameters.image,
        "args": ["run"],
        "env": [
            variable("GATEWAY", gateway),
            variable("CONTROLLER_NAME", controller_name),
            variable("DATAPATH", "userspace"),
            variable("IMAGE", parameters.image.as_deref().unwrap_or_default()),
            variable("ADMIN_SOCKET", &format!("{RUN}/admin.sock")),
        ],
        "ports": ports.iter().map(container_port).collect::<Vec<_>>(),
        "readinessProbe": {
            "exec": {"command": ["/portcullis", "ready", "--admin-socket", format!("{RUN}/admin.sock")]},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": PAUSE_SECONDS}}},
        "resources": resources(parameters),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "run", "mountPath": RUN}, {"name": "state", "mountPath": STATE}],
    })
}

fn container_port(port: &Port) -> Value {
    let protocol = match port.protocol {
        L4Protocol::Tcp => "TCP",
        L4Protocol::Udp => "UDP",
    };
    json!({"containerPort": port.number, "protocol": protocol})
}

/// The API server drops what is empty.
fn resources(parameters: &Parameters) -> Value {
    let parts = [("requests", &parameters.resource_requests), ("limits", &parameters.resource_limits)];
    let parts = parts.into_iter().filter(|(_, amounts)| !amounts.is_empty());
    parts.map(|(name, amounts)| (name.to_owned(), json!(amounts))).collect::<Map<_, _>>().into()
}
