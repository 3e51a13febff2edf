//! Whatever changes in whatever order: following the changes comes to the same as translating what
//! is left from scratch.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_gateway::infra::{GeneratedKind, Wanted};
use portcullis_gateway::{
    AgentRole, Change, Kind, Object, ObjectKey, Objects, Outcome, Settings, Translator, dump_status,
};
use portcullis_inspect::dump_snapshot;
use portcullis_model::ObjectName;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::support;

const NAMESPACES: [&str; 3] = ["infra", "a", "b"];
const HOSTNAMES: [&str; 4] = ["a.example", "*.a.example", "b.example", "x.a.example"];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn following_changes_is_translating_from_scratch(
        batches in prop::collection::vec(prop::collection::vec(change(), 1..6), 1..14),
    ) {
        let mut translator = Translator::new(support::settings());
        let mut told = Map::new();
        let mut wanted = BTreeMap::new();
        let mut needs = BTreeSet::new();
        let mut objects = Objects::default();
        for change in support::base().into_iter().map(Change::Set) {
            objects.apply(change.clone());
            translator.apply(vec![change]);
        }
        for batch in batches {
            for change in &batch {
                objects.apply(change.clone());
            }
            let outcome = translator.apply(batch);
            for key in outcome.forgotten.iter().chain(outcome.orphaned.keys()) {
                told.remove(&key.to_string());
            }
            for (key, status) in &outcome.statuses {
                told.insert(key.to_string(), dump_status(status));
            }
            follow(&mut wanted, outcome.generated);
            needs = outcome.needs.unwrap_or(needs);
            let (scratch, all) = from_scratch(&objects);
            prop_assert_eq!(&needs, &all.needs.unwrap_or_default());
            let mut wanted_now = BTreeMap::new();
            follow(&mut wanted_now, all.generated);
            prop_assert_eq!(&wanted, &wanted_now);
            for wanted in wanted_now.values().filter(|wanted| wanted.object(GeneratedKind::Deployment).is_some()) {
                prop_assert_eq!(readable(wanted), needed_by_pods(&wanted.gateway, &objects));
            }
            prop_assert_eq!(text(&view(&translator)), text(&view(&scratch)));
            // A reader of the changes alone knows as much.
            told.retain(|name, _| !name.starts_with("GatewayClass"));
            let mut statuses = statuses(&scratch);
            statuses.retain(|name, _| !name.starts_with("GatewayClass"));
            prop_assert_eq!(text(&Value::Object(told.clone())), text(&Value::Object(statuses)));
        }
    }
}

fn from_scratch(objects: &Objects) -> (Translator, Outcome) {
    let mut translator = Translator::new(support::settings());
    let outcome = translator.apply(objects.iter().map(Change::Set).collect());
    (translator, outcome)
}

fn follow(wanted: &mut BTreeMap<ObjectName, Wanted>, changed: BTreeMap<ObjectName, Option<Wanted>>) {
    for (gateway, now) in changed {
        match now {
            Some(now) => drop(wanted.insert(gateway, now)),
            None => drop(wanted.remove(&gateway)),
        }
    }
}

/// The Secrets that a pod of the Gateway asks for.
fn needed_by_pods(gateway: &ObjectName, objects: &Objects) -> BTreeSet<ObjectName> {
    let role = AgentRole::Dedicated(gateway.clone());
    let mut translator = Translator::new(Settings { role, ..support::settings() });
    let needs = translator.apply(objects.iter().map(Change::Set).collect()).needs.unwrap_or_default();
    needs.into_iter().filter(|key| key.kind == Kind::Secret).map(|key| key.name).collect()
}

/// The Secrets that the generated Roles name.
fn readable(wanted: &Wanted) -> BTreeSet<ObjectName> {
    let roles = wanted.objects().iter().filter(|object| object.kind == GeneratedKind::Role);
    let secrets = roles.flat_map(|role| {
        let names = role.manifest["rules"][0]["resourceNames"].as_array().unwrap();
        names.iter().map(move |name| ObjectName::new(role.name().namespace, name.as_str().unwrap()))
    });
    secrets.collect()
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

// === random changes ===

fn change() -> impl Strategy<Value = Change> {
    (any::<prop::sample::Selector>(), 0..8u8, any::<u64>()).prop_map(|(selector, fate, seed)| {
        let object = object(selector.select(0..11u8), &mut Dice(seed));
        if fate == 0 { Change::Delete(object.key()) } else { Change::Set(object) }
    })
}

/// Numbers from a seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.roll(from.len() as u64)).unwrap()]
    }

    fn maybe(&mut self, value: impl FnOnce(&mut Self) -> Value) -> Value {
        if self.roll(2) == 0 { Value::Null } else { value(self) }
    }
}

fn object(kind: u8, dice: &mut Dice) -> Object {
    let namespace = dice.pick(&NAMESPACES);
    let manifest = match kind {
        0 | 1 => gateway(namespace, dice),
        2 | 3 => listener_set(namespace, dice),
        4..=6 => route(namespace, dice),
        7 => secret(namespace, dice),
        8 => dice.pick(&[service as fn(&str, &mut Dice) -> Value, slice])(namespace, dice),
        9 => grant(namespace, dice),
        _ => dice.pick(&[labels as fn(&str, &mut Dice) -> Value, class, parameters])(namespace, dice),
    };
    support::object(without_nulls(manifest))
}

fn gateway(namespace: &str, dice: &mut Dice) -> Value {
    let name = dice.pick(&["one", "two"]);
    let infrastructure = match dice.roll(5) {
        2 => json!({"parametersRef": {"group": "portcullis.dev", "kind": "GatewayParameters", "name": "p"}}),
        0 => json!({"allowedChildren": {"namespaces": from(dice)}}),
        1 => json!({"attachTo": {"name": dice.pick(&["one", "two"]), "namespace": dice.pick(&NAMESPACES)}}),
        _ => Value::Null,
    };
    let addresses = match dice.roll(6) {
        0 => json!([{"value": "192.0.2.9"}]),
        1 => json!([{"type": "Hostname", "value": "x.example"}]),
        _ => Value::Null,
    };
    let spec = json!({
        "gatewayClassName": dice.pick(&["portcullis", "portcullis", "second"]),
        "infrastructure": infrastructure,
        "addresses": addresses,
        "allowedListeners": {"namespaces": from(dice)},
        "listeners": listeners(dice),
    });
    let mut gateway =
        manifest("gateway.networking.k8s.io/v1", "Gateway", namespace, name, dice, json!({"spec": spec}));
    gateway["metadata"]["uid"] = json!(format!("{namespace}-{name}"));
    gateway
}

fn listener_set(namespace: &str, dice: &mut Dice) -> Value {
    let name = dice.pick(&["s", "t"]);
    let parent = json!({"name": dice.pick(&["one", "two"]), "namespace": dice.pick(&NAMESPACES)});
    let spec = json!({"parentRef": parent, "listeners": listeners(dice)});
    manifest("gateway.networking.k8s.io/v1", "ListenerSet", namespace, name, dice, json!({"spec": spec}))
}

fn listeners(dice: &mut Dice) -> Value {
    let count = dice.roll(3);
    (0..count).map(|at| listener(at, dice)).collect()
}

fn listener(at: u64, dice: &mut Dice) -> Value {
    let protocol = dice.pick(&["HTTP", "HTTP", "HTTPS", "TCP"]);
    let reference = json!({"name": dice.pick(&["c", "d"]), "namespace": dice.maybe(|dice| json!(dice.pick(&NAMESPACES)))});
    json!({
        "name": format!("l{at}"),
        "port": dice.pick(&[80, 443]),
        "protocol": protocol,
        "hostname": dice.maybe(|dice| json!(dice.pick(&HOSTNAMES))),
        "tls": if protocol == "HTTPS" { json!({"certificateRefs": [reference]}) } else { Value::Null },
        "allowedRoutes": dice.maybe(|dice| json!({"namespaces": from(dice)})),
    })
}

fn from(dice: &mut Dice) -> Value {
    match dice.pick(&["All", "All", "Same", "None", "Selector"]) {
        "Selector" => {
            json!({"from": "Selector", "selector": {"matchLabels": {"team": dice.pick(&["x", "y"])}}})
        }
        from => json!({"from": from}),
    }
}

fn route(namespace: &str, dice: &mut Dice) -> Value {
    let name = dice.pick(&["r", "q"]);
    let parents: Vec<_> = (0..=dice.roll(2)).map(|_| parent_ref(dice)).collect();
    let backend = json!({"name": dice.pick(&["v", "w"]), "port": 80, "namespace": dice.maybe(|dice| json!(dice.pick(&NAMESPACES)))});
    let path = json!({"type": "PathPrefix", "value": dice.pick(&["/", "/x"])});
    let spec = json!({
        "parentRefs": parents,
        "hostnames": dice.maybe(|dice| json!([dice.pick(&HOSTNAMES)])),
        "rules": [{"matches": [{"path": path}], "backendRefs": [backend]}],
    });
    manifest("gateway.networking.k8s.io/v1", "HTTPRoute", namespace, name, dice, json!({"spec": spec}))
}

fn parent_ref(dice: &mut Dice) -> Value {
    let set = dice.roll(2) == 0;
    json!({
        "kind": if set { "ListenerSet" } else { "Gateway" },
        "name": if set { dice.pick(&["s", "t"]) } else { dice.pick(&["one", "two"]) },
        "namespace": dice.pick(&NAMESPACES),
        "sectionName": dice.maybe(|dice| json!(dice.pick(&["l0", "l1"]))),
    })
}

fn secret(namespace: &str, dice: &mut Dice) -> Value {
    let name = dice.pick(&["c", "d"]);
    let (certificate, key) =
        (dice.pick(&["file:a.crt", "file:b.crt"]), dice.pick(&["file:a.key", "file:b.key"]));
    let r#type = dice.pick(&["kubernetes.io/tls", "kubernetes.io/tls", "Opaque"]);
    let data = json!({"type": r#type, "stringData": {"tls.crt": certificate, "tls.key": key}});
    manifest("v1", "Secret", namespace, name, dice, data)
}

fn service(namespace: &str, dice: &mut Dice) -> Value {
    let name = dice.pick(&["v", "w"]);
    let spec = json!({"ports": [{"port": dice.pick(&[80, 80, 81])}]});
    manifest("v1", "Service", namespace, name, dice, json!({"spec": spec}))
}

fn slice(namespace: &str, dice: &mut Dice) -> Value {
    let (name, service) = (dice.pick(&["v-1", "v-2"]), dice.pick(&["v", "w"]));
    let endpoint = json!({"addresses": [format!("10.0.0.{}", dice.roll(5))]});
    let endpoints = json!({"addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": [endpoint]});
    let mut slice = manifest("discovery.k8s.io/v1", "EndpointSlice", namespace, name, dice, endpoints);
    slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": service});
    slice
}

fn grant(namespace: &str, dice: &mut Dice) -> Value {
    let from = json!({"group": "gateway.networking.k8s.io", "kind": dice.pick(&["Gateway", "ListenerSet", "HTTPRoute"]),
        "namespace": dice.pick(&NAMESPACES)});
    let spec = json!({"from": [from], "to": [{"group": "", "kind": dice.pick(&["Secret", "Service"])}]});
    manifest("gateway.networking.k8s.io/v1", "ReferenceGrant", namespace, "g", dice, json!({"spec": spec}))
}

fn labels(namespace: &str, dice: &mut Dice) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": namespace, "labels": {"team": dice.pick(&["x", "y"])}}})
}

fn class(_: &str, dice: &mut Dice) -> Value {
    let controller = dice.pick(&["portcullis.dev/gateway", "portcullis.dev/gateway", "example.com/other"]);
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": dice.pick(&["portcullis", "second"])}, "spec": {"controllerName": controller}})
}

fn parameters(namespace: &str, dice: &mut Dice) -> Value {
    let limits = json!({"connections": dice.maybe(|dice| json!(dice.roll(3)))});
    json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayParameters",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"limits": limits, "accessLog": dice.maybe(|dice| json!({"enabled": dice.roll(2) == 0})), "hostPorts": dice.maybe(|_| json!(true)),
            "mode": dice.maybe(|_| json!("Dedicated"))}})
}

fn manifest(version: &str, kind: &str, namespace: &str, name: &str, dice: &mut Dice, rest: Value) -> Value {
    let mut manifest = rest;
    let created = format!("2026-01-01T00:00:0{}Z", dice.roll(3));
    manifest["apiVersion"] = json!(version);
    manifest["kind"] = json!(kind);
    manifest["metadata"] = json!({"name": name, "namespace": namespace, "creationTimestamp": created,
        "generation": dice.roll(3)});
    manifest
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, without_nulls(value)))
            .collect(),
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

#[test]
fn deleting_everything_leaves_nothing() {
    let mut translator = Translator::new(support::settings());
    let mut dice = Dice(7);
    let objects: Vec<_> =
        (0..40).map(|at| object((at % 11) as u8, &mut Dice(at * 0x9E37_79B9 + dice.roll(97)))).collect();
    translator.apply(support::base().into_iter().chain(objects.clone()).map(Change::Set).collect());
    let class = ObjectKey::new(Kind::GatewayClass, portcullis_gateway_class());
    let keys = objects.iter().map(Object::key).chain([class]);
    translator.apply(keys.map(Change::Delete).collect());
    assert_eq!(
        view(&translator),
        json!({"snapshot": {"frontends": {}, "backends": {}}, "statuses": {}, "problems": {}})
    );
}

fn portcullis_gateway_class() -> portcullis_model::ObjectName {
    portcullis_model::ObjectName::new("", "portcullis")
}
