//! Frontends that this node cannot serve, as Events of the Gateways concerned: `Programmed` speaks
//! for the leader's node, and operators do not read the logs of all others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use portcullis_api::GATEWAY_GROUP;
use portcullis_gateway::Reason;
use portcullis_gateway::infra::DesiredObjects;
use portcullis_model::ObjectName;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::applier::State;
use crate::kube::problem;
use crate::status::StatusQueue;

/// An API server keeps Events for an hour by default: what lasts is published again before.
const AGAIN: Duration = Duration::from_secs(30 * 60);
/// Time after which an Event that could not be published is tried again, and interval at which it
/// is looked at which are due again.
const RETRY: Duration = Duration::from_secs(60);
/// A node that can serve nothing at all would publish an Event of every Gateway. The others are in
/// its log.
const MOST: usize = 32;
/// An Event's note has no room for more.
const NOTE_BYTES: usize = 1024;

/// Leader or not, every agent speaks for its own node.
pub struct Announcer {
    client: Client,
    reporter: Reporter,
    gateways: watch::Receiver<BTreeMap<ObjectName, DesiredObjects>>,
    published: BTreeMap<ObjectName, Published>,
}

/// An Event of a Gateway, published or tried to.
struct Published {
    /// `None`: it could not be published.
    note: Option<String>,
    /// Before this, the same need not be published again, and what could not be is not tried.
    until: Instant,
}

// === impl Announcer ===

impl Announcer {
    pub fn new(client: Client, queue: &Arc<StatusQueue>, node: &str) -> Self {
        let reporter =
            Reporter { controller: queue.controller_name().to_owned(), instance: Some(node.to_owned()) };
        Self { client, reporter, gateways: queue.generated(), published: BTreeMap::new() }
    }

    /// Until the applier, which knows what is refused, is gone.
    pub async fn run(mut self, mut state: watch::Receiver<State>) {
        let mut retry = interval(RETRY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let refused = refused(&state.borrow_and_update());
            self.publish_all(refused).await;
            let alive = tokio::select! {
                changed = state.changed() => changed.is_ok(),
                changed = self.gateways.changed() => changed.is_ok(),
                _ = retry.tick() => true,
            };
            if !alive {
                return;
            }
        }
    }

    async fn publish_all(&mut self, refused: BTreeMap<ObjectName, String>) {
        // What comes and goes is published once.
        self.published
            .retain(|gateway, published| refused.contains_key(gateway) || published.until > Instant::now());
        for (gateway, note) in refused {
            let uid = self.gateways.borrow_and_update().get(&gateway).map(|wanted| wanted.uid.clone());
            let Some(uid) = uid.filter(|_| self.is_due(&gateway, &note)) else { continue };
            let published = match self.publish(&gateway, uid, &note).await {
                Ok(()) => Published { note: Some(note), until: Instant::now() + AGAIN },
                Err(error) => {
                    self.log(&gateway, &problem(&error));
                    Published { note: None, until: Instant::now() + RETRY }
                }
            };
            self.published.insert(gateway, published);
        }
    }

    fn is_due(&self, gateway: &ObjectName, note: &str) -> bool {
        let Some(published) = self.published.get(gateway) else { return self.published.len() < MOST };
        let is_another = published.note.as_ref().is_some_and(|published| published != note);
        is_another || published.until <= Instant::now()
    }

    /// By a recorder of its own each time: one that is kept repeats its note of a Gateway
    /// before, even if that is something else by now.
    async fn publish(&self, gateway: &ObjectName, uid: String, note: &str) -> kube::Result<()> {
        let event = Event {
            type_: EventType::Warning,
            reason: Reason::PortUnavailable.as_str().to_owned(),
            note: Some(note.to_owned()),
            action: "Serve".to_owned(),
            secondary: None,
        };
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        recorder.publish(&event, &reference(gateway, uid)).await
    }

    /// Logs the first that cannot be published; the others fail for the same reason, as a rule.
    fn log(&self, gateway: &ObjectName, problem: &str) {
        if self.published.values().all(|published| published.note.is_some()) {
            tracing::warn!(
                "Gateway {gateway}: cannot make an Event of what this node does not serve: {problem}. The log and \
                 portcullis_frontends_refused have it"
            );
        }
    }
}

/// By Gateway.
fn refused(state: &State) -> BTreeMap<ObjectName, String> {
    let mut refused = BTreeMap::<_, Vec<String>>::new();
    for (frontend, why) in state.refused.reasons() {
        if let Some(port) = state.snapshot.frontends.get(frontend) {
            refused.entry(port.gateway.name.clone()).or_default().push(format!("{frontend}: {why}"));
        }
    }
    refused.into_iter().map(|(gateway, lines)| (gateway, note(&lines))).collect()
}

fn note(lines: &[String]) -> String {
    let mut note = format!("not served on this node: {}", lines.join("; "));
    note.truncate(note.floor_char_boundary(NOTE_BYTES));
    note
}

fn reference(gateway: &ObjectName, uid: String) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{GATEWAY_GROUP}/v1")),
        kind: Some("Gateway".to_owned()),
        namespace: Some(gateway.namespace.to_string()),
        name: Some(gateway.name.to_string()),
        uid: Some(uid),
        ..ObjectReference::default()
    }
}
