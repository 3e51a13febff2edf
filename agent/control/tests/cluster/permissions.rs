//! The chart's roles are enough for everything, and too little of it hurts only what is missing.

use std::collections::BTreeSet;

use portcullis_gateway::{GATEWAY_GROUP, Kind};
use serde_json::{Value, json};

use crate::account;
use crate::agent::{Agent, until};
use crate::crds::XMESH;
use crate::fixture::{Fixture, condition, resource};
use crate::logs::Logs;
use crate::meshes;

/// The chart as it is installed without values.
const CHART: &str = include_str!("../../../../deploy/kustomize/portcullis.yaml");

/// Of the agents' roles, not those of the job that cleans up.
pub(crate) fn rules(kind: &str) -> Value {
    let documents = CHART.split("\n---\n").filter_map(|text| serde_saphyr::from_str::<Value>(text).ok());
    let mut roles = documents.filter(|it| it["kind"] == kind && it["metadata"]["name"] == "portcullis");
    roles.next().expect("the chart has the role")["rules"].clone()
}

/// What the chart's role allows on the Gateway API's kinds.
fn granted(of_status: bool) -> BTreeSet<String> {
    let rules = rules("ClusterRole");
    let rules = rules.as_array().unwrap().iter().filter(|rule| rule["apiGroups"][0] == GATEWAY_GROUP);
    let resources = rules.flat_map(|rule| rule["resources"].as_array().unwrap());
    let resources = resources.map(|resource| resource.as_str().unwrap());
    resources.filter(|resource| resource.ends_with("/status") == of_status).map(str::to_owned).collect()
}

/// Needs no cluster.
#[test]
fn there_are_no_rights_on_kinds_that_are_not_read() {
    let kinds = Kind::ALL.iter().filter(|kind| kind.group() == GATEWAY_GROUP);
    let read: BTreeSet<_> = kinds.map(|kind| resource(kind.as_str()).plural).collect();
    assert_eq!(granted(false), read);
    let told = read.iter().filter(|kind| *kind != "referencegrants");
    assert_eq!(granted(true), told.map(|kind| format!("{kind}/status")).collect());
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_charts_roles_are_enough() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let account = account::with_rules(&fixture, rules("ClusterRole"), rules("Role")).await;
    let logs = Logs::capture();
    let (agent, mesh) = (Agent::start(&account, "a"), meshes::start(&account));
    let tls = json!({"certificateRefs": [{"name": "certificate"}]});
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}, {"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls}]);
    fixture.create("Secret", "certificate", json!({"data": {"tls.crt": "MQ=="}})).await;
    fixture.gateway("web", json!({"listeners": listeners})).await;
    fixture.route("shop", "web").await;
    let is_told = |route: &Value| condition(&route["status"]["parents"][0], "Accepted")["status"] == "True";
    fixture.until("HTTPRoute", "shop", is_told).await;
    let has_address = |gateway: &Value| gateway["status"]["addresses"][0]["value"].is_string();
    fixture.until("Gateway", "web", has_address).await;
    fixture.until("XMesh", &fixture.name, meshes::is_accepted).await;
    fixture.delete("Gateway", "web").await;
    fixture.until("Service", &format!("web-{}", fixture.name), Value::is_null).await;
    assert_eq!(logs.with("forbidden"), Vec::<String>::new());
    drop((agent, mesh));
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_kind_that_may_not_be_read_does_not_stop_the_others() {
    let fixture = Fixture::new().await;
    let mut of_cluster = rules("ClusterRole");
    for rule in of_cluster.as_array_mut().unwrap() {
        rule["resources"].as_array_mut().unwrap().retain(|resource| resource != "grpcroutes");
    }
    let account = account::with_rules(&fixture, of_cluster, rules("Role")).await;
    let (logs, agent) = (Logs::capture(), Agent::start(&account, "a"));
    fixture.gateway("web", json!({})).await;
    until(agent.current.clone(), |current| *current).await;
    fixture
        .until("Gateway", "web", |gateway| condition(&gateway["status"], "Programmed")["status"] == "True")
        .await;
    let told = logs.with("grpcroutes");
    assert!(told.len() == 1 && told[0].contains("forbidden") && told[0].contains("clusterrole"), "{told:?}");
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn statuses_that_may_not_be_written_are_one_line_in_the_log_and_written_once_they_may() {
    let fixture = Fixture::new().await;
    let mut too_few = rules("ClusterRole");
    for rule in too_few.as_array_mut().unwrap() {
        rule["resources"].as_array_mut().unwrap().retain(|resource| resource != "httproutes/status");
    }
    let account = account::with_rules(&fixture, too_few, rules("Role")).await;
    let (logs, agent) = (Logs::capture(), Agent::start(&account, "a"));
    for name in ["one", "two", "three"] {
        fixture.route(name, "web").await;
    }
    fixture.gateway("web", json!({})).await;
    let has_routes = |gateway: &Value| gateway["status"]["listeners"][0]["attachedRoutes"] == 3;
    fixture.until("Gateway", "web", has_routes).await;
    logs.until("cannot write its status").await;

    account::set_rules(&fixture, rules("ClusterRole")).await;
    for name in ["one", "two", "three"] {
        let is_told = |route: &Value| !route["status"]["parents"][0].is_null();
        fixture.until("HTTPRoute", name, is_told).await;
    }
    let told = logs.with("cannot write its status");
    assert!(told.len() == 1 && told[0].contains("clusterrole"), "{told:?}");
    assert_eq!(logs.with("httproute: statuses are written again").len(), 1);
    drop(agent);
    fixture.remove().await;
}
