use std::net::IpAddr;

use portcullis_gateway::{Settings, Translator};
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use super::*;
use crate::kube::fake::{ApiServer, Asked};

fn manifests() -> Vec<Value> {
    let reference = json!({"certificateRefs": [{"name": "key"}]});
    let listeners = json!([{"name": "https", "port": 443, "protocol": "HTTPS", "tls": reference}]);
    vec![
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
            "spec": {"controllerName": "portcullis.dev/gateway"}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web", "namespace": "edge", "uid": "u-1"},
            "spec": {"gatewayClassName": "c", "listeners": listeners}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web-c", "namespace": "edge",
            "labels": {"app.kubernetes.io/managed-by": "portcullis"},
            "ownerReferences": [{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web",
                "uid": "u-1", "controller": true}]},
            "spec": {"clusterIPs": ["10.96.0.7"], "ports": [{"port": 443}]}}),
    ]
}

fn secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": "edge"},
        "data": {"tls.crt": "MQ=="}})
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Policies {
    Listed,
    Denied,
}

/// Answers discovery and lists, but not of BackendTLSPolicies if these are denied, keeps watches
/// waiting, and hands on what is asked for one by one.
fn serve(mut server: ApiServer, policies: Policies) -> UnboundedReceiver<Asked> {
    let (to, one_by_one) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut watches = Vec::new();
        loop {
            let asked = server.asked().await;
            let path = asked.path.split('?').next().unwrap_or_default().to_owned();
            let of_group = |kind: &&Kind| path.ends_with(&kind.api_version());
            let is_denied = policies == Policies::Denied && path.ends_with(Kind::BackendTlsPolicy.resource());
            if asked.path.contains("watch=true") || is_denied {
                watches.push(asked);
            } else if path.contains("/namespaces/") {
                let _ = to.send(asked);
            } else if !asked.path.contains('?') {
                let resource = |kind: &Kind| json!({"name": kind.resource(), "singularName": "", "namespaced": true, "kind": kind.as_str(), "verbs": []});
                let resources: Vec<_> = Kind::ALL.iter().filter(of_group).map(resource).collect();
                asked.answer(200, json!({"groupVersion": "", "resources": resources}));
            } else {
                let is_listed = |manifest: &&Value| {
                    let kind = Kind::ALL.iter().find(|kind| manifest["kind"] == kind.as_str());
                    kind.is_some_and(|kind| path.ends_with(&format!("/{}", kind.resource())))
                };
                let items: Vec<_> = manifests().iter().filter(is_listed).cloned().collect();
                asked.answer(200, json!({"metadata": {"resourceVersion": "1"}, "items": items}));
            }
        }
    });
    one_by_one
}

async fn start(last_good: Option<LastGood>) -> (KubeSource, UnboundedReceiver<Asked>) {
    start_with(last_good, Policies::Listed).await
}

async fn start_with(
    last_good: Option<LastGood>,
    policies: Policies,
) -> (KubeSource, UnboundedReceiver<Asked>) {
    let server = ApiServer::start().await;
    let client = server.client().await;
    // Longer than a busy machine takes for all lists: tests are about what is not answered.
    let options = SourceOptions {
        only: None,
        last_good,
        wait: Duration::from_secs(5),
        another_serves: SourceOptions::no_other(),
    };
    (KubeSource::new(client, StatusQueue::new("portcullis.dev/gateway"), options), serve(server, policies))
}

/// The last good configuration is older than what the other agent has, and has no keys.
#[tokio::test]
async fn what_was_kept_is_served_when_no_other_agent_serves() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("last-good"), format!("{}\n", manifests()[0])).unwrap();
    // It never answers.
    let server = ApiServer::start().await;
    let last_good = Some(LastGood::new(dir.path().join("last-good")));
    let (another, another_serves) = watch::channel(true);
    let options = SourceOptions { only: None, last_good, wait: Duration::ZERO, another_serves };
    let queue = StatusQueue::new("portcullis.dev/gateway");
    let mut source = KubeSource::new(server.client().await, queue, options);
    let kept = source.next().await;
    assert_eq!((keys(&kept), kept.is_draft), (vec!["GatewayClass c".to_owned()], true));
    another.send_replace(false);
    let now = source.next().await;
    assert!(!now.is_draft && now.changes.is_empty() && !now.is_complete, "{now:?}");
}

/// A new release that lacks a right takes over all the same, but not with what was kept.
#[tokio::test]
async fn everything_that_may_be_read_is_enough_to_take_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("last-good");
    std::fs::write(&path, format!("{}\n", manifests()[0])).unwrap();
    let (mut source, mut one_by_one) = start_with(Some(LastGood::new(path)), Policies::Denied).await;
    let (_another, another_serves) = watch::channel(true);
    source.another_serves = another_serves;
    source.take(Delta::Denied(Kind::BackendTlsPolicy));
    tokio::spawn(async move {
        while let Some(asked) = one_by_one.recv().await {
            asked.answer(200, secret());
        }
    });
    let kept = source.next().await;
    assert!(kept.is_draft && keys(&kept) == ["GatewayClass c"], "{kept:?}");
    let draft = source.next().await;
    assert!(draft.is_draft);
    // What was kept and is as it was is in no draft.
    translate(&mut source, [&kept, &draft]);
    let rest = source.next().await;
    assert!(!rest.is_draft && keys(&rest) == ["Secret edge/key"], "{rest:?}");
}

/// Tells the source what the objects of these updates need.
fn translate<'u>(source: &mut KubeSource, updates: impl IntoIterator<Item = &'u Update>) {
    let mut translator = Translator::new(Settings::default());
    for update in updates {
        let outcome = translator.apply(update.changes.clone());
        source.need_only(outcome.needs.added);
    }
}

fn keys(update: &Update) -> Vec<String> {
    update.changes.iter().map(|change| change.key().to_string()).collect()
}

#[tokio::test]
async fn what_a_draft_needs_is_read_before_everything_counts_as_said() {
    let (mut source, mut one_by_one) = start(None).await;
    let draft = source.next().await;
    assert_eq!(keys(&draft), ["GatewayClass c", "Gateway edge/web", "Service edge/web-c"]);
    let assigned = [IpAddr::from([10, 96, 0, 7])].into_iter().collect();
    let assigned = [(ObjectName::new("edge", "web"), assigned)].into();
    assert_eq!(draft.observed, [Feedback::Assigned(assigned)], "with the objects, not after them");
    assert!(draft.is_draft && !draft.is_complete);
    translate(&mut source, [&draft]);
    let answer = async {
        let asked = one_by_one.recv().await.unwrap();
        assert_eq!(asked.path, "/api/v1/namespaces/edge/secrets/key");
        asked.answer(200, secret());
    };
    let (rest, ()) = tokio::join!(source.next(), answer);
    assert_eq!(keys(&rest), ["Secret edge/key"]);
    assert!(!rest.is_draft && rest.is_complete);
}

#[tokio::test]
async fn what_refers_to_something_else_meanwhile_is_drafted_again() {
    let (mut source, mut one_by_one) = start(None).await;
    let draft = source.next().await;
    translate(&mut source, [&draft]);
    let mut gateway = manifests().swap_remove(1);
    gateway["spec"]["listeners"][0]["tls"]["certificateRefs"][0]["name"] = json!("other");
    source.take(Delta::Set(Kind::Gateway, Box::new(gateway)));
    let answer = async { one_by_one.recv().await.unwrap().answer(200, secret()) };
    let (again, ()) = tokio::join!(source.next(), answer);
    assert_eq!(keys(&again), ["Gateway edge/web", "Secret edge/key"]);
    assert!(again.is_draft && !again.is_complete);
    source.need_only([ObjectKey::new(Kind::Secret, ObjectName::new("edge", "other"))].into());
    let answer = async {
        let asked = one_by_one.recv().await.unwrap();
        assert_eq!(asked.path, "/api/v1/namespaces/edge/secrets/other");
        let mut other = secret();
        other["metadata"]["name"] = json!("other");
        asked.answer(200, other);
    };
    let (rest, ()) = tokio::join!(source.next(), answer);
    assert_eq!(keys(&rest), ["Secret edge/key", "Secret edge/other"]);
    assert!(!rest.is_draft && rest.is_complete);
}

/// Translation that panicked says nothing about needs.
#[tokio::test]
async fn a_draft_whose_needs_are_not_known_is_not_followed_by_everything() {
    let (mut source, _one_by_one) = start(None).await;
    assert!(source.next().await.is_draft);
    assert!(source.update().is_none());
    source.take(Delta::Deleted(ObjectKey::new(Kind::Service, ObjectName::new("edge", "web-c"))));
    let again = source.next().await;
    assert_eq!(keys(&again), ["Service edge/web-c"]);
    assert!(again.is_draft);
    source.need_only(BTreeSet::new());
    assert!(source.next().await.is_complete);
}

#[tokio::test]
async fn what_cannot_be_read_in_time_is_as_it_was_kept() {
    let (dir, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    std::fs::write(memory.path().join("secrets.jsonl"), format!("{}\n", secret())).unwrap();
    let kept = LastGood::new(dir.path().join("last-good")).with_secrets(memory.path());
    let (mut source, mut one_by_one) = start(Some(kept)).await;
    let draft = source.next().await;
    translate(&mut source, [&draft]);
    let remembered = source.next().await;
    assert_eq!(keys(&remembered), ["Secret edge/key"]);
    assert!(!remembered.is_draft && !remembered.is_complete);
    let answer = async { one_by_one.recv().await.unwrap().answer_not_found() };
    let (rest, ()) = tokio::join!(source.next(), answer);
    assert!(matches!(&*rest.changes, [Change::Delete(key)] if key.kind == Kind::Secret) && rest.is_complete);
}

/// Whatever a hostile writer of `services/status` had published before the API server went away.
#[tokio::test]
async fn no_address_of_the_cluster_is_served_again_from_what_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let published = [
        "192.0.2.1",
        "10.96.0.1",
        "192.0.2.2",
        "192.0.2.11",
        "10.244.1.9",
        "10.96.0.80",
        "8.8.8.8",
        "203.0.113.7",
    ];
    let mut manifests = manifests();
    manifests[1]["spec"]["listeners"] = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    manifests[2]["spec"]["type"] = "LoadBalancer".into();
    manifests[2]["status"] = json!({"loadBalancer": {"ingress": published.map(|ip| json!({"ip": ip}))}});
    let service = |namespace: &str, name: &str, address: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterIPs": [address], "ports": [{"port": 443}]}})
    };
    manifests.extend([
        service("default", "kubernetes", "10.96.0.1"),
        service("shop", "cart", "10.96.0.80"),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "kubernetes",
            "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.2"]}], "ports": [{"port": 6443}]}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"}, "spec": {"podCIDRs": ["10.244.1.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]}}),
    ]);
    let lines: Vec<_> = manifests.iter().map(Value::to_string).collect();
    std::fs::write(dir.path().join("last-good"), lines.join("\n")).unwrap();

    // It never answers.
    let server = ApiServer::start().await;
    let last_good = Some(LastGood::new(dir.path().join("last-good")));
    let options = SourceOptions {
        only: None,
        last_good,
        wait: Duration::from_millis(10),
        another_serves: SourceOptions::no_other(),
    };
    let queue = StatusQueue::new("portcullis.dev/gateway");
    let mut source = KubeSource::new(server.client().await, queue, options);
    let load_balancers = ["10.0.0.0/8", "192.0.2.0/24", "203.0.113.0/24"];
    let load_balancers = load_balancers.map(|range| range.parse().unwrap()).into();
    let api_server = ["192.0.2.1".parse().unwrap()].into();
    let settings = Settings { load_balancers, api_server, ..Settings::default() };
    let mut translator = Translator::new(settings);
    let update = source.next().await;
    update.observed.into_iter().for_each(|feedback| translator.observe(feedback));
    let outcome = translator.apply(update.changes);
    let served: BTreeSet<_> = outcome.snapshot.frontends.keys().map(|it| it.address.to_string()).collect();
    assert_eq!(served, ["10.96.0.7", "203.0.113.7"].map(str::to_owned).into());
}

/// There may be some: a Service may have to be spoken to in TLS.
#[tokio::test]
async fn policies_that_may_not_be_read_are_told_until_they_are() {
    let (mut source, mut one_by_one) = start_with(None, Policies::Denied).await;
    let policy = Kind::BackendTlsPolicy;
    source.take(Delta::Denied(policy));
    let draft = source.next().await;
    assert!(draft.is_draft);
    assert_eq!(draft.observed[1], Feedback::Unread([policy].into()));
    let problems: Vec<_> = draft.problems.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "API server: BackendTLSPolicy: it may not be listed, or is in none of the versions v1, v1alpha3; requests for \
             Services that one may be about are answered with an error: give the agents the rights of the chart's \
             ClusterRole, or install the CRDs of a supported release"
        ]
    );
    translate(&mut source, [&draft]);
    let answer = async { one_by_one.recv().await.unwrap().answer(200, secret()) };
    let (rest, ()) = tokio::join!(source.next(), answer);
    assert!(rest.observed.len() == 1 && rest.problems.is_none(), "that is known: {rest:?}");

    source.take(Delta::Begin(policy));
    source.take(Delta::Done(policy));
    let read = source.next().await;
    assert_eq!(read.observed[1], Feedback::Unread(BTreeSet::new()));
    assert_eq!(read.problems, Some(Vec::new()));
}

#[tokio::test]
async fn policies_that_may_not_be_read_are_as_they_were_kept_and_others_are_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("last-good");
    let (mut source, _one_by_one) = start_with(Some(LastGood::new(path.clone())), Policies::Denied).await;
    source.take(Delta::Denied(Kind::BackendTlsPolicy));
    translate_empty(&mut source).await;
    assert!(source.last_good.as_ref().unwrap().due().is_none(), "it lacks policies");

    let class = &manifests()[0];
    std::fs::write(&path, format!("{class}\n")).unwrap();
    let (mut source, _one_by_one) = start_with(Some(LastGood::new(path)), Policies::Denied).await;
    source.take(Delta::Denied(Kind::BackendTlsPolicy));
    assert_eq!(keys(&source.next().await), ["GatewayClass c"]);
    let draft = source.next().await;
    assert_eq!(draft.observed[1], Feedback::Unread(BTreeSet::new()));
    let problems: Vec<_> = draft.problems.iter().flatten().map(ToString::to_string).collect();
    assert!(problems[0].contains("what was kept of it is served"), "{problems:?}");
}

/// Goes on to the first update that is served.
async fn translate_empty(source: &mut KubeSource) {
    assert!(source.next().await.is_draft);
    source.need_only(BTreeSet::new());
    assert!(!source.next().await.is_draft);
}
