//! A published address that is the API server's: made local on a node, it takes the way to the API
//! server away, and the last good configuration brings it back at each start.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_control::applier::{Acknowledgement, DataPlane, State};
use portcullis_control::source::LastGood;
use portcullis_model::Snapshot;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::agent::{Agent, Reach, until, until_within};
use crate::fixture::{Fixture, condition};
use crate::outages::kept;
use crate::wire::Wire;

/// As a load balancer publishes it.
const ADDRESS: &str = "203.0.113.44";

/// Longer than an address is left where it is without an answer, and longer than requests without
/// one take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A node on which the API server is reached by an address: what is local to the node does not get
/// there.
struct Shadowing {
    wire: Wire,
    address: IpAddr,
}

impl DataPlane for Shadowing {
    async fn apply(&mut self, snapshot: Arc<Snapshot>) -> Acknowledgement {
        match is_local(&snapshot, self.address) {
            true => self.wire.cut(),
            false => self.wire.mend(),
        }
        Acknowledgement::default()
    }
}

fn address() -> IpAddr {
    ADDRESS.parse().unwrap()
}

fn addresses(known: &[IpAddr]) -> watch::Receiver<BTreeSet<IpAddr>> {
    watch::channel(known.iter().copied().collect()).1
}

fn is_local(snapshot: &Snapshot, address: IpAddr) -> bool {
    snapshot.frontends.keys().any(|frontend| frontend.address == address)
}

fn serves_it(state: &State) -> bool {
    is_local(&state.snapshot, address())
}

/// Returns what is on disk once a load balancer's address was served, and its agent is gone.
async fn served_before(fixture: &Fixture, directory: &tempfile::TempDir) -> LastGood {
    let last_good = || LastGood::new(directory.path().join("last-good"));
    fixture
        .create("GatewayParameters", "balanced", json!({"spec": {"service": {"type": "LoadBalancer"}}}))
        .await;
    let reference = json!({"group": "portcullis.dev", "kind": "GatewayParameters", "name": "balanced"});
    fixture.gateway("web", json!({"infrastructure": {"parametersRef": reference}})).await;
    let agent = Agent::start_with(fixture, "before", Some(last_good()));
    let service = format!("web-{}", fixture.name);
    fixture.until("Service", &service, |service| !service.is_null()).await;
    let ingress = json!({"loadBalancer": {"ingress": [{"ip": ADDRESS}]}});
    fixture.patch_status("Service", &service, ingress).await;
    until(agent.state.clone(), serves_it).await;
    kept(&directory.path().join("last-good"), ADDRESS).await;
    last_good()
}

fn says(gateway: &Value, words: &str) -> bool {
    let conditions = gateway["status"].to_string();
    condition(&gateway["status"], "Accepted")["status"] == "True" && conditions.contains(words)
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn an_address_that_takes_the_way_to_the_api_server_away_is_let_go() {
    let (fixture, wire) = (Fixture::new().await, Wire::new().await);
    let directory = tempfile::tempdir().unwrap();
    let last_good = served_before(&fixture, &directory).await;

    let (seen, contact) = wire.watched(&fixture).await;
    let reach = Reach { contact, addresses: addresses(&[]) };
    // As the agent before left it.
    wire.cut();
    let plane = Shadowing { wire, address: address() };
    let agent = Agent::start_reaching(&seen, "after", last_good, plane, reach);
    until(agent.state.clone(), serves_it).await;
    let began = Instant::now();
    assert!(!*agent.current.borrow(), "it had the API server's answers with the address in the way");
    fixture.route("new", "web").await;

    until_within(TIMEOUT, agent.current.clone(), |current| *current).await;
    println!("let go of the address and caught up {:?} after it was made local", began.elapsed());
    until(agent.state.clone(), |state| !serves_it(state) && !state.snapshot.frontends.is_empty()).await;
    fixture.until("HTTPRoute", "new", |route| !route["status"]["parents"][0].is_null()).await;
    fixture.until("Gateway", "web", |gateway| says(gateway, "has had no answer from its API server")).await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn an_address_that_is_known_to_be_the_api_servers_never_becomes_local() {
    let (fixture, wire) = (Fixture::new().await, Wire::new().await);
    let directory = tempfile::tempdir().unwrap();
    let last_good = served_before(&fixture, &directory).await;

    let (seen, contact) = wire.watched(&fixture).await;
    // What is on disk is all that it has to begin with.
    wire.cut();
    let reach = Reach { contact, addresses: addresses(&[address()]) };
    let plane = Shadowing { wire, address: address() };
    let agent = Agent::start_reaching(&seen, "after", last_good, plane, reach);
    let state = until(agent.state.clone(), |state| !state.snapshot.frontends.is_empty()).await;
    assert!(!serves_it(&state), "the address was served");
    until(agent.current.clone(), |current| *current).await;
    assert!(!serves_it(&agent.state.borrow()));
    fixture.until("Gateway", "web", |gateway| says(gateway, "it is the API server's")).await;
    drop(agent);
    fixture.remove().await;
}
