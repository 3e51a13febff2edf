//! The way of a manifest before translation sees it: the steps of an API server on `kubectl apply`.
//! Defaults are filled in, and what the API server would refuse is refused, with the same words.

use portcullis_model::ObjectName;
use serde_json::{Map, Value};

use crate::built_in;
use crate::closed_policy::{closed_policy, is_protecting, possible_name};
use crate::name::{is_label, is_label_value, is_qualified_name};
use crate::objects::{EXPERIMENTAL_GROUP, OWN_GROUP};
use crate::schema::{QUOTE_WORDS, Review, Schema, Schemas, Violation};
use crate::{GATEWAY_GROUP, Kind, Object, ObjectKey, Scope};

pub use crate::name::{is_plain_key, is_subdomain};

/// The result for one manifest.
#[derive(Clone, Debug)]
pub enum Admission {
    /// With the API paths of fields that no schema knows and that were dropped.
    Admitted {
        object: Object,
        unknown_fields: Vec<String>,
    },
    Refused(Refusal),
    /// Of a kind that translation does not use: `apps/v1 Deployment`.
    Ignored(String),
}

#[derive(Clone, Debug)]
pub struct Refusal {
    /// `None` if the manifest lacks a part of it; that of `closed`, if there is one.
    pub key: Option<ObjectKey>,
    /// `HTTPRoute shop/web`, or what else there is to name it by.
    pub object: String,
    pub reasons: Vec<String>,
    /// Of a policy that protects, what closes its targets in its place; `None` if it is not known
    /// what it is about.
    pub closed: Option<Object>,
}

/// The kind and name that a manifest says it has.
struct Identity {
    group: String,
    version: String,
    kind: Kind,
    key: ObjectKey,
}

/// The reason why a manifest is no object of a kind that translation uses.
enum Unidentified {
    Refused(Refusal),
    /// Another kind: `apps/v1 Deployment`.
    NotUsed(String),
}

pub fn admit(mut manifest: Value) -> Admission {
    let identity = match identify(&mut manifest) {
        Ok(identity) => identity,
        Err(Unidentified::NotUsed(kind)) => return Admission::Ignored(kind),
        Err(Unidentified::Refused(refusal)) => return Admission::Refused(refusal),
    };
    let written = is_protecting(identity.kind).then(|| manifest.clone());
    let refused = |reasons: Vec<String>| {
        let key = identity.key.clone();
        let closed = written.as_ref().and_then(|written| closed_policy(&key, written, &reasons));
        Admission::Refused(Refusal { object: key.to_string(), key: Some(key), reasons, closed })
    };
    let schema = match schema_for(&identity) {
        Ok(schema) => schema,
        Err(reason) => return refused(vec![reason]),
    };
    let mut review = schema.map(|schema| schema.review(&mut manifest)).unwrap_or_default();
    review_metadata(&mut manifest, &mut review);
    if identity.kind == Kind::ConfigMap {
        fill_nulls(manifest.get_mut("data"));
    }
    if !review.violations.is_empty() || is_weaker(identity.kind, &review) {
        // A field that is missing may be the one that is misspelt.
        let unknown = review.unknown_fields.iter().map(|field| format!("{field}: unknown field"));
        return refused(review.violations.iter().map(Violation::to_string).chain(unknown).collect());
    }
    // Of definitions, nothing but metadata is read.
    let is_built_in = schema.is_none() && identity.kind != Kind::CustomResourceDefinition;
    let given = is_built_in.then(|| manifest.clone());
    match Object::from_json(manifest) {
        Ok(Some(object)) => match built_in::refusals(&object) {
            reasons if reasons.is_empty() => {
                let unknown = given.iter().flat_map(|given| built_in::unknown_fields(given, &object));
                review.unknown_fields.extend(unknown);
                admitted(object, review)
            }
            reasons => refused(reasons),
        },
        Ok(None) => Admission::Ignored(identity.to_string()),
        Err(error) => refused(vec![in_plain_words(&error.to_string(), &identity.key)]),
    }
}

/// True if it may say less than it was meant to: what a field of a policy that is misspelt, or not
/// indented into `spec`, should protect would be open. Metadata and statuses protect nothing.
fn is_weaker(kind: Kind, review: &Review) -> bool {
    let says = |field: &String| !field.starts_with("metadata.") && !field.starts_with("status");
    is_protecting(kind) && review.unknown_fields.iter().any(says)
}

/// The fields of `metadata` (`ObjectMeta`); no schema has them.
const METADATA: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Metadata is the same for all kinds.
fn review_metadata(manifest: &mut Value, review: &mut Review) {
    let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let unknown = metadata.keys().filter(|field| !METADATA.contains(&field.as_str()));
    review.unknown_fields.extend(unknown.map(|field| format!("metadata.{field}")));
    let mut refuse = |field: &str, text: &str, rule: &str| {
        let message = format!("Invalid value: {text:?}: {rule}");
        review.violations.push(Violation { path: format!("metadata.{field}"), message });
    };
    for field in ["labels", "annotations"] {
        fill_nulls(metadata.get_mut(field));
        for (name, value) in metadata.get(field).and_then(Value::as_object).into_iter().flatten() {
            if !is_qualified_name(name) {
                refuse(field, name, "must be a name like team or example.com/team");
            }
            let text = value.as_str().filter(|value| field == "labels" && !is_label_value(value));
            if let Some(text) = text {
                let rule = "must be letters, digits, '-', '_' and '.', at most 63, with a letter or digit at both ends";
                let at = if is_qualified_name(name) { &format!("labels[{name}]") } else { field };
                refuse(at, text, rule);
            }
        }
    }
    let finalizers = metadata.get("finalizers").and_then(Value::as_array).into_iter().flatten();
    for finalizer in finalizers.filter_map(Value::as_str).filter(|finalizer| !is_qualified_name(finalizer)) {
        refuse("finalizers", finalizer, "must be a name like example.com/name");
    }
}

/// Of a text without a value, an API server makes an empty one.
fn fill_nulls(texts: Option<&mut Value>) {
    for text in texts.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        if text.is_null() {
            *text = "".into();
        }
    }
}

fn admitted(object: Object, review: Review) -> Admission {
    Admission::Admitted { object, unknown_fields: review.unknown_fields }
}

fn identify(manifest: &mut Value) -> Result<Identity, Unidentified> {
    let (Some(api_version), Some(kind)) = (text(manifest, "apiVersion"), text(manifest, "kind")) else {
        let reason = "it has no apiVersion or no kind: it is no Kubernetes object";
        return Err(anonymous("this document", reason).into());
    };
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let Some(known) = Kind::of(group, &kind) else {
        return Err(unknown_kind(&api_version, group, &kind));
    };
    let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Err(anonymous(&kind, "metadata: Required value").into());
    };
    let key = complete_metadata(known, metadata)?;
    if let Some(reason) = name_problem(known, &key) {
        return Err(misnamed(key, reason, manifest).into());
    }
    Ok(Identity { group: group.to_owned(), version: version.to_owned(), kind: known, key })
}

/// Of groups whose kinds are all known, it is misspelt.
fn unknown_kind(api_version: &str, group: &str, kind: &str) -> Unidentified {
    if !matches!(group, GATEWAY_GROUP | OWN_GROUP) {
        return Unidentified::NotUsed(format!("{api_version} {kind}"));
    }
    let kinds = Kind::ALL.iter().filter(|known| known.group() == group).map(|known| known.as_str());
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    let reason = format!("kind: {group} has no such kind: it has {kinds}");
    anonymous(kind, &reason).into()
}

/// A policy that protects closes its targets, under another name.
fn misnamed(key: ObjectKey, reason: String, written: &Value) -> Refusal {
    let (object, reasons) = (key.to_string(), vec![reason]);
    let is_closing = is_protecting(key.kind) && is_label(&key.name.namespace);
    let closing = is_closing.then(|| ObjectKey::new(key.kind, possible_name(&key.name)));
    let closed = closing.and_then(|key| closed_policy(&key, written, &reasons));
    let key = closed.as_ref().map_or(key, Object::key);
    Refusal { object, key: Some(key), reasons, closed }
}

/// An API server counts generations of custom resources from 1.
fn complete_metadata(kind: Kind, metadata: &mut Map<String, Value>) -> Result<ObjectKey, Refusal> {
    if matches!(kind.group(), GATEWAY_GROUP | EXPERIMENTAL_GROUP | OWN_GROUP) {
        metadata.entry("generation").or_insert_with(|| 1.into());
    }
    let name = match metadata.get("name") {
        Some(Value::String(name)) if !name.is_empty() => name.clone(),
        Some(other) => {
            return Err(anonymous(kind.as_str(), &format!("metadata.name: Invalid value: {other}")));
        }
        None if metadata.contains_key("generateName") => {
            let reason = "metadata.name: Required value: only an API server makes one of generateName";
            return Err(anonymous(kind.as_str(), reason));
        }
        None => return Err(anonymous(kind.as_str(), "metadata.name: Required value")),
    };
    let namespace = match (kind.scope(), metadata.get("namespace").and_then(Value::as_str)) {
        (Scope::Cluster, _) => "",
        (Scope::Namespaced, Some(namespace)) if !namespace.is_empty() => namespace,
        (Scope::Namespaced, _) => "default",
    };
    Ok(ObjectKey::new(kind, ObjectName::new(namespace, name.as_str())))
}

/// The fault that an API server finds with it.
fn name_problem(kind: Kind, key: &ObjectKey) -> Option<String> {
    let ObjectName { namespace, name } = &key.name;
    // `example.com:signer:name` for those of a signer.
    let is_name = match kind {
        Kind::ClusterTrustBundle => name.split(':').all(is_subdomain),
        _ => is_subdomain(name),
    };
    if !is_name {
        return Some(format!(
            "metadata.name: Invalid value: {name:?}: must be lower case letters, digits, '-' and '.', at most 253"
        ));
    }
    let good = kind.scope() == Scope::Cluster || is_label(namespace);
    (!good).then(|| {
        format!(
            "metadata.namespace: Invalid value: {namespace:?}: must be lower case letters, digits and '-', at most 63"
        )
    })
}

/// `None`: a built-in kind, which has a type and no schema.
fn schema_for(identity: &Identity) -> Result<Option<&'static Schema>, String> {
    let Some(definition) = Schemas::embedded().get(&identity.group, identity.kind.as_str()) else {
        return Ok(None);
    };
    let read_anyway = identity.kind.versions().contains(&identity.version.as_str());
    match definition.versions.get(&identity.version) {
        Some(schema) => Ok(Some(schema)),
        None if read_anyway => Ok(definition.versions.values().next()),
        None => Err(format!(
            "apiVersion: {}/{} is not served: use {}",
            identity.group,
            identity.version,
            definition.served()
        )),
    }
}

/// The typed parser's errors name the object, too; the caller says it once. Those that begin with a
/// capital are of its base64 decoder, which tells of a character: a Secret's may be plain text.
fn in_plain_words(message: &str, key: &ObjectKey) -> String {
    let message = message.strip_prefix(&format!("{key}: ")).unwrap_or(message);
    if let Some((field, fault)) = message.split_once(": Invalid ") {
        return match key.kind {
            Kind::Secret => format!("{field}: it is not base64; stringData takes plain text"),
            _ => format!("{field}: it is not base64 (invalid {})", fault.trim_end_matches('.')),
        };
    }
    let message = message.replace("expected i32", "expected an integer");
    let is_word = message.contains("invalid type: boolean") && message.contains("expected a string");
    format!("{message}{}", if is_word { QUOTE_WORDS } else { "" })
}

fn anonymous(object: &str, reason: &str) -> Refusal {
    Refusal { key: None, object: object.to_owned(), reasons: vec![reason.to_owned()], closed: None }
}

fn text(manifest: &Value, field: &str) -> Option<String> {
    manifest.get(field)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

// === impl Unidentified ===

impl From<Refusal> for Unidentified {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

// === impl Identity ===

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slash = if self.group.is_empty() { "" } else { "/" };
        write!(f, "{}{slash}{} {}", self.group, self.version, self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(manifest: Value) -> (String, Vec<String>) {
        match admit(manifest) {
            Admission::Refused(refusal) => (refusal.object, refusal.reasons),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn admitted_objects_have_defaults_and_a_generation() {
        let manifest = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "r"}, "spec": {"rules": [{"backendRefs": [{"name": "s", "port": 1}], "typo": 1}]}});
        let Admission::Admitted { object: Object::HttpRoute(route), unknown_fields } = admit(manifest) else {
            panic!("not admitted")
        };
        assert_eq!(unknown_fields, ["spec.rules[0].typo"]);
        assert_eq!(route.unpack().metadata.generation, Some(1));
        let policy = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "ListenerPolicy", "metadata": {"name": "p"},
            "spec": {"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g"}], "deny": []}});
        let Admission::Admitted { object: Object::ListenerPolicy(policy), .. } = admit(policy) else {
            panic!("not admitted")
        };
        assert_eq!(policy.metadata.generation, Some(1), "of our own kinds, too");
        let backend = json!({"apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XBackend", "metadata": {"name": "b"},
            "spec": {"type": "ExternalHostname", "externalHostname": {"hostname": "a.example.com"}, "port": {"number": 80}}});
        let Admission::Admitted { object: Object::XBackend(backend), .. } = admit(backend) else {
            panic!("not admitted")
        };
        assert_eq!(backend.metadata.generation, Some(1), "and of experimental ones");
    }

    #[test]
    fn names_of_trust_bundles_may_begin_with_their_signers() {
        let bundle = |kind: &str, group: &str, name: &str| {
            let spec = json!({"trustBundle": "none", "signerName": "a.example/team"});
            admit(json!({"apiVersion": format!("{group}/v1beta1"), "kind": kind, "metadata": {"name": name},
                "spec": spec}))
        };
        let is_refused = |kind, group, name| matches!(bundle(kind, group, name), Admission::Refused(_));
        for (name, is_good) in
            [("a", true), ("a.example:team:b", true), ("a:", false), ("A:b", false), ("a/b", false)]
        {
            assert_eq!(!is_refused("ClusterTrustBundle", "certificates.k8s.io", name), is_good, "{name}");
        }
        assert!(is_refused("GatewayClass", GATEWAY_GROUP, "a.example:team:b"), "no other kind's");
    }

    #[test]
    fn unknown_fields_of_built_in_kinds_are_named() {
        let object = |kind: &str, version: &str, rest: Value| {
            let mut manifest = rest;
            manifest["metadata"] = json!({"name": "o", "ownerReferences": []});
            (manifest["apiVersion"], manifest["kind"]) = (version.into(), kind.into());
            match admit(manifest) {
                Admission::Admitted { unknown_fields, .. } => unknown_fields,
                other => panic!("{other:?}"),
            }
        };
        let port = json!({"name": "b", "port": 80, "targetPort": "http", "prot": "TCP", "nodePort": null});
        let spec = json!({"ports": [{"name": "a", "port": 81}, port], "selector": {}, "typo": {}});
        assert_eq!(
            object("Service", "v1", json!({"spec": spec, "status": {"loadBalancer": {}}})),
            ["spec.ports[1].prot", "spec.typo"]
        );
        let endpoint = json!({"addresses": ["10.1.1.1"], "condition": {}, "conditions": {"ready": true}});
        let slice =
            json!({"addressType": "IPv4", "endpoints": [endpoint], "ports": [{"port": 1, "typo": 1}]});
        assert_eq!(
            object("EndpointSlice", "discovery.k8s.io/v1", slice),
            ["endpoints[0].condition", "ports[0].typo"]
        );
        let secret = json!({"stringData": {"a": "b"}, "data": {"c": "ZA=="}, "immutable": true, "Data": {}});
        assert_eq!(object("Secret", "v1", secret), ["Data"]);
        assert_eq!(
            object("ConfigMap", "v1", json!({"data": {"a": null}, "binaryData": {}, "datum": {}})),
            ["datum"]
        );
        assert_eq!(object("Namespace", "v1", json!({"spec": {"finalizers": []}, "status": {}})), [""; 0]);
        let definition = json!({"spec": {"group": "g"}});
        assert_eq!(object("CustomResourceDefinition", "apiextensions.k8s.io/v1", definition), [""; 0]);
    }

    #[test]
    fn refusals_name_object_and_field() {
        for (manifest, object, reason) in [
            (json!("text"), "this document", "it has no apiVersion or no kind: it is no Kubernetes object"),
            (
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {}}),
                "Service",
                "metadata.name: Required value",
            ),
            (
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {"generateName": "s-"}}),
                "Service",
                "metadata.name: Required value: only an API server makes one of generateName",
            ),
            (
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "A_b"}}),
                "Service default/A_b",
                "metadata.name: Invalid value: \"A_b\": must be lower case letters, digits, '-' and '.', at most 253",
            ),
            (
                json!({"apiVersion": "gateway.networking.k8s.io/v7", "kind": "Gateway", "metadata": {"name": "g"}}),
                "Gateway default/g",
                "apiVersion: gateway.networking.k8s.io/v7 is not served: use v1, v1beta1",
            ),
            (
                json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "g"}}),
                "Gateway default/g",
                "spec: Required value",
            ),
        ] {
            assert_eq!(refusal(manifest), (object.to_owned(), vec![reason.to_owned()]));
        }
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"tls.key": "two words"}});
        let reason = "data.tls.key: it is not base64; stringData takes plain text";
        assert_eq!(refusal(secret).1, [reason]);
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "binaryData": {"a.b": "two words"}});
        let reason = "an entry of binaryData: it is not base64 (invalid symbol 32, offset 3)";
        assert_eq!(refusal(map).1, [reason]);
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": "80"}]}});
        let reason = "spec.ports[0].port: invalid type: string \"80\", expected an integer";
        assert_eq!(refusal(service).1, [reason]);
        let misspelt = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "c"}, "spec": {"controler": "example.com/c"}});
        let reasons = ["spec.controllerName: Required value", "spec.controler: unknown field"];
        assert_eq!(refusal(misspelt), ("GatewayClass c".to_owned(), reasons.map(str::to_owned).to_vec()));
    }

    #[test]
    fn metadata_is_checked_for_every_kind() {
        let map = |metadata: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        let good = map(
            json!({"name": "m", "labels": {"example.com/a": null}, "annotations": {"a": "b c"}, "typo": 1}),
        );
        let Admission::Admitted { object: Object::ConfigMap(admitted), unknown_fields } = admit(good) else {
            panic!("not admitted")
        };
        assert_eq!(unknown_fields, ["metadata.typo"]);
        assert_eq!(admitted.metadata.labels.as_ref().unwrap()["example.com/a"], "");
        let bad = map(
            json!({"name": "m", "labels": {"-a/b": "b c"}, "annotations": {"a b": ""}, "finalizers": ["f f"]}),
        );
        assert_eq!(
            refusal(bad).1,
            [
                "metadata.labels: Invalid value: \"-a/b\": must be a name like team or example.com/team",
                "metadata.labels: Invalid value: \"b c\": must be letters, digits, '-', '_' and '.', at most 63, with a letter or digit at both ends",
                "metadata.annotations: Invalid value: \"a b\": must be a name like team or example.com/team",
                "metadata.finalizers: Invalid value: \"f f\": must be a name like example.com/name",
            ]
        );
        let word = map(json!({"name": "m", "labels": {"a": true}}));
        let quoted = "metadata.labels.a: invalid type: boolean `true`, expected a string: quote it (yes, no, on, off, y and n are booleans, too)";
        assert_eq!(refusal(word).1, [quoted]);
    }

    #[test]
    fn foreign_kinds_are_ignored() {
        let manifest = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}});
        let Admission::Ignored(kind) = admit(manifest) else { panic!("not ignored") };
        assert_eq!(kind, "apps/v1 Deployment");
    }

    /// A misspelt policy would protect nothing.
    #[test]
    fn kinds_that_groups_of_ours_do_not_have_are_refused() {
        let of = |group: &str, kind: &str| {
            let metadata = json!({"name": "p", "namespace": "shop"});
            admit(json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": metadata}))
        };
        for (group, kind, has) in [
            (OWN_GROUP, "TraficPolicy", "TrafficPolicy"),
            (OWN_GROUP, "BackendTLSPolicy", "BackendPolicy"),
            (GATEWAY_GROUP, "BackendTlsPolicy", "BackendTLSPolicy"),
        ] {
            let Admission::Refused(refusal) = of(group, kind) else { panic!("{kind} is not refused") };
            let [reason] = refusal.reasons.as_slice() else { panic!("{:?}", refusal.reasons) };
            assert!(reason.starts_with(&format!("kind: {group} has no such kind: it has ")), "{reason}");
            assert!(reason.contains(has), "{reason}");
            assert_eq!((refusal.object.as_str(), refusal.key), (kind, None));
        }
        assert!(matches!(of(EXPERIMENTAL_GROUP, "XLater"), Admission::Ignored(_)));
    }
}
