//! What the agent hears, how soon, and what it remembers.

use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use portcullis_control::kube::{Board, KubeSource, LastGood, SourceOptions};
use portcullis_control::source::Source;
use portcullis_gateway::{Change, Kind};
use serde_json::json;

use crate::agent::Agent;
use crate::fixture::{DEADLINE, Fixture, condition};

fn options(fixture: &Fixture, last_good: Option<LastGood>) -> SourceOptions {
    SourceOptions {
        controller_name: fixture.controller_name.clone(),
        last_good,
        patience: Duration::from_millis(300),
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
        // The status of the route before is an event, too.
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
    assert!(applied[50] < bare[50] * 2 + Duration::from_millis(10));
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn only_secrets_that_are_referred_to_are_read_and_they_are_followed() {
    let fixture = Fixture::new().await;
    let board = Board::new(&fixture.controller_name);
    let mut source = KubeSource::new(fixture.client.clone(), board, options(&fixture, None));
    fixture.create("Secret", "unrelated", json!({"data": {"a": "MQ=="}})).await;
    let listeners = json!([{"name": "tls", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "wanted"}]}}]);
    fixture.gateway("web", json!({"listeners": listeners})).await;
    source.next().await;
    fixture.create("Secret", "wanted", json!({"data": {"tls.crt": "MQ=="}})).await;
    assert_eq!(secret(&mut source, &fixture).await, Some(("wanted".to_owned(), b"1".to_vec())));
    fixture.patch("Secret", "wanted", json!({"data": {"tls.crt": "Mg=="}})).await;
    assert_eq!(secret(&mut source, &fixture).await, Some(("wanted".to_owned(), b"2".to_vec())));
    fixture.delete("Secret", "wanted").await;
    assert_eq!(secret(&mut source, &fixture).await, None);
    fixture.remove().await;
}

/// The next word about a Secret of the test's namespace; `None`: it is gone.
async fn secret(source: &mut KubeSource, fixture: &Fixture) -> Option<(String, Vec<u8>)> {
    let heard = async {
        loop {
            for change in source.next().await.changes {
                let key = change.key();
                if key.kind == Kind::Secret && *key.name.namespace == *fixture.name {
                    return change;
                }
            }
        }
    };
    match tokio::time::timeout(DEADLINE, heard).await.unwrap() {
        Change::Set(portcullis_gateway::Object::Secret(secret)) => {
            let data = secret.data.as_ref()?.get("tls.crt")?.0.clone();
            Some((secret.metadata.name.clone()?, data))
        }
        _ => None,
    }
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_restart_without_api_server_says_the_last_good_configuration() {
    let fixture = Fixture::new().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("last-good");
    fixture.gateway("web", json!({})).await;
    let before = Agent::start_with(&fixture, "a", Some(LastGood::new(path.clone())));
    let served = |state: &portcullis_control::applier::State| !state.snapshot.frontends.is_empty();
    tokio::time::timeout(DEADLINE, before.state.clone().wait_for(served)).await.unwrap().unwrap();
    let deadline = Instant::now() + DEADLINE;
    while !std::fs::read_to_string(&path).is_ok_and(|text| text.contains(r#""addresses":[{"#)) {
        assert!(Instant::now() < deadline, "nothing is kept");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(before);

    let nowhere = kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    let without = Fixture {
        client: nowhere,
        name: fixture.name.clone(),
        controller_name: fixture.controller_name.clone(),
    };
    let began = Instant::now();
    let after = Agent::start_with(&without, "a", Some(LastGood::new(path)));
    tokio::time::timeout(DEADLINE, after.state.clone().wait_for(served)).await.unwrap().unwrap();
    println!("served {:?} after a start without API server, patience included", began.elapsed());
    fixture.remove().await;
}
