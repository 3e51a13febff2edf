//! The source of a cluster: its changes, their latency, and its memory.

use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use portcullis_api::{Change, Kind, Object};
use portcullis_control::source::{KubeSource, LastGood, Source, SourceOptions};
use portcullis_control::status::StatusQueue;
use portcullis_gateway::{Settings, Translator};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::crds;
use crate::fixture::{DEADLINE, Fixture, condition};
use crate::process::Process;

fn options(last_good: Option<LastGood>) -> SourceOptions {
    SourceOptions {
        only: None,
        last_good,
        wait: Duration::from_millis(300),
        another_serves: SourceOptions::no_other(),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn changes_are_heard_as_soon_as_a_bare_watch_hears_them() {
    let fixture = Fixture::new().await;
    let mut agent = Agent::start(&fixture, "a");
    fixture.gateway("web", json!({})).await;
    fixture
        .until("Gateway", "web", |gateway| condition(&gateway["status"], "Programmed")["status"] == "True")
        .await;
    let mut events = Box::pin(watcher::watcher(fixture.api("HTTPRoute"), watcher::Config::default()));
    while !matches!(events.next().await, Some(Ok(Event::InitDone))) {}
    let (mut bare, mut applied) = (Vec::new(), Vec::new());
    for round in 0..100 {
        // The status of the route before is an event, too, and not to be measured.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let name = format!("r{round}");
        let before = agent.state.borrow().snapshot.generation;
        let watched = async {
            loop {
                if let Some(Ok(Event::Apply(route))) = events.next().await
                    && route.metadata.name.as_deref() == Some(&name)
                {
                    return Instant::now();
                }
            }
        };
        let served = async {
            agent.state.wait_for(|state| state.snapshot.generation > before).await.unwrap();
            Instant::now()
        };
        let began = Instant::now();
        let (_, watched, served) = tokio::join!(fixture.route(&name, "web"), watched, served);
        bare.push(watched - began);
        applied.push(served - began);
    }
    bare.sort();
    applied.sort();
    println!(
        "create -> bare watch p50 {:?} p99 {:?}; create -> applied p50 {:?} p99 {:?}",
        bare[50], bare[98], applied[50], applied[98]
    );
    // On an idle machine it is about 1 ms; other tests may run at the same time.
    assert!(applied[50] < bare[50] * 2 + Duration::from_millis(50));
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn only_secrets_that_are_referred_to_are_read_and_they_are_followed() {
    let fixture = Fixture::new().await;
    let queue = StatusQueue::new(&fixture.controller_name);
    let source = KubeSource::new(fixture.client.clone(), queue, options(None));
    let settings = Settings { controller_name: fixture.controller_name.clone(), ..Settings::default() };
    let mut reader = Reader { source, translator: Translator::new(settings) };
    fixture.create("Secret", "unrelated", json!({"data": {"a": "MQ=="}})).await;
    let listeners = json!([{"name": "tls", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "wanted"}]}}]);
    fixture.gateway("web", json!({"listeners": listeners})).await;
    reader.next().await;
    fixture.create("Secret", "wanted", json!({"data": {"tls.crt": "MQ=="}})).await;
    assert_eq!(reader.secret(&fixture).await, Some(("wanted".to_owned(), b"1".to_vec())));
    fixture.patch("Secret", "wanted", json!({"data": {"tls.crt": "Mg=="}})).await;
    assert_eq!(reader.secret(&fixture).await, Some(("wanted".to_owned(), b"2".to_vec())));
    fixture.delete("Secret", "wanted").await;
    assert_eq!(reader.secret(&fixture).await, None);
    fixture.remove().await;
}

/// A source that learns what its objects refer to.
struct Reader {
    source: KubeSource,
    translator: Translator,
}

impl Reader {
    async fn next(&mut self) -> Vec<Change> {
        let changes = self.source.next().await.changes;
        self.source.need(self.translator.apply(changes.clone()).needs);
        changes
    }

    /// The next word about a Secret of the test's namespace; `None`: it is gone.
    async fn secret(&mut self, fixture: &Fixture) -> Option<(String, Vec<u8>)> {
        let heard = async {
            loop {
                for change in self.next().await {
                    let key = change.key();
                    if key.kind == Kind::Secret && *key.name.namespace == *fixture.name {
                        return change;
                    }
                }
            }
        };
        match tokio::time::timeout(DEADLINE, heard).await.unwrap() {
            Change::Set(Object::Secret(secret)) => {
                let data = secret.data.as_ref()?.get("tls.crt")?.0.clone();
                Some((secret.metadata.name.clone()?, data))
            }
            _ => None,
        }
    }
}

/// The long form, with 5,000, is `cargo xtask bench cluster`.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn secrets_that_nothing_refers_to_cost_no_memory() {
    const SECRETS: u64 = 500;
    const SIZE: u64 = 32 << 10;
    let fixture = Fixture::new().await;
    fixture.gateway("web", json!({})).await;
    let agent = serving(&fixture, "a", "web").await;
    let before = agent.resident();
    let text = "A".repeat(SIZE as usize / 3 * 4);
    futures::stream::iter(0..SECRETS)
        .for_each_concurrent(8, |n| {
            let (fixture, data) = (&fixture, json!({"data": {"a": text}}));
            async move { drop(fixture.create("Secret", &format!("s{n}"), data).await) }
        })
        .await;
    // What comes after the Secrets is received after them.
    fixture.gateway("more", json!({})).await;
    fixture.until("Gateway", "more", is_programmed).await;
    let heard = agent.resident().saturating_sub(before);
    agent.kill();
    let again = serving(&fixture, "a", "last").await;
    let listed = again.resident().saturating_sub(before);
    println!(
        "{SECRETS} Secrets of {SIZE} bytes: {heard} bytes more after hearing of them, {listed} after a restart"
    );
    // Objects of other tests cost something, too.
    assert!(heard < SECRETS * SIZE * 3 / 4 && listed < SECRETS * SIZE * 3 / 4);
    drop(again);
    fixture.remove().await;
}

/// An agent in a process of its own, once it has programmed a new Gateway.
async fn serving(fixture: &Fixture, identity: &str, gateway: &str) -> Process {
    let agent = Process::start(fixture, identity);
    if fixture.get("Gateway", gateway).await.is_null() {
        fixture.gateway(gateway, json!({})).await;
    }
    fixture.until("Gateway", gateway, is_programmed).await;
    agent
}

fn is_programmed(gateway: &Value) -> bool {
    condition(&gateway["status"], "Programmed")["status"] == "True"
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_kind_without_crd_is_used_once_it_is_there_even_if_newer_than_we() {
    let fixture = Fixture::new().await;
    let is_accepted =
        |route: &Value| condition(&route["status"]["parents"][0], "Accepted")["status"] == "True";
    crds::without(&fixture, GRPC_ROUTES, async |crd| {
        let agent = Agent::start(&fixture, "a");
        fixture.gateway("web", json!({})).await;
        fixture.route("shop", "web").await;
        fixture.until("HTTPRoute", "shop", is_accepted).await;

        crds::install(&fixture, GRPC_ROUTES, newer(crd)).await;
        // A listener of its own: there the HTTPRoute is older and has all hostnames.
        fixture.gateway("rpc", json!({})).await;
        let spec = json!({"parentRefs": [{"name": "rpc"}], "addedLater": {"to": ["the", "API"]}});
        fixture.create("GRPCRoute", "calls", json!({"spec": spec})).await;
        let route = fixture.until("GRPCRoute", "calls", is_accepted).await;
        assert_eq!(route["spec"]["addedLater"], spec["addedLater"]);

        crds::remove(&fixture, GRPC_ROUTES).await;
        fixture.route("still", "web").await;
        fixture.until("HTTPRoute", "still", is_accepted).await;
        drop(agent);
    })
    .await;
    fixture.remove().await;
}

const GRPC_ROUTES: &str = "grpcroutes.gateway.networking.k8s.io";

/// With a version that we do not know and a field that we do not know.
fn newer(mut crd: Value) -> Value {
    let versions = crd["spec"]["versions"].as_array_mut().unwrap();
    for version in versions.iter_mut() {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        spec["properties"]["addedLater"] =
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    }
    let mut next = versions.iter().find(|version| version["name"] == "v1").unwrap().clone();
    next["name"] = "v2".into();
    next["storage"] = false.into();
    versions.push(next);
    crd
}
