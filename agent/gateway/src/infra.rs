//! What is generated in the cluster for a Gateway (GEP-1762): pure. [`plan`] says what a Gateway wants, [`diff`] what to do
//! about what is there. Nothing here talks with an API server, and nothing decides what the Gateway serves.

mod address;
mod diff;
mod name;
mod parameters;
mod service;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Service;
use portcullis_model::{L4Protocol, ObjectName};

use crate::api::gateways::Gateway;

pub use address::{generated_for, with_assigned_addresses};
pub use diff::{Operation, diff, is_generated};
pub use name::generated_name;
pub use parameters::{HostPorts, Mode, Parameters, ServiceType};
pub(crate) use parameters::{class_refers, of_class, refers};

/// "MUST label all generated resources (Service, Deployment, etc)".
pub const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
pub const GATEWAY_CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Tells kube-proxy and its replacements that somebody else serves the addresses of a Service: the agents do.
pub const SERVICE_PROXY_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// An annotation of our own: the controller whose GatewayClass it was generated for. Several may run in a cluster.
pub const CONTROLLER_ANNOTATION: &str = "portcullis.dev/controller";
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// What generated objects say about who made them, and the field manager of server-side apply.
pub const MANAGER: &str = "portcullis";

/// A port of a Gateway, its ListenerSets' included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub number: u16,
    pub protocol: L4Protocol,
}

/// What a Gateway wants to be there.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    pub gateway: ObjectName,
    /// The Gateway's UID tells what was generated for it from what was for an earlier one of the same name.
    pub uid: String,
    /// Absent while the Gateway has no port: a Service needs one. A Service that is there already stays as it is, and with
    /// it its address.
    pub service: Option<Box<Service>>,
}

/// Plans for a Gateway whose class is ours. `None` if the Gateway has no UID: it does not come from an API server.
pub fn plan(
    gateway: &Gateway,
    ports: &BTreeSet<Port>,
    parameters: &Parameters,
    controller_name: &str,
) -> Option<Wanted> {
    let plan = |wanted| {
        let service = service::service(gateway, ports, parameters, controller_name);
        Wanted { service: (!ports.is_empty()).then(|| Box::new(service)), ..wanted }
    };
    untouched(gateway).map(plan)
}

/// For a Gateway that is not accepted at the moment: what was generated for it, its address above all, is still its own.
pub fn untouched(gateway: &Gateway) -> Option<Wanted> {
    let name = ObjectName::new(
        gateway.metadata.namespace.as_deref().unwrap_or("default"),
        gateway.metadata.name.as_deref().unwrap_or_default(),
    );
    Some(Wanted { gateway: name, uid: gateway.metadata.uid.clone()?, service: None })
}

/// Infrastructure labels ("If Labels is set on the GatewayClass as well, the labels are merged with the Gateway's labels taking
/// precedence"), with those that identify the object on top: nobody can relabel an object into another Gateway's.
fn labels(gateway: &Gateway, parameters: &Parameters) -> BTreeMap<String, String> {
    let infrastructure = gateway.spec.infrastructure.as_ref();
    let mut labels = parameters.labels.clone();
    labels.extend(
        infrastructure.and_then(|infrastructure| infrastructure.labels.clone()).into_iter().flatten(),
    );
    let name = gateway.metadata.name.as_deref().unwrap_or_default();
    let own = [
        (GATEWAY_NAME_LABEL, name::label_value(name)),
        (GATEWAY_CLASS_LABEL, name::label_value(&gateway.spec.gateway_class_name)),
        (SERVICE_PROXY_LABEL, MANAGER.to_owned()),
        (MANAGED_BY_LABEL, MANAGER.to_owned()),
    ];
    labels.extend(own.map(|(key, value)| (key.to_owned(), value)));
    labels
}

fn annotations(
    gateway: &Gateway,
    parameters: &Parameters,
    controller_name: &str,
) -> BTreeMap<String, String> {
    let infrastructure = gateway.spec.infrastructure.as_ref();
    let own = infrastructure.and_then(|infrastructure| infrastructure.annotations.clone());
    let mut annotations = parameters.annotations.clone();
    annotations.extend(own.into_iter().flatten());
    annotations.insert(CONTROLLER_ANNOTATION.to_owned(), controller_name.to_owned());
    annotations
}

#[cfg(test)]
mod tests;
