//! Whatever changes in whatever order: following the changes comes to the same as translating what
//! is left from scratch.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use portcullis_api::{Change, Kind, Object, ObjectKey, Objects};
use portcullis_gateway::infra::{DesiredObjects, GeneratedKind};
use portcullis_gateway::{AgentRole, Feedback, Outcome, Settings, Translator, dump_status};
use portcullis_inspect::dump_snapshot;
use portcullis_model::ObjectName;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::random::{ADDRESSES, Assigned, Dice, KINDS, change, feedback, object};
use crate::support;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn following_changes_is_translating_from_scratch(
        steps in prop::collection::vec((prop::collection::vec(change(), 1..6), feedback()), 1..14),
    ) {
        let mut translator = Translator::new(support::settings());
        let (mut objects, mut observed) = (Objects::default(), Observed::default());
        let mut followed = Followed::default();
        for change in support::base().into_iter().map(Change::Set) {
            objects.apply(change.clone());
            prop_assert!(followed.follow(translator.apply(vec![change])));
        }
        for (changes, feedback) in steps {
            for feedback in feedback {
                observed.note(feedback.clone());
                translator.observe(feedback);
            }
            for change in &changes {
                objects.apply(change.clone());
            }
            prop_assert!(followed.follow(translator.apply(changes)));
            let (scratch, all) = from_scratch(&objects, &observed);
            let mut afresh = Followed::default();
            prop_assert!(afresh.follow(all));
            for desired in afresh.desired.values().filter(|it| it.object(GeneratedKind::Deployment).is_some()) {
                prop_assert_eq!(readable(desired), needed_by_pods(&desired.gateway, &objects));
            }
            prop_assert_eq!(text(&view(&translator)), text(&view(&scratch)));
            // A reader of the changes alone knows as much.
            prop_assert_eq!(&followed.needs, &afresh.needs);
            prop_assert_eq!(&followed.desired, &afresh.desired);
            prop_assert_eq!(&followed.problems, &afresh.problems);
            prop_assert_eq!(text(&Value::Object(followed.statuses.clone())), text(&Value::Object(afresh.statuses)));
            prop_assert_eq!(&afresh.problems, scratch.problems());
        }
    }
}

/// All that outcomes said so far, the latest of everything.
#[derive(Default)]
struct Followed {
    statuses: Map<String, Value>,
    desired: BTreeMap<ObjectName, DesiredObjects>,
    needs: BTreeSet<ObjectKey>,
    problems: BTreeMap<ObjectKey, Vec<String>>,
}

impl Followed {
    /// Returns whether all that is said to be new was so, and all that is gone was there.
    fn follow(&mut self, outcome: Outcome) -> bool {
        for key in outcome.forgotten.iter().chain(outcome.orphaned.keys()) {
            self.statuses.remove(&key.to_string());
        }
        for (key, status) in &outcome.statuses {
            self.statuses.insert(key.to_string(), dump_status(status));
        }
        for (gateway, now) in outcome.generated {
            match now {
                Some(now) => drop(self.desired.insert(gateway, now)),
                None => drop(self.desired.remove(&gateway)),
            }
        }
        let mut is_consistent = outcome.needs.removed.iter().all(|key| self.needs.remove(key));
        is_consistent &= outcome.needs.added.into_iter().all(|key| self.needs.insert(key));
        for (key, now) in outcome.problems {
            let before = self.problems.remove(&key).unwrap_or_default();
            is_consistent &= before != now;
            if !now.is_empty() {
                self.problems.insert(key, now);
            }
        }
        is_consistent
    }
}

/// All that was observed so far, the latest of each kind.
#[derive(Default)]
struct Observed {
    assigned: Assigned,
    others: [Option<Feedback>; 9],
}

impl Observed {
    fn note(&mut self, feedback: Feedback) {
        match feedback {
            Feedback::Assigned(assigned) => self.assigned.extend(assigned),
            Feedback::Unserved(_) => self.others[0] = Some(feedback),
            Feedback::Unprovisioned(_) => self.others[1] = Some(feedback),
            Feedback::KeptCertificates(_) => self.others[2] = Some(feedback),
            Feedback::NodeAddresses(_) => self.others[3] = Some(feedback),
            Feedback::ApiServer(_) => self.others[4] = Some(feedback),
            Feedback::Unread(_) => self.others[5] = Some(feedback),
            Feedback::OwnAddresses(_) => self.others[6] = Some(feedback),
            Feedback::Names(_) => self.others[7] = Some(feedback),
            Feedback::Agents(_) => self.others[8] = Some(feedback),
        }
    }
}

fn from_scratch(objects: &Objects, observed: &Observed) -> (Translator, Outcome) {
    let mut translator = Translator::new(support::settings());
    if !observed.assigned.is_empty() {
        translator.observe(Feedback::Assigned(observed.assigned.clone()));
    }
    observed.others.iter().flatten().for_each(|feedback| translator.observe(feedback.clone()));
    let outcome = translator.apply(objects.iter().map(Change::Set).collect());
    (translator, outcome)
}

/// The Secrets and ConfigMaps that a pod of the Gateway asks for.
fn needed_by_pods(gateway: &ObjectName, objects: &Objects) -> BTreeSet<ObjectKey> {
    let role = AgentRole::Dedicated(gateway.clone());
    let mut translator = Translator::new(Settings { role, ..support::settings() });
    let needs = translator.apply(objects.iter().map(Change::Set).collect()).needs;
    needs.added.into_iter().filter(|key| matches!(key.kind, Kind::Secret | Kind::ConfigMap)).collect()
}

/// The Secrets and ConfigMaps that the generated Roles name.
fn readable(desired: &DesiredObjects) -> BTreeSet<ObjectKey> {
    let roles = desired.objects().iter().filter(|object| object.kind == GeneratedKind::Role);
    let rules = roles.flat_map(|role| {
        let rules = role.manifest["rules"].as_array().unwrap();
        rules.iter().map(move |rule| (role.name().namespace, rule))
    });
    let named = rules.flat_map(|(namespace, rule)| {
        let is_secret = rule["resources"] == json!(["secrets"]);
        let kind = if is_secret { Kind::Secret } else { Kind::ConfigMap };
        let names = rule["resourceNames"].as_array().unwrap();
        names
            .iter()
            .map(move |name| ObjectKey::new(kind, ObjectName::new(namespace.clone(), name.as_str().unwrap())))
    });
    named.collect()
}

fn view(translator: &Translator) -> Value {
    let problems = translator.problems().iter().map(|(key, problems)| (key.to_string(), json!(problems)));
    let problems: Map<_, _> = problems.collect();
    json!({"snapshot": dump_snapshot(translator.snapshot()), "statuses": statuses(translator), "problems": problems})
}

fn statuses(translator: &Translator) -> Map<String, Value> {
    translator.statuses().iter().map(|(key, status)| (key.to_string(), dump_status(status))).collect()
}

fn text(value: &Value) -> String {
    support::to_yaml(value)
}

#[test]
fn deleting_everything_leaves_nothing() {
    let mut translator = Translator::new(support::settings());
    let mut dice = Dice(7);
    let objects: Vec<_> = (0..40)
        .map(|at| object((at % u64::from(KINDS)) as u8, &mut Dice(at * 0x9E37_79B9 + dice.roll(97))))
        .collect();
    translator.apply(support::base().into_iter().chain(objects.clone()).map(Change::Set).collect());
    let class = ObjectKey::new(Kind::GatewayClass, portcullis_gateway_class());
    let keys = objects.iter().map(Object::key).chain([class]);
    translator.apply(keys.map(Change::Delete).collect());
    assert_eq!(
        view(&translator),
        json!({"snapshot": {"frontends": {}, "backends": {}}, "statuses": {}, "problems": {}})
    );
}

/// Snapshots without limits that are shared do without it.
#[test]
fn agents_know_their_number_and_pods_that_of_their_gateway() {
    let gateway = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "one", "namespace": "infra"},
        "spec": {"gatewayClassName": "portcullis", "listeners": [{"name": "l", "port": 80, "protocol": "HTTP"}],
            "infrastructure": {"parametersRef":
                {"group": "portcullis.dev", "kind": "GatewayParameters", "name": "pods"}}}});
    let parameters = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayParameters",
        "metadata": {"name": "pods", "namespace": "infra"},
        "spec": {"mode": "Dedicated", "dedicated": {"replicas": 4}}});
    let policy = support::object(json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "TrafficPolicy",
        "metadata": {"name": "shared", "namespace": "infra"},
        "spec": {"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "one"}],
            "rateLimits": [{"requests": 1, "per": "Hour", "scope": "Cluster"}]}}));
    let objects: Vec<_> =
        support::base().into_iter().chain([gateway, parameters].map(support::object)).collect();
    let one = ObjectName::new("infra", "one");
    for (role, number) in [(AgentRole::Node, 3), (AgentRole::Dedicated(one), 4)] {
        let mut translator = Translator::new(Settings { role, ..support::settings() });
        translator.observe(Feedback::Agents(NonZeroU32::new(3)));
        let mut agents = |change: Vec<Change>| translator.apply(change).snapshot.agents.map(NonZeroU32::get);
        assert_eq!(agents(objects.iter().cloned().map(Change::Set).collect()), None);
        assert_eq!(agents(vec![Change::Set(policy.clone())]), Some(number));
        assert_eq!(agents(vec![Change::Delete(policy.key())]), None);
    }
}

#[test]
fn a_deleted_service_takes_the_clusters_address_along() {
    let gateway = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "one", "namespace": "infra", "uid": "infra-one"},
        "spec": {"gatewayClassName": "portcullis", "listeners": [{"name": "l", "port": 80, "protocol": "HTTP"}]}});
    let owner = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "one",
        "uid": "infra-one", "controller": true});
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "one-portcullis", "namespace": "infra", "ownerReferences": [owner],
            "labels": {"app.kubernetes.io/managed-by": "portcullis"}},
        "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"]},
        "status": {"loadBalancer": {"ingress": [{"ip": ADDRESSES[0], "ipMode": "Proxy"}]}}});
    let objects = support::base().into_iter().chain([gateway, service].map(support::object));
    let service = ObjectKey::new(Kind::Service, ObjectName::new("infra", "one-portcullis"));
    let mut translator = Translator::new(support::settings());
    let assigned = [ADDRESSES[0].parse().unwrap()].into_iter().collect();
    translator.observe(Feedback::Assigned([(ObjectName::new("infra", "one"), assigned)].into()));
    let frontends = |outcome: &Outcome| -> Vec<_> {
        outcome.snapshot.frontends.keys().map(ToString::to_string).collect()
    };
    let there = translator.apply(objects.map(Change::Set).collect());
    assert_eq!(frontends(&there), ["tcp/10.96.0.1:80"]);
    let gone = translator.apply(vec![Change::Delete(service)]);
    assert_eq!(frontends(&gone), ["tcp/192.0.2.9:80"]);
}

fn portcullis_gateway_class() -> ObjectName {
    ObjectName::new("", "portcullis")
}
