//! The Kubernetes objects that translation reads, typed, by kind and name. This module knows how an object is spelt in JSON
//! and where it is kept; what objects mean is nobody's business here.

mod packed;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_model::ObjectName;
use serde_json::{Map, Value};

use crate::definition::CustomResourceDefinition;
use crate::node::Node;
use crate::types::gatewayclasses::GatewayClass;
use crate::types::gatewayparameters::GatewayParameters;
use crate::types::gateways::Gateway;
use crate::types::grpcroutes::GrpcRoute;
use crate::types::httproutes::HttpRoute;
use crate::types::listenersets::ListenerSet;
use crate::types::referencegrants::ReferenceGrant;

pub use packed::Packed;
use packed::{Described, Keep};

/// The API group of Gateway API's own kinds.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// Kind and name; the namespace of a cluster-scoped object is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    pub kind: Kind,
    pub name: ObjectName,
}

/// One step from a set of objects to the next.
#[derive(Clone, Debug)]
pub enum Change {
    Set(Object),
    Delete(ObjectKey),
}

/// Why a document of a kind we use is no object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("{0} has no metadata.name: give it one")]
    Nameless(&'static str),
    #[error("{kind} {name}: {problem}")]
    Malformed { kind: &'static str, name: String, problem: serde_json::Error },
}

/// How objects of a kind are kept: shared, or packed.
macro_rules! kept {
    ($type:ty) => { Arc<$type> };
    ($type:ty, Packed) => { Packed<$type> };
}

/// One line per kind: everything that differs between kinds as far as storing them goes.
macro_rules! kinds {
    ($($kind:ident($type:ty) in $field:ident $(as $keep:ident)?: $name:literal, $scope:ident, $group:literal [$($version:literal),+];)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($kind),+
        }

        /// An object of a kind that translation reads.
        #[derive(Clone, Debug)]
        pub enum Object {
            $($kind(kept!($type $(, $keep)?))),+
        }

        /// All objects, by kind and name.
        #[derive(Clone, Debug, Default)]
        pub struct Objects {
            $(pub $field: BTreeMap<ObjectName, kept!($type $(, $keep)?)>),+
        }

        $(
            impl Described for $type {
                fn meta(&self) -> &ObjectMeta {
                    &self.metadata
                }
            }
        )+

        impl Kind {
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// As manifests spell it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $name),+ }
            }

            pub fn group(self) -> &'static str {
                match self { $(Self::$kind => $group),+ }
            }

            /// Versions whose schema we read, the preferred one first.
            pub fn versions(self) -> &'static [&'static str] {
                match self { $(Self::$kind => &[$($version),+]),+ }
            }

            fn scope(self) -> Scope {
                match self { $(Self::$kind => Scope::$scope),+ }
            }
        }

        impl Object {
            pub fn key(&self) -> ObjectKey {
                match self { $(Self::$kind(object) => key_of(Kind::$kind, object)),+ }
            }

            pub fn metadata(&self) -> Cow<'_, ObjectMeta> {
                match self { $(Self::$kind(object) => Keep::metadata(object)),+ }
            }

            /// Whether both are the very same value: no two readings of a manifest are.
            pub fn is(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$kind(object), Self::$kind(other)) => Keep::is(object, other),)+
                    _ => false,
                }
            }

            fn parse(kind: Kind, value: Value) -> Result<Self, serde_json::Error> {
                match kind { $(Kind::$kind => Keep::parse(value).map(Self::$kind)),+ }
            }
        }

        impl Objects {
            /// Returns whether there was anything to change.
            pub fn apply(&mut self, change: Change) -> bool {
                match change {
                    $(Change::Set(Object::$kind(object)) => {
                        let key = key_of(Kind::$kind, &object);
                        put(&mut self.$field, key.name, object)
                    })+
                    Change::Delete(key) => match key.kind {
                        $(Kind::$kind => self.$field.remove(&key.name).is_some()),+
                    },
                }
            }

            pub fn get(&self, key: &ObjectKey) -> Option<Object> {
                match key.kind {
                    $(Kind::$kind => self.$field.get(&key.name).cloned().map(Object::$kind)),+
                }
            }

            pub fn iter(&self) -> impl Iterator<Item = Object> + '_ {
                std::iter::empty()$(.chain(self.$field.values().cloned().map(Object::$kind)))+
            }

            pub fn len(&self) -> usize {
                0 $(+ self.$field.len())+
            }

            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }
    };
}

kinds! {
    GatewayClass(GatewayClass) in gateway_classes: "GatewayClass", Cluster, "gateway.networking.k8s.io" ["v1", "v1beta1"];
    Gateway(Gateway) in gateways: "Gateway", Namespaced, "gateway.networking.k8s.io" ["v1", "v1beta1"];
    ListenerSet(ListenerSet) in listener_sets: "ListenerSet", Namespaced, "gateway.networking.k8s.io" ["v1"];
    HttpRoute(HttpRoute) in http_routes as Packed: "HTTPRoute", Namespaced, "gateway.networking.k8s.io" ["v1", "v1beta1"];
    GrpcRoute(GrpcRoute) in grpc_routes as Packed: "GRPCRoute", Namespaced, "gateway.networking.k8s.io" ["v1", "v1alpha2"];
    ReferenceGrant(ReferenceGrant) in reference_grants: "ReferenceGrant", Namespaced, "gateway.networking.k8s.io" ["v1", "v1beta1", "v1alpha2"];
    Service(Service) in services: "Service", Namespaced, "" ["v1"];
    EndpointSlice(EndpointSlice) in endpoint_slices: "EndpointSlice", Namespaced, "discovery.k8s.io" ["v1"];
    Secret(Secret) in secrets: "Secret", Namespaced, "" ["v1"];
    Namespace(Namespace) in namespaces: "Namespace", Cluster, "" ["v1"];
    Node(Node) in nodes: "Node", Cluster, "" ["v1"];
    ConfigMap(ConfigMap) in config_maps: "ConfigMap", Namespaced, "" ["v1"];
    GatewayParameters(GatewayParameters) in gateway_parameters: "GatewayParameters", Namespaced, "portcullis.dev" ["v1alpha1"];
    CustomResourceDefinition(CustomResourceDefinition) in definitions: "CustomResourceDefinition", Cluster, "apiextensions.k8s.io" ["v1"];
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Cluster,
    Namespaced,
}

// === impl Object ===

impl Object {
    /// Reads a manifest; `None` if it is of a kind that translation does not use. A missing namespace is `default`, as for
    /// `kubectl apply`. Unknown fields are ignored, so that newer CRDs never make the agent fail.
    ///
    /// # Errors
    /// When the manifest has no name or a field of the wrong type.
    pub fn from_json(mut manifest: Value) -> Result<Option<Self>, ObjectError> {
        let Some(kind) = Kind::of_manifest(&manifest) else { return Ok(None) };
        let name = complete_metadata(kind, &mut manifest)?;
        spell_as_preferred(kind, &mut manifest);
        let object = Self::parse(kind, manifest);
        let object =
            object.map_err(|problem| ObjectError::Malformed { kind: kind.as_str(), name, problem })?;
        Ok(Some(object.folded()))
    }

    /// `stringData` is write-only sugar: the API server folds it into `data`.
    fn folded(self) -> Self {
        match self {
            Self::Secret(secret) if secret.string_data.is_some() => Self::Secret(Arc::new(fold(&secret))),
            other => other,
        }
    }
}

fn fold(secret: &Secret) -> Secret {
    let mut secret = secret.clone();
    let plain = secret.string_data.take().unwrap_or_default();
    let data = secret.data.get_or_insert_default();
    data.extend(plain.into_iter().map(|(name, text)| (name, k8s_openapi::ByteString(text.into_bytes()))));
    secret
}

/// Fills in the namespace and returns the name for messages.
fn complete_metadata(kind: Kind, manifest: &mut Value) -> Result<String, ObjectError> {
    let metadata = manifest.get_mut("metadata").and_then(Value::as_object_mut);
    let metadata = metadata.ok_or(ObjectError::Nameless(kind.as_str()))?;
    let name = text(metadata, "name").ok_or(ObjectError::Nameless(kind.as_str()))?.to_owned();
    if kind.scope() == Scope::Cluster {
        metadata.remove("namespace");
        return Ok(name);
    }
    if text(metadata, "namespace").is_none() {
        metadata.insert("namespace".to_owned(), "default".into());
    }
    Ok(format!("{}/{name}", text(metadata, "namespace").unwrap_or_default()))
}

fn text<'m>(map: &'m Map<String, Value>, field: &str) -> Option<&'m str> {
    map.get(field)?.as_str().filter(|text| !text.is_empty())
}

/// Older versions with the same schema are read as the preferred one.
fn spell_as_preferred(kind: Kind, manifest: &mut Value) {
    if let Some(map) = manifest.as_object_mut() {
        map.insert("apiVersion".to_owned(), kind.api_version().into());
    }
}

fn key_of(kind: Kind, object: &impl Keep) -> ObjectKey {
    let ObjectName { namespace, name } = object.name();
    let namespace = match kind.scope() {
        Scope::Cluster => "".into(),
        Scope::Namespaced if namespace.is_empty() => "default".into(),
        Scope::Namespaced => namespace,
    };
    ObjectKey { kind, name: ObjectName { namespace, name } }
}

/// Identical content counts as no change, whatever the API server's bookkeeping says.
fn put<T: PartialEq + Clone>(map: &mut BTreeMap<ObjectName, T>, name: ObjectName, object: T) -> bool {
    match map.insert(name, object.clone()) {
        Some(before) => before != object,
        None => true,
    }
}

// === impl Kind ===

impl Kind {
    /// The kind of a group and kind name as references spell them.
    pub fn of(group: &str, kind: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.group() == group && known.as_str() == kind)
    }

    /// `group/version`, or `v1` for the core group.
    pub fn api_version(self) -> String {
        let version = self.versions().first().copied().unwrap_or_default();
        if self.group().is_empty() { version.to_owned() } else { format!("{}/{version}", self.group()) }
    }

    fn of_manifest(manifest: &Value) -> Option<Self> {
        let api_version = manifest.get("apiVersion")?.as_str()?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = Self::of(group, manifest.get("kind")?.as_str()?)?;
        kind.versions().contains(&version).then_some(kind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl ObjectKey ===

impl ObjectKey {
    pub fn new(kind: Kind, name: ObjectName) -> Self {
        Self { kind, name }
    }
}

/// `Gateway infra/web`, `GatewayClass portcullis`.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind.scope() {
            Scope::Cluster => write!(f, "{} {}", self.kind, self.name.name),
            Scope::Namespaced => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

// === impl Change ===

impl Change {
    /// The object that changes.
    pub fn key(&self) -> ObjectKey {
        match self {
            Self::Set(object) => object.key(),
            Self::Delete(key) => key.clone(),
        }
    }
}

// === metadata ===

/// `metadata.creationTimestamp` in Unix seconds; without one, an object counts as older than all.
pub fn created(metadata: &ObjectMeta) -> i64 {
    metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

/// `metadata.generation`, which conditions report as observed.
pub fn generation(metadata: &ObjectMeta) -> i64 {
    metadata.generation.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(manifest: Value) -> Object {
        Object::from_json(manifest).unwrap().unwrap()
    }

    #[test]
    fn manifests_become_objects_with_their_defaults() {
        let route = read(json!({"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "HTTPRoute",
            "metadata": {"name": "r"}, "spec": {"hostnames": ["a.example"], "added-later": {}}}));
        assert_eq!(route.key().to_string(), "HTTPRoute default/r");
        let class = read(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "c"}, "spec": {"controllerName": "example.com/c"}}));
        assert_eq!(class.key().to_string(), "GatewayClass c");
    }

    #[test]
    fn string_data_is_folded_into_data() {
        let secret = read(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
            "data": {"a": "MQ=="}, "stringData": {"b": "2"}}));
        let Object::Secret(secret) = secret else { panic!("{secret:?}") };
        let data = secret.data.as_ref().unwrap();
        assert_eq!((data["a"].0.as_slice(), data["b"].0.as_slice()), (b"1".as_slice(), b"2".as_slice()));
    }

    #[test]
    fn kinds_we_do_not_use_are_none_and_broken_ones_say_which() {
        assert!(Object::from_json(json!({"apiVersion": "apps/v1", "kind": "Deployment"})).unwrap().is_none());
        let error = Object::from_json(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "s", "namespace": "shop"}, "spec": {"ports": [{"port": "x"}]}}));
        assert!(error.unwrap_err().to_string().starts_with("Service shop/s: "));
        let nameless = Object::from_json(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {}}));
        assert_eq!(nameless.unwrap_err().to_string(), "Secret has no metadata.name: give it one");
    }

    #[test]
    fn applying_the_same_object_again_changes_nothing() {
        let secret = || read(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}));
        let mut objects = Objects::default();
        assert!(objects.apply(Change::Set(secret())));
        assert!(!objects.apply(Change::Set(secret())));
        assert!(objects.apply(Change::Delete(secret().key())));
        assert!(!objects.apply(Change::Delete(secret().key())));
    }
}
