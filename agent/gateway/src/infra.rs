//! Objects generated in the cluster for a Gateway (GEP-1762): pure. [`plan`] says what a Gateway
//! wants, [`diff`] what to do about what is there. Nothing here talks with an API server, and
//! nothing decides what the Gateway serves.

mod address;
mod agents;
mod diff;
mod endpoints;
mod host_ports;
mod limits;
mod name;
mod object;
mod parameters;
mod pods;
mod rights;
mod service;
mod syntax;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use portcullis_api::types::gateways::Gateway;
use portcullis_api::{GATEWAY_GROUP, ObjectKey, created};
use portcullis_model::{ObjectName, PortKey};

pub use address::{AssignedAddresses, generated_for};
pub(crate) use address::{
    CLUSTER, Ingress, MOST_PUBLISHED, carried_addresses, cluster_addresses, is_generated_by, served_at,
};
pub use agents::{AgentPod, Agents};
pub use diff::{Operation, diff, without_clashes};
pub use endpoints::OTHERS_SLICES;
pub use host_ports::{HostPortGrant, HostPortRights, HostPortSyntax, PortRange};
pub(crate) use limits::overlay as overlay_limits;
pub use name::generated_name;
pub(crate) use object::name_of;
pub use object::{Generated, GeneratedKind};
pub use parameters::{HostPorts, Logging, Mode, NodePorts, Parameters, Pods, ServiceType};
pub(crate) use parameters::{class_refers, of_class, overlay_log, refers};

/// "MUST label all generated resources (Service, Deployment, etc)".
pub const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
pub const GATEWAY_CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Tells kube-proxy and its replacements that the addresses of a Service are not theirs to serve:
/// the agents do.
pub const SERVICE_PROXY_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// An annotation of our own: the controller whose GatewayClass it was generated for. Several may
/// run in a cluster.
pub const CONTROLLER_ANNOTATION: &str = "portcullis.dev/controller";
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// The manager that generated objects name, and the field manager of server-side apply.
pub const MANAGER: &str = "portcullis";

/// The ports of a Gateway and of what is attached to it, and what they are served with.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// Its ListenerSets' included.
    pub ports: BTreeSet<PortKey>,
    /// Secrets and ConfigMaps that are read for it.
    pub needs: BTreeSet<ObjectKey>,
}

/// The objects that are to be there for a Gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredObjects {
    pub gateway: ObjectName,
    /// Of the Gateway: what was generated for an earlier one of the same name has another.
    pub uid: String,
    /// Creation of the Gateway, in Unix seconds. Where several want an object of one name, the
    /// oldest gets it.
    pub created: i64,
    /// In the order in which they are made. Absent while the Gateway has no port, for a Service
    /// needs one, or is not accepted, for whatever reason: what is there already stays as it is,
    /// and with it the address.
    pub objects: Option<Vec<Generated>>,
    /// Rights that stay without objects. All others go: the reason may be that a permission was
    /// taken back.
    pub rights: Vec<Generated>,
}

impl DesiredObjects {
    pub fn objects(&self) -> &[Generated] {
        self.objects.as_deref().unwrap_or_default()
    }

    /// True if an object that was generated for the Gateway has its place still. A Gateway of which
    /// it is not known what it wants keeps what it has, but of rights only those that it would get.
    pub fn keeps(&self, object: &Generated) -> bool {
        let is_it = |other: &Generated| other.kind == object.kind && other.name() == object.name();
        match &self.objects {
            Some(objects) => objects.iter().any(is_it),
            None if object.kind.gives_rights() => self
                .rights
                .iter()
                .any(|right| is_it(right) && diff::contains(&object.manifest, &right.manifest)),
            // No agent serves it: its clients are to be sent to none.
            None => object.kind != GeneratedKind::EndpointSlice,
        }
    }

    /// The object of a kind, if one is desired.
    pub fn object(&self, kind: GeneratedKind) -> Option<&Generated> {
        self.objects().iter().find(|object| object.kind == kind)
    }
}

/// Plans for a Gateway whose class is ours. `None` if the Gateway has no UID: it does not come from
/// an API server.
pub fn plan(
    gateway: &Gateway,
    merged: &Merged,
    parameters: &Parameters,
    controller_name: &str,
) -> Option<DesiredObjects> {
    let desired = untouched(gateway)?;
    let mut objects = objects(gateway, merged, parameters, controller_name);
    if merged.ports.is_empty() {
        objects.retain(|object| object.kind.gives_rights());
        return Some(DesiredObjects { rights: objects, ..desired });
    }
    Some(DesiredObjects { objects: Some(objects), ..desired })
}

fn objects(
    gateway: &Gateway,
    merged: &Merged,
    parameters: &Parameters,
    controller_name: &str,
) -> Vec<Generated> {
    let metadata = metadata(gateway, parameters, controller_name);
    let service = service::service(gateway, &merged.ports, parameters, &metadata);
    let mut manifests = vec![(GeneratedKind::Service, service)];
    if parameters.mode == Mode::Dedicated {
        let name = object::name_of(&gateway.metadata);
        let deployment =
            pods::deployment(&metadata, &merged.ports, parameters, &name.to_string(), controller_name);
        manifests.extend(deployment.map(|deployment| (GeneratedKind::Deployment, deployment)));
        manifests.push((GeneratedKind::ServiceAccount, pods::service_account(&metadata)));
        let uid = gateway.metadata.uid.as_deref().unwrap_or_default();
        manifests.extend(rights::rights(&metadata, &merged.needs, &name, uid));
    }
    let made = manifests.into_iter().filter_map(|(kind, manifest)| Generated::read(kind, manifest));
    let mut objects: Vec<_> = made.collect();
    objects.sort_by_key(|object| object.kind);
    objects
}

/// For a Gateway that is not accepted at the moment: what was generated for it, its address above
/// all, is still its own.
pub fn untouched(gateway: &Gateway) -> Option<DesiredObjects> {
    let uid = gateway.metadata.uid.clone()?;
    Some(DesiredObjects {
        gateway: object::name_of(&gateway.metadata),
        uid,
        created: created(&gateway.metadata),
        objects: None,
        rights: Vec::new(),
    })
}

/// Of all objects of a Gateway: "Any labels or annotations here are added to all generated
/// resources."
fn metadata(gateway: &Gateway, parameters: &Parameters, controller_name: &str) -> ObjectMeta {
    let name = gateway.metadata.name.as_deref().unwrap_or_default();
    ObjectMeta {
        name: Some(generated_name(name, &gateway.spec.gateway_class_name)),
        namespace: gateway.metadata.namespace.clone(),
        labels: Some(labels(gateway, parameters)),
        annotations: Some(annotations(gateway, parameters, controller_name)),
        owner_references: Some(vec![owner(gateway)]),
        ..ObjectMeta::default()
    }
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

/// Infrastructure labels ("If Labels is set on the GatewayClass as well, the labels are merged with
/// the Gateway's labels taking precedence"), with those that identify the object on top: no tenant
/// can relabel an object into another Gateway's.
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
