//! One leader, another when it is gone, and followers that go on.

use std::time::{Duration, Instant};

use portcullis_api::Kind;
use portcullis_control::lease::{Elector, Timing};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::account;
use crate::agent::{Agent, TIMING, serves, until};
use crate::fixture::{DEADLINE, Fixture, condition};
use crate::logs::Logs;
use crate::process::Process;
use crate::wire::Wire;

fn is_programmed(gateway: &Value) -> bool {
    condition(&gateway["status"], "Programmed")["status"] == "True"
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_lease_passes_on_when_its_holder_is_gone() {
    let fixture = Fixture::new().await;
    let first = Process::start(&fixture, "first");
    fixture.until("Lease", "portcullis", |lease| lease["spec"]["holderIdentity"] == "first").await;
    let second = Agent::start(&fixture, "second");
    fixture.gateway("web", json!({})).await;
    fixture.until("Gateway", "web", is_programmed).await;
    assert!(!*second.leading.borrow());
    // A follower serves all the same.
    until(second.state.clone(), serves).await;

    first.kill();
    let gone = Instant::now();
    until(second.leading.clone(), |leads| *leads).await;
    let waited = gone.elapsed();
    println!("another leader {waited:?} after SIGKILL");
    // Other tests run at the same time.
    assert!(waited < TIMING.valid_for + Duration::from_secs(8), "{waited:?}");
    fixture.gateway("more", json!({})).await;
    fixture.until("Gateway", "more", is_programmed).await;
    drop(second);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_leader_that_crashed_and_starts_again_leaves_everything_as_it_is() {
    let fixture = Fixture::new().await;
    fixture.gateway("web", json!({})).await;
    fixture.route("shop", "web").await;
    let first = Agent::start(&fixture, "a");
    let service = format!("web-{}", fixture.name);
    let has_address = |gateway: &Value| gateway["status"]["addresses"][0]["value"].is_string();
    fixture.until("Gateway", "web", has_address).await;
    fixture.until("HTTPRoute", "shop", |route| !route["status"]["parents"][0].is_null()).await;
    let written = async |agent: &Agent| {
        let gateway = agent.at_rest(&fixture, Kind::Gateway, "web").await;
        let route = agent.at_rest(&fixture, Kind::HttpRoute, "shop").await;
        [gateway, route, fixture.get("Service", &service).await]
    };
    let before = written(&first).await;
    drop(first);

    // The Lease is still its own: it leads long before it knows what to write.
    let again = Agent::start_late(&fixture, "a", Duration::from_secs(1));
    until(again.leading.clone(), |leads| *leads).await;
    until(again.current.clone(), |current| *current).await;
    assert_eq!(written(&again).await, before);
    drop(again);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_leader_that_stops_hands_over_at_once_and_there_is_never_more_than_one() {
    let fixture = Fixture::new().await;
    // It would be long until the Lease is no longer valid.
    let timing =
        Timing { valid_for: Duration::from_secs(60), renew_within: Duration::from_secs(45), ..TIMING };
    let elector =
        |identity: &str| Elector::new(fixture.client.clone(), &fixture.name, "lease", identity, timing);
    let mut candidates = Vec::new();
    for identity in ["a", "b", "c", "d"] {
        let (elector, (stop, stopped)) = (elector(identity), oneshot::channel::<()>());
        let leading = elector.leading();
        tokio::spawn(elector.run(async { drop(stopped.await) }));
        candidates.push((leading, stop));
    }
    let mut gone = Instant::now();
    while !candidates.is_empty() {
        let leaders = || candidates.iter().filter(|(leading, _)| *leading.borrow()).count();
        assert!(leaders() <= 1);
        if let Some(leader) = candidates.iter().position(|(leading, _)| *leading.borrow()) {
            let waited = gone.elapsed();
            println!("next leader after {waited:?}");
            assert!(waited < timing.valid_for / 2, "{waited:?}");
            let (_, stop) = candidates.remove(leader);
            stop.send(()).unwrap();
            gone = Instant::now();
        }
        assert!(gone.elapsed() < timing.valid_for, "no agent leads");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_deleted_lease_is_made_again_by_its_holder() {
    let fixture = Fixture::new().await;
    let first = Agent::start(&fixture, "first");
    until(first.leading.clone(), |leads| *leads).await;
    let second = Agent::start(&fixture, "second");
    for _ in 0..5 {
        // So that the second has seen whose it is: a read leaves no trace that could be waited for.
        tokio::time::sleep(TIMING.retry_every * 2).await;
        fixture.delete("Lease", "portcullis").await;
        fixture.until("Lease", "portcullis", |lease| lease["spec"]["holderIdentity"] == "first").await;
        assert!(*first.leading.borrow() && !*second.leading.borrow());
    }
    fixture.gateway("web", json!({})).await;
    fixture.until("Gateway", "web", is_programmed).await;
    drop((first, second));
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_leader_that_is_cut_off_follows_serves_and_leads_again() {
    let (fixture, wire) = (Fixture::new().await, Wire::new().await);
    let first = Agent::start(&wire.to(&fixture).await, "first");
    until(first.leading.clone(), |leads| *leads).await;
    fixture.gateway("web", json!({})).await;
    until(first.state.clone(), serves).await;
    let second = Agent::start(&fixture, "second");
    wire.cut();
    let (alone, cut) = (until(first.leading.clone(), |leads| !*leads), Instant::now());
    alone.await;
    assert!(cut.elapsed() < TIMING.valid_for, "it steps down before another may lead");
    until(second.leading.clone(), |leads| *leads).await;
    assert!(serves(&first.state.borrow()));

    wire.mend();
    drop(second);
    until(first.leading.clone(), |leads| *leads).await;
    fixture.gateway("more", json!({})).await;
    fixture.until("Gateway", "more", is_programmed).await;
    drop(first);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn who_may_not_campaign_says_so_once_and_leads_once_it_may() {
    let fixture = Fixture::new().await;
    let classes = json!({"apiGroups": ["gateway.networking.k8s.io"], "resources": ["gatewayclasses"], "verbs": ["get"]});
    let leases = json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]});
    let account = account::with_rules(&fixture, json!([classes]), json!([])).await;
    let logs = Logs::capture();
    let elector = Elector::new(account.client.clone(), &fixture.name, "lease", "a", TIMING);
    let leading = elector.leading();
    let campaign = tokio::spawn(elector.run(std::future::pending()));
    let deadline = Instant::now() + DEADLINE;
    while logs.with("cannot campaign").is_empty() {
        assert!(Instant::now() < deadline, "it says nothing");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    account::set_rules(&fixture, json!([classes, leases])).await;
    until(leading, |leads| *leads).await;
    let told = logs.with("cannot campaign");
    assert!(
        told.len() == 1 && told[0].contains("lease lease: ") && told[0].contains(&fixture.name),
        "{told:?}"
    );
    campaign.abort();
    fixture.remove().await;
}
