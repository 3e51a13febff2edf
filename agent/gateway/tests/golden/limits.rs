//! Lists of statuses are no longer than the CRDs let them be.

use portcullis_api::{Change, Kind, ObjectKey};
use portcullis_gateway::{Status, Translator};
use portcullis_model::ObjectName;
use serde_json::json;

use crate::support;

/// Each port is an entry in the kernel's maps, which all Gateways of a node share.
#[test]
fn the_sets_of_a_namespace_open_no_more_ports_at_a_gateway_than_it_may_have_itself() {
    let version = "gateway.networking.k8s.io/v1";
    let mut objects = support::base();
    objects.push(support::object(json!({"apiVersion": version, "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "gw"}, "spec": {"gatewayClassName": "portcullis",
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        "allowedListeners": {"namespaces": {"from": "All"}}}})));
    let mut add = |namespace: &str, number: u16, ports: std::ops::Range<u16>| {
        let listener = |port: u16| {
            json!({"name": format!("p{port}"), "port": port, "protocol": "HTTP",
                "hostname": format!("s{number}.{namespace}.example")})
        };
        let listeners: Vec<_> = std::iter::once(80).chain(ports).map(listener).collect();
        objects.push(support::object(json!({"apiVersion": version, "kind": "ListenerSet",
            "metadata": {"name": format!("s{number}"), "namespace": namespace},
            "spec": {"parentRef": {"name": "edge", "namespace": "gw"}, "listeners": listeners}})));
    };
    // The first opens one less than it may, the second the last one, which is common to both.
    add("a", 1, 1000..1063);
    add("a", 2, 1060..1070);
    add("b", 1, 1060..1070);
    let mut translator = Translator::new(support::settings());
    let outcome = translator.apply(objects.into_iter().map(Change::Set).collect());
    let refused = |namespace: &str, name: &str| -> Vec<String> {
        let key = ObjectKey::new(Kind::ListenerSet, ObjectName::new(namespace, name));
        let Some(Status::ListenerSet(status)) = outcome.statuses.get(&key) else { panic!("no status") };
        let listeners = status.listeners.iter().flatten();
        let refused = listeners.filter(|it| it.conditions.iter().any(|it| it.reason == "PortUnavailable"));
        refused.map(|listener| listener.name.clone()).collect()
    };
    assert_eq!(refused("a", "s1"), Vec::<String>::new());
    assert_eq!(refused("a", "s2"), ["p1064", "p1065", "p1066", "p1067", "p1068", "p1069"]);
    assert_eq!(refused("b", "s1"), Vec::<String>::new(), "they are its own to open");
    assert_eq!(outcome.snapshot.frontends.len(), 1 + 70);
}

/// Its Service would grow past what the API server takes, and the Gateway lose it.
#[test]
fn a_gateway_has_no_more_ports_than_its_service_can_hold() {
    let version = "gateway.networking.k8s.io/v1";
    let mut objects = support::base();
    objects.push(support::object(json!({"apiVersion": version, "kind": "Gateway",
        "metadata": {"name": "edge", "namespace": "gw"}, "spec": {"gatewayClassName": "portcullis",
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
        "allowedListeners": {"namespaces": {"from": "All"}}}})));
    for number in 0..20 {
        let ports = 1000 + 64 * number..1000 + 64 * (number + 1);
        let listeners =
            ports.map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "HTTP"}));
        objects.push(support::object(json!({"apiVersion": version, "kind": "ListenerSet",
            "metadata": {"name": "set", "namespace": format!("t{number:02}")},
            "spec": {"parentRef": {"name": "edge", "namespace": "gw"}, "listeners": listeners.collect::<Vec<_>>()}})));
    }
    let mut translator = Translator::new(support::settings());
    let outcome = translator.apply(objects.into_iter().map(Change::Set).collect());
    assert_eq!(outcome.snapshot.frontends.len(), 1024);
}

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

/// A status of a route has room for 32 parents, and each default Gateway serves every route that
/// asks for one.
#[test]
fn no_more_gateways_are_default_ones_than_a_route_has_parents() {
    let version = "gateway.networking.k8s.io/v1";
    let mut objects = support::base();
    for number in 0..34 {
        objects.push(support::object(json!({"apiVersion": version, "kind": "Gateway",
            "metadata": {"name": format!("g{number:02}"), "namespace": "gw"}, "spec": {"gatewayClassName": "portcullis",
            "defaultScope": "All", "addresses": [{"value": format!("192.0.2.{}", number + 1)}],
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}})));
    }
    objects.push(support::object(json!({"apiVersion": version, "kind": "HTTPRoute",
        "metadata": {"name": "r", "namespace": "gw"}, "spec": {"useDefaultGateways": "All"}})));
    let mut translator = Translator::new(support::settings());
    translator.apply(objects.into_iter().map(Change::Set).collect());
    let standing = |translator: &Translator, name: &str| {
        let key = ObjectKey::new(Kind::Gateway, ObjectName::new("gw", name));
        let Some(Status::Gateway(status)) = translator.status_of(&key) else { panic!("no status") };
        let conditions = status.conditions.into_iter().flatten();
        let mut of_type = conditions.filter(|condition| condition.type_ == "DefaultGateway");
        of_type.next().map(|condition| (condition.status, condition.reason))
    };
    let is = |status: &str, reason: &str| Some((status.to_owned(), reason.to_owned()));
    let parents = |translator: &Translator| {
        let key = ObjectKey::new(Kind::HttpRoute, ObjectName::new("gw", "r"));
        let Some(Status::Route(status)) = translator.status_of(&key) else { panic!("no status") };
        status.parents.iter().map(|parent| parent.parent_ref.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(standing(&translator, "g31"), is("True", "DefaultGateway"));
    assert_eq!(standing(&translator, "g32"), is("False", "LimitExceeded"));
    assert_eq!(parents(&translator).last().map(String::as_str), Some("g31"));
    let first = ObjectKey::new(Kind::Gateway, ObjectName::new("gw", "g00"));
    let outcome = translator.apply(vec![Change::Delete(first)]);
    assert_eq!(standing(&translator, "g32"), is("True", "DefaultGateway"), "one has made room");
    assert_eq!(standing(&translator, "g33"), is("False", "LimitExceeded"));
    assert_eq!(
        (parents(&translator).len(), parents(&translator).last().map(String::as_str)),
        (32, Some("g32"))
    );
    let told = ObjectKey::new(Kind::Gateway, ObjectName::new("gw", "g32"));
    assert!(outcome.statuses.contains_key(&told));
}
