//! The rights of the pods of a Gateway in mode Dedicated to read, besides the configuration that
//! everything is read of: the Secrets and ConfigMaps that the Gateway is served with, each by its
//! name. Tenants who may run pods in the Gateway's namespace have the same rights, because they may
//! run them as this ServiceAccount; so it must never have more.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portcullis_api::ObjectKey;
use portcullis_model::ObjectName;
use serde_json::{Value, json};

use super::object::{GATEWAY_ANNOTATION, UID_ANNOTATION};
use super::{CONTROLLER_ANNOTATION, GeneratedKind};

/// Names of objects, by the plural of their kind.
type ByResource<'n> = BTreeMap<&'static str, Vec<&'n str>>;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A Role and its binding in every namespace that has some of the objects. `metadata` is that of
/// the ServiceAccount, made for the Gateway `gateway` with this UID.
pub(super) fn rights(
    metadata: &ObjectMeta,
    needs: &BTreeSet<ObjectKey>,
    gateway: &ObjectName,
    uid: &str,
) -> Vec<(GeneratedKind, Value)> {
    let mut by_namespace: BTreeMap<&str, ByResource<'_>> = BTreeMap::new();
    for ObjectKey { kind, name } in needs {
        let there = by_namespace.entry(&name.namespace).or_default();
        there.entry(kind.resource()).or_default().push(&name.name);
    }
    let pairs = by_namespace.into_iter().flat_map(|(namespace, names)| {
        let here = if *namespace == *gateway.namespace {
            metadata.clone()
        } else {
            elsewhere(metadata, namespace, gateway, uid)
        };
        [(GeneratedKind::Role, role(&here, &names)), (GeneratedKind::RoleBinding, binding(&here, metadata))]
    });
    pairs.collect()
}

/// Only `get`: list and watch by name add nothing that polling does not give.
fn role(metadata: &ObjectMeta, names: &ByResource<'_>) -> Value {
    let rules = names.iter().map(|(resource, names)| {
        json!({"apiGroups": [""], "resources": [resource], "resourceNames": names, "verbs": ["get"]})
    });
    let rules: Vec<_> = rules.collect();
    json!({"apiVersion": GeneratedKind::Role.api_version(), "kind": "Role", "metadata": metadata, "rules": rules})
}

fn binding(metadata: &ObjectMeta, account: &ObjectMeta) -> Value {
    let role = json!({"apiGroup": GROUP, "kind": "Role", "name": metadata.name});
    let subject = json!({"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace});
    json!({"apiVersion": GeneratedKind::RoleBinding.api_version(), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": role, "subjects": [subject]})
}

/// In others' namespaces nothing has an owner, so annotations name the Gateway that it is for; the
/// leader removes it. The name has the Gateway's namespace in front, which has no dots. Annotations
/// of the Gateway's choice stay at home: some instruct other controllers.
fn elsewhere(metadata: &ObjectMeta, namespace: &str, gateway: &ObjectName, uid: &str) -> ObjectMeta {
    let controller = metadata.annotations.iter().flatten().filter(|(key, _)| *key == CONTROLLER_ANNOTATION);
    let mut annotations: BTreeMap<_, _> =
        controller.map(|(key, value)| (key.clone(), value.clone())).collect();
    annotations.insert(GATEWAY_ANNOTATION.to_owned(), gateway.to_string());
    annotations.insert(UID_ANNOTATION.to_owned(), uid.to_owned());
    ObjectMeta {
        name: metadata.name.as_ref().map(|name| format!("{}.{name}", gateway.namespace)),
        namespace: Some(namespace.to_owned()),
        labels: metadata.labels.clone(),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}
