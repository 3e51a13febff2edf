use portcullis_api::{Change, Object, Objects};
use portcullis_model::{Balancing, HashKey};
use serde_json::{Value, json};

use super::*;
use crate::infra::{AssignedAddresses, Parameters, Pods};
use crate::{AgentRole, Feedback, Outcome, Translator};

fn object(manifest: Value) -> Object {
    Object::from_json(manifest).unwrap().unwrap()
}

fn gateway(name: &str, parameters: Value) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": name, "namespace": "edge", "uid": name},
        "spec": {"gatewayClassName": "c", "infrastructure": parameters,
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}})
}

fn service(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "edge"},
        "spec": {"clusterIPs": [address], "ports": [{"port": 80}]}})
}

/// A Gateway with pods of its own, a route to endpoints with these addresses, a node, and another
/// Gateway, which has the address 203.0.113.7 from a load balancer, on nodes.
fn objects(addresses: &[&str]) -> Vec<Object> {
    let dedicated =
        json!({"parametersRef": {"group": "portcullis.dev", "kind": "GatewayParameters", "name": "own"}});
    let endpoints = addresses.iter().map(|address| {
        json!({"addresses": [address], "targetRef": {"kind": "Pod", "name": "host", "namespace": "edge"}})
    });
    let mut balanced = service("shared-c", "10.96.0.7");
    balanced["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "portcullis"});
    balanced["metadata"]["ownerReferences"] = json!([{"apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway", "name": "shared", "uid": "shared", "controller": true}]);
    balanced["spec"]["type"] = json!("LoadBalancer");
    let ingress = json!([{"ip": "203.0.113.7"}, {"ip": "10.244.0.8", "ipMode": "Proxy"}]);
    balanced["status"] = json!({"loadBalancer": {"ingress": ingress}});
    let manifests = [
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
            "spec": {"controllerName": crate::CONTROLLER_NAME}}),
        json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayParameters",
            "metadata": {"name": "own", "namespace": "edge"}, "spec": {"mode": "Dedicated"}}),
        gateway("web", dedicated),
        gateway("shared", Value::Null),
        balanced,
        service("shop", "10.96.0.9"),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "shop",
            "namespace": "edge", "labels": {"kubernetes.io/service-name": "shop"}}, "addressType": "IPv4",
            "endpoints": endpoints.collect::<Vec<_>>(), "ports": [{"port": 8080}]}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "shop", "namespace": "edge"}, "spec": {"parentRefs": [{"name": "web"}],
                "rules": [{"backendRefs": [{"name": "shop", "port": 80}]}]}}),
    ];
    manifests.map(object).into()
}

/// Of the pods of Gateway edge/web.
fn translated(addresses: &[&str]) -> (Translator, Outcome) {
    let pods = Some(Pods::new("example.org/portcullis:1"));
    let settings = Settings {
        generated: Parameters { pods, ..Parameters::default() },
        load_balancers: vec!["203.0.113.0/24".parse().unwrap()],
        api_server: ["198.51.100.1".parse().unwrap()].into(),
        endpoints: EndpointRule::Foreign { allowed: ["trusted".to_owned()].into() },
        role: AgentRole::Dedicated(ObjectName::new("edge", "web")),
        ..Settings::default()
    };
    let objects = objects(addresses);
    let mut all = Objects::default();
    for object in &objects {
        all.apply(Change::Set(object.clone()));
    }
    let shared = ObjectName::new("edge", "shared");
    let mut translator = Translator::new(settings);
    let assigned = AssignedAddresses::of(&shared, &all);
    translator.observe(Feedback::Assigned([(shared, assigned)].into()));
    let outcome = translator.apply(objects.into_iter().map(Change::Set).collect());
    (translator, outcome)
}

fn served(snapshot: &Snapshot) -> BTreeSet<String> {
    let endpoints = snapshot.backends.iter().flat_map(|(_, backend)| &backend.endpoints);
    endpoints.map(|endpoint| endpoint.ip().to_string()).collect()
}

#[test]
fn pods_of_a_gateway_forward_to_no_address_that_agents_do_not() {
    let others =
        ["192.0.2.11", "10.96.0.9", "10.96.0.7", "203.0.113.7", "198.51.100.1", "127.0.0.1", "169.254.1.1"];
    let pods = ["10.244.0.8", "10.244.0.9"];
    let (mut translator, outcome) = translated(&[&others[..], &pods].concat());
    assert_eq!(served(&outcome.snapshot), pods.map(str::to_owned).into());
    let pods_needed = outcome.needs.added.iter().filter(|key| key.kind == Kind::Pod);
    assert_eq!(pods_needed.count(), 0, "they may not read pods");

    // An address that is no Gateway's any more may be a pod's.
    let shared = ObjectKey { kind: Kind::Gateway, name: ObjectName::new("edge", "shared") };
    let outcome = translator.apply(vec![Change::Delete(shared)]);
    assert!(served(&outcome.snapshot).contains("203.0.113.7"), "{:?}", served(&outcome.snapshot));
}

/// Bridges and further interfaces: no node's status lists their addresses.
#[test]
fn addresses_of_the_agents_own_network_are_no_backends() {
    let (mut translator, outcome) = translated(&["10.244.0.1", "10.244.0.8"]);
    assert_eq!(served(&outcome.snapshot).len(), 2);
    translator.observe(Feedback::OwnAddresses(["10.244.0.1".parse().unwrap()].into()));
    let outcome = translator.apply(Vec::new());
    assert_eq!(served(&outcome.snapshot), ["10.244.0.8".to_owned()].into());
    translator.observe(Feedback::OwnAddresses(BTreeSet::new()));
    assert_eq!(served(&translator.apply(Vec::new()).snapshot).len(), 2);
}

#[test]
fn no_endpoint_is_a_backend_while_nodes_cannot_be_read() {
    let (mut translator, _) = translated(&["10.244.0.8"]);
    translator.observe(Feedback::Unread([Kind::Node].into()));
    let outcome = translator.apply(Vec::new());
    assert_eq!(served(&outcome.snapshot), BTreeSet::new());
    let route = outcome.statuses.iter().find(|(key, _)| key.kind == Kind::HttpRoute);
    let status = route.map(|(_, status)| status.to_json().to_string()).unwrap_or_default();
    assert!(status.contains("10.244.0.8 is perhaps a node's (the agents cannot read Nodes"), "{status}");
    translator.observe(Feedback::Unread(BTreeSet::new()));
    assert_eq!(served(&translator.apply(Vec::new()).snapshot).len(), 1);
}

#[test]
fn a_service_says_whether_its_clients_keep_their_endpoint() {
    let (mut translator, outcome) = translated(&["10.244.0.8"]);
    let balancing = |snapshot: &Snapshot| snapshot.backends.get("edge/shop:80").unwrap().balancing.clone();
    assert_eq!(balancing(&outcome.snapshot), Balancing::LeastRequest);
    let by_address = Balancing::Hash(HashKey::ClientAddress);
    for (said, expected) in [("ClientIP", by_address), ("None", Balancing::LeastRequest)] {
        let mut shop = service("shop", "10.96.0.9");
        shop["spec"]["sessionAffinity"] = said.into();
        let outcome = translator.apply(vec![Change::Set(object(shop))]);
        assert_eq!(balancing(&outcome.snapshot), expected);
    }
}

/// Of its node an agent knows the name; the zone is the Node's to say, now or later.
#[test]
fn endpoints_in_the_zone_of_the_agents_node_come_first() {
    let place = AgentPlace { node: Some("one".into()), zone: None };
    let mut translator = Translator::new(Settings { place, ..Settings::default() });
    let mut near = service("shop", "10.96.0.9");
    near["spec"]["trafficDistribution"] = "PreferClose".into();
    let placed = |address: &str, zone: &str| json!({"addresses": [address], "zone": zone});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "shop",
        "namespace": "edge", "labels": {"kubernetes.io/service-name": "shop"}}, "addressType": "IPv4",
        "endpoints": [placed("10.244.0.8", "a"), placed("10.244.1.8", "b")], "ports": [{"port": 8080}]});
    let own = [gateway("web", Value::Null), near, slice].map(object);
    let changes = objects(&[]).into_iter().chain(own).map(Change::Set).collect();
    let first = |outcome: Outcome| {
        let backend = outcome.snapshot.backends.get("edge/shop:80").unwrap().clone();
        (backend.preferred().len(), backend.preferred()[0].to_string())
    };
    assert_eq!(first(translator.apply(changes)), (2, "10.244.0.8:8080".to_owned()));
    let labelled = |zone: &str| {
        let metadata = json!({"name": "one", "labels": {ZONE: zone}});
        Change::Set(object(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})))
    };
    assert_eq!(first(translator.apply(vec![labelled("b")])), (1, "10.244.1.8:8080".to_owned()));
    assert_eq!(first(translator.apply(vec![labelled("a")])), (1, "10.244.0.8:8080".to_owned()));
}
