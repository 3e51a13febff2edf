//! The API server goes away and comes back: traffic does not notice, and what happened meanwhile is caught up with.

use std::time::{Duration, Instant};

use portcullis_control::kube::LastGood;
use portcullis_gateway::Kind;
use serde_json::{Value, json};

use crate::agent::{Agent, serves, until};
use crate::fixture::{DEADLINE, Fixture, condition};
use crate::logs::Logs;
use crate::wire::Wire;

/// All pauses between attempts have grown to their limit by then. The long form, which says how long catching up takes, is
/// `cargo xtask bench cluster`.
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
    assert!(began.elapsed() < Duration::from_secs(1), "it does not wait for whom it knows to be away");
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

/// Waits until the last good configuration on disk holds this.
async fn kept(path: &std::path::Path, words: &str) {
    let deadline = Instant::now() + DEADLINE;
    while !std::fs::read_to_string(path).is_ok_and(|text| text.contains(words)) {
        assert!(Instant::now() < deadline, "nothing is kept");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn nothing_is_ready_before_everything_is_read_and_applied() {
    let (fixture, wire) = (Fixture::new().await, Wire::new().await);
    fixture.gateway("web", json!({})).await;
    wire.cut();
    let logs = Logs::capture();
    let agent = Agent::start(&wire.to(&fixture).await, "a");
    // Every watch has tried and found nobody, that of generated Services included.
    let deadline = Instant::now() + DEADLINE;
    while logs.with(" not watched: ").len() <= Kind::ALL.len() {
        assert!(Instant::now() < deadline, "{:?}", logs.with("not watched"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!*agent.current.borrow() && agent.state.borrow().applied == 0);
    wire.mend();
    until(agent.current.clone(), |current| *current).await;
    assert!(agent.state.borrow().applied > 0, "current only once applied");
    let programmed = |gateway: &Value| condition(&gateway["status"], "Programmed")["status"] == "True";
    fixture.until("Gateway", "web", programmed).await;
    drop(agent);
    fixture.remove().await;
}
