use portcullis_api::types::httproutes::{HttpRoute, HttpRouteRule, HttpRouteSpec};
use portcullis_api::{Kind, Object, Packed};
use portcullis_model::ObjectName;
use serde_json::{Value, json};

use super::*;
use crate::delegate::fields::RouteFilters;
use crate::route::{compile, drafts, print_draft};

fn draft(rule: Value) -> Draft {
    let rule: HttpRouteRule = serde_json::from_value(rule).unwrap();
    let route = HttpRoute::new("r", HttpRouteSpec { rules: Some(vec![rule]), ..HttpRouteSpec::default() });
    drafts(&Object::HttpRoute(Packed::new(&route))).remove(0)
}

/// Of routes whose RouteFilters edit no fields.
fn rest(
    parent: &Draft,
    child: &Draft,
    of_reference: &[HttpRouteFilter],
    foreign: Option<&str>,
) -> Result<Draft, CombineError> {
    let (namespace, route_filters) = ("gw".into(), RouteFilters::new());
    let fields = Fields { namespace: &namespace, route_filters: &route_filters };
    super::rest(parent, child, of_reference, foreign, fields)
}

fn matched(parent: Value, child: Value) -> Result<Value, CombineErrorKind> {
    let parent = draft(json!({"matches": [parent]}));
    let child = draft(json!({"matches": [child]}));
    let combined = matches(&parent, &child).map_err(|error| error.kind)?;
    let rule = print_draft(Kind::HttpRoute, &Draft { matches: combined, ..Draft::default() });
    Ok(rule["matches"][0].clone())
}

fn prefix(value: &str) -> Value {
    json!({"path": {"type": "PathPrefix", "value": value}})
}

fn exact(value: &str) -> Value {
    json!({"path": {"type": "Exact", "value": value}})
}

#[test]
fn prefixes_are_concatenated_and_a_single_path_is_kept() {
    for (parent, child, result) in [
        (prefix("/store"), prefix("/cart"), Ok(prefix("/store/cart"))),
        (prefix("/store/"), prefix("/cart/"), Ok(prefix("/store/cart/"))),
        (prefix("/store"), prefix("/"), Ok(prefix("/store"))),
        (prefix("/"), prefix("/cart"), Ok(prefix("/cart"))),
        (prefix("/"), exact("/cart"), Ok(exact("/cart"))),
        (exact("/a"), json!({}), Ok(exact("/a"))),
        (json!({}), json!({}), Ok(json!({}))),
        (prefix("/store"), exact("/cart"), Ok(exact("/store/cart"))),
        (prefix("/store/"), exact("/"), Ok(exact("/store/"))),
        (exact("/store"), prefix("/cart"), Err(CombineErrorKind::Undefined)),
        (exact("/store"), exact("/store"), Err(CombineErrorKind::Undefined)),
        (
            json!({"path": {"type": "RegularExpression", "value": "/.*"}}),
            prefix("/a"),
            Err(CombineErrorKind::Undefined),
        ),
    ] {
        assert_eq!(matched(parent.clone(), child.clone()), result, "{parent} with {child}");
    }
}

#[test]
fn conditions_are_joined_or_impossible() {
    let header = |name: &str, r#type: &str, value: &str| json!({"headers": [{"name": name, "type": r#type, "value": value}]});
    for (parent, child, result) in [
        (header("a", "Exact", "1"), header("A", "Exact", "1"), Ok(header("a", "Exact", "1"))),
        (header("a", "Exact", "1"), header("a", "Exact", "2"), Err(CombineErrorKind::Impossible)),
        (header("a", "Exact", "v1"), header("a", "RegularExpression", "v."), Ok(header("a", "Exact", "v1"))),
        (header("a", "RegularExpression", "v."), header("a", "Exact", "v1"), Ok(header("a", "Exact", "v1"))),
        (
            header("a", "RegularExpression", "v."),
            header("a", "Exact", "w"),
            Err(CombineErrorKind::Impossible),
        ),
        (
            header("a", "RegularExpression", "v."),
            header("a", "RegularExpression", ".1"),
            Err(CombineErrorKind::Undefined),
        ),
        (json!({"method": "GET"}), json!({"method": "POST"}), Err(CombineErrorKind::Impossible)),
        (json!({"method": "GET"}), json!({}), Ok(json!({"method": "GET"}))),
    ] {
        assert_eq!(matched(parent.clone(), child.clone()), result, "{parent} with {child}");
    }
}

/// Equal but for case: of one side's, the first counts.
#[test]
fn a_name_counts_once_on_each_side() {
    let header =
        |name: &str, r#type: &str, value: &str| json!({"name": name, "type": r#type, "value": value});
    let any = header("x-a", "RegularExpression", ".*");
    let (one, two) = (header("x-a", "Exact", "1"), header("X-A", "Exact", "2"));
    let parent = json!({"headers": [any]});
    assert_eq!(matched(parent, json!({"headers": [one, two]})), Ok(json!({"headers": [one]})));
}

#[test]
fn impossible_pairs_drop_out_as_long_as_one_pair_holds() {
    let parent = draft(json!({"matches": [{"method": "GET"}, {"method": "POST"}]}));
    let child = draft(json!({"matches": [{"method": "GET"}]}));
    assert_eq!(matches(&parent, &child).unwrap().len(), 1);
}

#[test]
fn no_condition_is_lost_to_the_limit_of_sixteen() {
    let many = |from: usize| {
        let headers: Vec<_> =
            (from..from + 9).map(|at| json!({"name": format!("h{at}"), "value": "1"})).collect();
        json!({"headers": headers})
    };
    assert_eq!(matched(many(0), many(9)), Err(CombineErrorKind::Undefined));
    assert!(matched(many(0), many(5)).is_ok());
}

#[test]
fn header_modifiers_become_one_and_rewrites_stay_two() {
    let edit = |list: &str, name: &str, value: &str| {
        let entry = if list == "remove" { json!(name) } else { json!({"name": name, "value": value}) };
        json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {list: [entry]}})
    };
    let join = |parent: Value, child: Value| {
        rest(&draft(json!({"filters": [parent]})), &draft(json!({"filters": [child]})), &[], None)
            .map(|draft| draft.filters.len())
            .map_err(|error| error.kind)
    };
    let rewrite = json!({"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}});
    for (parent, child, result) in [
        (edit("set", "a", "1"), edit("add", "b", "2"), Ok(1)),
        (edit("set", "a", "1"), edit("set", "A", "1"), Ok(1)),
        (edit("remove", "a", ""), edit("remove", "A", ""), Ok(1)),
        (edit("set", "a", "1"), edit("set", "a", "2"), Err(CombineErrorKind::Undefined)),
        (edit("add", "a", "1"), edit("add", "a", "1"), Err(CombineErrorKind::Undefined)),
        (edit("remove", "a", ""), edit("set", "a", "1"), Err(CombineErrorKind::Undefined)),
        // Applications read them alike.
        (edit("set", "X-Who", "1"), edit("set", "x_who", "1"), Err(CombineErrorKind::Undefined)),
        (edit("add", "x_who", "1"), edit("remove", "X-Who", ""), Err(CombineErrorKind::Undefined)),
        (edit("remove", "X-Who", ""), edit("remove", "x_who", ""), Ok(1)),
        (rewrite.clone(), rewrite, Ok(2)),
    ] {
        assert_eq!(join(parent.clone(), child.clone()), result, "{parent} with {child}");
    }
}

#[test]
fn the_stricter_timeout_wins() {
    let both = |parent: Value, child: Value| {
        let parent = draft(json!({"timeouts": parent}));
        json!(rest(&parent, &draft(json!({"timeouts": child})), &[], None).unwrap().timeouts)
    };
    for (parent, child, result) in [
        (json!({"request": "10s"}), json!({"request": "5s"}), json!({"request": "5s"})),
        (json!({"request": "0s"}), json!({"request": "5s"}), json!({"request": "5s"})),
        (json!({"request": "1m"}), json!({"request": "0s"}), json!({"request": "1m"})),
        (
            json!({"request": "5s"}),
            json!({"backendRequest": "10s"}),
            json!({"request": "5s", "backendRequest": "5s"}),
        ),
        (json!(null), json!({"request": "5s"}), json!({"request": "5s"})),
    ] {
        assert_eq!(both(parent.clone(), child.clone()), result, "{parent} with {child}");
    }
}

#[test]
fn references_of_another_namespace_are_qualified_and_extensions_stay_home() {
    let parent = draft(json!({}));
    let child = draft(
        json!({"backendRefs": [{"name": "app", "port": 80}, {"name": "x", "namespace": "y", "port": 80}]}),
    );
    let namespaces = |foreign| {
        let combined = rest(&parent, &child, &[], foreign).unwrap();
        combined.backend_refs.iter().map(|to| to.namespace.clone()).collect::<Vec<_>>()
    };
    assert_eq!(namespaces(Some("shop")), [Some("shop".to_owned()), Some("y".to_owned())]);
    assert_eq!(namespaces(None), [None, Some("y".to_owned())]);
    let own = draft(json!({"filters": [{"type": "ExtensionRef",
        "extensionRef": {"group": "portcullis.dev", "kind": "RouteFilter", "name": "n"}}]}));
    let named = |foreign| {
        rest(&parent, &own, &[], foreign).unwrap().filters[0].extension_ref.as_ref().unwrap().name.clone()
    };
    assert_eq!((named(None), named(Some("shop"))), ("n".to_owned(), "shop/n".to_owned()));
    let extension = draft(json!({"filters": [
        {"type": "ExtensionRef", "extensionRef": {"group": "g", "kind": "K", "name": "n"}}]}));
    assert!(
        rest(&parent, &extension, &[], Some("shop")).is_err() && rest(&parent, &extension, &[], None).is_ok()
    );
}

#[test]
fn a_parents_replace_prefix_match_replaces_the_parents_prefix() {
    let rewrite = |kind: &str, r#type: &str, field: &str, value: &str| {
        let payload = if kind == "URLRewrite" { "urlRewrite" } else { "requestRedirect" };
        json!({"type": kind, payload: {"path": {"type": r#type, field: value}}})
    };
    let combined = |parent: &Value, matches: Value| {
        let ours = json!({"path": {"type": "PathPrefix", "value": "/store"}, "method": "GET"});
        let parent = draft(json!({"matches": [ours], "filters": [parent]}));
        json!(rest(&parent, &draft(json!({"matches": matches})), &[], None).unwrap().filters)
    };
    for kind in ["URLRewrite", "RequestRedirect"] {
        let replaced = |value: &str| rewrite(kind, "ReplacePrefixMatch", "replacePrefixMatch", value);
        for (parent, matches, result) in [
            ("/", json!([prefix("/cart")]), replaced("/cart")),
            ("/v2/", json!([prefix("/cart")]), replaced("/v2/cart")),
            ("/v2", json!([]), replaced("/v2")),
            ("/v2", json!([prefix("/")]), replaced("/v2")),
            ("/", json!([exact("/cart")]), rewrite(kind, "ReplaceFullPath", "replaceFullPath", "/cart")),
            // One of them is for no request of the parent's.
            (
                "/",
                json!([prefix("/cart"), {"path": {"type": "PathPrefix", "value": "/b"}, "method": "POST"}]),
                replaced("/cart"),
            ),
            // Judged with the whole rule, which cannot have this filter.
            ("/", json!([prefix("/a"), prefix("/b")]), replaced("/")),
        ] {
            assert_eq!(combined(&replaced(parent), matches.clone()), json!([result]), "{parent} {matches}");
        }
        let full = rewrite(kind, "ReplaceFullPath", "replaceFullPath", "/x");
        assert_eq!(combined(&full, json!([prefix("/cart")])), json!([full]));
    }
}

/// Else the last word on a header, or on the path, would be the child's.
#[test]
fn filters_of_a_childs_backends_do_not_override_the_parents() {
    let edit = |list: &str, entry: Value| json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": {list: [entry]}});
    let policy = |value: &str| edit("set", json!({"name": "content-security-policy", "value": value}));
    let rewrite = |host: &str| json!({"type": "URLRewrite", "urlRewrite": {"hostname": host}});
    let mirror = json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "m"}}});
    for (parent, child, is_possible) in [
        (policy("self"), policy("none"), false),
        (policy("self"), edit("remove", json!("Content-Security-Policy")), false),
        (policy("self"), policy("self"), true),
        (policy("self"), edit("set", json!({"name": "x-own", "value": "1"})), true),
        (rewrite("a.example"), rewrite("b.example"), false),
        (mirror.clone(), mirror, true),
        // Two fields of a response.
        (policy("self"), edit("remove", json!("content_security_policy")), true),
        (policy("self"), rewrite("b.example"), true),
    ] {
        let brings = draft(json!({"backendRefs": [{"name": "x", "filters": [child]}]}));
        let combined = rest(&draft(json!({"filters": [parent]})), &brings, &[], None);
        assert_eq!(combined.is_ok(), is_possible, "{parent} with {child}");
    }
}

/// A child's filter comes after its parent's, of whichever kind it is.
#[test]
fn filters_of_a_child_do_not_undo_the_parents_by_other_kinds_of_filters() {
    let route_filters: RouteFilters = [
        ("gw", "who", "RequestHeaders", json!({"set": [{"name": "X-Who", "value": "$$1"}]})),
        ("shop", "who", "RequestHeaders", json!({"set": [{"name": "X-Who", "value": "$$1"}]})),
        (
            "shop",
            "address",
            "RequestHeaders",
            json!({"set": [{"name": "x_who", "value": "${client.address}"}]}),
        ),
        ("shop", "answer", "ResponseHeaders", json!({"add": [{"name": "X-Who", "value": "$$1"}]})),
    ]
    .into_iter()
    .map(|(namespace, name, r#type, fields)| {
        let field = if r#type == "RequestHeaders" { "requestHeaders" } else { "responseHeaders" };
        let filter = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
            "metadata": {"name": name}, "spec": {"type": r#type, field: fields}});
        let compiled = compile(&serde_json::from_value(filter).unwrap()).unwrap();
        (ObjectName::new(namespace, name), Some(compiled.extension))
    })
    .collect();
    let extension = |name: &str| json!({"type": "ExtensionRef", "extensionRef": {"group": "portcullis.dev", "kind": "RouteFilter", "name": name}});
    let edit = |list: &str, entry: Value| json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {list: [entry]}});
    let set = |name: &str, value: &str| edit("set", json!({"name": name, "value": value}));
    let namespace = "gw".into();
    let fields = Fields { namespace: &namespace, route_filters: &route_filters };
    for (parent, child, is_possible) in [
        (set("X-Who", "gw"), extension("address"), false),
        (edit("remove", json!("x-who")), extension("who"), false),
        (extension("who"), edit("remove", json!("x_who")), false),
        (extension("who"), extension("address"), false),
        (extension("who"), extension("who"), true),
        (extension("who"), set("x-who", "$1"), true),
        (extension("who"), set("x-who", "$$1"), false),
        (extension("who"), extension("answer"), true),
        (set("x-other", "gw"), extension("address"), true),
    ] {
        let (ours, theirs) = (draft(json!({"filters": [parent]})), json!([child]));
        let brings = draft(json!({"backendRefs": [{"name": "x", "filters": theirs}]}));
        let theirs = draft(json!({"filters": theirs}));
        let nothing = draft(json!({}));
        for combined in [
            super::rest(&ours, &theirs, &[], Some("shop"), fields),
            super::rest(&ours, &brings, &[], Some("shop"), fields),
            super::rest(&nothing, &brings, &ours.filters, Some("shop"), fields),
        ] {
            assert_eq!(combined.is_ok(), is_possible, "{parent} with {child}");
        }
    }
    let (ours, theirs) =
        (draft(json!({"filters": [extension("who")]})), draft(json!({"filters": [extension("address")]})));
    let error = super::rest(&ours, &theirs, &[], Some("shop"), fields).unwrap_err();
    assert_eq!(error.parent, "filters set x-who of a RouteFilter");
    assert_eq!(error.child, "filters set x_who of a RouteFilter");
}

/// Filters of a reference to a child reach what the child brings, whatever that is.
#[test]
fn filters_of_a_reference_go_before_the_backends_own() {
    let of_reference = draft(json!({"filters": [
        {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-secret"]}}]}));
    let own = json!([{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "a", "value": "1"}]}}]);
    let combined = |child: Value| {
        let combined = rest(&draft(json!({})), &draft(child), &of_reference.filters, Some("shop"));
        print_draft(Kind::HttpRoute, &combined.unwrap())
    };
    let both = json!([{"type": "RequestHeaderModifier",
        "requestHeaderModifier": {"set": [{"name": "a", "value": "1"}], "remove": ["x-secret"]}}]);
    let backends = combined(json!({"backendRefs": [{"name": "x"}, {"name": "y", "filters": own}]}));
    assert_eq!(backends["backendRefs"][0]["filters"], json!(of_reference.filters));
    assert_eq!(backends["backendRefs"][1]["filters"], both);
    assert_eq!(backends["filters"], Value::Null);
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {}});
    let redirecting = combined(json!({"filters": [redirect]}));
    assert_eq!(redirecting["filters"], json!([of_reference.filters[0], redirect]));
    // An extensionRef of the parent's is local to the parent, where it is written.
    let extension = draft(json!({"filters": [
        {"type": "ExtensionRef", "extensionRef": {"group": "g", "kind": "K", "name": "n"}}]}));
    let child = draft(json!({"backendRefs": [{"name": "x"}]}));
    assert!(rest(&draft(json!({})), &child, &extension.filters, Some("shop")).is_ok());
}
