//! The API server goes away and comes back: traffic does not notice, and what happened meanwhile is
//! caught up with.

use std::path::Path;
use std::time::{Duration, Instant};

use portcullis_api::Kind;
use portcullis_control::applier::State;
use portcullis_control::source::LastGood;
use serde_json::{Value, json};

use crate::agent::{Agent, WAIT, serves, until};
use crate::fixture::{DEADLINE, Fixture, condition};
use crate::logs::Logs;
use crate::wire::Wire;

/// All pauses between attempts have grown to their limit by then. The long form, which says how
/// long catching up takes, is `cargo xtask bench cluster`.
const OUTAGE: Duration = Duration::from_secs(5);

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn what_happened_in_an_outage_with_a_restart_is_caught_up_with() {
    let (fixture, wire) = (Fixture::new().await, Wire::new().await);
    let (seen, dir) = (wire.to(&fixture).await, tempfile::tempdir().unwrap());
    let last_good = || Some(LastGood::new(dir.path().join("last-good")));
    fixture.gateway("web", json!({})).await;
    fixture.route("old", "web").await;
    let agent = Agent::start_with(&seen, "a", last_good());
    fixture.until("HTTPRoute", "old", |route| !route["status"]["parents"][0].is_null()).await;
    let has_address = |gateway: &Value| gateway["status"]["addresses"][0]["value"].is_string();
    let gateway = fixture.until("Gateway", "web", has_address).await;
    let address = gateway["status"]["addresses"][0]["value"].as_str().unwrap();
    for words in ["old.example.com", address] {
        kept(&dir.path().join("last-good"), words).await;
    }

    wire.cut();
    let cut = Instant::now();
    fixture.route("new", "web").await;
    until(agent.leading.clone(), |leads| !*leads).await;
    assert!(serves(&agent.state.borrow()));
    drop(agent);
    let began = Instant::now();
    let agent = Agent::start_with(&seen, "a", last_good());
    until(agent.state.clone(), serves).await;
    println!("served {:?} after a restart without API server", began.elapsed());
    assert!(began.elapsed() < WAIT, "it does not wait for whom it knows to be away");
    assert!(!*agent.current.borrow(), "what is on disk may be out of date");
    tokio::time::sleep(OUTAGE.saturating_sub(cut.elapsed())).await;
    let before = agent.state.borrow().snapshot.generation;
    assert!(serves(&agent.state.borrow()));

    wire.mend();
    let mended = Instant::now();
    until(agent.state.clone(), |state| state.snapshot.generation > before).await;
    let served = mended.elapsed();
    fixture.until("HTTPRoute", "new", |route| !route["status"]["parents"][0].is_null()).await;
    let told = mended.elapsed();
    println!("after {OUTAGE:?} without API server: served after {served:?}, told after {told:?}");
    assert!(*agent.current.borrow());
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn https_is_served_after_a_restart_without_api_server_if_secrets_are_kept() {
    let (fixture, wire) = (Fixture::new().await, Wire::new().await);
    let (seen, dir) = (wire.to(&fixture).await, tempfile::tempdir().unwrap());
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let last_good = || Some(LastGood::new(dir.path().join("last-good")).with_secrets(memory.path()));
    let secrets = memory.path().join("secrets.jsonl");
    fixture.create("Secret", "certificate", certificate()).await;
    fixture.create("Secret", "other", certificate()).await;
    let tls = json!({"certificateRefs": [{"name": "certificate"}]});
    let listeners = json!([{"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls}]);
    fixture.gateway("web", json!({"listeners": listeners})).await;
    let agent = Agent::start_with(&seen, "a", last_good());
    let state = until(agent.state.clone(), has_certificate).await;
    let address = state.snapshot.frontends.keys().next().unwrap().address.to_string();
    kept(&dir.path().join("last-good"), &address).await;
    kept(&secrets, "tls.key").await;
    assert!(!std::fs::read_to_string(&secrets).unwrap().contains("\"other\""), "no object refers to it");

    wire.cut();
    drop(agent);
    let agent = Agent::start_with(&seen, "a", last_good());
    until(agent.state.clone(), has_certificate).await;
    assert!(!*agent.current.borrow());

    let plain = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    fixture.patch("Gateway", "web", json!({"spec": {"listeners": plain}})).await;
    wire.mend();
    until(agent.current.clone(), |current| *current).await;
    assert!(!has_certificate(&agent.state.borrow()));
    until_kept(&secrets, str::is_empty).await;
    drop(agent);
    fixture.remove().await;
}

/// Waits until the last good configuration on disk holds this.
pub(crate) async fn kept(path: &Path, words: &str) {
    until_kept(path, |text| text.contains(words)).await;
}

async fn until_kept(path: &Path, holds: impl Fn(&str) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !std::fs::read_to_string(path).is_ok_and(|text| holds(&text)) {
        assert!(Instant::now() < deadline, "what is kept is something else");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// True if a listener has a certificate.
pub(crate) fn has_certificate(state: &State) -> bool {
    let listeners = state.snapshot.frontends.values().flat_map(|port| port.listeners.iter());
    listeners.filter_map(|listener| listener.serves.tls()).any(|tls| !tls.certificates.is_empty())
}

/// The content of a Secret with a certificate.
pub(crate) fn certificate() -> Value {
    let made = rcgen::generate_simple_self_signed(["web.example.com".to_owned()]).unwrap();
    let data = json!({"tls.crt": made.cert.pem(), "tls.key": made.signing_key.serialize_pem()});
    json!({"type": "kubernetes.io/tls", "stringData": data})
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn nothing_is_ready_before_everything_is_read_and_applied() {
    let (fixture, wire) = (Fixture::new().await, Wire::new().await);
    fixture.gateway("web", json!({})).await;
    wire.cut();
    let logs = Logs::capture();
    let agent = Agent::start(&wire.to(&fixture).await, "a");
    // Every watch has tried without an answer, that of generated Services included.
    let deadline = Instant::now() + DEADLINE;
    while wire.accepted() <= 2 * Kind::ALL.len() {
        assert!(Instant::now() < deadline, "{} connections", wire.accepted());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    logs.until("the api server does not answer").await;
    assert!(!*agent.current.borrow() && agent.state.borrow().applied == 0);
    wire.mend();
    until(agent.current.clone(), |current| *current).await;
    assert!(agent.state.borrow().applied > 0, "current only once applied");
    let programmed = |gateway: &Value| condition(&gateway["status"], "Programmed")["status"] == "True";
    fixture.until("Gateway", "web", programmed).await;
    logs.until("the api server answers again").await;
    let warnings = logs.warnings(&fixture);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn an_outage_is_one_line_in_the_log_of_an_agent() {
    let (fixture, wire) = (Fixture::new().await, Wire::new().await);
    let agent = Agent::start(&wire.to(&fixture).await, "a");
    fixture.gateway("web", json!({})).await;
    let programmed = |gateway: &Value| condition(&gateway["status"], "Programmed")["status"] == "True";
    fixture.until("Gateway", "web", programmed).await;
    let logs = Logs::capture();
    wire.cut();
    logs.until("warn").await;
    until(agent.leading.clone(), |leads| !*leads).await;
    wire.mend();
    logs.until("the api server answers again").await;
    until(agent.leading.clone(), |leads| *leads).await;
    let warnings = logs.warnings(&fixture);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    drop(agent);
    fixture.remove().await;
}
