use std::time::Duration;

use portcullis_api::Object;
use portcullis_model::{HostPattern, TimeLimit};
use serde_json::{Value, json};

use super::*;
use crate::Reason;
use crate::route::ParsedRoute;

fn parse(spec: Value) -> ParsedRoute {
    let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
    crate::route::parse(&Object::from_json(route).unwrap().unwrap()).unwrap()
}

fn rule(rule: Value) -> ParsedRule {
    parse(json!({"rules": [rule]})).rules.remove(0)
}

fn backend() -> Value {
    json!({"name": "app", "port": 8080})
}

#[test]
fn defaults_are_those_of_the_crd() {
    let route = parse(json!({"parentRefs": [{"name": "edge"}]}));
    assert_eq!(route.hostnames, [HostPattern::Any]);
    assert_eq!(route.rules.len(), 1);
    assert_eq!(route.rules[0].matches[0].path.to_string(), "PathPrefix /");
    let parent = &route.parent_refs[0];
    assert_eq!((parent.kind.as_deref(), parent.namespace.as_deref()), (Some("Gateway"), Some("shop")));
    assert!(route.refusal().is_none() && route.partly_invalid().is_none());
}

#[test]
fn a_hostname_that_is_none_never_becomes_any() {
    let route = parse(json!({"hostnames": ["10.0.0.1"], "rules": [{"backendRefs": [backend()]}]}));
    assert!(route.hostnames.is_empty() && route.rules.is_empty());
    assert_eq!(route.refusal().unwrap().reason, Reason::UnsupportedValue);
}

#[test]
fn rules_that_contradict_themselves_are_incompatible() {
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"statusCode": 301}});
    let rewrite = json!({"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}});
    let prefix = json!({"type": "URLRewrite",
        "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}});
    let exact = json!({"path": {"type": "Exact", "value": "/a"}});
    for contradiction in [
        json!({"filters": [redirect], "backendRefs": [backend()]}),
        json!({"filters": [redirect, rewrite]}),
        json!({"filters": [rewrite, rewrite]}),
        json!({"filters": [prefix], "matches": [exact]}),
        json!({"filters": [prefix], "matches": [{"path": {"value": "/a"}}, {"path": {"value": "/b"}}]}),
        json!({"matches": [exact], "backendRefs": [{"name": "app", "port": 80, "filters": [prefix]}]}),
    ] {
        let rule = rule(contradiction.clone());
        let reasons: Vec<_> = rule.faults.iter().map(|fault| fault.reason).collect();
        assert!(reasons.contains(&Reason::IncompatibleFilters), "{contradiction}: {reasons:?}");
    }
    assert!(rule(json!({"filters": [prefix], "backendRefs": [backend()]})).faults.is_empty());
}

#[test]
fn timeouts_are_durations_and_zero_switches_them_off() {
    let timeouts = |value: Value| rule(json!({"timeouts": value, "backendRefs": [backend()]}));
    let parsed = timeouts(json!({"request": "10s", "backendRequest": "1s500ms"})).timeouts;
    assert_eq!(parsed.request, TimeLimit::Of(Duration::from_secs(10)));
    assert_eq!(parsed.backend_request, TimeLimit::Of(Duration::from_millis(1500)));
    let lifted = timeouts(json!({"request": "0s", "backendRequest": "1h"})).timeouts;
    assert_eq!(lifted.request, TimeLimit::Lifted);
    assert_eq!(timeouts(json!({"backendRequest": "0s"})).timeouts.request, TimeLimit::Unsaid);
    for wrong in [json!({"request": "10"}), json!({"request": "1s", "backendRequest": "2s"})] {
        assert_eq!(timeouts(wrong).faults[0].reason, Reason::UnsupportedValue);
    }
}

#[test]
fn one_invalid_rule_of_two_is_dropped_and_reported() {
    let route = parse(json!({"rules": [
        {"backendRefs": [backend()]},
        {"name": "bad", "matches": [{"path": {"value": "/ok"}}, {"path": {"type": "Glob", "value": "/*"}}]}]}));
    let fault = route.partly_invalid().unwrap();
    assert!(fault.message.starts_with("Dropped Rule: rule 1 (bad): matches[1]: path: type \"Glob\""));
    // The alternative that is valid keeps its traffic, to fail it; the invalid one never widens.
    assert_eq!(route.rules[1].matches.len(), 1);
}

#[test]
fn all_rules_invalid_refuses_the_route() {
    let twice = json!([{"type": "CORS", "cors": {}}, {"type": "CORS", "cors": {}}]);
    let route = parse(json!({"rules": [{"filters": twice, "backendRefs": [backend()]}]}));
    assert!(route.partly_invalid().is_none());
    assert!(route.refusal().unwrap().message.contains("CORS filter may be given only once"));
}

#[test]
fn cors_is_the_rules_or_its_backends() {
    let cors = json!([{"type": "CORS", "cors": {}}]);
    let mut with_cors = backend();
    with_cors["filters"] = cors.clone();
    assert_eq!(rule(json!({"backendRefs": [with_cors]})).faults, []);
    assert_eq!(rule(json!({"filters": cors, "backendRefs": [backend()]})).faults, []);
    let both = rule(json!({"filters": cors, "backendRefs": [with_cors]}));
    assert!(both.faults[0].message.contains("not to both"));
}

#[test]
fn an_unknown_extension_is_an_unresolved_reference_not_a_refusal() {
    let route = parse(json!({"rules": [{"backendRefs": [backend()], "filters": [
        {"type": "ExtensionRef", "extensionRef": {"group": "x.example", "kind": "Wasm", "name": "w"}}]}]}));
    assert!(route.refusal().is_none());
    assert_eq!(route.rules[0].faults[0].reason, Reason::InvalidKind);
}

#[test]
fn backends_and_children_exclude_each_other() {
    let child = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "*", "weight": 3});
    let listed = rule(json!({"backendRefs": [child]}));
    assert!(listed.faults.is_empty() && listed.backend_refs.is_empty());
    let Some(Delegation::Listed(children)) = &listed.delegation else { panic!("{listed:?}") };
    assert_eq!((children[0].name.as_deref(), &*children[0].namespace, children[0].weight), (None, "shop", 3));
    assert!(!rule(json!({"backendRefs": [child, backend()]})).faults.is_empty());
    assert!(!rule(json!({"allowedRoutes": {}, "backendRefs": [backend()]})).faults.is_empty());
    assert!(matches!(rule(json!({"allowedRoutes": {}})).delegation, Some(Delegation::Allowed(_))));
}

#[test]
fn weights_and_ports_have_their_ranges() {
    for reference in [
        json!({"name": "app", "port": 0}),
        json!({"name": "app", "port": 70000}),
        json!({"name": "app", "port": 80, "weight": -1}),
        json!({"name": "app", "port": 80, "weight": 1_000_001}),
    ] {
        assert!(!rule(json!({"backendRefs": [reference]})).faults.is_empty(), "{reference}");
    }
}
