//! The pods of a Gateway in mode Dedicated, and the ServiceAccount they run as. The Deployment's
//! name and the pods' labels are what the specification's HorizontalPodAutoscaler and
//! PodDisruptionBudget refer to.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_model::{HostPattern, PortKey};
use serde_json::{Map, Value, json};

use super::GATEWAY_NAME_LABEL;
use super::parameters::{Parameters, Pods};

/// The label that GEP-1762's example of a PodDisruptionBudget selects by.
const METADATA_NAME_LABEL: &str = "gateway.networking.k8s.io/metadata.name";

/// User of the image, by Kubernetes' convention without rights.
const USER: u32 = 65532;
/// Service proxies need a moment to learn that a pod is going.
const PAUSE_SECONDS: u64 = 5;
/// The time an agent needs to end, besides the pause and its drain timeout.
const MARGIN_SECONDS: u64 = 10;

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
    ports: &BTreeSet<PortKey>,
    parameters: &Parameters,
    gateway: &str,
    controller_name: &str,
) -> Option<Value> {
    let pods = parameters.pods.as_ref()?;
    let selector = selector(metadata);
    let mut labels = metadata.labels.clone().unwrap_or_default();
    let name = selector.get(GATEWAY_NAME_LABEL).cloned().unwrap_or_default();
    labels.insert(METADATA_NAME_LABEL.to_owned(), name);
    let container = container(ports, parameters, pods, gateway, controller_name);
    let template = json!({
        "metadata": {"labels": labels, "annotations": metadata.annotations},
        "spec": pod_spec(metadata, pods, container),
    });
    let mut spec = Map::new();
    // An autoscaler's, where the parameters leave it out.
    spec.extend(parameters.replicas.map(|replicas| ("replicas".to_owned(), json!(replicas))));
    spec.insert("selector".to_owned(), json!({"matchLabels": selector}));
    spec.insert("template".to_owned(), template);
    Some(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}))
}

fn pod_spec(metadata: &ObjectMeta, pods: &Pods, container: Value) -> Map<String, Value> {
    let mut spec = pods.spec.clone();
    let own = [
        ("serviceAccountName", json!(metadata.name)),
        ("terminationGracePeriodSeconds", json!(PAUSE_SECONDS + pods.drain_seconds + MARGIN_SECONDS)),
        ("securityContext", pod_security()),
        ("containers", json!([container])),
        ("volumes", json!([{"name": "run", "emptyDir": {}}, {"name": "state", "emptyDir": {}}])),
    ];
    spec.extend(own.map(|(field, value)| (field.to_owned(), value)));
    spec
}

/// No capability is needed for ports below 1024: in a network namespace of its own any process may
/// have them.
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

/// Parameters and addresses are judged by the pod, too, so it has to know what they are judged by.
fn container(
    ports: &BTreeSet<PortKey>,
    parameters: &Parameters,
    pods: &Pods,
    gateway: &str,
    controller_name: &str,
) -> Value {
    let variable = |name: &str, value: &str| json!({"name": format!("PORTCULLIS_{name}"), "value": value});
    let load_balancers: Vec<_> = pods.load_balancers.iter().map(ToString::to_string).collect();
    let mut variables = vec![
        variable("GATEWAY", gateway),
        variable("CONTROLLER_NAME", controller_name),
        variable("DATAPATH", "userspace"),
        variable("IMAGE", &pods.image),
        variable("SERVICE_TYPE", parameters.service_type.as_str()),
        variable("LOG", &pods.log),
        variable("LOG_FORMAT", &pods.log_format),
        variable("DRAIN_TIMEOUT", &pods.drain_seconds.to_string()),
        variable("ADMIN_SOCKET", &format!("{RUN}/admin.sock")),
        // Endpoints on its node, and in the zone of that, are the nearest.
        json!({
            "name": "PORTCULLIS_NODE_NAME",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}},
        }),
    ];
    let ranges: Vec<_> = pods.external.ranges.iter().map(ToString::to_string).collect();
    let mut names: Vec<_> = pods.external.names.iter().map(ToString::to_string).collect();
    if pods.external.names == [HostPattern::Any] {
        names.clear();
    }
    let lists = [
        ("ENDPOINT_NAMESPACES", &pods.endpoint_namespaces),
        ("LOAD_BALANCER_ADDRESSES", &load_balancers),
        ("EXTERNAL_NAMES", &names),
        ("EXTERNAL_RANGES", &ranges),
    ];
    let lists = lists.into_iter().filter(|(_, values)| !values.is_empty());
    variables.extend(lists.map(|(name, values)| variable(name, &values.join(","))));
    variables.extend(pods.telemetry.iter().map(|(name, value)| json!({"name": name, "value": value})));
    let mut container_ports: Vec<_> = ports.iter().map(container_port).collect();
    // A listener's port is the listener's.
    if let Some(port) = pods.metrics_port.filter(|port| !ports.contains(&PortKey::tcp(*port))) {
        variables.push(variable("METRICS_ADDRESS", &format!("[::]:{port}")));
        variables.push(variable("METRICS_OPEN", "true"));
        container_ports.push(json!({"name": "metrics", "containerPort": port, "protocol": "TCP"}));
    }
    json!({
        "name": "gateway",
        "image": pods.image,
        "args": ["run"],
        "env": variables,
        "ports": container_ports,
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

fn container_port(port: &PortKey) -> Value {
    json!({"containerPort": port.number, "protocol": port.protocol.as_str()})
}

/// The API server drops what is empty.
fn resources(parameters: &Parameters) -> Value {
    let parts = [("requests", &parameters.resource_requests), ("limits", &parameters.resource_limits)];
    let parts = parts.into_iter().filter(|(_, amounts)| !amounts.is_empty());
    parts.map(|(name, amounts)| (name.to_owned(), json!(amounts))).collect::<Map<_, _>>().into()
}
