//! The effect of GatewayParameters on generated objects of all kinds (GEP-1762), pods of a
//! Gateway's own above all. No image is there, so the pods never start; `cargo xtask chart test`
//! has them serve.

use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use portcullis_control::applier::{Acknowledgement, Applier, DataPlane};
use portcullis_control::infra::Generator;
use portcullis_control::lease::Elector;
use portcullis_control::source::{KubeSource, SourceOptions};
use portcullis_control::status::{StatusQueue, StatusWriter};

use portcullis_gateway::infra::{Parameters, Pods};
use portcullis_gateway::{Settings, Translator};
use portcullis_model::Snapshot;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::agent::{LEASE, TIMING, until};
use crate::fixture::{Fixture, condition};

pub(crate) const IMAGE: &str = "portcullis.test/no-such-image:1";
const KINDS: [&str; 3] = ["ServiceAccount", "Deployment", "Service"];
/// The garbage collector asks every 30 s which kinds there are.
const COLLECTED: Duration = Duration::from_secs(90);

/// An agent that may make pods. Ends, as if it had crashed, when it is dropped.
pub(crate) struct Provider {
    _tasks: JoinSet<()>,
}

/// Takes nothing that serves traffic before it is told to.
#[derive(Clone)]
struct PausedDataPlane {
    resumed: watch::Sender<bool>,
    asked: watch::Sender<bool>,
}

impl PausedDataPlane {
    fn new(resumed: bool) -> Self {
        Self { resumed: watch::Sender::new(resumed), asked: watch::Sender::new(false) }
    }
}

impl DataPlane for PausedDataPlane {
    async fn apply(&mut self, snapshot: Arc<Snapshot>) -> Acknowledgement {
        if !snapshot.frontends.is_empty() {
            self.asked.send_replace(true);
            self.resumed.subscribe().wait_for(|resumed| *resumed).await.unwrap();
        }
        Acknowledgement::default()
    }
}

impl Provider {
    async fn start(fixture: &Fixture) -> Self {
        Self::start_with(fixture, PausedDataPlane::new(true)).await
    }

    async fn start_with(fixture: &Fixture, data_plane: PausedDataPlane) -> Self {
        binding(fixture, json!([])).await;
        Self::start_on(data_plane, fixture)
    }

    /// Of a user who may do less than the administrator. The binding has to be there.
    pub(crate) fn start_as(account: &Fixture) -> Self {
        Self::start_on(PausedDataPlane::new(true), account)
    }

    fn start_on(data_plane: PausedDataPlane, fixture: &Fixture) -> Self {
        let (client, controller_name) = (|| fixture.client.clone(), fixture.controller_name.clone());
        let queue = StatusQueue::new(&controller_name);
        let options = SourceOptions {
            only: None,
            last_good: None,
            wait: Duration::from_secs(2),
            another_serves: SourceOptions::no_other(),
        };
        let source = KubeSource::new(client(), queue.clone(), options);
        let generated = Parameters { pods: Some(Pods::new(IMAGE)), ..Parameters::default() };
        let load_balancers = vec!["203.0.113.0/24".parse().unwrap()];
        let settings = Settings { controller_name, generated, load_balancers, ..Settings::default() };
        let translator = Translator::new(settings);
        let elector = Elector::new(client(), &fixture.name, LEASE, "provider", TIMING);
        let leading = elector.leading();
        let writer = StatusWriter::new(client(), queue.clone(), leading.clone());
        let generator =
            Generator::new(client(), queue.clone(), leading, &fixture.name, Some(binding_name(fixture)));
        let applier = Applier::new(source, translator, data_plane, queue.clone());
        let mut applier = applier.observing(generator.provisioning());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { applier.run().await });
        tasks.spawn(elector.run(std::future::pending()));
        tasks.spawn(writer.run());
        tasks.spawn(generator.run());
        Self { _tasks: tasks }
    }
}

/// As the chart makes it: without subjects, for a ClusterRole with these rules.
pub(crate) async fn binding(fixture: &Fixture, rules: Value) {
    let name = binding_name(fixture);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    fixture.create("ClusterRole", &name, json!({"rules": rules})).await;
    fixture.create("ClusterRoleBinding", &name, json!({"roleRef": role})).await;
}

pub(crate) fn binding_name(fixture: &Fixture) -> String {
    format!("{}-pods", fixture.name)
}

fn reference(fixture: &Fixture) -> Value {
    json!({"group": "portcullis.dev", "kind": "GatewayParameters", "name": "parameters", "namespace": fixture.name})
}

/// All Gateways of the test's class are provided like this.
pub(crate) async fn of_the_class(fixture: &Fixture, parameters: Value) {
    fixture.create("GatewayParameters", "parameters", json!({"spec": parameters})).await;
    let spec = json!({"spec": {"parametersRef": reference(fixture)}});
    fixture.patch("GatewayClass", &fixture.name, spec).await;
}

pub(crate) fn programmed(gateway: &Value) -> &Value {
    condition(&gateway["status"], "Programmed")
}

pub(crate) fn generated_name(fixture: &Fixture, gateway: &str) -> String {
    format!("{gateway}-{}", fixture.name)
}

/// Paths of labels and annotations, below an object.
fn metadata<'v>(kind: &str, object: &'v Value) -> Vec<&'v Value> {
    let mut all = vec![&object["metadata"]];
    all.extend((kind == "Deployment").then(|| &object["spec"]["template"]["metadata"]));
    all
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn labels_and_annotations_of_class_and_gateway_are_on_everything_and_withdrawn() {
    let fixture = Fixture::new().await;
    let of_class = json!({"labels": {"team": "edge", "tier": "class"}, "annotations": {"note": "class", "only": "class"}});
    of_the_class(&fixture, json!({"mode": "Dedicated", "infrastructure": of_class})).await;
    let provider = Provider::start(&fixture).await;
    let own = json!({"labels": {"team": "blue"}, "annotations": {"note": "gateway"}});
    let gateway = fixture.gateway("web", json!({"infrastructure": own})).await;
    let name = generated_name(&fixture, "web");
    let mut labels = json!({"team": "blue", "tier": "class"});
    labels["gateway.networking.k8s.io/gateway-name"] = "web".into();
    labels["gateway.networking.k8s.io/gateway-class-name"] = fixture.name.as_str().into();
    let has = |holder: &Value, wanted: &Value| {
        wanted.as_object().unwrap().iter().all(|(key, value)| holder[key] == *value)
    };
    for kind in KINDS {
        let object = fixture.until(kind, &name, |object| !object.is_null()).await;
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], gateway["metadata"]["uid"], "{kind}");
        for metadata in metadata(kind, &object) {
            assert!(has(&metadata["labels"], &labels), "{kind}: {metadata:#}");
            let annotations = json!({"note": "gateway", "only": "class"});
            assert!(has(&metadata["annotations"], &annotations), "{kind}: {metadata:#}");
        }
    }
    fixture.patch("Gateway", "web", json!({"spec": {"infrastructure": null}})).await;
    fixture.patch("GatewayParameters", "parameters", json!({"spec": {"infrastructure": null}})).await;
    labels.as_object_mut().unwrap().retain(|key, _| key.contains('/'));
    let is_bare = |metadata: &Value| {
        let (all, notes) = (&metadata["labels"], &metadata["annotations"]);
        let left = [&all["team"], &all["tier"], &notes["note"], &notes["only"]];
        left.into_iter().all(Value::is_null) && has(all, &labels)
    };
    for kind in KINDS {
        fixture.until(kind, &name, |object| metadata(kind, object).into_iter().all(is_bare)).await;
    }
    drop(provider);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn pods_have_the_labels_that_disruption_budgets_select_by() {
    let fixture = Fixture::new().await;
    of_the_class(&fixture, json!({"mode": "Dedicated", "dedicated": {"replicas": 2}})).await;
    let provider = Provider::start(&fixture).await;
    fixture.gateway("web", json!({})).await;
    let name = generated_name(&fixture, "web");
    let both = |deployment: &Value| deployment["status"]["replicas"] == 2;
    fixture.until("Deployment", &name, both).await;
    // GEP-1762's example; the other is what every generated resource has.
    for label in ["metadata.name", "gateway-name"] {
        let selected = ListParams::default().labels(&format!("gateway.networking.k8s.io/{label}=web"));
        assert_eq!(fixture.api("Pod").list(&selected).await.unwrap().items.len(), 2, "{label}");
    }
    let told = |gateway: &Value| programmed(gateway)["reason"] == "Pending";
    let gateway = fixture.until("Gateway", "web", told).await;
    let message = programmed(&gateway)["message"].as_str().unwrap();
    assert!(message.contains(&name) && message.contains("no available pod"), "{message}");
    drop(provider);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_listener_sets_of_a_gateway_without_pods_are_not_programmed() {
    let fixture = Fixture::new().await;
    of_the_class(&fixture, json!({"mode": "Dedicated"})).await;
    let provider = Provider::start(&fixture).await;
    fixture.gateway("web", json!({"allowedListeners": {"namespaces": {"from": "Same"}}})).await;
    let listeners = json!([{"name": "more", "port": 81, "protocol": "HTTP"}]);
    let set = json!({"parentRef": {"name": "web"}, "listeners": listeners});
    fixture.create("ListenerSet", "set", json!({"spec": set})).await;
    // It has an address already.
    let is_told = |set: &Value| {
        programmed(set)["reason"] == "ParentNotProgrammed"
            && programmed(set)["message"] == "the Gateway attached to is not programmed"
    };
    fixture.until("ListenerSet", "set", is_told).await;
    fixture.patch("GatewayParameters", "parameters", json!({"spec": {"mode": "Node"}})).await;
    fixture.until("ListenerSet", "set", |set| programmed(set)["status"] == "True").await;
    drop(provider);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn no_foreign_object_of_any_kind_is_taken_over() {
    let fixture = Fixture::new().await;
    of_the_class(&fixture, json!({"mode": "Dedicated"})).await;
    let labels = json!({"app": "theirs"});
    let template =
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": IMAGE}]}});
    let deployment =
        json!({"spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}});
    let provider = Provider::start(&fixture).await;
    for (kind, gateway, theirs) in [
        ("Deployment", "web", deployment),
        ("ServiceAccount", "more", json!({"metadata": {"labels": labels}})),
    ] {
        let name = generated_name(&fixture, gateway);
        let before = fixture.create(kind, &name, theirs).await;
        fixture.gateway(gateway, json!({})).await;
        let reason = format!("{kind} {}/{name} was not generated", fixture.name);
        let is_told = |gateway: &Value| {
            programmed(gateway)["reason"] == "AddressNotAssigned"
                && programmed(gateway)["message"].as_str().is_some_and(|text| text.contains(&reason))
        };
        fixture.until("Gateway", gateway, is_told).await;
        let after = fixture.get(kind, &name).await;
        for field in ["uid", "generation", "labels", "ownerReferences"] {
            assert_eq!(after["metadata"][field], before["metadata"][field], "{kind}: {field}");
        }
        assert_eq!(after["spec"], before["spec"]);
    }
    drop(provider);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn another_mode_keeps_the_address_and_removes_the_pods() {
    let fixture = Fixture::new().await;
    of_the_class(&fixture, json!({"mode": "Dedicated"})).await;
    let provider = Provider::start(&fixture).await;
    fixture.gateway("web", json!({})).await;
    let name = generated_name(&fixture, "web");
    let selects = |service: &Value| service["spec"]["selector"].is_object();
    let service = fixture.until("Service", &name, selects).await;
    fixture.until("Deployment", &name, |deployment| !deployment.is_null()).await;
    let is_bound = |binding: &Value| binding["subjects"][0]["name"] == name.as_str();
    fixture.until("ClusterRoleBinding", &binding_name(&fixture), is_bound).await;

    fixture.patch("GatewayParameters", "parameters", json!({"spec": {"mode": "Node"}})).await;
    for kind in ["Deployment", "ServiceAccount"] {
        fixture.until(kind, &name, Value::is_null).await;
    }
    let is_ours = |service: &Value| {
        let labels = &service["metadata"]["labels"];
        labels["service.kubernetes.io/service-proxy-name"] == "portcullis" && !selects(service)
    };
    let after = fixture.until("Service", &name, is_ours).await;
    assert_eq!(after["spec"]["clusterIP"], service["spec"]["clusterIP"]);
    fixture.until("Gateway", "web", |gateway| programmed(gateway)["status"] == "True").await;
    let has_no_subject = |binding: &Value| binding["subjects"].as_array().is_none_or(Vec::is_empty);
    fixture.until("ClusterRoleBinding", &binding_name(&fixture), has_no_subject).await;
    drop(provider);
    fixture.remove().await;
}

/// By their ownerReferences.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn nothing_is_left_of_a_gateway_that_goes_while_no_agent_runs() {
    let fixture = Fixture::new().await;
    of_the_class(&fixture, json!({"mode": "Dedicated"})).await;
    let provider = Provider::start(&fixture).await;
    fixture.gateway("web", json!({})).await;
    let name = generated_name(&fixture, "web");
    for kind in KINDS {
        fixture.until(kind, &name, |object| !object.is_null()).await;
    }
    drop(provider);
    fixture.delete("Gateway", "web").await;
    let deadline = Instant::now() + COLLECTED;
    for kind in KINDS {
        while !fixture.get(kind, &name).await.is_null() {
            assert!(Instant::now() < deadline, "{kind} {name} stays");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_load_balancer_is_asked_for_the_address() {
    let fixture = Fixture::new().await;
    let service = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    of_the_class(&fixture, json!({"service": service})).await;
    let provider = Provider::start(&fixture).await;
    let address = json!([{"type": "IPAddress", "value": "203.0.113.9"}]);
    fixture.gateway("web", json!({"addresses": address})).await;
    let name = generated_name(&fixture, "web");
    let service = fixture.until("Service", &name, |service| !service.is_null()).await;
    let spec = &service["spec"];
    assert_eq!(spec["type"], "LoadBalancer");
    assert_eq!(
        (&spec["loadBalancerIP"], &spec["externalTrafficPolicy"]),
        (&json!("203.0.113.9"), &json!("Local"))
    );
    assert_ne!(spec["clusterIP"], "203.0.113.9");
    let is_missing = |gateway: &Value| programmed(gateway)["status"] == "False";
    fixture.until("Gateway", "web", is_missing).await;

    // As a load balancer would.
    let ingress = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}});
    fixture.patch_status("Service", &name, ingress).await;
    let is_there = |gateway: &Value| {
        programmed(gateway)["status"] == "True" && gateway["status"]["addresses"] == address
    };
    fixture.until("Gateway", "web", is_there).await;
    drop(provider);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn what_a_load_balancer_gives_is_published_as_far_as_the_status_has_room() {
    let fixture = Fixture::new().await;
    of_the_class(&fixture, json!({"service": {"type": "LoadBalancer"}})).await;
    let provider = Provider::start(&fixture).await;
    fixture.gateway("web", json!({})).await;
    let name = generated_name(&fixture, "web");
    let is_waiting = |gateway: &Value| {
        let message = programmed(gateway)["message"].as_str().unwrap_or_default().to_owned();
        programmed(gateway)["reason"] == "AddressNotAssigned" && message.contains("load balancer")
    };
    let waiting = fixture.until("Gateway", "web", is_waiting).await;
    assert!(waiting["status"]["addresses"].as_array().is_none_or(Vec::is_empty), "{waiting:#}");

    let many = (1..=17).map(|last| json!({"ip": format!("203.0.113.{last}")}));
    let named = std::iter::once(json!({"hostname": "web.elb.example"}));
    let ingress: Vec<_> = named.chain(many).collect();
    fixture.patch_status("Service", &name, json!({"loadBalancer": {"ingress": ingress}})).await;
    let gateway = fixture.until("Gateway", "web", |gateway| programmed(gateway)["status"] == "True").await;
    let addresses = gateway["status"]["addresses"].as_array().unwrap();
    assert_eq!(addresses[0], json!({"type": "Hostname", "value": "web.elb.example"}));
    assert_eq!((addresses.len(), &addresses[15]["value"]), (16, &json!("203.0.113.15")));
    drop(provider);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn parameters_that_cannot_be_used_are_told_to_class_and_gateway() {
    let fixture = Fixture::new().await;
    let provider = Provider::start(&fixture).await;
    fixture.gateway("web", json!({})).await;
    fixture.until("Gateway", "web", |gateway| programmed(gateway)["status"] == "True").await;
    let accepted = |object: &Value| condition(&object["status"], "Accepted").clone();
    let is_invalid = |object: &Value| {
        accepted(object)["reason"] == "InvalidParameters"
            && accepted(object)["observedGeneration"] == object["metadata"]["generation"]
    };
    let is_valid = |object: &Value| accepted(object)["status"] == "True";
    let spec = json!({"spec": {"parametersRef": reference(&fixture)}});
    fixture.patch("GatewayClass", &fixture.name, spec).await;
    let class = fixture.until("GatewayClass", &fixture.name, is_invalid).await;
    let message = accepted(&class)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("there is no GatewayParameters"), "{message}");
    fixture.until("Gateway", "web", is_invalid).await;
    let service = fixture.get("Service", &generated_name(&fixture, "web")).await;
    assert!(service.is_object(), "what was generated stays");

    let contradiction = json!({"spec": {"service": {"externalTrafficPolicy": "Local"}}});
    fixture.create("GatewayParameters", "parameters", contradiction).await;
    fixture.until("GatewayClass", &fixture.name, is_valid).await;
    let gateway = fixture.until("Gateway", "web", is_invalid).await;
    let says = |gateway: &Value| {
        accepted(gateway)["message"]
            .as_str()
            .is_some_and(|text| text.contains("needs service.type LoadBalancer"))
    };
    if !says(&gateway) {
        fixture.until("Gateway", "web", says).await;
    }
    fixture.patch("GatewayParameters", "parameters", json!({"spec": {"service": null}})).await;
    fixture.until("Gateway", "web", is_valid).await;
    drop(provider);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_gateway_is_not_programmed_before_the_data_plane_has_it() {
    let fixture = Fixture::new().await;
    let data_plane = PausedDataPlane::new(false);
    let provider = Provider::start_with(&fixture, data_plane.clone()).await;
    fixture.gateway("web", json!({})).await;
    until(data_plane.asked.subscribe(), |asked| *asked).await;
    // Nothing that could be waited for comes after it: the control loop waits for the data plane.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let gateway = fixture.get("Gateway", "web").await;
    assert_ne!(programmed(&gateway)["status"], "True", "{gateway:#}");
    data_plane.resumed.send_replace(true);
    fixture.until("Gateway", "web", |gateway| programmed(gateway)["status"] == "True").await;
    drop(provider);
    fixture.remove().await;
}
