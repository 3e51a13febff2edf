//! The endpoints of generated Services: the agents' pods, as kubelets would report them, become
//! EndpointSlices. Their nodes do not exist, so no kubelet has another opinion.

use kube::api::DeleteParams;
use portcullis_api::Kind;
use serde_json::{Value, json};

use crate::agent::{Agent, until};
use crate::fixture::{Fixture, condition};

/// The pod of an agent on a node of its own, which no test shares.
pub(crate) async fn agent_pod(fixture: &Fixture, name: &str, address: &str) {
    let labels = json!({"app.kubernetes.io/name": "portcullis", "app.kubernetes.io/component": "agent"});
    let spec = json!({"nodeName": node(fixture, name), "hostNetwork": true, "terminationGracePeriodSeconds": 600,
        "containers": [{"name": "agent", "image": "example.com/agent:1"}]});
    fixture.create("Pod", name, json!({"metadata": {"labels": labels}, "spec": spec})).await;
    let status = json!({"phase": "Running", "hostIP": address, "hostIPs": [{"ip": address}], "podIP": address,
        "podIPs": [{"ip": address}]});
    fixture.patch_status("Pod", name, status).await;
}

pub(crate) async fn set_ready(fixture: &Fixture, name: &str, ready: &str) {
    let condition = json!({"type": "Ready", "status": ready});
    fixture.patch_status("Pod", name, json!({"conditions": [condition]})).await;
}

fn node(fixture: &Fixture, name: &str) -> String {
    format!("{}-{name}", fixture.name)
}

/// Address and conditions of the endpoints of a slice, by the name of its node's pod.
fn endpoints(fixture: &Fixture, slice: &Value) -> Vec<(String, String, [bool; 3])> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten().map(|endpoint| {
        let node = endpoint["nodeName"].as_str().unwrap().to_owned();
        let is = |name: &str| endpoint["conditions"][name].as_bool().unwrap();
        let address = endpoint["addresses"][0].as_str().unwrap().to_owned();
        let name = node.strip_prefix(&format!("{}-", fixture.name)).unwrap().to_owned();
        (name, address, ["ready", "serving", "terminating"].map(is))
    });
    endpoints.collect()
}

const READY: [bool; 3] = [true, true, false];
const NOT_READY: [bool; 3] = [false, false, false];
const LEAVING: [bool; 3] = [false, true, true];

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_endpoints_of_a_service_are_the_agents_as_they_are() {
    let fixture = Fixture::new().await;
    let name = format!("web-{}", fixture.name);
    let slice = format!("{name}-ipv4-0");
    agent_pod(&fixture, "a", "192.0.2.1").await;
    set_ready(&fixture, "a", "True").await;
    let agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    let of_one = |endpoints: Vec<(String, String, [bool; 3])>, conditions: [bool; 3]| {
        endpoints == [("a".to_owned(), "192.0.2.1".to_owned(), conditions)]
    };
    let made = fixture.until("EndpointSlice", &slice, |it| of_one(endpoints(&fixture, it), READY)).await;
    assert_eq!(made["addressType"], "IPv4");
    assert_eq!(made["ports"], json!([{"name": "tcp-80", "port": 80, "protocol": "TCP"}]));
    let labels = &made["metadata"]["labels"];
    assert_eq!(labels["kubernetes.io/service-name"], name.as_str());
    assert_eq!(labels["endpointslice.kubernetes.io/managed-by"], "portcullis.dev");
    assert_eq!(labels["service.kubernetes.io/service-proxy-name"], "portcullis");
    assert_eq!(made["metadata"]["ownerReferences"][0]["kind"], "Gateway");

    set_ready(&fixture, "a", "False").await;
    fixture.until("EndpointSlice", &slice, |it| of_one(endpoints(&fixture, it), NOT_READY)).await;
    set_ready(&fixture, "a", "True").await;
    agent_pod(&fixture, "b", "192.0.2.2").await;
    let is_both = |it: &Value| {
        let states: Vec<_> =
            endpoints(&fixture, it).into_iter().map(|(name, _, state)| (name, state)).collect();
        states == [("a".to_owned(), READY), ("b".to_owned(), NOT_READY)]
    };
    fixture.until("EndpointSlice", &slice, is_both).await;

    // What is to end serves until it has; then nothing is left of it.
    fixture.delete("Pod", "a").await;
    let states =
        |it: &Value| endpoints(&fixture, it).into_iter().map(|(_, _, state)| state).collect::<Vec<_>>();
    fixture.until("EndpointSlice", &slice, |it| states(it) == [LEAVING, NOT_READY]).await;
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    for pod in ["a", "b"] {
        fixture.api("Pod").delete(pod, &at_once).await.unwrap();
    }
    fixture.until("EndpointSlice", &slice, Value::is_null).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn endpoints_that_others_change_or_delete_come_back_and_go_with_the_gateway() {
    let fixture = Fixture::new().await;
    let slice = format!("web-{}-ipv4-0", fixture.name);
    agent_pod(&fixture, "a", "192.0.2.1").await;
    set_ready(&fixture, "a", "True").await;
    let agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    let is_ready = |it: &Value| {
        let endpoints = endpoints(&fixture, it);
        endpoints.len() == 1 && endpoints[0].2 == READY
    };
    let made = fixture.until("EndpointSlice", &slice, is_ready).await;
    fixture.patch("EndpointSlice", &slice, json!({"endpoints": []})).await;
    fixture.until("EndpointSlice", &slice, is_ready).await;
    fixture.delete("EndpointSlice", &slice).await;
    let again = fixture.until("EndpointSlice", &slice, is_ready).await;
    assert_ne!(again["metadata"]["uid"], made["metadata"]["uid"]);

    // Not served, so there is nowhere to send clients; the Service keeps its address.
    let parameters =
        json!({"parametersRef": {"group": "portcullis.dev", "kind": "GatewayParameters", "name": "none"}});
    fixture.patch("Gateway", "web", json!({"spec": {"infrastructure": parameters}})).await;
    fixture.until("EndpointSlice", &slice, Value::is_null).await;
    assert!(!fixture.get("Service", &format!("web-{}", fixture.name)).await.is_null());
    fixture.patch("Gateway", "web", json!({"spec": {"infrastructure": null}})).await;
    fixture.until("EndpointSlice", &slice, is_ready).await;

    fixture.delete("Gateway", "web").await;
    fixture.until("EndpointSlice", &slice, Value::is_null).await;
    drop(agent);
    fixture.remove().await;
}

/// A new leader knows nothing of agents at first, which must not look as if there were none.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_new_leader_leaves_endpoints_as_they_are_until_it_knows_better() {
    let fixture = Fixture::new().await;
    let slice = format!("web-{}-ipv4-0", fixture.name);
    agent_pod(&fixture, "a", "192.0.2.1").await;
    set_ready(&fixture, "a", "True").await;
    let first = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    let made = fixture.until("EndpointSlice", &slice, |it| !it.is_null()).await;
    drop(first);
    let second = Agent::start(&fixture, "b");
    until(second.leading.clone(), |leads| *leads).await;
    set_ready(&fixture, "a", "False").await;
    let states =
        |it: &Value| endpoints(&fixture, it).into_iter().map(|(_, _, state)| state).collect::<Vec<_>>();
    let after = fixture.until("EndpointSlice", &slice, |it| states(it) == [NOT_READY]).await;
    assert_eq!(after["metadata"]["uid"], made["metadata"]["uid"]);
    drop(second);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_route_to_a_gateways_own_service_is_refused() {
    let fixture = Fixture::new().await;
    let agent = Agent::start(&fixture, "a");
    let service = format!("web-{}", fixture.name);
    fixture.gateway("web", json!({})).await;
    fixture.until("Service", &service, |it| !it.is_null()).await;
    let rule = json!({"backendRefs": [{"name": service, "port": 80}]});
    fixture
        .create("HTTPRoute", "r", json!({"spec": {"parentRefs": [{"name": "web"}], "rules": [rule]}}))
        .await;
    let is_refused = |route: &Value| {
        let resolved = condition(&route["status"]["parents"][0], "ResolvedRefs");
        resolved["reason"] == "RefNotPermitted" && resolved["message"].to_string().contains("come back")
    };
    fixture.until("HTTPRoute", "r", is_refused).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn with_host_ports_the_addresses_of_nodes_with_a_ready_agent_are_the_gateways_too() {
    let fixture = Fixture::new().await;
    agent_pod(&fixture, "a", "192.0.2.1").await;
    agent_pod(&fixture, "b", "192.0.2.2").await;
    set_ready(&fixture, "a", "True").await;
    let agent = Agent::start(&fixture, "a");
    fixture.create("GatewayParameters", "own", json!({"spec": {"hostPorts": true}})).await;
    let parameters =
        json!({"parametersRef": {"group": "portcullis.dev", "kind": "GatewayParameters", "name": "own"}});
    let listener = json!({"name": "http", "port": 8888, "protocol": "HTTP"});
    fixture.gateway("web", json!({"infrastructure": parameters, "listeners": [listener]})).await;
    let nodes = |gateway: &Value| -> Vec<String> {
        let addresses = gateway["status"]["addresses"].as_array().into_iter().flatten().skip(1);
        addresses.map(|address| address["value"].as_str().unwrap().to_owned()).collect()
    };
    fixture.until("Gateway", "web", |it| nodes(it) == ["192.0.2.1"]).await;
    set_ready(&fixture, "b", "True").await;
    fixture.until("Gateway", "web", |it| nodes(it) == ["192.0.2.1", "192.0.2.2"]).await;

    // The next leader's first status has them, too.
    let before = agent.at_rest(&fixture, Kind::Gateway, "web").await;
    drop(agent);
    let agent = Agent::start(&fixture, "b");
    until(agent.leading.clone(), |leads| *leads).await;
    set_ready(&fixture, "a", "False").await;
    let after = fixture.until("Gateway", "web", |it| nodes(it) != nodes(&before)).await;
    assert_eq!(nodes(&after), ["192.0.2.2"]);
    drop(agent);
    fixture.remove().await;
}
