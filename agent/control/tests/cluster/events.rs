//! Events of Gateways that a node cannot serve; the node's own agent makes them, leader or not.

use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use portcullis_control::applier::{Acknowledgement, DataPlane};

use portcullis_model::{Snapshot, Unserved};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::account;
use crate::agent::{Agent, until};
use crate::fixture::{DEADLINE, Fixture, condition};
use crate::logs::Logs;
use crate::permissions;

/// A node on which every port is taken, for the reason that it is told.
struct Taken(watch::Receiver<&'static str>);

impl DataPlane for Taken {
    async fn apply(&mut self, snapshot: Arc<Snapshot>) -> Acknowledgement {
        let why = *self.0.borrow();
        let frontends = snapshot.frontends.keys().map(|it| (*it, why.to_owned())).collect();
        Acknowledgement { refused: Unserved { frontends, ..Unserved::default() } }
    }
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn what_a_follower_cannot_serve_is_told_once_for_each_reason() {
    let fixture = Fixture::new().await;
    let account =
        account::with_rules(&fixture, permissions::rules("ClusterRole"), permissions::rules("Role")).await;
    let leader = Agent::start(&fixture, "node-1");
    until(leader.leading.clone(), |leading| *leading).await;
    let why = watch::Sender::new("sshd has it");
    let follower = Agent::start_on(Taken(why.subscribe()), &account, "node-2");
    let gateway = fixture.gateway("web", json!({})).await;
    let is_programmed = |it: &Value| condition(&it["status"], "Programmed")["status"] == "True";
    fixture.until("Gateway", "web", is_programmed).await;

    let told = events(&fixture, 1).await;
    assert_eq!(told[0]["regarding"]["uid"], gateway["metadata"]["uid"]);
    assert_eq!(told[0]["type"], "Warning");
    assert_eq!(told[0]["reportingInstance"], "node-2");
    let note = told[0]["note"].as_str().unwrap();
    assert!(note.contains(":80: sshd has it") && note.contains("this node"), "{note}");

    let applied = follower.state.borrow().applied;
    fixture.patch("Gateway", "web", json!({"metadata": {"labels": {"again": "yes"}}})).await;
    fixture.route("shop", "web").await;
    until(follower.state.clone(), |state| state.applied > applied).await;
    why.send_replace("a debugger has it");
    fixture.route("news", "web").await;
    let told = events(&fixture, 2).await;
    let notes: Vec<_> = told.iter().filter_map(|event| event["note"].as_str()).collect();
    assert_eq!(notes.iter().filter(|note| note.contains("sshd")).count(), 1, "{notes:?}");
    drop((leader, follower));
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn without_the_right_to_make_events_the_log_says_so_and_all_else_works() {
    let fixture = Fixture::new().await;
    let mut too_few = permissions::rules("ClusterRole");
    too_few.as_array_mut().unwrap().retain(|rule| rule["resources"] != json!(["events"]));
    let account = account::with_rules(&fixture, too_few, permissions::rules("Role")).await;
    let (logs, why) = (Logs::capture(), watch::Sender::new("sshd has it"));
    let agent = Agent::start_on(Taken(why.subscribe()), &account, "node-1");
    fixture.gateway("web", json!({})).await;
    let is_refused = |it: &Value| condition(&it["status"], "Programmed")["reason"] == "AddressNotUsable";
    fixture.until("Gateway", "web", is_refused).await;
    logs.until("cannot make an event").await;
    drop(agent);
    fixture.remove().await;
}

#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn an_event_that_cannot_be_made_keeps_no_other_from_being_made() {
    let fixture = Fixture::new().await;
    let (logs, why) = (Logs::capture(), watch::Sender::new("sshd has it"));
    let agent = Agent::start_on(Taken(why.subscribe()), &fixture, "node-1");
    // An Event is named after its Gateway, and more.
    let long = "a".repeat(250);
    fixture.gateway(&long, json!({})).await;
    logs.until("cannot make an event").await;
    fixture.gateway("web", json!({})).await;
    let told = events(&fixture, 1).await;
    assert_eq!(told[0]["regarding"]["name"], "web");
    drop(agent);
    fixture.remove().await;
}

/// Those of the Gateway, once there are so many.
async fn events(fixture: &Fixture, count: usize) -> Vec<Value> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let list = fixture.api("Event").list(&ListParams::default()).await.unwrap();
        let events = list.items.into_iter().map(|event| serde_json::to_value(event).unwrap());
        let events: Vec<_> = events.filter(|event| event["regarding"]["kind"] == "Gateway").collect();
        if events.len() >= count {
            return events;
        }
        assert!(Instant::now() < deadline, "{events:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
