//! An object that is generated, of whatever kind: its manifest, and what it states about the
//! controller that made it and the Gateway it was made for.

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use portcullis_api::GATEWAY_GROUP;
use portcullis_model::ObjectName;
use serde_json::Value;

use super::{CONTROLLER_ANNOTATION, MANAGED_BY_LABEL, MANAGER};

/// Annotations of our own, in other namespaces than the Gateway's: for whom an object was made.
pub(super) const GATEWAY_ANNOTATION: &str = "portcullis.dev/gateway";
pub(super) const UID_ANNOTATION: &str = "portcullis.dev/gateway-uid";

/// In the order in which they are made: each needs those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GeneratedKind {
    ServiceAccount,
    Role,
    RoleBinding,
    Deployment,
    Service,
    EndpointSlice,
}

/// An object, wanted or there.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    pub kind: GeneratedKind,
    pub metadata: ObjectMeta,
    /// All of it, metadata included.
    pub manifest: Value,
}

impl GeneratedKind {
    pub const ALL: [Self; 6] = [
        Self::ServiceAccount,
        Self::Role,
        Self::RoleBinding,
        Self::Deployment,
        Self::Service,
        Self::EndpointSlice,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::Role => "Role",
            Self::RoleBinding => "RoleBinding",
            Self::Deployment => "Deployment",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
        }
    }

    pub fn group(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::Service => "",
            Self::Role | Self::RoleBinding => "rbac.authorization.k8s.io",
            Self::Deployment => "apps",
            Self::EndpointSlice => "discovery.k8s.io",
        }
    }

    /// As manifests spell it; the version of all of them is v1.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::Service => "v1",
            Self::Role | Self::RoleBinding => "rbac.authorization.k8s.io/v1",
            Self::Deployment => "apps/v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
        }
    }

    /// True if an object of this kind must not be made for a Gateway that cannot have its object of
    /// the other kind: no rights are given, and no pod runs, under a name that is another owner's.
    pub fn needs(self, other: Self) -> bool {
        match other {
            Self::ServiceAccount => matches!(self, Self::RoleBinding | Self::Deployment),
            Self::Role => self == Self::RoleBinding,
            Self::RoleBinding | Self::Deployment | Self::Service | Self::EndpointSlice => false,
        }
    }

    /// True if its objects give rights. They may be in another namespace than their Gateway.
    pub(super) fn gives_rights(self) -> bool {
        matches!(self, Self::Role | Self::RoleBinding)
    }
}

impl fmt::Display for GeneratedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Generated {
    /// `None` if it has no readable metadata. Who manages which field is of no interest, and large.
    pub fn read(kind: GeneratedKind, mut manifest: Value) -> Option<Self> {
        manifest.get_mut("metadata")?.as_object_mut()?.remove("managedFields");
        manifest["apiVersion"] = kind.api_version().into();
        manifest["kind"] = kind.as_str().into();
        let metadata = serde_json::from_value(manifest["metadata"].clone()).ok()?;
        Some(Self { kind, metadata, manifest })
    }

    pub fn name(&self) -> ObjectName {
        name_of(&self.metadata)
    }

    /// True if the agent made it for some Gateway: we have marked it, and it says for which.
    pub fn is_generated(&self) -> bool {
        is_marked(&self.metadata) && self.origin().is_some()
    }

    /// Whom it was made for.
    pub fn gateway(&self) -> Option<ObjectName> {
        Some(self.origin().filter(|_| is_marked(&self.metadata))?.0)
    }

    /// True if it is a Service that is to have a certain address.
    pub fn asks_for_address(&self) -> bool {
        let spec = &self.manifest["spec"];
        self.kind == GeneratedKind::Service
            && ["clusterIP", "loadBalancerIP"].iter().any(|it| spec[*it].is_string())
    }

    /// The Service with a wish for the first of these addresses, and one of the other family if it
    /// may have two; `None` if it may not wish, or cannot be made to: what a load balancer does
    /// with the wish for an address that it cannot give is its own.
    pub fn asking_for(&self, addresses: &[IpAddr]) -> Option<Self> {
        let has_cluster_ip = self.kind == GeneratedKind::Service
            && ["ClusterIP", "NodePort"].iter().any(|it| self.manifest["spec"]["type"] == **it);
        if !has_cluster_ip || self.asks_for_address() {
            return None;
        }
        let family = |address: &IpAddr| if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let primary = self.manifest["spec"]["ipFamilies"][0].as_str();
        let first = addresses.iter().find(|address| primary.is_none_or(|it| it == family(address)))?;
        let has_two = self.manifest["spec"]["ipFamilyPolicy"].as_str().is_some_and(|it| it != "SingleStack");
        let second = addresses.iter().find(|address| has_two && family(address) != family(first));
        let wish: Vec<_> = [Some(first), second].into_iter().flatten().map(ToString::to_string).collect();
        let mut asking = self.clone();
        asking.manifest["spec"]["clusterIP"] = wish[0].clone().into();
        asking.manifest["spec"]["clusterIPs"] = wish.into();
        Some(asking)
    }

    /// The UID, which differs between Gateways that had this name one after the other.
    pub fn gateway_uid(&self) -> Option<&str> {
        Some(self.origin().filter(|_| is_marked(&self.metadata))?.1)
    }

    /// The Gateway, and its UID: the one that is its controller, or, of an object in another
    /// namespace, the one that it names.
    fn origin(&self) -> Option<(ObjectName, &str)> {
        if let Some(owner) = owner_of(&self.metadata) {
            return Some((ObjectName::new(&*self.name().namespace, owner.name.as_str()), &owner.uid));
        }
        let annotations = self.metadata.annotations.as_ref().filter(|_| self.kind.gives_rights())?;
        let (namespace, name) = annotations.get(GATEWAY_ANNOTATION)?.split_once('/')?;
        Some((ObjectName::new(namespace, name), annotations.get(UID_ANNOTATION)?))
    }

    pub(super) fn is_of_controller(&self, controller_name: &str) -> bool {
        is_of_controller(&self.metadata, controller_name)
    }
}

/// `Service infra/web-portcullis`.
impl fmt::Display for Generated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name())
    }
}

pub(super) fn is_of_controller(metadata: &ObjectMeta, controller_name: &str) -> bool {
    let annotations = metadata.annotations.as_ref();
    let controller = annotations.and_then(|annotations| annotations.get(CONTROLLER_ANNOTATION));
    controller.is_some_and(|controller| controller == controller_name)
}

pub(super) fn is_generated(metadata: &ObjectMeta) -> bool {
    is_marked(metadata) && owner_of(metadata).is_some()
}

/// Either mark will do: taking the label away does not take the object, and its address, from the
/// Gateway.
fn is_marked(metadata: &ObjectMeta) -> bool {
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY_LABEL));
    let annotation = metadata.annotations.as_ref().and_then(|all| all.get(CONTROLLER_ANNOTATION));
    label.is_some_and(|value| value == MANAGER) || annotation.is_some()
}

pub(super) fn owner_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| {
        owner.kind == "Gateway"
            && owner.api_version.starts_with(GATEWAY_GROUP)
            && owner.controller == Some(true)
    })
}

pub(crate) fn name_of(metadata: &ObjectMeta) -> ObjectName {
    ObjectName::new(
        metadata.namespace.as_deref().unwrap_or("default"),
        metadata.name.as_deref().unwrap_or_default(),
    )
}
