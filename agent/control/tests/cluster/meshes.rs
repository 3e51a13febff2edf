//! Every arrow of GEP-3949's flow chart, and the rules about parameters.

use portcullis_control::mesh::{Mesh, MeshState};
use portcullis_gateway::mesh::{Instance, MeshParameters, MeshSettings};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::account;
use crate::agent::until;
use crate::crds::{self, XMESH};
use crate::fixture::{Fixture, condition, version};
use crate::history::History;
use crate::logs::Logs;

const AGENTS: &str = "app.kubernetes.io/name=portcullis";
const CRD: &str = "xmeshes.gateway.networking.x-k8s.io";

pub(crate) struct Running {
    state: watch::Receiver<MeshState>,
    leading: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

pub(crate) fn start(fixture: &Fixture) -> Running {
    start_with(fixture, true)
}

fn start_with(fixture: &Fixture, leads: bool) -> Running {
    start_as(fixture, &fixture.name, leads)
}

/// Another installation, which expects another name.
fn start_for(fixture: &Fixture, name: &str) -> Running {
    start_as(fixture, name, true)
}

fn start_as(fixture: &Fixture, name: &str, leads: bool) -> Running {
    // A controller of the test's own: others run next to it, and each answers all that names its
    // controller.
    let settings = MeshSettings { name: name.to_owned(), controller_name: fixture.controller_name.clone() };
    let instance = Instance { version: "1.2.3".to_owned(), namespace: fixture.name.clone(), agents: None };
    let leading = watch::Sender::new(leads);
    let mesh = Mesh::new(fixture.client.clone(), settings, instance, AGENTS, leading.subscribe());
    let (state, mut tasks) = (mesh.state(), JoinSet::new());
    tasks.spawn(mesh.run());
    Running { state, leading, _tasks: tasks }
}

/// Rules for Mesh resources, and those that [`account::with_rules`] needs.
fn mesh_rules(verbs: &[&str]) -> Value {
    json!([{"apiGroups": ["gateway.networking.k8s.io"], "resources": ["gatewayclasses"], "verbs": ["get"]},
        {"apiGroups": ["gateway.networking.x-k8s.io"], "resources": ["xmeshes", "xmeshes/status"], "verbs": verbs}])
}

fn warns_of(words: &str) -> impl FnMut(&MeshState) -> bool {
    move |state| state.warning.as_ref().is_some_and(|warning| warning.contains(words))
}

pub(crate) fn accepted(mesh: &Value) -> &Value {
    condition(&mesh["status"], "Accepted")
}

pub(crate) fn is_accepted(mesh: &Value) -> bool {
    accepted(mesh)["status"] == "True"
        && accepted(mesh)["observedGeneration"] == mesh["metadata"]["generation"]
}

fn is_rejected(mesh: &Value) -> bool {
    accepted(mesh)["reason"] == "InvalidParameters"
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn an_absent_mesh_is_created_claimed_and_created_again() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let mut history = History::of(&fixture, "XMesh", &fixture.name).await;
    let running = start(&fixture);
    let mesh = fixture.until("XMesh", &fixture.name, is_accepted).await;
    assert_eq!(mesh["spec"], json!({"controllerName": fixture.controller_name}));
    let message = accepted(&mesh)["message"].as_str().unwrap();
    assert!(message.contains("1.2.3") && message.contains(&fixture.name), "{message}");
    assert_eq!(
        mesh["status"]["conditions"].as_array().unwrap().len(),
        1,
        "no Programmed that no controller resolves"
    );
    assert_eq!(mesh["status"]["supportedFeatures"], json!([]));

    // A controller that wrote more than is needed would have until it answers this.
    let changed = fixture.patch("XMesh", &fixture.name, json!({"spec": {"description": "changed"}})).await;
    let told = |mesh: &Value| is_accepted(mesh) && mesh["metadata"]["generation"] == 2;
    let mesh = fixture.until("XMesh", &fixture.name, told).await;
    let by_us = history.written_until(&version(&mesh), &[version(&changed)].into()).await;
    assert_eq!(by_us, 2, "after the creation, one status for each generation");

    fixture.delete("XMesh", &fixture.name).await;
    let again = fixture.until("XMesh", &fixture.name, is_accepted).await;
    assert_ne!(again["metadata"]["uid"], mesh["metadata"]["uid"]);
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_mesh_that_is_there_is_claimed_with_its_spec_untouched() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let spec = json!({"controllerName": fixture.controller_name, "description": "ours"});
    fixture.create("XMesh", &fixture.name, json!({"spec": spec})).await;
    let running = start(&fixture);
    let mesh = fixture.until("XMesh", &fixture.name, is_accepted).await;
    assert_eq!((&mesh["spec"], &mesh["metadata"]["generation"]), (&spec, &json!(1)));
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_mesh_of_another_controller_is_warned_of_once_and_never_written() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let logs = Logs::capture();
    fixture.create("ConfigMap", "mesh", json!({"data": {"reportAgents": "false"}})).await;
    let parameters = json!({"group": "", "kind": "ConfigMap", "name": "mesh", "namespace": fixture.name});
    let spec = json!({"controllerName": "example.com/other", "parametersRef": parameters});
    let before = fixture.create("XMesh", &fixture.name, json!({"spec": spec})).await;
    let mut history = History::of(&fixture, "XMesh", &fixture.name).await;
    let running = start(&fixture);
    let state = until(running.state.clone(), warns_of("example.com/other")).await;
    assert!(state.parameters.report_agents, "as with an empty spec, whatever theirs refers to");
    let changed = fixture.patch("XMesh", &fixture.name, json!({"spec": {"description": "changed"}})).await;
    assert_eq!(changed["status"], before["status"]);

    // With the other gone, ours is created. Until then nothing was written.
    fixture.delete("XMesh", &fixture.name).await;
    let ours = fixture.until("XMesh", &fixture.name, is_accepted).await;
    let by_us = history.written_until(&version(&ours), &[version(&changed)].into()).await;
    assert_eq!(by_us, 2, "our own, and its status");
    let warnings = logs.warnings(&fixture);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    until(running.state.clone(), |state| state.warning.is_none()).await;
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_mesh_that_cannot_be_created_is_warned_of_and_created_once_it_can() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let account =
        account::with_rules(&fixture, mesh_rules(&["get", "list", "watch", "patch"]), json!([])).await;
    let running = start(&account);
    let state = until(running.state.clone(), warns_of("cannot create")).await;
    assert_eq!(state.parameters, MeshParameters::default());
    assert_eq!(fixture.get("XMesh", &fixture.name).await, Value::Null);
    account::set_rules(&fixture, mesh_rules(&["get", "list", "watch", "patch", "create"])).await;
    fixture.until("XMesh", &fixture.name, is_accepted).await;
    until(running.state.clone(), |state| state.warning.is_none()).await;
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_mesh_of_ours_by_another_name_has_a_status_and_is_left_to_the_installation_that_expects_it() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let running = start(&fixture);
    let other = format!("{}-other", fixture.name);
    let spec = json!({"controllerName": fixture.controller_name});
    fixture.create("XMesh", &other, json!({"spec": spec})).await;
    let is_told = |mesh: &Value| {
        accepted(mesh)["reason"] == "UnexpectedName"
            && accepted(mesh)["observedGeneration"] == mesh["metadata"]["generation"]
    };
    fixture.until("XMesh", &other, is_told).await;
    fixture.patch("XMesh", &other, json!({"spec": {"description": "again"}})).await;
    fixture.until("XMesh", &other, is_told).await;

    let theirs = start_for(&fixture, &other);
    let claimed = fixture.until("XMesh", &other, is_accepted).await;
    fixture.patch("XMesh", &fixture.name, json!({"spec": {"description": "seen by both"}})).await;
    fixture.until("XMesh", &fixture.name, is_accepted).await;
    assert_eq!(fixture.get("XMesh", &other).await, claimed, "two installations do not fight");
    drop((running, theirs));
    fixture.delete("XMesh", &other).await;
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn parameters_that_may_not_be_read_are_warned_of() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let account =
        account::with_rules(&fixture, mesh_rules(&["get", "list", "watch", "patch", "create"]), json!([]))
            .await;
    let running = start(&account);
    fixture.until("XMesh", &fixture.name, is_accepted).await;
    let reference = json!({"group": "", "kind": "ConfigMap", "name": "mesh", "namespace": fixture.name});
    fixture.patch("XMesh", &fixture.name, json!({"spec": {"parametersRef": reference}})).await;
    until(running.state.clone(), warns_of("cannot read ConfigMap")).await;
    fixture.patch("XMesh", &fixture.name, json!({"spec": {"parametersRef": null}})).await;
    fixture.until("XMesh", &fixture.name, is_accepted).await;
    until(running.state.clone(), |state| state.warning.is_none()).await;
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn only_the_leader_creates_and_claims() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let running = start_with(&fixture, false);
    // A follower that saw a Mesh, and then its end, knows that there is none.
    fixture.create("ConfigMap", "mesh", json!({"data": {"reportAgents": "false"}})).await;
    let parameters = json!({"group": "", "kind": "ConfigMap", "name": "mesh", "namespace": fixture.name});
    let spec = json!({"controllerName": fixture.controller_name, "parametersRef": parameters});
    let before = fixture.create("XMesh", &fixture.name, json!({"spec": spec})).await;
    until(running.state.clone(), |state| !state.parameters.report_agents).await;
    assert_eq!(version(&fixture.get("XMesh", &fixture.name).await), version(&before), "it claims nothing");
    fixture.delete("XMesh", &fixture.name).await;
    until(running.state.clone(), |state| state.parameters.report_agents).await;
    assert_eq!(fixture.get("XMesh", &fixture.name).await, Value::Null);
    running.leading.send_replace(true);
    fixture.until("XMesh", &fixture.name, is_accepted).await;
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_claim_counts_the_agents_that_run() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let running = start(&fixture);
    for name in ["one", "two", "gone"] {
        let spec = json!({"containers": [{"name": "agent", "image": "agent"}], "nodeName": "no-such-node"});
        let labels = json!({"app.kubernetes.io/name": "portcullis"});
        fixture.create("Pod", name, json!({"metadata": {"labels": labels}, "spec": spec})).await;
        let phase = if name == "gone" { "Failed" } else { "Running" };
        fixture.patch_status("Pod", name, json!({"phase": phase})).await;
    }
    let counts = |mesh: &Value| {
        is_accepted(mesh)
            && accepted(mesh)["message"].as_str().is_some_and(|text| text.contains("(2 agents)"))
    };
    fixture.until("XMesh", &fixture.name, counts).await;
    drop(running);
    fixture.remove().await;
}

/// Everything else is [`crate::sources`]' business: this is about the warnings of the Mesh.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn without_the_crd_it_says_so_and_once_it_is_there_it_is_used() {
    let (_alone, fixture) = (XMESH.write().await, Fixture::new().await);
    let running = start(&fixture);
    fixture.until("XMesh", &fixture.name, is_accepted).await;
    crds::without(&fixture, CRD, async |crd| {
        until(running.state.clone(), warns_of("does not serve XMesh")).await;
        let late = start(&fixture);
        until(late.state.clone(), warns_of("does not serve XMesh")).await;
        crds::install(&fixture, CRD, crd).await;
        fixture.until("XMesh", &fixture.name, is_accepted).await;
        until(running.state.clone(), |state| state.warning.is_none()).await;
        until(late.state.clone(), |state| state.warning.is_none()).await;
    })
    .await;
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn parameters_are_followed_wherever_they_go() {
    let (_crd, fixture) = (XMESH.read().await, Fixture::new().await);
    let running = start(&fixture);
    fixture.until("XMesh", &fixture.name, is_accepted).await;
    let reference = |kind: &str, namespace: Option<&str>| json!({"spec": {"parametersRef": {"group": "", "kind": kind, "name": "mesh", "namespace": namespace}}});
    let name = fixture.name.as_str();
    fixture.patch("XMesh", name, reference("ConfigMap", Some(name))).await;
    let mesh = fixture.until("XMesh", name, is_rejected).await;
    assert!(accepted(&mesh)["message"].as_str().unwrap().contains("there is no ConfigMap"));

    fixture.create("ConfigMap", "mesh", json!({"data": {"reportAgents": "false"}})).await;
    fixture.until("XMesh", name, is_accepted).await;
    assert!(!running.state.borrow().parameters.report_agents);
    fixture.patch("ConfigMap", "mesh", json!({"data": {"reportAgents": "perhaps"}})).await;
    fixture.until("XMesh", name, is_rejected).await;
    fixture.patch("ConfigMap", "mesh", json!({"data": {"reportAgents": "true"}})).await;
    fixture.until("XMesh", name, is_accepted).await;
    fixture.delete("ConfigMap", "mesh").await;
    fixture.until("XMesh", name, is_rejected).await;

    // a namespaced kind without namespace, a cluster-scoped one with, one that is not supported
    for (kind, namespace) in [("ConfigMap", None), ("Namespace", Some(name)), ("Secret", Some(name))] {
        let mesh = fixture.patch("XMesh", name, reference(kind, namespace)).await;
        let generation = mesh["metadata"]["generation"].clone();
        let is_told = |mesh: &Value| is_rejected(mesh) && accepted(mesh)["observedGeneration"] == generation;
        fixture.until("XMesh", name, is_told).await;
    }
    fixture.patch("XMesh", name, json!({"spec": {"parametersRef": null}})).await;
    fixture.until("XMesh", name, is_accepted).await;
    drop(running);
    fixture.remove().await;
}
