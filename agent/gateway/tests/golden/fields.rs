//! Every field of the CRDs is either enforced, or refused, or told to be without effect: each is in
//! one of the lists of `tests/fields.yaml`, and what is not enforced is tried. `*` stands for any
//! text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use portcullis_api::schema::Schemas;
use portcullis_api::{Change, GATEWAY_GROUP, Kind};
use portcullis_gateway::Translator;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support;

/// The fields of one kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    /// A spec that is right, and makes use of nothing that is refused.
    #[serde(default)]
    good: Value,
    #[serde(default)]
    enforced: Vec<String>,
    /// For people only.
    #[serde(default)]
    informative: Vec<String>,
    #[serde(default)]
    refused: Vec<Refused>,
}

/// Fields without effect, and the fields of a spec by which it is tried that this is told.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refused {
    fields: Vec<String>,
    by: Value,
}

fn lists() -> BTreeMap<String, Fields> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fields.yaml");
    serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn api_group(kind: &str) -> &'static str {
    match kind {
        "BackendPolicy" | "GatewayParameters" | "ListenerPolicy" | "RouteFilter" | "TrafficPolicy" => {
            "portcullis.dev"
        }
        "XBackend" | "XBackendTrafficPolicy" | "XMesh" => "gateway.networking.x-k8s.io",
        _ => GATEWAY_GROUP,
    }
}

fn matches(pattern: &str, field: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == field,
        Some((before, after)) => field.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().any(|(at, _)| matches(after, &rest[at..])) || after.is_empty()
        }),
    }
}

#[test]
fn every_field_of_the_crds_is_in_one_list() {
    let lists = lists();
    let kinds: BTreeSet<_> = lists.keys().map(String::as_str).collect();
    let defined: BTreeSet<_> = Schemas::embedded().definitions().map(|it| it.kind.as_str()).collect();
    assert_eq!(kinds, defined);
    for (kind, lists) in &lists {
        let definition = Schemas::embedded().get(api_group(kind), kind).unwrap();
        let schema = definition.versions.get("v1").or_else(|| definition.versions.values().next()).unwrap();
        let fields: Vec<_> = schema.leaves().into_iter().filter(|field| field.starts_with("spec.")).collect();
        let refused = lists.refused.iter().flat_map(|refused| &refused.fields);
        let patterns: Vec<_> = lists.enforced.iter().chain(&lists.informative).chain(refused).collect();
        for field in &fields {
            let found: Vec<_> = patterns.iter().filter(|pattern| matches(pattern, field)).collect();
            assert_eq!(
                found.len(),
                1,
                "{kind} {field}: in one list, neither in none nor in several: {found:?}"
            );
        }
        for pattern in patterns {
            assert!(fields.iter().any(|field| matches(pattern, field)), "{kind} has no field {pattern}");
        }
    }
}

#[test]
fn what_is_not_enforced_is_told() {
    for (kind, lists) in lists() {
        if !lists.refused.is_empty() && !lists.good.is_null() {
            assert_eq!(told(&kind, &lists.good), None, "{kind}");
        }
        for Refused { fields, by } in &lists.refused {
            let mut spec = if lists.good.is_null() { json!({}) } else { lists.good.clone() };
            spec.as_object_mut().unwrap().extend(by.as_object().unwrap().clone());
            assert!(told(&kind, &spec).is_some(), "{kind} {fields:?}: nothing is told of {spec}");
        }
    }
}

/// The status of an object with a fault, in a world that has what it refers to.
fn told(kind: &str, spec: &Value) -> Option<String> {
    let kind = Kind::of(api_group(kind), kind).unwrap();
    let world = fs::read_to_string(support::cases().join("../fields-world.yaml")).unwrap();
    let object = support::object(json!({"apiVersion": kind.api_version(), "kind": kind.as_str(),
        "metadata": {"name": "tried", "namespace": "infra"}, "spec": spec}));
    let key = object.key();
    let mut translator = Translator::new(support::settings());
    let objects = support::base().into_iter().chain(support::read(&world)).chain([object]);
    let outcome = translator.apply(objects.map(Change::Set).collect());
    let status = outcome.statuses.get(&key).filter(|status| status.has_fault());
    status.map(|status| status.to_json().to_string())
}
