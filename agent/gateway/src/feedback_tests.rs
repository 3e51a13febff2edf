use std::net::IpAddr;

use portcullis_model::L4Protocol;
use serde_json::{Value, json};

use super::*;
use crate::{Change, Kind, Object, ObjectKey, Outcome, Reason, Settings, Status, Translator};

/// A Gateway of ListenerSets' listeners, each on a port of its own.
fn translator(ports: &[u16]) -> (Translator, Outcome) {
    let listener = |port: &u16| json!({"name": format!("http-{port}"), "port": port, "protocol": "HTTP"});
    let listeners: Vec<_> = ports.iter().map(listener).collect();
    let objects = [
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
            "spec": {"controllerName": "portcullis.dev/gateway"}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web", "namespace": "infra"},
            "spec": {"gatewayClassName": "c", "addresses": [{"value": "127.0.0.1"}],
                "allowedListeners": {"namespaces": {"from": "All"}}}}),
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

fn unserved(ports: &[u16]) -> Feedback {
    let frontend = |port: &u16| FrontendKey {
        protocol: L4Protocol::Tcp,
        address: IpAddr::from([127, 0, 0, 1]),
        port: *port,
    };
    Feedback::Unserved(ports.iter().map(|port| (frontend(port), "address in use".to_owned())).collect())
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

#[test]
fn a_refused_frontend_turns_its_gateway_and_its_listeners() {
    let (mut translator, outcome) = translator(&[80]);
    let before = outcome.statuses;
    let turned = changed(&mut translator, unserved(&[80]));
    assert_eq!(turned.keys().collect::<Vec<_>>(), [&gateway(), &set()]);
    let (web, set) = (turned[&gateway()].to_json(), turned[&set()].to_json());
    let line = "not served: tcp/127.0.0.1:80: address in use";
    assert_eq!(programmed(&web), format!("False AddressNotUsable: {line}"));
    assert_eq!(programmed(&set["listeners"][0]), format!("False PortUnavailable: {line}"));
    assert_eq!(programmed(&set), format!("False PortUnavailable: {line}"), "no other listener is served");

    assert_eq!(changed(&mut translator, unserved(&[80])), BTreeMap::new(), "that is known");
    let turned = changed(&mut translator, unserved(&[]));
    assert_eq!(turned[&gateway()], before[&gateway()]);
}

#[test]
fn a_set_is_programmed_as_long_as_one_of_its_listeners_is() {
    let (mut translator, _) = translator(&[80, 81]);
    let turned = changed(&mut translator, unserved(&[81]))[&set()].to_json();
    assert_eq!(programmed(&turned), "True Programmed: ");
    assert_eq!(programmed(&turned["listeners"][0]), "True Programmed: ");
    assert!(programmed(&turned["listeners"][1]).starts_with("False PortUnavailable: "));
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
    let told = "False ParentNotProgrammed: the Gateway attached to is not programmed";
    assert_eq!(programmed(&turned[&set()].to_json()), told);
    let turned = changed(&mut translator, Feedback::Unprovisioned(BTreeMap::new()));
    assert_eq!(programmed(&turned[&gateway()].to_json()), "True Programmed: ");
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
    changed(&mut translator, unserved(&[80]));
    translator.begin_again(Vec::new());
    let told = translator.apply(Vec::new()).statuses;
    assert!(programmed(&told[&gateway()].to_json()).starts_with("False AddressNotUsable: "));
}
