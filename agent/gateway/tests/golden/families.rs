//! Random parents and children, changed in random order: following the changes comes to the same as
//! starting from scratch, statuses and printed routes included.

use std::collections::BTreeMap;

use portcullis_api::{Change, Object, Objects};
use portcullis_gateway::delegate::Names;
use portcullis_gateway::{Grants, Outcome, Translator, dump_status};
use portcullis_inspect::dump_snapshot;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support;

const NAMESPACES: [&str; 2] = ["gw", "shop"];
const ROUTES: [&str; 3] = ["a", "b", "c"];
const GROUP: &str = "gateway.networking.k8s.io";

fn one_of<T: Clone + std::fmt::Debug + 'static>(values: &[T]) -> impl Strategy<Value = T> + use<T> {
    prop::sample::select(values.to_vec())
}

fn route_ref() -> impl Strategy<Value = Value> {
    (one_of(&NAMESPACES), one_of(&ROUTES), prop::option::weighted(0.3, one_of(&["r0", "r1"]))).prop_map(
        |(namespace, name, section)| {
            let mut reference =
                json!({"group": GROUP, "kind": "HTTPRoute", "namespace": namespace, "name": name});
            section.into_iter().for_each(|section| reference["sectionName"] = json!(section));
            reference
        },
    )
}

fn parent_ref() -> impl Strategy<Value = Value> {
    prop_oneof![Just(json!({"name": "edge", "namespace": "gw"})), route_ref()]
}

fn listed() -> impl Strategy<Value = Value> {
    (one_of(&NAMESPACES), one_of(&["a", "b", "c", "*"])).prop_map(|(namespace, name)| {
        json!({"backendRefs": [{"group": GROUP, "kind": "HTTPRoute", "namespace": namespace, "name": name}]})
    })
}

fn serving() -> impl Strategy<Value = Value> {
    let selector = json!({"from": "Selector", "selector": {"matchLabels": {"team": "x"}}});
    prop_oneof![
        3 => one_of(&["v", "w"]).prop_map(|name| json!({"backendRefs": [{"name": name, "port": 80}]})),
        2 => one_of(&[json!({"from": "All"}), json!({"from": "Same"}), selector])
            .prop_map(|namespaces| json!({"allowedRoutes": {"namespaces": namespaces}})),
        1 => listed(),
    ]
}

fn rules() -> impl Strategy<Value = Value> {
    let matched = (one_of(&["Exact", "PathPrefix"]), one_of(&["/", "/x", "/y"]));
    prop::collection::vec((matched, serving()), 1..3).prop_map(|rules| {
        let rules = rules.into_iter().enumerate().map(|(at, ((r#type, path), mut rule))| {
            rule["name"] = json!(format!("r{at}"));
            rule["matches"] = json!([{"path": {"type": r#type, "value": path}}]);
            rule
        });
        rules.collect()
    })
}

fn route() -> impl Strategy<Value = Value> {
    let hosts = one_of(&[json!([]), json!(["a.example"]), json!(["*.example"])]);
    let scope = one_of(&["All", "None", "None"]);
    let parents = prop::collection::vec(parent_ref(), 0..3);
    let route = (one_of(&NAMESPACES), one_of(&ROUTES), parents, scope, hosts, rules()).prop_map(
        |(namespace, name, parent_refs, scope, hostnames, rules)| {
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
                "metadata": {"namespace": namespace, "name": name},
                "spec": {"parentRefs": parent_refs, "useDefaultGateways": scope, "hostnames": hostnames, "rules": rules}})
        },
    );
    (route, one_of(&["HTTPRoute", "HTTPRoute", "HTTPRoute", "GRPCRoute"]))
        .prop_map(|(route, kind)| if kind == "GRPCRoute" { grpc(&route) } else { route })
}

/// The route as a GRPCRoute, with relatives of that kind, too.
fn grpc(route: &Value) -> Value {
    let mut route: Value =
        serde_json::from_str(&route.to_string().replace("HTTPRoute", "GRPCRoute")).unwrap();
    for rule in route["spec"]["rules"].as_array_mut().unwrap() {
        let service = match rule["matches"][0]["path"]["value"].as_str() {
            Some("/x") => "x",
            _ => "y",
        };
        rule["matches"] = json!([{"method": {"service": service}}]);
    }
    route
}

fn surroundings() -> impl Strategy<Value = Value> {
    let from =
        ["HTTPRoute", "GRPCRoute"].map(|kind| json!({"group": GROUP, "kind": kind, "namespace": "gw"}));
    let to = ["HTTPRoute", "GRPCRoute"].map(|kind| json!({"group": GROUP, "kind": kind}));
    prop_oneof![
        one_of(&["x", "y"]).prop_map(|team| json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "shop", "labels": {"team": team}}})),
        Just(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
            "metadata": {"name": "g", "namespace": "shop"}, "spec": {"from": from, "to": to}})),
        (one_of(&NAMESPACES), one_of(&["v", "w"]))
            .prop_map(|(namespace, name)| json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": namespace}, "spec": {"ports": [{"port": 80}]}})),
        (one_of(&NAMESPACES), one_of(&["v", "w"])).prop_map(|(namespace, name)| {
            let target = json!({"group": "", "kind": "Service", "name": name});
            let validation = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
                "metadata": {"name": "p", "namespace": namespace},
                "spec": {"targetRefs": [target], "validation": validation}})
        }),
        one_of(&[json!(null), json!("a.example")]).prop_map(|hostname| {
            let mut listener = json!({"name": "http", "port": 80, "protocol": "HTTP",
                "allowedRoutes": {"namespaces": {"from": "Same"}}});
            hostname.as_str().into_iter().for_each(|hostname| listener["hostname"] = json!(hostname));
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": "edge", "namespace": "gw"},
                "spec": {"gatewayClassName": "portcullis", "listeners": [listener]}})
        }),
    ]
}

/// As JSON, so that a counterexample can be read.
fn change() -> impl Strategy<Value = (Value, bool)> {
    let manifest = prop_oneof![3 => route().boxed(), 1 => surroundings().boxed()];
    (manifest, prop::bool::weighted(0.8))
}

fn to_change((manifest, keep): (Value, bool)) -> Change {
    let object: Object = support::object(manifest);
    if keep { Change::Set(object) } else { Change::Delete(object.key()) }
}

/// The ephemeral routes of all outcomes, the latest of each parent.
#[derive(Default)]
struct Latest {
    ephemeral: BTreeMap<String, Value>,
}

impl Latest {
    fn follow(&mut self, outcome: &Outcome) {
        for (key, family) in &outcome.ephemeral {
            match family {
                Some(family) => {
                    let objects = family.objects(&mut Names::default(), Grants::new(&Objects::default()));
                    self.ephemeral.insert(key.to_string(), objects.into())
                }
                None => self.ephemeral.remove(&key.to_string()),
            };
        }
    }
}

fn view(translator: &Translator) -> Value {
    let statuses = translator.statuses();
    let statuses = statuses.iter().map(|(key, status)| (key.to_string(), dump_status(status)));
    json!({"snapshot": dump_snapshot(translator.snapshot()), "statuses": statuses.collect::<BTreeMap<_, _>>()})
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn following_families_is_translating_from_scratch(
        batches in prop::collection::vec(prop::collection::vec(change(), 1..5), 1..12),
    ) {
        let mut translator = Translator::new(support::settings());
        let (mut latest, mut objects) = (Latest::default(), Objects::default());
        for change in support::base().into_iter().map(Change::Set) {
            objects.apply(change.clone());
            translator.apply(vec![change]);
        }
        for batch in batches {
            let batch: Vec<_> = batch.into_iter().map(to_change).collect();
            for change in &batch {
                objects.apply(change.clone());
            }
            latest.follow(&translator.apply(batch));
            let mut scratch = Translator::new(support::settings());
            let mut afresh = Latest::default();
            afresh.follow(&scratch.apply(objects.iter().map(Change::Set).collect()));
            prop_assert_eq!(support::to_yaml(&view(&translator)), support::to_yaml(&view(&scratch)));
            prop_assert_eq!(&latest.ephemeral, &afresh.ephemeral);
        }
    }
}
