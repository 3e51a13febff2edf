//! Lists of statuses are no longer than the CRDs let them be.

use portcullis_api::{Change, Kind, ObjectKey};
use portcullis_gateway::{Status, Translator};
use portcullis_model::ObjectName;
use serde_json::json;

use crate::support;

/// A child that names no parent, and that 40 parent routes name.
#[test]
fn a_route_with_more_parents_than_its_status_holds_says_which_it_leaves_out() {
    let version = "gateway.networking.k8s.io/v1";
    let mut objects = support::base();
    objects.push(support::object(json!({"apiVersion": version, "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "gw"}, "spec": {"gatewayClassName": "portcullis",
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}})));
    let child = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "child"});
    for number in 10..50 {
        objects.push(support::object(json!({"apiVersion": version, "kind": "HTTPRoute",
            "metadata": {"name": format!("p{number}"), "namespace": "gw"},
            "spec": {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [child]}]}})));
    }
    objects.push(support::object(json!({"apiVersion": version, "kind": "HTTPRoute",
        "metadata": {"name": "child", "namespace": "gw"}, "spec": {"rules": [{}]}})));
    let mut translator = Translator::new(support::settings());
    let outcome = translator.apply(objects.into_iter().map(Change::Set).collect());
    let key = ObjectKey::new(Kind::HttpRoute, ObjectName::new("gw", "child"));
    let Some(Status::Route(status)) = outcome.statuses.get(&key) else { panic!("no status") };
    assert_eq!(status.parents.len(), 32);
    let problems = &outcome.problems[&key];
    assert!(problems[0].starts_with("status.parents has room for 32 entries"), "{problems:?}");
    assert_eq!(problems[0].matches("HTTPRoute gw/p").count(), 8, "{problems:?}");
}
