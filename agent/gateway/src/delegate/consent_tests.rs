//! Words of refusals: strangers learn nothing, and rules that no child can meet are told.

use serde_json::{Value, json};

use super::family_tests::{bind_all, child_of, parsed, prefix, route, to};
use super::*;
use crate::Reason;

/// The conditions of a child of namespace `shop` for its parentRef, as text.
fn conditions(parent: Option<&Arc<ParsedRoute>>, section: Option<&str>) -> String {
    let child = route(
        "shop/c",
        json!({"parentRefs": child_of("gw/parent", section), "rules": [{"backendRefs": to("b")}]}),
    );
    let conditions = match parent {
        None => missing_parent_conditions(&child, &child.parent_refs[0], None),
        Some(parent) => {
            let family = bind_all(parent, &[child]);
            let entries = family.children[0].entries("c", &[], None);
            entries.into_iter().next().unwrap().conditions
        }
    };
    format!("{conditions:#?}")
}

fn parent(rules: Value) -> Arc<ParsedRoute> {
    route("gw/parent", json!({"parentRefs": [{"name": "edge"}], "rules": rules}))
}

#[test]
fn a_stranger_reads_the_same_whatever_there_is() {
    let parents = [
        parent(json!([{"name": "r", "allowedRoutes": {}}])),
        parent(json!([{"name": "other", "allowedRoutes": {}}])),
        parent(json!([{"name": "r", "backendRefs": to("own")}])),
        parent(json!([{"name": "r", "backendRefs": [
            {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "c", "namespace": "another"}]}])),
        // A child itself: "NotSupported" would tell.
        route(
            "gw/parent",
            json!({"parentRefs": child_of("gw/above", None), "rules": [{"name": "r", "allowedRoutes": {}}]}),
        ),
    ];
    for section in [None, Some("r")] {
        let missing = conditions(None, section);
        assert!(missing.contains("NotAllowedByParent"), "{missing}");
        for parent in &parents {
            assert_eq!(conditions(Some(parent), section), missing);
        }
    }
    assert_ne!(
        conditions(None, None),
        conditions(Some(&parent(json!([{"allowedRoutes": {"namespaces": {"from": "All"}}}]))), None)
    );
}

#[test]
fn rules_that_no_child_can_meet_are_told() {
    let told = |allowed: Value| {
        let family = bind_all(&parent(json!([{"allowedRoutes": allowed}])), &[]);
        family
            .unresolved
            .iter()
            .map(|fault| format!("{}: {}", fault.reason, fault.message))
            .collect::<Vec<_>>()
    };
    assert!(told(json!({})).is_empty());
    assert!(told(json!({"kinds": [{"kind": "HTTPRoute"}]})).is_empty());
    for (allowed, words) in [
        (
            json!({"kinds": [{"kind": "HTTPRoute"}, {"kind": "GRPCRoute"}]}),
            "InvalidKind: rule 0: allowedRoutes.kinds: no GRPCRoute",
        ),
        (json!({"kinds": [{"group": "", "kind": "HTTPRoute"}]}), "no HTTPRoute of group \"\" can be a child"),
        (
            json!({"namespaces": {"from": "Selector"}}),
            "Invalid: rule 0: allowedRoutes.namespaces: from is Selector, and there is no selector",
        ),
        (
            json!({"namespaces": {"from": "Selector", "selector": {"matchExpressions": [{"key": "a", "operator": "NotIn"}]}}}),
            "matchExpressions[0].values: In and NotIn need at least one value",
        ),
        (
            json!({"namespaces": {"from": "Selector", "selector": {"matchExpressions": [{"key": "a", "operator": "in", "values": ["b"]}]}}}),
            "matchExpressions[0].operator: \"in\" is no operator: use In, NotIn, Exists or DoesNotExist",
        ),
    ] {
        let told = told(allowed);
        assert_eq!(told.len(), 1, "{words}");
        assert!(told[0].contains(words), "{} has no {words}", told[0]);
    }
}

#[test]
fn all_routes_of_a_namespace_that_grants_nothing_are_told() {
    let all = |namespace: &str| {
        parent(json!([{"backendRefs": [
            {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "*", "namespace": namespace}]}]))
    };
    let bystander = route("shop/c", json!({"rules": [{"backendRefs": to("b")}]}));
    let family = bind_all(&all("shop"), &[bystander]);
    assert_eq!(family.unresolved[0].reason, Reason::RefNotPermitted);
    assert!(family.unresolved[0].message.contains("ReferenceGrant in namespace shop"));
    let willing = route(
        "shop/c",
        json!({"parentRefs": child_of("gw/parent", None), "rules": [{"backendRefs": to("b")}]}),
    );
    assert!(bind_all(&all("shop"), &[willing]).unresolved.is_empty());
    assert!(bind_all(&all("gw"), &[]).unresolved.is_empty(), "its own Attached says so");
}

#[test]
fn a_child_that_takes_no_request_is_told() {
    let parent = parent(json!([{"matches": prefix("/s"), "allowedRoutes": {}}]));
    let child = |name: &str, matches: Value| {
        let spec = json!({"parentRefs": child_of("gw/parent", None),
            "rules": [{"matches": matches, "backendRefs": to(name)}]});
        route(&format!("gw/{name}"), spec)
    };
    let both = json!([{"path": {"type": "PathPrefix", "value": "/a"}}, {"path": {"type": "PathPrefix", "value": "/b"}}]);
    let family = bind_all(&parent, &[child("a", prefix("/a")), child("b", prefix("/a")), child("c", both)]);
    let hints: Vec<_> = family.children.iter().map(|child| child.hints.len()).collect();
    assert_eq!(hints, [0, 1, 0]);
    let attached = &family.children[1].entries("c", &[], None)[0].conditions[1];
    assert!(attached.message.contains("none of its rules takes a request"), "{}", attached.message);
}

#[test]
fn a_child_takes_no_request_if_others_have_each_of_its_hostnames() {
    let parent = parent(json!([{"matches": prefix("/s"), "allowedRoutes": {}}]));
    let child = |name: &str, hostnames: &[&str]| {
        let spec = json!({"parentRefs": child_of("gw/parent", None), "hostnames": hostnames,
            "rules": [{"matches": prefix("/a"), "backendRefs": to(name)}]});
        route(&format!("gw/{name}"), spec)
    };
    let children = [
        child("a", &["a.com", "b.com"]),
        child("b", &["b.com"]),
        child("c", &["*.com"]),
        child("d", &["c.com"]),
        child("e", &["a.com", "c.com"]),
        child("f", &["a.com", "*.com", "f.com"]),
    ];
    let family = bind_all(&parent, &children);
    let hints: Vec<_> = family.children.iter().map(|child| child.hints.len()).collect();
    assert_eq!(hints, [0, 1, 0, 0, 1, 0], "a name that is more specific has requests of its own");
}

/// A GRPCRoute without rules takes no requests; it would count as bound for nothing.
#[test]
fn a_child_without_rules_does_not_attach() {
    let grpc = |name: &str, spec: Value| {
        parsed(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GRPCRoute",
            "metadata": {"namespace": "gw", "name": name, "generation": 1}, "spec": spec}))
    };
    let parent = grpc("parent", json!({"parentRefs": [{"name": "edge"}], "rules": [{"allowedRoutes": {}}]}));
    let child = grpc("c", json!({"parentRefs": [{"kind": "GRPCRoute", "name": "parent"}]}));
    let family = bind_all(&parent, &[child]);
    assert!(!family.children[0].is_bound());
    assert_eq!(family.childless, [0]);
}
