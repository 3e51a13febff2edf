//! Every arrow of GEP-3949's flow chart, and the rules about parameters.

use std::time::Duration;

use portcullis_control::kube::{Mesh, MeshState};
use portcullis_gateway::mesh::{Instance, MESH_CONTROLLER_NAME, MeshSettings};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fixture::{Fixture, condition, version};

struct Running {
    state: watch::Receiver<MeshState>,
    _leading: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

fn start(fixture: &Fixture) -> Running {
    let settings = MeshSettings { name: fixture.name.clone(), ..MeshSettings::default() };
    let instance = Instance { version: "1.2.3".to_owned(), namespace: fixture.name.clone(), agents: None };
    let leading = watch::Sender::new(true);
    let mesh = Mesh::new(fixture.client.clone(), settings, instance, "", leading.subscribe());
    let (state, mut tasks) = (mesh.state(), JoinSet::new());
    tasks.spawn(mesh.run());
    Running { state, _leading: leading, _tasks: tasks }
}

fn accepted(mesh: &Value) -> &Value {
    condition(&mesh["status"], "Accepted")
}

fn is_accepted(mesh: &Value) -> bool {
    accepted(mesh)["status"] == "True"
        && accepted(mesh)["observedGeneration"] == mesh["metadata"]["generation"]
}

fn is_rejected(mesh: &Value) -> bool {
    accepted(mesh)["reason"] == "InvalidParameters"
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn an_absent_mesh_is_created_claimed_and_created_again() {
    let fixture = Fixture::new().await;
    let running = start(&fixture);
    let mesh = fixture.until("XMesh", &fixture.name, is_accepted).await;
    assert_eq!(mesh["spec"], json!({"controllerName": MESH_CONTROLLER_NAME}));
    let message = accepted(&mesh)["message"].as_str().unwrap();
    assert!(message.contains("1.2.3") && message.contains(&fixture.name), "{message}");
    assert_eq!(
        mesh["status"]["conditions"].as_array().unwrap().len(),
        1,
        "no Programmed that nobody resolves"
    );
    assert_eq!(mesh["status"]["supportedFeatures"], json!([]));
    assert!(!fixture.writes_during("XMesh", &fixture.name, Duration::from_secs(1)).await);

    fixture.delete("XMesh", &fixture.name).await;
    let again = fixture.until("XMesh", &fixture.name, is_accepted).await;
    assert_ne!(again["metadata"]["uid"], mesh["metadata"]["uid"]);
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_mesh_that_is_there_is_claimed_with_its_spec_untouched() {
    let fixture = Fixture::new().await;
    let spec = json!({"controllerName": MESH_CONTROLLER_NAME, "description": "ours"});
    fixture.create("XMesh", &fixture.name, json!({"spec": spec})).await;
    let running = start(&fixture);
    let mesh = fixture.until("XMesh", &fixture.name, is_accepted).await;
    assert_eq!((&mesh["spec"], &mesh["metadata"]["generation"]), (&spec, &json!(1)));
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_mesh_of_another_controller_is_warned_of_and_never_written() {
    let fixture = Fixture::new().await;
    let spec = json!({"controllerName": "example.com/other"});
    let before = fixture.create("XMesh", &fixture.name, json!({"spec": spec})).await;
    let running = start(&fixture);
    running.state.clone().wait_for(|state| state.warning.is_some()).await.unwrap();
    fixture.patch("XMesh", &fixture.name, json!({"spec": {"description": "changed"}})).await;
    let changed = fixture.get("XMesh", &fixture.name).await;
    assert!(!fixture.writes_during("XMesh", &fixture.name, Duration::from_secs(1)).await);
    assert_eq!(changed["status"], before["status"]);
    assert_ne!(version(&changed), version(&before));

    // With the other gone, ours is created.
    fixture.delete("XMesh", &fixture.name).await;
    fixture.until("XMesh", &fixture.name, is_accepted).await;
    running.state.clone().wait_for(|state| state.warning.is_none()).await.unwrap();
    drop(running);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn parameters_are_followed_wherever_they_go() {
    let fixture = Fixture::new().await;
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
