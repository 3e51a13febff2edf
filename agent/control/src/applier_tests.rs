use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;

use portcullis_api::{Change, Kind, Object};
use portcullis_gateway::infra::DesiredObjects;
use portcullis_gateway::{ChangedNeeds, EndpointRule, Outcome, Reason, Settings, Translator};
use portcullis_model::ObjectName;
use serde_json::{Value, json};
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

/// The same, and takes note of what is needed.
struct Following {
    updates: Scripted,
    needed: Arc<Mutex<BTreeSet<ObjectKey>>>,
}

impl Source for Following {
    async fn next(&mut self) -> Update {
        self.updates.next().await
    }

    fn need(&mut self, changed: ChangedNeeds) {
        let mut needed = self.needed.lock().unwrap();
        needed.retain(|key| !changed.removed.contains(key));
        needed.extend(changed.added);
    }

    fn need_only(&mut self, needs: BTreeSet<ObjectKey>) {
        *self.needed.lock().unwrap() = needs;
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
        let frontends = snapshot.frontends.keys().map(|frontend| (*frontend, "in use".to_owned())).collect();
        Acknowledgement { refused: Unserved { frontends, ..Unserved::default() } }
    }
}

#[derive(Clone, Default)]
struct Recorded(Arc<(Mutex<Vec<Statuses>>, Notify)>, Arc<Mutex<Reported>>);

#[derive(Debug, Default)]
struct Reported {
    generated: BTreeMap<ObjectName, DesiredObjects>,
    /// The number of writes when everything was reported.
    complete: Option<usize>,
    is_provisioned: bool,
}

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

    /// The number of writes after which everything was reported.
    async fn completed(&self) -> usize {
        loop {
            if let Some(writes) = self.1.lock().unwrap().complete {
                return writes;
            }
            self.0.1.notified().await;
        }
    }

    /// For which Gateways something is to be there.
    fn generated(&self) -> Vec<String> {
        self.1.lock().unwrap().generated.keys().map(|gateway| gateway.name.to_string()).collect()
    }
}

impl StatusSink for Recorded {
    fn keep_only(&mut self, _: &BTreeSet<ObjectKey>) {}

    fn write(&mut self, statuses: &Statuses) {
        self.0.0.lock().unwrap().push(statuses.clone());
        self.0.1.notify_one();
    }

    fn generate(&mut self, wanted: BTreeMap<ObjectName, Option<DesiredObjects>>) {
        let generated = &mut self.1.lock().unwrap().generated;
        for (gateway, wanted) in wanted {
            match wanted {
                Some(wanted) => drop(generated.insert(gateway, wanted)),
                None => drop(generated.remove(&gateway)),
            }
        }
    }

    fn generate_only(&mut self, wanted: BTreeMap<ObjectName, DesiredObjects>) {
        self.1.lock().unwrap().generated = wanted;
    }

    fn provisioned(&mut self) {
        self.1.lock().unwrap().is_provisioned = true;
    }

    fn complete(&mut self) {
        let writes = self.0.0.lock().unwrap().len();
        self.1.lock().unwrap().complete = Some(writes);
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

fn gateway(name: &str, address: &str) -> Change {
    set(
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": name, "uid": name},
        "spec": {"gatewayClassName": "c", "addresses": [{"value": address}],
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}}),
    )
}

fn gateway_with_certificate(secret: &str) -> Change {
    let tls = json!({"certificateRefs": [{"name": secret}]});
    set(
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "tls", "uid": "tls"},
        "spec": {"gatewayClassName": "c", "addresses": [{"value": "192.0.2.4"}],
            "listeners": [{"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls}]}}),
    )
}

fn programmed(statuses: &Statuses) -> Option<String> {
    let (_, status) = statuses.iter().find(|(key, _)| key.kind == Kind::Gateway)?;
    let conditions = status.as_ref()?.to_json()["conditions"].as_array()?.clone();
    let condition = conditions.into_iter().find(|condition| condition["type"] == "Programmed")?;
    Some(format!("{} {}", condition["status"].as_str()?, condition["reason"].as_str()?))
}

fn start(updates: Vec<Vec<Change>>, data_plane: Reluctant) -> (Recorded, watch::Receiver<State>) {
    start_with(Translator::new(Settings::default()), updates, data_plane)
}

fn start_with(
    translator: impl Translate + 'static,
    updates: Vec<Vec<Change>>,
    data_plane: Reluctant,
) -> (Recorded, watch::Receiver<State>) {
    let updates =
        updates.into_iter().map(|changes| Update { changes, is_complete: true, ..Update::default() });
    start_saying(translator, updates.collect(), data_plane)
}

fn start_saying(
    translator: impl Translate + 'static,
    updates: VecDeque<Update>,
    data_plane: Reluctant,
) -> (Recorded, watch::Receiver<State>) {
    let recorded = Recorded::default();
    let mut applier = Applier::new(Scripted(updates), translator, data_plane, recorded.clone());
    let state = applier.state();
    tokio::spawn(async move { applier.run().await });
    (recorded, state)
}

#[tokio::test(start_paused = true)]
async fn programmed_follows_the_data_plane() {
    let (recorded, state) = start(vec![vec![class(), gateway("g", "192.0.2.1")]], Reluctant { refusals: 1 });
    assert_eq!(programmed(&recorded.write(0).await).unwrap(), "False AddressNotUsable");
    assert_eq!(state.borrow().refused.frontends.len(), 1);
    let retried = recorded.write(1).await;
    assert_eq!(retried.len(), 1, "only what changed is written");
    assert_eq!(programmed(&retried).unwrap(), "True Programmed");
    assert!(state.borrow().refused.is_empty());
}

#[tokio::test(start_paused = true)]
async fn programmed_follows_what_the_cluster_gives() {
    let recorded = Recorded::default();
    let (provisioning, observed) = watch::channel(None);
    let updates = [Update { changes: vec![class(), gateway("g", "192.0.2.1")], ..Update::default() }];
    let translator = Translator::new(Settings::default());
    let sink = recorded.clone();
    let applier = Applier::new(Scripted(updates.into()), translator, Reluctant::default(), sink);
    let mut applier = applier.observing(observed);
    tokio::spawn(async move { applier.run().await });
    assert_eq!(programmed(&recorded.write(0).await).unwrap(), "True Programmed");
    assert!(!recorded.1.lock().unwrap().is_provisioned);
    let fault = Fault::not_programmed(Reason::Pending, "no pod");
    provisioning.send_replace(Some([(ObjectName::new("default", "g"), fault)].into()));
    assert_eq!(programmed(&recorded.write(1).await).unwrap(), "False Pending");
    provisioning.send_replace(None);
    assert_eq!(programmed(&recorded.write(2).await).unwrap(), "True Programmed");
    assert!(recorded.1.lock().unwrap().is_provisioned);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_takes_its_status_with_it() {
    let Change::Set(object) = gateway("g", "192.0.2.1") else { unreachable!("set makes nothing else") };
    let delete = Change::Delete(object.key());
    let (recorded, state) =
        start(vec![vec![class(), gateway("g", "192.0.2.1")], vec![delete]], Reluctant::default());
    assert_eq!(programmed(&recorded.write(0).await).unwrap(), "True Programmed");
    let second = recorded.write(1).await;
    assert_eq!(second.get(&object.key()), Some(&None));
    assert_eq!((state.borrow().snapshot.frontends.len(), state.borrow().applied), (0, 2));
}

/// Has a bug: half-way through a Gateway named `poison` it panics.
struct Fragile(Translator);

impl Translate for Fragile {
    fn apply(&mut self, changes: Vec<Change>) -> Outcome {
        let outcome = self.0.apply(changes);
        let is_poison = |object: &Object| object.key().name.name.as_ref() == "poison";
        assert!(!self.0.objects().iter().any(|object| is_poison(&object)), "the bug");
        outcome
    }

    fn observe(&mut self, feedback: Feedback) {
        self.0.observe(feedback);
    }

    fn begin_again(&mut self, changes: Vec<Change>) {
        self.0.begin_again(changes);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_translation_freezes_what_is_served_until_its_cause_is_gone() {
    let poison = gateway("poison", "192.0.2.2");
    let remove = Change::Delete(poison.key());
    let updates = vec![
        vec![class(), gateway("g", "192.0.2.1")],
        vec![poison],
        vec![gateway("h", "192.0.2.3")],
        vec![remove],
    ];
    let (recorded, state) =
        start_with(Fragile(Translator::new(Settings::default())), updates, Reluctant::default());
    assert_eq!(recorded.write(0).await.len(), 2);
    let after = recorded.write(1).await;
    let names: Vec<_> = after.keys().map(|key| key.name.name.to_string()).collect();
    assert_eq!(
        names,
        ["c", "g", "h"],
        "everything is told again, and the change that came meanwhile is in it"
    );
    assert_eq!((state.borrow().snapshot.frontends.len(), state.borrow().applied), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn what_is_generated_for_a_gateway_that_was_deleted_while_translation_panicked_goes() {
    let (g, poison) = (gateway("g", "192.0.2.1"), gateway("poison", "192.0.2.2"));
    let remove = vec![Change::Delete(g.key()), Change::Delete(poison.key())];
    let updates = vec![vec![class(), g, gateway("h", "192.0.2.3")], vec![poison], remove];
    let (recorded, _) =
        start_with(Fragile(Translator::new(Settings::default())), updates, Reluctant::default());
    assert_eq!(recorded.write(1).await.len(), 2, "the class and what is left");
    assert_eq!(recorded.generated(), ["h"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_needed_before_translation_panicked_is_needed_no_longer_by_itself() {
    let poison = gateway("poison", "192.0.2.2");
    let remove = Change::Delete(poison.key());
    let batches = [
        vec![class(), gateway_with_certificate("one")],
        vec![gateway_with_certificate("two")],
        vec![poison],
        vec![remove, gateway_with_certificate("three")],
    ];
    let updates = batches.into_iter().map(|changes| Update { changes, ..Update::default() });
    let needed = Arc::default();
    let source = Following { updates: Scripted(updates.collect()), needed: Arc::clone(&needed) };
    let (translator, recorded) = (Fragile(Translator::new(Settings::default())), Recorded::default());
    let mut applier = Applier::new(source, translator, Reluctant::default(), recorded.clone());
    let state = applier.state();
    tokio::spawn(async move { applier.run().await });
    state.clone().wait_for(|state| state.applied == 3).await.unwrap();
    let three = ObjectKey::new(Kind::Secret, ObjectName::new("default", "three"));
    assert_eq!(*needed.lock().unwrap(), [three].into());
}

#[tokio::test(start_paused = true)]
async fn everything_is_told_only_after_the_statuses_of_everything_that_could_be_translated() {
    let update = |changes, is_complete| Update { changes, is_complete, ..Update::default() };
    let poison = gateway("poison", "192.0.2.2");
    let remove = Change::Delete(poison.key());
    let updates = [
        update(vec![class(), gateway("remembered", "192.0.2.1")], false),
        update(vec![poison], true),
        update(vec![remove], false),
    ];
    let translator = Fragile(Translator::new(Settings::default()));
    let (recorded, _) = start_saying(translator, updates.into(), Reluctant::default());
    assert_eq!(recorded.completed().await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_draft_is_translated_and_neither_served_nor_reported() {
    let draft =
        Update { changes: vec![class(), gateway("g", "192.0.2.1")], is_draft: true, ..Update::default() };
    let rest = Update { is_complete: true, ..Update::default() };
    let translator = Translator::new(Settings::default());
    let (recorded, state) = start_saying(translator, [draft, rest].into(), Reluctant::default());
    assert_eq!(recorded.completed().await, 1, "one report, of all of it");
    assert_eq!(recorded.write(0).await.len(), 2);
    assert_eq!((state.borrow().snapshot.frontends.len(), state.borrow().applied), (1, 1));
}

fn set_without_gateway(name: &str) -> Change {
    set(
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet", "metadata": {"name": name, "uid": name},
        "spec": {"parentRef": {"name": "none"}, "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}}),
    )
}

fn unreported(state: &watch::Receiver<State>) -> Vec<String> {
    state.borrow().unreported.iter().map(|(key, _)| key.name.name.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn problems_of_a_draft_are_in_the_state_with_the_first_that_is_served() {
    let update = |changes, is_draft| Update { changes, is_draft, ..Update::default() };
    let updates = [
        update(vec![class(), set_without_gateway("lasting"), set_without_gateway("passing")], true),
        update(vec![Change::Delete(set_without_gateway("passing").key())], false),
    ];
    let translator = Translator::new(Settings::default());
    let (_recorded, mut state) = start_saying(translator, updates.into(), Reluctant::default());
    state.wait_for(|state| state.applied == 1).await.unwrap();
    assert_eq!(unreported(&state), ["lasting"]);
}

#[tokio::test(start_paused = true)]
async fn problems_that_went_with_a_panic_are_not_in_the_state_after_it() {
    let poison = gateway("poison", "192.0.2.2");
    let remove = vec![Change::Delete(poison.key())];
    let gone = Change::Delete(set_without_gateway("passing").key());
    let batches =
        [vec![set_without_gateway("lasting"), set_without_gateway("passing")], vec![poison, gone], remove];
    let updates = batches.into_iter().map(|changes| Update { changes, ..Update::default() });
    let translator = Fragile(Translator::new(Settings::default()));
    let (_recorded, mut state) = start_saying(translator, updates.collect(), Reluctant::default());
    state.wait_for(|state| state.applied == 2).await.unwrap();
    assert_eq!(unreported(&state), ["lasting"]);
}

/// Refuses every listener for good, and counts how often it is asked.
#[derive(Clone, Default)]
struct Unable(Arc<Mutex<u32>>);

impl DataPlane for Unable {
    async fn apply(&mut self, snapshot: Arc<Snapshot>) -> Acknowledgement {
        *self.0.lock().unwrap() += 1;
        let listeners = snapshot.frontends.iter().flat_map(|(frontend, port)| {
            port.listeners.iter().map(|listener| ((*frontend, listener.id.clone()), "not served".to_owned()))
        });
        Acknowledgement { refused: Unserved { listeners: listeners.collect(), ..Unserved::default() } }
    }
}

#[tokio::test(start_paused = true)]
async fn listeners_that_are_refused_for_good_are_not_asked_for_again() {
    let changes = vec![class(), gateway("g", "192.0.2.1")];
    let updates = VecDeque::from([Update { changes, is_complete: true, ..Update::default() }]);
    let (recorded, asked) = (Recorded::default(), Unable::default());
    let mut applier = Applier::new(
        Scripted(updates),
        Translator::new(Settings::default()),
        asked.clone(),
        recorded.clone(),
    );
    let state = applier.state();
    tokio::spawn(async move { applier.run().await });
    recorded.write(0).await;
    tokio::time::sleep(RETRY * 12).await;
    assert!(!state.borrow().refused.listeners.is_empty());
    assert_eq!(*asked.0.lock().unwrap(), 1);
}

/// A bridge that comes up while the agent runs: no other object says that it is the node's.
#[tokio::test(start_paused = true)]
async fn addresses_of_the_agents_own_network_are_no_backends_from_when_it_has_them() {
    let objects = [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "app"}, "spec": {"ports": [{"port": 80}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "app-1", "labels": {"kubernetes.io/service-name": "app"}},
            "ports": [{"port": 80}], "endpoints": [{"addresses": ["10.244.0.1", "10.244.0.8"]}]}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "r"},
            "spec": {"parentRefs": [{"name": "g"}], "rules": [{"backendRefs": [{"name": "app", "port": 80}]}]}}),
    ];
    let in_default = |mut manifest: Value| {
        manifest["metadata"]["namespace"] = "default".into();
        set(manifest)
    };
    let mut changes = vec![class(), gateway("g", "192.0.2.1")];
    changes.extend(objects.map(in_default));
    let endpoints = EndpointRule::Foreign { allowed: BTreeSet::new() };
    let translator = Translator::new(Settings { endpoints, ..Settings::default() });
    let updates = [Update { changes, is_complete: true, ..Update::default() }];
    let source = Scripted(updates.into());
    let (bridge, own) = watch::channel(Vec::new());
    let mut applier =
        Applier::new(source, translator, Reluctant::default(), Recorded::default()).forwarding_from(own);
    let mut state = applier.state();
    tokio::spawn(async move { applier.run().await });
    let mut served = async |count: usize| {
        let are_served = |state: &State| {
            state.snapshot.backends.iter().map(|(_, it)| it.endpoints.len()).sum::<usize>() == count
        };
        state.wait_for(are_served).await.unwrap();
    };
    served(2).await;
    bridge.send_replace(vec!["10.244.0.1".parse().unwrap()]);
    served(1).await;
    bridge.send_replace(Vec::new());
    served(2).await;
}

/// A tenant's ListenerSets can add and remove hundreds at a time.
#[tokio::test(start_paused = true)]
async fn frontends_that_come_and_go_are_no_flood() {
    let listeners =
        (1..=40).map(|at| json!({"name": format!("l{at}"), "port": 8000 + at, "protocol": "HTTP"}));
    let many = set(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "many", "namespace": "shop", "uid": "many"},
        "spec": {"gatewayClassName": "c", "addresses": [{"value": "192.0.2.1"}], "listeners": listeners.collect::<Vec<_>>()}}));
    let Change::Set(object) = &many else { unreachable!("set makes nothing else") };
    let gone = Change::Delete(object.key());
    let translator = Translator::new(Settings::default());
    let mut applier =
        Applier::new(Scripted(VecDeque::new()), translator, Reluctant::default(), Recorded::default());
    let update = |changes| Update { changes, is_complete: true, ..Update::default() };
    applier.step(update(vec![class(), many])).await;
    let served = applier.state.borrow().clone();
    applier.step(update(vec![gone])).await;
    assert!(applier.frontend_lines.due().is_some(), "lines are counted instead of written");

    let (none, mut refused) = (Acknowledgement::default(), Acknowledgement::default());
    let last = *served.snapshot.frontends.keys().next_back().unwrap();
    refused.refused.frontends.insert(last, "in use".to_owned());
    let lines = frontend_lines(&State::default(), &served.snapshot, &refused);
    assert_eq!((lines.len(), lines.iter().filter(|(namespace, _)| namespace == "shop").count()), (40, 40));
    let mut budget = Budget::default();
    let (written, more) = budget.cut(lines);
    assert!(matches!(written[0], FrontendLine::Refused(_)), "the most important comes first");
    assert_eq!((written.len(), more), (20, Some(20)));
    let (written, _) = budget.cut(frontend_lines(&served, &Snapshot::default(), &none));
    assert_eq!(written.len(), 0);
}

#[test]
fn frontends_of_tenants_leave_the_gateways_own_their_lines() {
    let gateway = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "main", "namespace": "infra", "uid": "main"},
        "spec": {"gatewayClassName": "c", "addresses": [{"value": "192.0.2.1"}],
            "allowedListeners": {"namespaces": {"from": "All"}},
            "listeners": [{"name": "own", "port": 9000, "protocol": "HTTP"}]}});
    let tenants = (1..=60).map(|at| {
        set(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"name": format!("l{at}"), "namespace": format!("t{}", at % 3), "uid": format!("l{at}")},
            "spec": {"parentRef": {"name": "main", "namespace": "infra"},
                "listeners": [{"name": "a", "port": 8000 + at, "protocol": "HTTP"}]}}))
    });
    let mut translator = Translator::new(Settings::default());
    let outcome = translator.apply([class(), set(gateway)].into_iter().chain(tenants).collect());
    let lines = frontend_lines(&State::default(), &outcome.snapshot, &Acknowledgement::default());
    let count = |of: &str| lines.iter().filter(|(namespace, _)| namespace == of).count();
    assert_eq!((count("infra"), count("t0"), count("t1")), (1, 20, 20));
    let (written, _) = Budget::default().cut(lines);
    let FrontendLine::Changed(first) = &written[0] else { panic!("nothing is refused") };
    assert!(first.contains("9000"), "{first}");
}
