use portcullis_api::{Change, Kind, Object, ObjectKey};
use portcullis_model::{Access, ClientRules, FrontendKey, ParentKind, PolicyState};
use serde_json::{Value, json};

use super::*;
use crate::infra::HostPortRights;
use crate::{Outcome, Reason, Settings, Status, Translator};

/// A Gateway with a listener on port 8080, and a ListenerSet's, each on a port of its own.
fn translator(ports: &[u16]) -> (Translator, Outcome) {
    let listener = |port: &u16| json!({"name": format!("http-{port}"), "port": port, "protocol": "HTTP"});
    translator_of(ports.iter().map(listener).collect())
}

fn translator_of(listeners: Vec<Value>) -> (Translator, Outcome) {
    let objects = [
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
            "spec": {"controllerName": "portcullis.dev/gateway"}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web", "namespace": "infra"},
            "spec": {"gatewayClassName": "c", "addresses": [{"value": "127.0.0.1"}],
                "allowedListeners": {"namespaces": {"from": "All"}},
                "listeners": [{"name": "own", "port": 8080, "protocol": "HTTP"}]}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"name": "set", "namespace": "shop"},
            "spec": {"parentRef": {"name": "web", "namespace": "infra"}, "listeners": listeners}}),
    ];
    let mut translator = Translator::new(Settings::default());
    let set = |manifest: &Value| Change::Set(Object::from_json(manifest.clone()).unwrap().unwrap());
    let outcome = translator.apply(objects.iter().map(set).collect());
    (translator, outcome)
}

fn gateway() -> ObjectKey {
    ObjectKey::new(Kind::Gateway, ObjectName::new("infra", "web"))
}

fn set() -> ObjectKey {
    ObjectKey::new(Kind::ListenerSet, ObjectName::new("shop", "set"))
}

fn frontend(port: u16) -> FrontendKey {
    FrontendKey::new(IpAddr::from([127, 0, 0, 1]), PortKey::tcp(port))
}

fn unserved(ports: &[u16]) -> Feedback {
    let frontends = ports.iter().map(|port| (frontend(*port), "address in use".to_owned())).collect();
    Feedback::Unserved(Unserved { frontends, ..Unserved::default() })
}

fn unprovisioned(fault: Fault) -> Feedback {
    Feedback::Unprovisioned([(gateway().name, fault)].into())
}

/// The statuses that are different after feedback.
fn changed(translator: &mut Translator, feedback: Feedback) -> BTreeMap<ObjectKey, Status> {
    translator.observe(feedback);
    translator.apply(Vec::new()).statuses
}

fn programmed(holder: &Value) -> String {
    let mut conditions = holder["conditions"].as_array().unwrap().iter();
    let condition = conditions.find(|condition| condition["type"] == "Programmed").unwrap();
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

/// It says what is so, of each target by itself.
#[test]
fn a_policy_is_programmed_where_a_listener_of_its_target_is() {
    let (mut translator, _) = translator(&[80]);
    let policy = |namespace: &str, kind: &str, name: &str| {
        let target = json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name});
        let manifest = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "ListenerPolicy",
            "metadata": {"name": "p", "namespace": namespace},
            "spec": {"targetRefs": [target], "deny": ["192.0.2.0/24"]}});
        Change::Set(Object::from_json(manifest).unwrap().unwrap())
    };
    let key = |namespace: &str| ObjectKey::new(Kind::ListenerPolicy, ObjectName::new(namespace, "p"));
    let policies = vec![policy("infra", "Gateway", "web"), policy("shop", "ListenerSet", "set")];
    let before = translator.apply(policies).statuses;
    let said = |status: &Status| programmed(&status.to_json()["ancestors"][0]);
    for namespace in ["infra", "shop"] {
        assert!(said(&before[&key(namespace)]).starts_with("True Programmed: "));
    }
    let turned = changed(&mut translator, unserved(&[80]));
    assert!(said(&turned[&key("shop")]).starts_with("False NoListener: "));
    assert!(!turned.contains_key(&key("infra")), "the Gateway's own listener is served");
    let turned = changed(&mut translator, unserved(&[80, 8080]));
    assert!(said(&turned[&key("infra")]).starts_with("False NoListener: "));
    let turned = changed(&mut translator, unserved(&[]));
    for namespace in ["infra", "shop"] {
        assert_eq!(turned[&key(namespace)], before[&key(namespace)]);
    }
}

/// There may be one about any listener, and on all of what those without requests are part of.
#[test]
fn traffic_policies_that_cannot_be_read_let_no_request_pass() {
    let listener = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": name});
    let (mut translator, _) = translator_of(vec![listener("HTTP", 80), listener("TCP", 9000)]);
    let closed = |translator: &Translator| -> Vec<bool> {
        let ports = translator.snapshot().frontends.values();
        let levels = |policy: &portcullis_model::TrafficPolicy| {
            policy.levels.iter().any(|level| level.protection.state == PolicyState::Closed)
        };
        let denies = |clients: &ClientRules| {
            ["192.0.2.1", "2001:db8::1"]
                .iter()
                .all(|it| clients.access(&it.parse().unwrap()) == Access::Denied)
        };
        let listeners = ports.flat_map(|port| port.listeners.iter().cloned().collect::<Vec<_>>());
        let closed = listeners.map(|listener| match listener.serves.routes() {
            Some(_) => listener.policy.as_deref().is_some_and(levels),
            None => listener.admission.clients.as_deref().is_some_and(denies),
        });
        closed.collect()
    };
    let turned = changed(&mut translator, Feedback::Unread([Kind::TrafficPolicy].into()));
    assert_eq!(closed(&translator), [true, true, true]);
    let said = programmed(&turned[&gateway()].to_json()["listeners"][0]);
    assert!(said.starts_with("False Pending: the agents cannot read TrafficPolicies"), "{said}");
    changed(&mut translator, Feedback::Unread(BTreeSet::new()));
    assert_eq!(closed(&translator), [false, false, false]);
}

#[test]
fn a_refused_frontend_turns_the_object_that_has_its_listeners() {
    let (mut translator, outcome) = translator(&[80]);
    let before = outcome.statuses;
    let turned = changed(&mut translator, unserved(&[80]));
    assert_eq!(turned.keys().collect::<Vec<_>>(), [&set()], "the Gateway's own port is served");
    let turned = turned[&set()].to_json();
    let line = "not served: tcp/127.0.0.1:80: address in use";
    assert_eq!(programmed(&turned["listeners"][0]), format!("False PortUnavailable: {line}"));
    assert_eq!(programmed(&turned), format!("False PortUnavailable: {line}"), "no other listener is served");
    assert_eq!(changed(&mut translator, unserved(&[80])), BTreeMap::new(), "that is known");

    let turned = changed(&mut translator, unserved(&[8080]));
    assert_eq!(turned[&set()], before[&set()]);
    let turned = turned[&gateway()].to_json();
    let line = "not served: tcp/127.0.0.1:8080: address in use";
    assert_eq!(programmed(&turned["listeners"][0]), format!("False PortUnavailable: {line}"));
    assert_eq!(programmed(&turned), format!("False AddressNotUsable: {line}"));
    assert_eq!(changed(&mut translator, unserved(&[]))[&gateway()], before[&gateway()]);
}

#[test]
fn a_set_is_programmed_as_long_as_one_of_its_listeners_is() {
    let (mut translator, _) = translator(&[80, 81]);
    let turned = changed(&mut translator, unserved(&[81]))[&set()].to_json();
    assert_eq!(programmed(&turned), "True Programmed: The data plane has it.");
    assert_eq!(programmed(&turned["listeners"][0]), "True Programmed: The data plane has it.");
    assert!(programmed(&turned["listeners"][1]).starts_with("False PortUnavailable: "));
}

#[test]
fn a_refused_listener_turns_no_other_of_its_port() {
    let listener = |name: &str| json!({"name": name, "port": 80, "protocol": "HTTP", "hostname": name});
    let (mut translator, _) = translator_of(vec![listener("a.com"), listener("b.com")]);
    let refused = ListenerId {
        gateway: gateway().name,
        kind: ParentKind::ListenerSet,
        parent: set().name,
        name: "b.com".into(),
    };
    let listeners = [((frontend(80), refused), "no such protocol".to_owned())].into();
    let feedback = Feedback::Unserved(Unserved { listeners, ..Unserved::default() });
    let turned = changed(&mut translator, feedback);
    assert_eq!(turned.keys().collect::<Vec<_>>(), [&set()]);
    let set = turned[&set()].to_json();
    assert_eq!(programmed(&set), "True Programmed: The data plane has it.");
    assert_eq!(programmed(&set["listeners"][0]), "True Programmed: The data plane has it.");
    let line = "not served: tcp/127.0.0.1:80: no such protocol";
    assert_eq!(programmed(&set["listeners"][1]), format!("False PortUnavailable: {line}"));
}

#[test]
fn a_gateway_of_whose_listeners_none_is_served_is_not_programmed() {
    let (mut translator, _) = translator(&[80]);
    let refused = ListenerId {
        gateway: gateway().name,
        kind: ParentKind::Gateway,
        parent: gateway().name,
        name: "own".into(),
    };
    let listeners = [((frontend(8080), refused), "no such protocol".to_owned())].into();
    let feedback = Feedback::Unserved(Unserved { listeners, ..Unserved::default() });
    let turned = changed(&mut translator, feedback)[&gateway()].to_json();
    let line = "not served: tcp/127.0.0.1:8080: no such protocol";
    assert_eq!(programmed(&turned["listeners"][0]), format!("False PortUnavailable: {line}"));
    assert_eq!(programmed(&turned), format!("False AddressNotUsable: {line}"));
}

#[test]
fn what_is_not_served_of_no_gateway_turns_nothing() {
    let (mut translator, _) = translator(&[80]);
    assert_eq!(changed(&mut translator, unserved(&[443])), BTreeMap::new());
}

#[test]
fn a_gateway_says_what_the_cluster_did_not_give_and_its_set_that_it_did_not() {
    let (mut translator, _) = translator(&[80]);
    let fault = Fault::not_programmed(Reason::Pending, "no pod");
    let turned = changed(&mut translator, unprovisioned(fault));
    assert_eq!(programmed(&turned[&gateway()].to_json()), "False Pending: no pod");
    let expected = "False ParentNotProgrammed: the Gateway attached to is not programmed";
    assert_eq!(programmed(&turned[&set()].to_json()), expected);
    let turned = changed(&mut translator, Feedback::Unprovisioned(BTreeMap::new()));
    assert_eq!(programmed(&turned[&gateway()].to_json()), "True Programmed: The data plane has it.");
}

#[test]
fn an_attached_gateway_says_that_its_parent_is_not_programmed() {
    let (mut translator, _) = translator(&[80]);
    let gateway = |name: &str, infrastructure: Value, port: u16| {
        let manifest = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": name, "namespace": "infra"},
            "spec": {"gatewayClassName": "c", "infrastructure": infrastructure,
                "listeners": [{"name": "http", "port": port, "protocol": "HTTP"}]}});
        Change::Set(Object::from_json(manifest).unwrap().unwrap())
    };
    let to = json!({"attachTo": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}});
    translator.apply(vec![gateway("web", json!({"allowedChildren": {}}), 8080), gateway("child", to, 81)]);
    translator.observe(unprovisioned(Fault::not_programmed(Reason::Pending, "no pod")));
    translator.apply(Vec::new());
    let child = ObjectKey::new(Kind::Gateway, ObjectName::new("infra", "child"));
    let status = translator.status_of(&child).unwrap().to_json();
    // Without an address of the parent, too: what it waits for comes first.
    assert_eq!(programmed(&status), "False Pending: the Gateway attached to is not programmed");
}

#[test]
fn what_is_not_programmed_for_another_reason_stays_so_but_for_a_missing_address() {
    let missing = Fault::not_programmed(Reason::AddressNotAssigned, "none yet");
    let invalid = Fault::not_programmed(Reason::Invalid, "the Gateway is not accepted");
    let why = Fault::not_programmed(Reason::AddressNotUsable, "10.0.0.1 is allocated");
    let provisioned = crate::status::provisioned;
    assert_eq!(provisioned(None, Some(&why)), Some(why.clone()));
    assert_eq!(provisioned(Some(missing.clone()), Some(&why)), Some(why.clone()));
    assert_eq!(provisioned(Some(invalid.clone()), Some(&why)), Some(invalid));
    assert_eq!(provisioned(Some(missing.clone()), None), Some(missing));
}

#[test]
fn a_translation_from_scratch_knows_what_was_observed() {
    let (mut translator, _) = translator(&[80]);
    changed(&mut translator, unserved(&[8080]));
    translator.begin_again(Vec::new());
    let statuses = translator.apply(Vec::new()).statuses;
    assert!(programmed(&statuses[&gateway()].to_json()).starts_with("False AddressNotUsable: "));
}

#[test]
fn a_gateway_on_all_addresses_publishes_those_that_clients_can_use() {
    let objects = [
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
            "spec": {"controllerName": "portcullis.dev/gateway"}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web", "namespace": "infra"}, "spec": {"gatewayClassName": "c",
                "listeners": [{"name": "own", "port": 8080, "protocol": "HTTP"}]}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web2", "namespace": "infra"}, "spec": {"gatewayClassName": "c",
                "listeners": [{"name": "own", "port": 8080, "protocol": "HTTP"}]}}),
    ];
    let default_addresses = vec![[0_u8; 4].into(), [0_u16; 8].into()];
    let mut translator = Translator::new(Settings { default_addresses, ..Settings::default() });
    let node = |addresses: &[&str]| {
        Feedback::NodeAddresses(addresses.iter().map(|address| address.parse().unwrap()).collect())
    };
    let published = |statuses: &BTreeMap<ObjectKey, Status>| -> Vec<String> {
        let status = statuses[&gateway()].to_json();
        let addresses = status["addresses"].as_array().unwrap().iter();
        addresses.map(|address| address["value"].as_str().unwrap().to_owned()).collect()
    };
    translator.observe(node(&["192.0.2.7", "2001:db8::7"]));
    let set = |manifest: &Value| Change::Set(Object::from_json(manifest.clone()).unwrap().unwrap());
    let outcome = translator.apply(objects.iter().map(set).collect());
    assert_eq!(published(&outcome.statuses), ["192.0.2.7", "2001:db8::7"]);
    let served: Vec<_> = outcome.snapshot.frontends.keys().map(|it| it.address.to_string()).collect();
    assert_eq!(served, ["0.0.0.0", "::"], "it is served on all of them");
    let second = ObjectKey::new(Kind::Gateway, ObjectName::new("infra", "web2"));
    assert_eq!(outcome.statuses[&second].to_json()["addresses"], json!([]), "and another one on none");
    assert_eq!(published(&changed(&mut translator, node(&["192.0.2.8"]))), ["192.0.2.8"]);
    assert_eq!(changed(&mut translator, node(&["192.0.2.8"])), BTreeMap::new());
}

/// In a cluster, those of nodes with a ready agent, as far as it has a right to a port of theirs.
#[test]
fn a_gateway_with_host_ports_publishes_the_nodes_addresses_after_its_own() {
    let published = |grant: &str, nodes: &[&str]| -> Vec<String> {
        let manifests = [
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
                "spec": {"controllerName": "portcullis.dev/gateway"}}),
            json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayParameters",
                "metadata": {"name": "own", "namespace": "infra"}, "spec": {"hostPorts": true}}),
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": "web", "namespace": "infra"}, "spec": {"gatewayClassName": "c",
                    "infrastructure": {"parametersRef": {"group": "portcullis.dev", "kind": "GatewayParameters", "name": "own"}},
                    "listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}, {"name": "b", "port": 81, "protocol": "HTTP"}]}}),
        ];
        let grants = vec![grant.parse().unwrap()];
        let host_ports = HostPortRights { grants, ..HostPortRights::default() };
        let mut translator = Translator::new(Settings { host_ports, ..Settings::default() });
        let assigned = ["10.96.3.4".parse().unwrap()].into_iter().collect();
        translator.observe(Feedback::Assigned([(gateway().name, assigned)].into()));
        let set = |manifest: Value| Change::Set(Object::from_json(manifest).unwrap().unwrap());
        let mut outcome = translator.apply(manifests.into_iter().map(set).collect());
        let nodes = nodes.iter().map(|address| address.parse().unwrap()).collect();
        translator.observe(Feedback::NodeAddresses(nodes));
        outcome.statuses.append(&mut translator.apply(Vec::new()).statuses);
        let status = outcome.statuses[&gateway()].to_json();
        let addresses = status["addresses"].as_array().unwrap().iter();
        addresses.map(|address| address["value"].as_str().unwrap().to_owned()).collect()
    };
    let nodes = ["192.0.2.1", "2001:db8::1", "192.0.2.2"];
    assert_eq!(published("c/infra:80", &nodes), ["10.96.3.4", "192.0.2.1", "2001:db8::1", "192.0.2.2"]);
    assert_eq!(published("c/infra:80", &[]), ["10.96.3.4"]);
    assert_eq!(published("c/infra:82", &nodes), ["10.96.3.4"], "neither port is granted");
    let many: Vec<_> = (1..40).map(|n| format!("192.0.2.{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(published("c/infra:80", &many).len(), 16);
}

/// A Gateway behind a load balancer, as the API server or what was kept of it has it.
fn balanced() -> (Translator, impl Fn(&mut Translator, ApiServer) -> (Vec<String>, String)) {
    let objects = [
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
            "spec": {"controllerName": "portcullis.dev/gateway"}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web", "namespace": "infra", "uid": "u"}, "spec": {"gatewayClassName": "c",
                "listeners": [{"name": "own", "port": 80, "protocol": "HTTP"}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web-c", "namespace": "infra",
            "labels": {"app.kubernetes.io/managed-by": "portcullis"},
            "ownerReferences": [{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web",
                "uid": "u", "controller": true}]},
            "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.7"], "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}}),
    ];
    let objects = objects.map(|manifest| Object::from_json(manifest).unwrap().unwrap());
    let mut all = Objects::default();
    for object in &objects {
        all.apply(Change::Set(object.clone()));
    }
    let load_balancers = vec!["203.0.113.0/24".parse().unwrap()];
    let mut translator = Translator::new(Settings { load_balancers, ..Settings::default() });
    let assigned = [(gateway().name, AssignedAddresses::of(&gateway().name, &all))].into();
    translator.observe(Feedback::Assigned(assigned));
    translator.apply(objects.into_iter().map(Change::Set).collect());
    let served = |translator: &mut Translator, api_server| {
        translator.observe(Feedback::ApiServer(api_server));
        let outcome = translator.apply(Vec::new());
        let served = outcome.snapshot.frontends.keys().map(|it| it.address.to_string()).collect();
        (served, programmed(&translator.status_of(&gateway()).unwrap().to_json()))
    };
    (translator, served)
}

#[test]
fn no_gateway_has_an_address_that_is_the_api_servers_by_now() {
    let (mut translator, served) = balanced();
    let of =
        |address: &str| ApiServer { addresses: [address.parse().unwrap()].into(), ..ApiServer::default() };
    let (addresses, said) = served(&mut translator, of("203.0.113.7"));
    assert_eq!(addresses, ["10.96.0.7"]);
    assert!(said.contains("AddressNotUsable") && said.contains("it is the API server's"), "{said}");
    // Not even its Service's: what was kept may be of another cluster.
    let (addresses, said) = served(&mut translator, of("10.96.0.7"));
    assert_eq!(addresses, ["203.0.113.7"]);
    assert!(said.contains("address 10.96.0.7") && said.contains("it is the API server's"), "{said}");
    let (addresses, _) = served(&mut translator, of("192.0.2.1"));
    assert_eq!(addresses, ["10.96.0.7", "203.0.113.7"]);
}

#[test]
fn published_addresses_that_may_keep_the_agent_from_its_api_server_are_not_served() {
    let (mut translator, served) = balanced();
    let suspects = ["203.0.113.7", "10.96.0.7"].map(|address| address.parse().unwrap()).into();
    let (addresses, said) = served(&mut translator, ApiServer { suspects, ..ApiServer::default() });
    assert_eq!(addresses, ["10.96.0.7"], "the cluster's own is nobody else's");
    assert!(said.contains("AddressNotUsable") && said.contains("no answer from its API server"), "{said}");
    let (addresses, _) = served(&mut translator, ApiServer::default());
    assert_eq!(addresses, ["10.96.0.7", "203.0.113.7"]);
}

/// Plaintext is not for a Service that may have a policy.
#[test]
fn services_are_not_spoken_to_while_policies_cannot_be_read() {
    let (mut translator, _) = translator(&[80]);
    let objects = [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "app", "namespace": "infra"},
            "spec": {"ports": [{"port": 80}]}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "r", "namespace": "infra"},
            "spec": {"parentRefs": [{"name": "web"}],
                "rules": [{"backendRefs": [{"name": "app", "port": 80}]}]}}),
    ];
    let set = |manifest: &Value| Change::Set(Object::from_json(manifest.clone()).unwrap().unwrap());
    translator.apply(objects.iter().map(set).collect());
    let route = ObjectKey::new(Kind::HttpRoute, ObjectName::new("infra", "r"));
    let resolved = |translator: &Translator| {
        let status = translator.status_of(&route).unwrap().to_json();
        let conditions = status["parents"][0]["conditions"].as_array().unwrap().clone();
        conditions.into_iter().find(|condition| condition["type"] == "ResolvedRefs").unwrap()
    };
    assert_eq!(resolved(&translator)["status"], "True");
    assert_eq!(translator.snapshot().backends.len(), 1);

    let turned = changed(&mut translator, Feedback::Unread([Kind::BackendTlsPolicy].into()));
    assert_eq!(turned.keys().collect::<Vec<_>>(), [&route]);
    assert_eq!(translator.snapshot().backends.len(), 0);
    let condition = resolved(&translator);
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("UnsupportedProtocol"))
    );
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with("rule 0: the agents cannot read BackendTLSPolicies"), "{message}");

    assert_eq!(changed(&mut translator, Feedback::Unread(BTreeSet::new())).len(), 1);
    assert_eq!(resolved(&translator)["status"], "True");
    assert_eq!(translator.snapshot().backends.len(), 1);
}
