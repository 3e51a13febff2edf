use std::collections::VecDeque;
use std::sync::Mutex;

use portcullis_gateway::{Change, Kind, Object, Settings};
use serde_json::json;
use tokio::sync::Notify;

use super::*;
use crate::status::Statuses;

/// Says what it was given, then nothing more.
struct Scripted(VecDeque<Update>);

impl Source for Scripted {
    async fn next(&mut self) -> Update {
        match self.0.pop_front() {
            Some(update) => update,
            None => std::future::pending().await,
        }
    }
}

/// Refuses everything the first time it is asked for a frontend, then nothing.
#[derive(Default)]
struct Reluctant {
    refusals: u32,
}

impl DataPlane for Reluctant {
    async fn apply(&mut self, snapshot: Arc<Snapshot>) -> Acknowledgement {
        if self.refusals == 0 {
            return Acknowledgement::default();
        }
        self.refusals -= 1;
        let refused = snapshot.frontends.keys().map(|frontend| (*frontend, "in use".to_owned())).collect();
        Acknowledgement { refused }
    }
}

#[derive(Clone, Default)]
struct Recorded(Arc<(Mutex<Vec<Statuses>>, Notify)>);

impl Recorded {
    /// The statuses of the n-th write.
    async fn write(&self, index: usize) -> Statuses {
        loop {
            if let Some(statuses) = self.0.0.lock().unwrap().get(index) {
                return statuses.clone();
            }
            self.0.1.notified().await;
        }
    }
}

impl StatusSink for Recorded {
    fn keep_only(&mut self, _: &BTreeSet<ObjectKey>) {}

    fn write(&mut self, statuses: Statuses) {
        self.0.0.lock().unwrap().push(statuses);
        self.0.1.notify_one();
    }
}

fn set(manifest: Value) -> Change {
    Change::Set(Object::from_json(manifest).unwrap().unwrap())
}

fn class() -> Change {
    set(
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
        "spec": {"controllerName": "portcullis.dev/gateway"}}),
    )
}

fn gateway() -> Change {
    set(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "g"},
        "spec": {"gatewayClassName": "c", "addresses": [{"value": "192.0.2.1"}],
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}}))
}

fn programmed(statuses: &Statuses) -> Option<String> {
    let (_, status) = statuses.iter().find(|(key, _)| key.kind == Kind::Gateway)?;
    let conditions = status.as_ref()?["conditions"].as_array()?.clone();
    let condition = conditions.into_iter().find(|condition| condition["type"] == "Programmed")?;
    Some(format!("{} {}", condition["status"].as_str()?, condition["reason"].as_str()?))
}

fn start(updates: Vec<Vec<Change>>, data_plane: Reluctant) -> (Recorded, watch::Receiver<State>) {
    let updates = updates.into_iter().map(|changes| Update { changes, problems: None });
    let recorded = Recorded::default();
    let translator = Translator::new(Settings::default());
    let mut applier = Applier::new(Scripted(updates.collect()), translator, data_plane, recorded.clone());
    let state = applier.state();
    tokio::spawn(async move { applier.run().await });
    (recorded, state)
}

#[tokio::test(start_paused = true)]
async fn programmed_follows_the_data_plane() {
    let (recorded, state) = start(vec![vec![class(), gateway()]], Reluctant { refusals: 1 });
    assert_eq!(programmed(&recorded.write(0).await).unwrap(), "False AddressNotUsable");
    assert_eq!(state.borrow().refused.len(), 1);
    let retried = recorded.write(1).await;
    assert_eq!(retried.len(), 1, "only what changed is written");
    assert_eq!(programmed(&retried).unwrap(), "True Programmed");
    assert!(state.borrow().refused.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_takes_its_status_with_it() {
    let Change::Set(object) = gateway() else { unreachable!("set makes nothing else") };
    let delete = Change::Delete(object.key());
    let (recorded, state) = start(vec![vec![class(), gateway()], vec![delete]], Reluctant::default());
    assert_eq!(programmed(&recorded.write(0).await).unwrap(), "True Programmed");
    let second = recorded.write(1).await;
    assert_eq!(second.get(&object.key()), Some(&None));
    assert_eq!((state.borrow().snapshot.frontends.len(), state.borrow().applied), (0, 2));
}
