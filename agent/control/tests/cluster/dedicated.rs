//! Rights of pods in mode Dedicated: to what their Gateway needs, and to nothing else that is
//! secret. Users who may run pods in the Gateway's namespace may run them as its ServiceAccount, so
//! these tests are that account.

use std::time::Duration;

use kube::api::{Api, ListParams};
use portcullis_control::applier::{Applier, State};
use portcullis_control::source::{KubeSource, SourceOptions};
use portcullis_control::status::StatusQueue;
use portcullis_gateway::infra::{Parameters, Pods};
use portcullis_gateway::{AgentRole, Settings, Translator};
use portcullis_model::ObjectName;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::account;
use crate::agent::{TakesAll, until};
use crate::fixture::{DEADLINE, Fixture, resource};
use crate::logs::Logs;
use crate::outages::has_certificate;
use crate::permissions::rules_with_dedicated;
use crate::provisioned::{IMAGE, Provider, binding, binding_name, generated_name, of_the_class, programmed};

const CERTIFICATE: &str = include_str!("../../../gateway/tests/cases/certificates/a.crt");
const KEY: &str = include_str!("../../../gateway/tests/cases/certificates/a.key");

/// The source and the translation of a pod's agent. Ends when it is dropped.
struct Pod {
    state: watch::Receiver<State>,
    _tasks: JoinSet<()>,
}

impl Pod {
    fn start(account: &Fixture, gateway: &str) -> Self {
        let (queue, controller_name) =
            (StatusQueue::new(&account.controller_name), account.controller_name.clone());
        let gateway = ObjectName::new(account.name.as_str(), gateway);
        let options = SourceOptions {
            only: Some(gateway.clone()),
            last_good: None,
            wait: Duration::from_secs(2),
            another_serves: SourceOptions::no_other(),
        };
        let source = KubeSource::new(account.client.clone(), queue.clone(), options);
        let generated = Parameters { pods: Some(Pods::new(IMAGE)), ..Parameters::default() };
        let role = AgentRole::Dedicated(gateway);
        let settings = Settings { controller_name, generated, role, ..Settings::default() };
        let mut applier = Applier::new(source, Translator::new(settings), TakesAll, queue.clone());
        let (state, mut tasks) = (applier.state(), JoinSet::new());
        tasks.spawn(async move { applier.run().await });
        Self { state, _tasks: tasks }
    }
}

fn certificate() -> Value {
    json!({"type": "kubernetes.io/tls", "stringData": {"tls.crt": CERTIFICATE, "tls.key": KEY}})
}

/// Listeners with a certificate of its own and one of another namespace.
fn with_certificates(of: &Fixture) -> Value {
    let https = |name: &str, port: u16, reference: Value| {
        json!({"name": name, "port": port, "protocol": "HTTPS",
        "tls": {"certificateRefs": [reference]}})
    };
    json!({"listeners": [
        {"name": "http", "port": 80, "protocol": "HTTP"},
        https("own", 443, json!({"name": "own"})),
        https("shared", 8443, json!({"name": "shared", "namespace": of.name})),
    ]})
}

async fn grant(certificates: &Fixture, to: &Fixture) {
    let from = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": to.name}]);
    let spec = json!({"from": from, "to": [{"group": "", "kind": "Secret", "name": "shared"}]});
    certificates.create("ReferenceGrant", "grant", json!({"spec": spec})).await;
}

/// An agent with the rights of the chart, and no others.
async fn provider(fixture: &Fixture) -> Provider {
    binding(fixture, rules_with_dedicated("ClusterRole", "portcullis-dedicated")).await;
    let rules = rules_with_dedicated("ClusterRole", "portcullis").to_string();
    let rules = rules.replace("\"portcullis-dedicated\"", &format!("{:?}", binding_name(fixture)));
    let of_cluster = serde_json::from_str(&rules).unwrap();
    let account = account::with_rules(fixture, of_cluster, rules_with_dedicated("Role", "portcullis")).await;
    Provider::start_as(&account)
}

/// `None`: the API server forbids it.
async fn read(account: &Fixture, kind: &str, name: &str) -> Option<()> {
    let answer = account.api(kind).get(name).await;
    let is_clear = match &answer {
        Ok(_) => true,
        Err(error) => matches!(error, kube::Error::Api(status) if status.code == 403),
    };
    assert!(is_clear, "{answer:?}");
    answer.ok().map(drop)
}

async fn until_it_may_read(account: &Fixture, kind: &str, name: &str, may: bool) {
    let deadline = Instant::now() + DEADLINE;
    while read(account, kind, name).await.is_some() != may {
        assert!(
            Instant::now() < deadline,
            "{kind} {name}: it stays so that it is not true that it may: {may}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn may_list(account: &Fixture, kind: &str, everywhere: bool) -> bool {
    let api = match everywhere {
        true => Api::all_with(account.client.clone(), &resource(kind)),
        false => account.api(kind),
    };
    api.list(&ListParams::default()).await.is_ok()
}

async fn until_it_may_read_what_is_no_secret(account: &Fixture) {
    let deadline = Instant::now() + DEADLINE;
    while !may_list(account, "Gateway", true).await {
        assert!(Instant::now() < deadline, "it may not list Gateways");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_pods_account_reads_the_secrets_of_its_gateway_and_no_others() {
    let (fixture, certificates, logs) = (Fixture::new().await, Fixture::new().await, Logs::capture());
    of_the_class(&fixture, json!({"mode": "Dedicated"})).await;
    for (somewhere, name) in
        [(&fixture, "own"), (&fixture, "other"), (&certificates, "shared"), (&certificates, "private")]
    {
        somewhere.create("Secret", name, certificate()).await;
    }
    grant(&certificates, &fixture).await;
    let provider = provider(&fixture).await;
    fixture.gateway("web", with_certificates(&certificates)).await;
    let name = generated_name(&fixture, "web");
    fixture.until("ServiceAccount", &name, |account| !account.is_null()).await;
    let pod = account::named(&fixture, &name).await;
    let abroad = certificates.seen_by(pod.client.clone());
    until_it_may_read(&pod, "Secret", "own", true).await;
    until_it_may_read(&abroad, "Secret", "shared", true).await;
    assert_eq!(read(&pod, "Secret", "other").await, None);
    assert_eq!(read(&abroad, "Secret", "private").await, None);
    for kind in ["Secret", "ConfigMap"] {
        assert!(!may_list(&pod, kind, false).await && !may_list(&pod, kind, true).await, "{kind}");
    }
    until_it_may_read_what_is_no_secret(&pod).await;

    // A user who takes their permission back has taken it back.
    certificates.delete("ReferenceGrant", "grant").await;
    until_it_may_read(&abroad, "Secret", "shared", false).await;
    let elsewhere = format!("{}.{name}", fixture.name);
    certificates.until("RoleBinding", &elsewhere, Value::is_null).await;
    grant(&certificates, &fixture).await;
    certificates.until("RoleBinding", &elsewhere, |binding| !binding.is_null()).await;

    // The garbage collector takes what the Gateway owns, the leader what is in other namespaces;
    // neither needs the other.
    fixture.delete("Gateway", "web").await;
    for kind in ["RoleBinding", "Role"] {
        certificates.until(kind, &elsewhere, Value::is_null).await;
        fixture.until(kind, &name, Value::is_null).await;
    }
    let has_no_subject = |binding: &Value| binding["subjects"].as_array().is_none_or(Vec::is_empty);
    fixture.until("ClusterRoleBinding", &binding_name(&fixture), has_no_subject).await;
    assert_eq!(logs.with("forbidden"), Vec::<String>::new());
    drop(provider);
    certificates.remove().await;
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_pod_serves_https_with_the_rights_of_its_account_and_follows_its_secrets() {
    let (fixture, certificates) = (Fixture::new().await, Fixture::new().await);
    of_the_class(&fixture, json!({"mode": "Dedicated"})).await;
    certificates.create("Secret", "shared", certificate()).await;
    grant(&certificates, &fixture).await;
    let provider = provider(&fixture).await;
    let shared = json!({"name": "shared", "namespace": certificates.name});
    let listeners =
        json!([{"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [shared]}}]);
    fixture.gateway("web", json!({"listeners": listeners})).await;
    let name = generated_name(&fixture, "web");
    fixture.until("Deployment", &name, |deployment| !deployment.is_null()).await;
    let account = account::named(&fixture, &name).await;
    until_it_may_read(&certificates.seen_by(account.client.clone()), "Secret", "shared", true).await;
    until_it_may_read_what_is_no_secret(&account).await;
    let logs = Logs::capture();
    let pod = Pod::start(&account, "web");
    until(pod.state.clone(), has_certificate).await;

    certificates.delete("Secret", "shared").await;
    until(pod.state.clone(), |state| !has_certificate(state)).await;
    certificates.create("Secret", "shared", certificate()).await;
    until(pod.state.clone(), has_certificate).await;
    assert_eq!(logs.with("forbidden"), Vec::<String>::new());
    drop((pod, provider));
    certificates.remove().await;
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn an_account_of_another_user_gets_no_rights() {
    let fixture = Fixture::new().await;
    of_the_class(&fixture, json!({"mode": "Dedicated"})).await;
    let provider = provider(&fixture).await;
    let theirs = generated_name(&fixture, "web");
    fixture.create("ServiceAccount", &theirs, json!({})).await;
    let tls = json!({"certificateRefs": [{"name": "own"}]});
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"},
        {"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls}]);
    fixture.gateway("web", json!({"listeners": listeners})).await;
    let is_told = |gateway: &Value| {
        let message = programmed(gateway)["message"].as_str().unwrap_or_default();
        message.contains(&format!("ServiceAccount {}/{theirs} was not generated", fixture.name))
    };
    fixture.until("Gateway", "web", is_told).await;
    // Whatever is done for a Gateway that comes later is done after it.
    fixture.gateway("later", json!({"listeners": listeners})).await;
    let later = generated_name(&fixture, "later");
    let names = |binding: &Value| -> Vec<String> {
        let subjects = binding["subjects"].as_array().into_iter().flatten();
        subjects.map(|subject| subject["name"].as_str().unwrap().to_owned()).collect()
    };
    let is_bound = |binding: &Value| names(binding).contains(&later);
    let binding = fixture.until("ClusterRoleBinding", &binding_name(&fixture), is_bound).await;
    assert_eq!(names(&binding), std::slice::from_ref(&later));
    fixture.until("RoleBinding", &later, |binding| !binding.is_null()).await;
    for kind in ["RoleBinding", "Deployment"] {
        assert!(fixture.get(kind, &theirs).await.is_null(), "{kind} of an account that is not ours");
    }
    drop(provider);
    fixture.remove().await;
}

/// Parameters of its own that contradict themselves: what the Gateway has stays, its pods' rights
/// included.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn accounts_stay_bound_while_parameters_are_invalid_and_when_others_take_them_out() {
    let fixture = Fixture::new().await;
    of_the_class(&fixture, json!({"mode": "Dedicated"})).await;
    let provider = provider(&fixture).await;
    fixture.create("GatewayParameters", "own", json!({"spec": {}})).await;
    let reference = json!({"group": "portcullis.dev", "kind": "GatewayParameters", "name": "own"});
    fixture.gateway("web", json!({"infrastructure": {"parametersRef": reference}})).await;
    let (web, more) = (generated_name(&fixture, "web"), generated_name(&fixture, "more"));
    let has = |binding: &Value, name: &str| {
        let subjects = binding["subjects"].as_array();
        subjects.is_some_and(|subjects| subjects.iter().any(|subject| subject["name"] == name))
    };
    let binding = binding_name(&fixture);
    fixture.until("ClusterRoleBinding", &binding, |it| has(it, &web)).await;

    let contradiction = json!({"spec": {"service": {"externalTrafficPolicy": "Local"}}});
    fixture.patch("GatewayParameters", "own", contradiction).await;
    let is_invalid = |gateway: &Value| {
        crate::fixture::condition(&gateway["status"], "Accepted")["reason"] == "InvalidParameters"
    };
    fixture.until("Gateway", "web", is_invalid).await;
    fixture.gateway("more", json!({})).await;
    let there = fixture.until("ClusterRoleBinding", &binding, |it| has(it, &more)).await;
    assert!(has(&there, &web), "{there:#}");

    fixture.patch("ClusterRoleBinding", &binding, json!({"subjects": null})).await;
    fixture.until("ClusterRoleBinding", &binding, |it| has(it, &web) && has(it, &more)).await;
    drop(provider);
    fixture.remove().await;
}
