use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::infra::{AgentPod, Operation, diff};

fn wanted() -> DesiredObjects {
    let owner = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web", "uid": "u-1",
        "controller": true});
    let metadata = json!({"name": "web-portcullis", "namespace": "edge", "ownerReferences": [owner],
        "labels": {"team": "blue", "app.kubernetes.io/managed-by": "portcullis"},
        "annotations": {"portcullis.dev/controller": crate::CONTROLLER_NAME}});
    let service = Generated::read(GeneratedKind::Service, json!({"metadata": metadata, "spec": {}}));
    DesiredObjects {
        gateway: service.as_ref().and_then(Generated::gateway).unwrap(),
        uid: "u-1".to_owned(),
        created: 0,
        objects: service.map(|service| vec![service]),
        rights: Vec::new(),
    }
}

/// The Service as the API server has it.
fn there(spec: Value) -> Generated {
    let mut manifest = wanted().objects()[0].manifest.clone();
    manifest["spec"] =
        json!({"ipFamilies": ["IPv4"], "ports": [{"name": "80", "port": 80, "protocol": "TCP"}]});
    manifest["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    Generated::read(GeneratedKind::Service, manifest).unwrap()
}

fn pod(node: &str, ready: &str, addresses: &[&str]) -> Value {
    let addresses: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    json!({"metadata": {"name": format!("agent-{ready}"), "namespace": "system", "uid": "p"}, "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "hostIPs": addresses, "conditions": [{"type": "Ready", "status": ready}]}})
}

fn leaving(mut pod: Value) -> Value {
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    pod
}

fn agents(pods: &[Value]) -> Agents {
    let pods = pods.iter().map(|pod| serde_json::from_value::<Pod>(pod.clone()).unwrap());
    let pods: Vec<_> = pods.filter_map(|pod| AgentPod::of(&pod)).collect();
    pods.iter().collect()
}

fn slices(service: &Generated, agents: &Agents) -> Vec<Value> {
    let desired = wanted().with_endpoints(Some(service), agents);
    let slices = desired.objects().iter().filter(|object| object.kind == GeneratedKind::EndpointSlice);
    slices.map(|slice| slice.manifest.clone()).collect()
}

/// Node, address, and the conditions that hold.
fn endpoints(slices: &[Value]) -> Vec<String> {
    let endpoints = slices.iter().flat_map(|slice| slice["endpoints"].as_array().unwrap());
    let line = |endpoint: &Value| {
        let conditions = endpoint["conditions"].as_object().unwrap();
        let holding = conditions.iter().filter(|(_, holds)| **holds == Value::Bool(true));
        let holding: Vec<_> = holding.map(|(name, _)| name.as_str()).collect();
        let (node, address) =
            (endpoint["nodeName"].as_str().unwrap(), endpoint["addresses"][0].as_str().unwrap());
        format!("{node} {address} {}", holding.join(" "))
    };
    endpoints.map(line).collect()
}

#[test]
fn a_node_is_an_endpoint_as_far_as_its_agent_serves() {
    let agents = agents(&[
        pod("a", "True", &["192.0.2.1"]),
        pod("b", "False", &["192.0.2.2"]),
        leaving(pod("c", "True", &["192.0.2.3"])),
        leaving(pod("d", "False", &["192.0.2.4"])),
    ]);
    assert_eq!(
        endpoints(&slices(&there(json!({})), &agents)),
        [
            "a 192.0.2.1 ready serving",
            "b 192.0.2.2 ",
            "c 192.0.2.3 serving terminating",
            "d 192.0.2.4 terminating"
        ]
    );
    assert_eq!(agents.ready_addresses(), ["192.0.2.1".parse::<IpAddr>().unwrap()]);
}

#[test]
fn an_agent_that_runs_nowhere_is_no_endpoint() {
    let mut failed = pod("a", "False", &["192.0.2.1"]);
    failed["status"]["phase"] = "Failed".into();
    let mut pending = pod("b", "False", &["192.0.2.2"]);
    pending["spec"].as_object_mut().unwrap().remove("nodeName");
    let agents =
        agents(&[failed, pending, pod("c", "True", &[]), pod("d", "True", &["127.0.0.1", "fe80::1"])]);
    assert_eq!(slices(&there(json!({})), &agents), [] as [Value; 0]);
}

#[test]
fn of_two_agents_on_a_node_the_better_counts() {
    let (old, new) = (pod("a", "True", &["192.0.2.1"]), pod("a", "False", &["192.0.2.1"]));
    let of = |pods: &[Value]| endpoints(&slices(&there(json!({})), &agents(pods)));
    let slices = slices(&there(json!({})), &agents(&[new.clone(), old.clone()]));
    let target = json!({"kind": "Pod", "namespace": "system", "name": "agent-True", "uid": "p"});
    assert_eq!(slices[0]["endpoints"][0]["targetRef"], target);
    assert_eq!(of(&[leaving(old.clone()), new.clone()]), ["a 192.0.2.1 serving terminating"]);
    assert_eq!(of(&[new, old.clone()]), ["a 192.0.2.1 ready serving"]);
    assert_eq!(of(&[leaving(pod("a", "False", &["192.0.2.1"])), old]), ["a 192.0.2.1 ready serving"]);
}

#[test]
fn each_family_of_the_service_has_slices_of_its_own() {
    let agents = agents(&[
        pod("a", "True", &["192.0.2.1", "2001:db8::1"]),
        pod("b", "True", &["2001:db8::2", "192.0.2.2", "192.0.2.3"]),
        pod("c", "True", &["192.0.2.4"]),
    ]);
    let both = slices(&there(json!({"ipFamilies": ["IPv6", "IPv4"]})), &agents);
    let [v6, v4] = &both[..] else { panic!("{both:#?}") };
    assert_eq!(
        (&v6["addressType"], &v6["metadata"]["name"]),
        (&json!("IPv6"), &json!("web-portcullis-ipv6-0"))
    );
    assert_eq!(
        (&v4["addressType"], &v4["metadata"]["name"]),
        (&json!("IPv4"), &json!("web-portcullis-ipv4-0"))
    );
    assert_eq!(endpoints(&both[..1]), ["a 2001:db8::1 ready serving", "b 2001:db8::2 ready serving"]);
    let of_v4 = ["a 192.0.2.1 ready serving", "b 192.0.2.2 ready serving", "c 192.0.2.4 ready serving"];
    assert_eq!(endpoints(&both[1..]), of_v4);
    assert_eq!(slices(&there(json!({})), &agents).len(), 1);
}

#[test]
fn the_port_is_the_node_port_where_there_is_one() {
    let agents = agents(&[pod("a", "True", &["192.0.2.1"])]);
    let ports = json!([{"name": "80", "port": 80, "protocol": "TCP", "nodePort": 30080},
        {"name": "443", "port": 443, "protocol": "TCP"}]);
    let slices = slices(&there(json!({"ports": ports})), &agents);
    let expected = json!([{"name": "80", "port": 30080, "protocol": "TCP"}, {"name": "443", "port": 443, "protocol": "TCP"}]);
    assert_eq!(slices[0]["ports"], expected);
}

#[test]
fn a_slice_has_the_services_owner_and_marks_and_those_of_a_slice() {
    let slices = slices(&there(json!({})), &agents(&[pod("a", "True", &["192.0.2.1"])]));
    let metadata = &slices[0]["metadata"];
    assert_eq!(metadata["ownerReferences"][0]["uid"], "u-1");
    assert_eq!(
        metadata["labels"],
        json!({"team": "blue", "app.kubernetes.io/managed-by": "portcullis",
            "kubernetes.io/service-name": "web-portcullis",
            "endpointslice.kubernetes.io/managed-by": "portcullis.dev"})
    );
}

#[test]
fn a_slice_has_a_hundred_endpoints_at_most() {
    let pods: Vec<_> = (0..250)
        .map(|n| pod(&format!("node-{n:03}"), "True", &[&format!("10.0.{}.{}", n / 100, n % 100 + 1)]))
        .collect();
    let slices = slices(&there(json!({})), &agents(&pods));
    let lengths: Vec<_> = slices.iter().map(|slice| slice["endpoints"].as_array().unwrap().len()).collect();
    assert_eq!(lengths, [100, 100, 50]);
    assert_eq!(slices[2]["metadata"]["name"], "web-portcullis-ipv4-2");
    let nodes: std::collections::BTreeSet<_> = endpoints(&slices).into_iter().collect();
    assert_eq!(nodes.len(), 250);
}

#[test]
fn only_the_gateways_own_service_without_selector_has_endpoints_of_agents() {
    let agents = agents(&[pod("a", "True", &["192.0.2.1"])]);
    assert_eq!(slices(&there(json!({"selector": {"app": "x"}})), &agents).len(), 0);
    let mut foreign = there(json!({})).manifest;
    foreign["metadata"]["ownerReferences"][0]["uid"] = "u-2".into();
    assert_eq!(slices(&Generated::read(GeneratedKind::Service, foreign).unwrap(), &agents).len(), 0);
    assert_eq!(wanted().with_endpoints(None, &agents).objects().len(), 1);
}

#[test]
fn slices_go_with_the_last_agent_the_mode_and_the_gateway() {
    let service = there(json!({}));
    let there = wanted().with_endpoints(Some(&service), &agents(&[pod("a", "True", &["192.0.2.1"])]));
    let slice = there.objects()[1].clone();
    let deleted = |desired: &[DesiredObjects]| {
        let operations = diff(desired, [&slice], crate::CONTROLLER_NAME).into_iter();
        operations
            .filter(|it| matches!(it, Operation::Delete { kind: GeneratedKind::EndpointSlice, .. }))
            .count()
    };
    assert_eq!(deleted(std::slice::from_ref(&there)), 0);
    assert_eq!(deleted(&[wanted().with_endpoints(Some(&service), &Agents::default())]), 1);
    assert_eq!(deleted(&[]), 1);
    let unaccepted = DesiredObjects { objects: None, ..wanted() };
    assert_eq!(deleted(&[unaccepted]), 1, "nothing serves it");
}
