//! Other controllers that write the statuses that we write: those that know how to share, and those
//! that do not.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use portcullis_api::Kind;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::crds::XMESH;
use crate::fixture::{Fixture, condition, version};
use crate::history::History;
use crate::logs::Logs;
use crate::meshes;
use crate::statuses::{entry_of, foreign};

/// A controller that answers every version of an object that it does not like with a patch, at once
/// and for ever.
struct Rival {
    versions: Arc<Mutex<BTreeSet<String>>>,
    _task: JoinSet<()>,
}

impl Rival {
    fn start(
        fixture: &Fixture,
        kind: &str,
        name: &str,
        answer: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        let versions = Arc::new(Mutex::new(BTreeSet::new()));
        let (api, written, name) = (fixture.api(kind), versions.clone(), name.to_owned());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
            let mut events = std::pin::pin!(watcher::watcher(api.clone(), config));
            let parameters =
                PatchParams { field_manager: Some("rival".to_owned()), ..PatchParams::default() };
            while let Some(event) = events.next().await {
                let (Ok(Event::Apply(object)) | Ok(Event::InitApply(object))) = event else { continue };
                let Some(patch) = answer(&serde_json::to_value(&object).unwrap()) else { continue };
                let is_status = patch.get("status").is_some();
                let patch = Patch::Merge(patch);
                let object = if is_status {
                    api.patch_status(&name, &parameters, &patch).await.unwrap()
                } else {
                    api.patch(&name, &parameters, &patch).await.unwrap()
                };
                written.lock().unwrap().insert(object.metadata.resource_version.unwrap());
            }
        });
        Self { versions, _task: task }
    }

    fn wrote(&self, object: &Value) -> bool {
        self.versions.lock().unwrap().contains(&version(object))
    }
}

/// A route that is served, and whose status has it.
async fn served_route(fixture: &Fixture) -> Agent {
    let agent = Agent::start(fixture, "a");
    fixture.gateway("web", json!({})).await;
    fixture.route("shop", "web").await;
    fixture.until("HTTPRoute", "shop", |route| has_ours(route, fixture)).await;
    agent
}

/// Byte for byte.
fn is_same(a: &Value, b: &Value) -> bool {
    *a.to_string() == *b.to_string()
}

fn has_ours(route: &Value, fixture: &Fixture) -> bool {
    !entry_of(route, &fixture.controller_name).is_null()
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_controller_that_keeps_an_entry_of_its_own_is_never_answered() {
    let fixture = Fixture::new().await;
    let agent = served_route(&fixture).await;
    agent.at_rest(&fixture, Kind::HttpRoute, "shop").await;
    let mut history = History::of(&fixture, "HTTPRoute", "shop").await;
    let ours = entry_of(&fixture.get("HTTPRoute", "shop").await, &fixture.controller_name).clone();
    let (mut theirs, mut by_them, mut last) = (foreign(), BTreeSet::new(), Value::Null);
    for round in 0..30 {
        theirs["conditions"][0]["message"] = format!("round {round}").into();
        // First or last, whatever suits them.
        let parents = if round % 2 == 0 { json!([theirs, ours]) } else { json!([ours, theirs]) };
        last = fixture.patch_status("HTTPRoute", "shop", json!({"parents": parents})).await;
        by_them.insert(version(&last));
        agent.at_rest(&fixture, Kind::HttpRoute, "shop").await;
    }
    assert_eq!(history.written_until(&version(&last), &by_them).await, 0, "writes by us");
    let route = fixture.get("HTTPRoute", "shop").await;
    assert_eq!(version(&route), version(&last));
    assert_eq!(entry_of(&route, "example.com/theirs").to_string(), theirs.to_string(), "byte for byte");
    drop(agent);
    fixture.remove().await;
}

/// Lets a rival undo our writes until we have put seven back; what it writes must survive, and the
/// log have it once.
async fn is_paced(
    fixture: &Fixture,
    kind: &str,
    name: &str,
    has_ours: impl Fn(&Value) -> bool + Clone + Send + Sync + 'static,
    undo: impl Fn(&Value) -> Value + Send + Sync + 'static,
    keeps_theirs: impl Fn(&Value) -> bool,
) {
    const RESTORED: usize = 7;
    let logs = Logs::capture();
    let mut history = History::of(fixture, kind, name).await;
    let began = Instant::now();
    let wrong = has_ours.clone();
    let rival = Rival::start(fixture, kind, name, move |object| wrong(object).then(|| undo(object)));
    let mut seen = 1;
    for restored in 1..=RESTORED {
        history.until_next(&mut seen, |object| !has_ours(object)).await;
        let object = history.until_next(&mut seen, |object| has_ours(object)).await;
        assert!(!rival.wrote(&object) && keeps_theirs(&object), "put back {restored} times: {object:#}");
    }
    // Four times as fast as any status is written, then after 1 s, 2 s and 4 s.
    let took = began.elapsed();
    println!("{kind}: put back {RESTORED} times in {took:?}");
    assert!(took > Duration::from_secs(6), "{RESTORED} times in {took:?}: that is a race");
    let warned = logs.with("undone");
    assert_eq!(warned.len(), 1, "{warned:?}");
    let named = format!(
        "{kind} {}{name}: ",
        if kind == "XMesh" { String::new() } else { format!("{}/", fixture.name) }
    );
    assert!(warned[0].contains(&named.to_lowercase()) && warned[0].contains("rival"), "{warned:?}");
    drop(rival);
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_controller_that_replaces_all_entries_is_answered_ever_more_rarely() {
    let fixture = Fixture::new().await;
    let agent = served_route(&fixture).await;
    let controller = fixture.controller_name.clone();
    let ours = move |route: &Value| !entry_of(route, &controller).is_null();
    let undo = |_: &Value| json!({"status": {"parents": [foreign()]}});
    let theirs = |route: &Value| is_same(entry_of(route, "example.com/theirs"), &foreign());
    is_paced(&fixture, "HTTPRoute", "shop", ours, undo, theirs).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_controller_that_takes_our_entry_away_is_answered_ever_more_rarely() {
    let fixture = Fixture::new().await;
    let agent = served_route(&fixture).await;
    let ours = entry_of(&fixture.get("HTTPRoute", "shop").await, &fixture.controller_name).clone();
    fixture.patch_status("HTTPRoute", "shop", json!({"parents": [foreign(), ours]})).await;
    let controller = fixture.controller_name.clone();
    let ours = move |route: &Value| !entry_of(route, &controller).is_null();
    let controller = fixture.controller_name.clone();
    let undo = move |route: &Value| {
        let parents = route["status"]["parents"].as_array().unwrap().iter();
        let others: Vec<_> = parents.filter(|entry| entry["controllerName"] != controller.as_str()).collect();
        json!({"status": {"parents": others}})
    };
    let theirs = |route: &Value| is_same(entry_of(route, "example.com/theirs"), &foreign());
    is_paced(&fixture, "HTTPRoute", "shop", ours, undo, theirs).await;
    drop(agent);
    fixture.remove().await;
}

fn odd(message: &str) -> Value {
    json!({"type": "example.com/Odd", "status": "Unknown", "reason": "Odd", "message": message,
        "lastTransitionTime": "2020-01-01T00:00:00Z"})
}

fn is_programmed(gateway: &Value) -> bool {
    condition(&gateway["status"], "Programmed")["status"] == "True"
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_controller_that_replaces_a_gateways_conditions_is_answered_ever_more_rarely() {
    let fixture = Fixture::new().await;
    let agent = served_route(&fixture).await;
    fixture.until("Gateway", "web", is_programmed).await;
    agent.at_rest(&fixture, Kind::Gateway, "web").await;
    let accepted = json!({"type": "Accepted", "status": "False", "reason": "Mine", "message": "",
        "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let undo = move |_: &Value| json!({"status": {"conditions": [odd("kept"), accepted]}});
    let theirs = |gateway: &Value| {
        is_same(condition(&gateway["status"], "example.com/Odd"), &odd("kept"))
            && condition(&gateway["status"], "Accepted")["status"] == "True"
    };
    is_paced(&fixture, "Gateway", "web", is_programmed, undo, theirs).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn conditions_of_others_on_a_gateway_are_never_answered() {
    let fixture = Fixture::new().await;
    let agent = served_route(&fixture).await;
    fixture.until("Gateway", "web", is_programmed).await;
    let gateway = agent.at_rest(&fixture, Kind::Gateway, "web").await;
    let mut history = History::of(&fixture, "Gateway", "web").await;
    let (mut by_them, mut last) = (BTreeSet::new(), Value::Null);
    for round in 0..20 {
        let mut status = gateway["status"].clone();
        let theirs = odd(&format!("round {round}"));
        status["conditions"].as_array_mut().unwrap().insert(round % 2, theirs.clone());
        let of_listener = status["listeners"][0]["conditions"].as_array_mut().unwrap();
        of_listener.insert(round % 3, theirs);
        last = fixture.patch_status("Gateway", "web", status).await;
        by_them.insert(version(&last));
        agent.at_rest(&fixture, Kind::Gateway, "web").await;
    }
    assert_eq!(history.written_until(&version(&last), &by_them).await, 0, "writes by us");
    assert_eq!(version(&fixture.get("Gateway", "web").await), version(&last));

    // Once there is something to write, theirs stays.
    let listeners = json!([{"name": "http", "port": 8080, "protocol": "HTTP"}]);
    fixture.patch("Gateway", "web", json!({"spec": {"listeners": listeners}})).await;
    let is_told = |gateway: &Value| condition(&gateway["status"], "Programmed")["observedGeneration"] == 2;
    let gateway = fixture.until("Gateway", "web", is_told).await;
    assert_eq!(condition(&gateway["status"], "example.com/Odd"), &odd("round 19"));
    assert_eq!(condition(&gateway["status"]["listeners"][0], "example.com/Odd"), &odd("round 19"));
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_controller_that_changes_a_generated_service_is_answered_ever_more_rarely() {
    const LABEL: &str = "gateway.networking.k8s.io/gateway-name";
    let fixture = Fixture::new().await;
    let agent = served_route(&fixture).await;
    fixture.until("Gateway", "web", is_programmed).await;
    let name = format!("web-{}", fixture.name);
    let has_ours = |service: &Value| service["metadata"]["labels"][LABEL] == "web";
    let undo = |_: &Value| json!({"metadata": {"labels": {LABEL: "mine", "theirs": "kept"}}});
    let theirs = |service: &Value| service["metadata"]["labels"]["theirs"] == "kept";
    is_paced(&fixture, "Service", &name, has_ours, undo, theirs).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_controller_that_replaces_the_status_of_our_mesh_is_answered_ever_more_rarely() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let running = meshes::start(&fixture);
    fixture.until("XMesh", &fixture.name, meshes::is_accepted).await;
    let accepted = json!({"type": "Accepted", "status": "False", "reason": "Mine", "message": "",
        "lastTransitionTime": "2020-01-01T00:00:00Z"});
    let undo = move |_: &Value| json!({"status": {"conditions": [accepted]}});
    is_paced(&fixture, "XMesh", &fixture.name, meshes::is_accepted, undo, |_| true).await;
    drop(running);
    fixture.remove().await;
}

/// So many entries of others, under a name each.
fn entries_of_others(entries: usize) -> Value {
    let entry = |number: usize| {
        let mut entry = foreign();
        entry["parentRef"]["name"] = format!("theirs-{number}").into();
        entry
    };
    json!({"parents": (0..entries).map(entry).collect::<Vec<_>>()})
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_status_that_is_full_of_others_blocks_nothing_and_is_written_once_there_is_room() {
    let (fixture, logs) = (Fixture::new().await, Logs::capture());
    fixture.route("full", "web").await;
    // As many as there may be: the one that is ours would be too many.
    fixture.patch_status("HTTPRoute", "full", entries_of_others(32)).await;
    let agent = served_route(&fixture).await;
    agent.at_rest(&fixture, Kind::HttpRoute, "full").await;
    let mut shuffled = entries_of_others(32);
    shuffled["parents"].as_array_mut().unwrap().reverse();
    fixture.patch_status("HTTPRoute", "full", shuffled).await;
    agent.at_rest(&fixture, Kind::HttpRoute, "full").await;
    let told = logs.with("refuses its status");
    assert!(told.len() == 1 && told[0].contains(&format!("{}/full: ", fixture.name)), "{told:?}");

    fixture.patch_status("HTTPRoute", "full", entries_of_others(31)).await;
    let route = fixture.until("HTTPRoute", "full", |route| has_ours(route, &fixture)).await;
    assert_eq!(
        route["status"]["parents"].as_array().unwrap()[..31],
        *entries_of_others(31)["parents"].as_array().unwrap()
    );
    drop(agent);
    fixture.remove().await;
}
