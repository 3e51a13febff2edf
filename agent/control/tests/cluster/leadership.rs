//! One leader, another when it is gone, and followers that go on.

use std::time::{Duration, Instant};

use portcullis_control::kube::Elector;
use serde_json::json;
use tokio::sync::oneshot;

use crate::agent::{Agent, TIMING};
use crate::fixture::{Fixture, condition};

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn the_lease_passes_on_when_its_holder_is_gone() {
    let fixture = Fixture::new().await;
    let first = Agent::start(&fixture, "first");
    first.leading.clone().wait_for(|leads| *leads).await.unwrap();
    let second = Agent::start(&fixture, "second");
    fixture.gateway("web", json!({})).await;
    let is_programmed =
        |gateway: &serde_json::Value| condition(&gateway["status"], "Programmed")["status"] == "True";
    fixture.until("Gateway", "web", is_programmed).await;
    assert!(!*second.leading.borrow());
    // A follower serves all the same.
    second.state.clone().wait_for(|state| !state.snapshot.frontends.is_empty()).await.unwrap();

    drop(first);
    let gone = Instant::now();
    second.leading.clone().wait_for(|leads| *leads).await.unwrap();
    let waited = gone.elapsed();
    println!("another leader {waited:?} after a crash");
    assert!(waited < TIMING.valid_for + Duration::from_secs(2), "{waited:?}");
    fixture.gateway("more", json!({})).await;
    fixture.until("Gateway", "more", is_programmed).await;
    drop(second);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn a_leader_that_stops_hands_over_at_once_and_there_is_never_more_than_one() {
    let fixture = Fixture::new().await;
    let elector =
        |identity: &str| Elector::new(fixture.client.clone(), &fixture.name, "lease", identity, TIMING);
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
            assert!(waited < Duration::from_secs(3), "{waited:?}");
            let (_, stop) = candidates.remove(leader);
            stop.send(()).unwrap();
            gone = Instant::now();
        }
        assert!(gone.elapsed() < Duration::from_secs(10), "nobody leads");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fixture.remove().await;
}
