//! The Kubernetes objects that translation reads, typed, by kind and name, and the table of kinds.
//! This module knows how an object is spelt in JSON and where it is kept; it does not know what
//! objects mean.

mod kind;
mod packed;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_model::ObjectName;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};

use crate::definition::CustomResourceDefinition;
use crate::name::is_plain_key;
use crate::node::Node;
use crate::pod::Pod;
use crate::types::backendpolicies::BackendPolicy;
use crate::types::backendtlspolicies::BackendTlsPolicy;
use crate::types::gatewayclasses::GatewayClass;
use crate::types::gatewayparameters::GatewayParameters;
use crate::types::gateways::Gateway;
use crate::types::grpcroutes::GrpcRoute;
use crate::types::httproutes::HttpRoute;
use crate::types::listenerpolicies::ListenerPolicy;
use crate::types::listenersets::ListenerSet;
use crate::types::referencegrants::ReferenceGrant;
use crate::types::routefilters::RouteFilter;
use crate::types::tcproutes::TcpRoute;
use crate::types::tlsroutes::TlsRoute;
use crate::types::trafficpolicies::TrafficPolicy;
use crate::types::udproutes::UdpRoute;
use crate::types::xbackends::XBackend;
use crate::types::xbackendtrafficpolicies::XBackendTrafficPolicy;

use kind::Row;
pub use kind::{LastGood, Readers, Reading, Role, Scope, StatusUse};
use packed::Keep;
pub use packed::{ObjectType, Packed};

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

/// The reason why a document of a kind we use is no object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("{0} has no metadata.name: give it one")]
    Nameless(&'static str),
    #[error("{kind} {name}: {problem}")]
    Malformed { kind: &'static str, name: String, problem: String },
}

/// A field of the wrong type, with its path.
type MalformedField = serde_path_to_error::Error<serde_json::Error>;

/// The form in which objects of a kind are kept: shared, or packed.
macro_rules! kept {
    ($type:ty) => { Arc<$type> };
    ($type:ty, Packed) => { Packed<$type> };
}

/// An expression in an arm of a match over kinds, if the role of the kind is that of routes.
#[doc(hidden)]
#[macro_export]
macro_rules! if_route {
    (Route, $value:expr) => {
        Some($value)
    };
    ($other:ident, $value:expr) => {
        None
    };
}

/// One row per kind: its type and its set, and the columns of [`kind`].
macro_rules! kinds {
    ($dollar:tt $(
        $kind:ident($type:ident) in $field:ident $(as $keep:ident)?:
        $name:literal $resource:literal of $group:ident [$($version:literal),+],
        $scope:ident, $role:ident, read $reading:ident by $readers:ident, status $status:ident, kept $last_good:ident;
    )+) => {
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
            impl ObjectType for $type {
                const KIND: Kind = Kind::$kind;

                fn metadata(&self) -> &ObjectMeta {
                    &self.metadata
                }

                fn of(object: &Object) -> Option<Cow<'_, Self>> {
                    match object {
                        Object::$kind(object) => Some(Keep::whole(object)),
                        _ => None,
                    }
                }
            }
        )+

        /// The types of the objects, by the name of their kind.
        pub mod by_kind {
            $(pub type $kind = super::$type;)+
        }

        /// Evaluates an expression for the type of a kind of route, which is all that the code
        /// for kinds of routes has to know of the table; `None` for a kind that is none.
        #[macro_export]
        macro_rules! with_route_type {
            ($dollar kind:expr, $dollar route:ident => $dollar value:expr) => {
                match $dollar kind {
                    $($crate::Kind::$kind => $crate::if_route!($role, {
                        type $dollar route = $crate::by_kind::$kind;
                        $dollar value
                    })),+
                }
            };
        }

        impl Kind {
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            fn row(self) -> &'static Row {
                match self {
                    $(Self::$kind => &Row {
                        name: $name,
                        resource: $resource,
                        group: $group,
                        versions: &[$($version),+],
                        scope: Scope::$scope,
                        role: Role::$role,
                        reading: Reading::$reading,
                        readers: Readers::$readers,
                        status: StatusUse::$status,
                        last_good: LastGood::$last_good,
                    }),+
                }
            }
        }

        impl Object {
            pub fn kind(&self) -> Kind {
                match self { $(Self::$kind(_) => Kind::$kind),+ }
            }

            pub fn key(&self) -> ObjectKey {
                match self { $(Self::$kind(object) => key_of(Kind::$kind, object)),+ }
            }

            pub fn metadata(&self) -> Cow<'_, ObjectMeta> {
                match self { $(Self::$kind(object) => Keep::metadata(object)),+ }
            }

            /// Tells whether both are the very same value: no two readings of a manifest are.
            pub fn is(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$kind(object), Self::$kind(other)) => Keep::is(object, other),)+
                    _ => false,
                }
            }

            /// The manifest, in the preferred version, without what is not read.
            ///
            /// # Errors
            /// Types of this crate have string keys only, which always serialise.
            pub fn to_json(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$kind(object) => serde_json::to_value(object)),+ }
            }

            fn parse(kind: Kind, value: Value) -> Result<Self, MalformedField> {
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

            /// The names of the objects of a kind, in order.
            pub fn names(&self, kind: Kind) -> BTreeSet<ObjectName> {
                match kind { $(Kind::$kind => self.$field.keys().cloned().collect()),+ }
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

pub(crate) const EXPERIMENTAL_GROUP: &str = "gateway.networking.x-k8s.io";
const CORE: &str = "";
const DISCOVERY: &str = "discovery.k8s.io";
pub(crate) const OWN_GROUP: &str = "portcullis.dev";
const CERTIFICATES: &str = "certificates.k8s.io";
const EXTENSIONS: &str = "apiextensions.k8s.io";

kinds! { $
    GatewayClass(GatewayClass) in gateway_classes:
        "GatewayClass" "gatewayclasses" of GATEWAY_GROUP ["v1", "v1beta1"],
        Cluster, Other, read Whole by All, status Written, kept Disk;
    Gateway(Gateway) in gateways:
        "Gateway" "gateways" of GATEWAY_GROUP ["v1", "v1beta1"],
        Namespaced, Parent, read Whole by All, status Written, kept Disk;
    ListenerSet(ListenerSet) in listener_sets:
        "ListenerSet" "listenersets" of GATEWAY_GROUP ["v1"],
        Namespaced, Parent, read Whole by All, status Written, kept Disk;
    HttpRoute(HttpRoute) in http_routes as Packed:
        "HTTPRoute" "httproutes" of GATEWAY_GROUP ["v1", "v1beta1"],
        Namespaced, Route, read Whole by All, status Written, kept Disk;
    GrpcRoute(GrpcRoute) in grpc_routes as Packed:
        "GRPCRoute" "grpcroutes" of GATEWAY_GROUP ["v1", "v1alpha2"],
        Namespaced, Route, read Whole by All, status Written, kept Disk;
    TlsRoute(TlsRoute) in tls_routes as Packed:
        "TLSRoute" "tlsroutes" of GATEWAY_GROUP ["v1", "v1alpha3", "v1alpha2"],
        Namespaced, Route, read Whole by All, status Written, kept Disk;
    TcpRoute(TcpRoute) in tcp_routes as Packed:
        "TCPRoute" "tcproutes" of GATEWAY_GROUP ["v1", "v1alpha2"],
        Namespaced, Route, read Whole by All, status Written, kept Disk;
    UdpRoute(UdpRoute) in udp_routes as Packed:
        "UDPRoute" "udproutes" of GATEWAY_GROUP ["v1", "v1alpha2"],
        Namespaced, Route, read Whole by All, status Written, kept Disk;
    BackendTlsPolicy(BackendTlsPolicy) in backend_tls_policies:
        "BackendTLSPolicy" "backendtlspolicies" of GATEWAY_GROUP ["v1", "v1alpha3"],
        Namespaced, Policy, read Whole by All, status Written, kept Disk;
    XBackend(XBackend) in x_backends:
        "XBackend" "xbackends" of EXPERIMENTAL_GROUP ["v1alpha1"],
        Namespaced, Backend, read Whole by All, status Written, kept Disk;
    ListenerPolicy(ListenerPolicy) in listener_policies:
        "ListenerPolicy" "listenerpolicies" of OWN_GROUP ["v1alpha1"],
        Namespaced, Policy, read Whole by All, status Written, kept Disk;
    TrafficPolicy(TrafficPolicy) in traffic_policies:
        "TrafficPolicy" "trafficpolicies" of OWN_GROUP ["v1alpha1"],
        Namespaced, Policy, read Whole by All, status Written, kept Disk;
    BackendPolicy(BackendPolicy) in backend_policies:
        "BackendPolicy" "backendpolicies" of OWN_GROUP ["v1alpha1"],
        Namespaced, Policy, read Whole by All, status Written, kept Disk;
    XBackendTrafficPolicy(XBackendTrafficPolicy) in backend_traffic_policies:
        "XBackendTrafficPolicy" "xbackendtrafficpolicies" of EXPERIMENTAL_GROUP ["v1alpha1"],
        Namespaced, Policy, read Whole by All, status Written, kept Disk;
    RouteFilter(RouteFilter) in route_filters:
        "RouteFilter" "routefilters" of OWN_GROUP ["v1alpha1"],
        Namespaced, Other, read Whole by All, status Written, kept Disk;
    ReferenceGrant(ReferenceGrant) in reference_grants:
        "ReferenceGrant" "referencegrants" of GATEWAY_GROUP ["v1", "v1beta1", "v1alpha2"],
        Namespaced, Other, read Whole by All, status Ignored, kept Disk;
    Service(Service) in services:
        "Service" "services" of CORE ["v1"],
        Namespaced, Other, read Whole by All, status Read, kept Disk;
    EndpointSlice(EndpointSlice) in endpoint_slices:
        "EndpointSlice" "endpointslices" of DISCOVERY ["v1"],
        Namespaced, Other, read Whole by All, status Ignored, kept Disk;
    Secret(Secret) in secrets:
        "Secret" "secrets" of CORE ["v1"],
        Namespaced, Other, read OnDemand by Nodes, status Ignored, kept Memory;
    Namespace(Namespace) in namespaces:
        "Namespace" "namespaces" of CORE ["v1"],
        Cluster, Other, read Whole by All, status Ignored, kept Disk;
    Node(Node) in nodes:
        "Node" "nodes" of CORE ["v1"],
        Cluster, Other, read Whole by All, status Read, kept Disk;
    Pod(Pod) in pods:
        "Pod" "pods" of CORE ["v1"],
        Namespaced, Other, read Alone by Nodes, status Read, kept Disk;
    ConfigMap(ConfigMap) in config_maps:
        "ConfigMap" "configmaps" of CORE ["v1"],
        Namespaced, Other, read OnDemand by Nodes, status Ignored, kept Disk;
    ClusterTrustBundle(ClusterTrustBundle) in trust_bundles:
        "ClusterTrustBundle" "clustertrustbundles" of CERTIFICATES ["v1beta1", "v1alpha1", "v1"],
        Cluster, Other, read Whole by All, status Ignored, kept Disk;
    GatewayParameters(GatewayParameters) in gateway_parameters:
        "GatewayParameters" "gatewayparameters" of OWN_GROUP ["v1alpha1"],
        Namespaced, Other, read Whole by All, status Ignored, kept Disk;
    CustomResourceDefinition(CustomResourceDefinition) in definitions:
        "CustomResourceDefinition" "customresourcedefinitions" of EXTENSIONS ["v1"],
        Cluster, Other, read Metadata by Nodes, status Ignored, kept Nowhere;
}

// === impl Object ===

impl Object {
    /// Reads a manifest; `None` if it is of a kind that translation does not use. A missing
    /// namespace is `default`, as for `kubectl apply`. Unknown fields are ignored, so that newer
    /// CRDs never make the agent fail.
    ///
    /// # Errors
    /// When the manifest has no name or a field of the wrong type.
    pub fn from_json(mut manifest: Value) -> Result<Option<Self>, ObjectError> {
        let Some(kind) = Kind::of_manifest(&manifest) else { return Ok(None) };
        let name = complete_metadata(kind, &mut manifest)?;
        spell_as_preferred(kind, &mut manifest);
        join_lines(kind, &mut manifest);
        let object = Self::parse(kind, manifest).map_err(|problem| {
            let has_contents = kind == Kind::Secret || kind == Kind::ConfigMap && is_in_data(&problem);
            let problem = if has_contents { without_contents(&problem) } else { problem.to_string() };
            ObjectError::Malformed { kind: kind.as_str(), name, problem }
        })?;
        Ok(Some(object.folded()))
    }

    /// The schema's reasons against a policy of which nothing but the targets is left.
    pub fn refused(&self) -> Option<&str> {
        match self {
            Self::TrafficPolicy(policy) => policy.spec.refused.as_deref(),
            Self::ListenerPolicy(policy) => policy.spec.refused.as_deref(),
            Self::BackendTlsPolicy(policy) => policy.spec.refused.as_deref(),
            _ => None,
        }
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

/// Base64 may have line breaks, as `base64` without `-w0` writes it.
fn join_lines(kind: Kind, manifest: &mut Value) {
    let field = match kind {
        Kind::Secret => "data",
        Kind::ConfigMap => "binaryData",
        _ => return,
    };
    let values = manifest.get_mut(field).and_then(Value::as_object_mut);
    for value in values.into_iter().flat_map(|values| values.values_mut()) {
        if let Value::String(text) = value {
            text.retain(|c| !matches!(c, '\r' | '\n'));
        }
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
    fn of_manifest(manifest: &Value) -> Option<Self> {
        let api_version = manifest.get("apiVersion")?.as_str()?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = Self::of(group, manifest.get("kind")?.as_str()?)?;
        kind.versions().contains(&version).then_some(kind)
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

/// True at and below the entries of a ConfigMap.
fn is_in_data(problem: &MalformedField) -> bool {
    let field = problem.path().iter().next();
    matches!(field, Some(Segment::Map { key }) if matches!(key.as_str(), "data" | "binaryData"))
}

/// The message of a parser without what is written in the object: logs and statuses are no place
/// for a part of a Secret.
fn without_contents(problem: &MalformedField) -> String {
    let fault = without_value(&problem.inner().to_string());
    match without_entry(problem.path()) {
        place if place.is_empty() => fault,
        place => format!("{place}: {fault}"),
    }
}

/// The path up to a key that may be more than a key.
fn without_entry(path: &Path) -> String {
    let mut place = String::new();
    for segment in path.iter() {
        match segment {
            Segment::Seq { index } => place += &format!("[{index}]"),
            Segment::Map { key } if is_plain_key(key) => {
                let dot = if place.is_empty() { "" } else { "." };
                place += &format!("{dot}{key}");
            }
            _ if place.is_empty() => return "a field".to_owned(),
            _ => return format!("an entry of {place}"),
        }
    }
    place
}

/// The message of a parser without the value that it quotes, behind its type.
fn without_value(message: &str) -> String {
    const QUOTES: [char; 2] = ['"', '`'];
    match (message.find(QUOTES), message.rfind(QUOTES)) {
        (Some(begin), Some(end)) => format!("{}{}", message[..begin].trim_end(), &message[end + 1..]),
        _ => message.to_owned(),
    }
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
    fn base64_may_have_line_breaks() {
        let secret = read(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
            "data": {"a": "aGVs\r\nbG8=\n"}}));
        let Object::Secret(secret) = secret else { panic!("{secret:?}") };
        assert_eq!(secret.data.as_ref().unwrap()["a"].0, b"hello");
        let map = read(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
            "binaryData": {"a": "aGVs\nbG8="}, "data": {"b": "x\ny"}}));
        let Object::ConfigMap(map) = map else { panic!("{map:?}") };
        assert_eq!(map.binary_data.as_ref().unwrap()["a"].0, b"hello");
        assert_eq!(map.data.as_ref().unwrap()["b"], "x\ny");
    }

    #[test]
    fn kinds_we_do_not_use_are_none_and_broken_ones_say_which() {
        assert!(Object::from_json(json!({"apiVersion": "apps/v1", "kind": "Deployment"})).unwrap().is_none());
        let error = Object::from_json(json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "s", "namespace": "shop"}, "spec": {"ports": [{"port": "x"}]}}));
        let expected = "Service shop/s: spec.ports[0].port: invalid type: string \"x\", expected i32";
        assert_eq!(error.unwrap_err().to_string(), expected);
        let nameless = Object::from_json(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {}}));
        assert_eq!(nameless.unwrap_err().to_string(), "Secret has no metadata.name: give it one");
        for (field, value) in
            [("data", json!("pass\", expected word")), ("type", json!(["p"])), ("data", json!(7))]
        {
            let secret =
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, field: value});
            let told = Object::from_json(secret).unwrap_err().to_string();
            assert!(told.starts_with(&format!("Secret default/s: {field}")), "{told}");
            assert!(!told.contains("word") && !told.contains('7'), "{told}");
        }
    }

    #[test]
    fn keys_that_may_be_more_are_not_told() {
        let long = "s3cret".repeat(20);
        let keys =
            ["password:s3cret", "a: s3cret", "a s3cret", "a.s3cret", "\"s3cret\"", "a\ns3cret: Invalid x"];
        for key in keys.into_iter().chain(["", long.as_str()]) {
            for (kind, field, value, fault) in [
                ("Secret", "stringData", json!(["s3cret"]), "invalid type: sequence, expected a string"),
                ("Secret", "stringData", json!({"s3cret": "s3cret"}), "invalid type: map, expected a string"),
                ("Secret", "data", json!(5), "invalid type: integer, expected"),
                ("ConfigMap", "data", json!(["s3cret"]), "invalid type: sequence, expected a string"),
                ("ConfigMap", "data", json!(true), "invalid type: boolean, expected a string"),
                ("ConfigMap", "binaryData", json!("s3cret!"), "Invalid"),
            ] {
                let manifest = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "o"},
                    field: {key: value}});
                let told = Object::from_json(manifest).unwrap_err().to_string();
                assert!(
                    told.starts_with(&format!("{kind} default/o: an entry of {field}: {fault}")),
                    "{told}"
                );
                assert!(!told.contains("s3cret"), "{told}");
            }
        }
        for key in ["password", "tls.key"] {
            let secret =
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {key: []}});
            let told = Object::from_json(secret).unwrap_err().to_string();
            assert!(
                told.starts_with(&format!("Secret default/s: data.{key}: invalid type: sequence")),
                "{told}"
            );
        }
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
