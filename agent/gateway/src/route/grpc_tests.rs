use portcullis_api::Object;
use serde_json::{Value, json};

use super::*;
use crate::Fault;

fn paths(method: Value) -> Result<PathMatch, Fault> {
    let method: GrpcMethodMatch = serde_json::from_value(method).unwrap();
    super::method(&method)
}

#[test]
fn methods_become_paths() {
    for (method, hits, misses) in [
        (
            json!({"service": "a.B", "method": "Get"}),
            vec!["/a.B/Get"],
            vec!["/a.B/Get/x", "/a.B/GetAll", "/a.C/Get"],
        ),
        (json!({"service": "a.B"}), vec!["/a.B/Get", "/a.B/Put"], vec!["/a.BC/Get"]),
        (json!({"method": "Get"}), vec!["/a.B/Get", "/x/Get"], vec!["/a.B/Put", "/a/b/Get"]),
        (
            json!({"type": "RegularExpression", "service": "a|b", "method": "Get.*"}),
            vec!["/a/Get", "/b/GetAll"],
            vec!["/a", "/c/Get", "/a/Put"],
        ),
    ] {
        let path = paths(method).unwrap();
        assert!(
            hits.iter().all(|hit| path.matches(hit)) && !misses.iter().any(|miss| path.matches(miss)),
            "{path}"
        );
    }
}

#[test]
fn methods_that_name_nothing_or_nonsense_are_refused() {
    for method in [
        json!({}),
        json!({"service": ""}),
        json!({"service": "a/b", "method": "c"}),
        json!({"type": "RegularExpression", "service": "a)|(b", "method": "c"}),
        json!({"type": "Prefix", "service": "a"}),
    ] {
        assert!(paths(method.clone()).is_err(), "{method}");
    }
}

#[test]
fn a_route_without_rules_matches_nothing() {
    let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GRPCRoute",
        "metadata": {"name": "r"}, "spec": {}});
    let route = crate::route::parse(&Object::from_json(route).unwrap().unwrap()).unwrap();
    assert!(route.rules.is_empty());
}
