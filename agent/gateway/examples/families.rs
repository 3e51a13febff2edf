//! Measures how long translation takes with many child routes: `cargo run --release --example
//! families -p portcullis-gateway [parents] [children-per-parent]`. Every parent has a host of its
//! own; a tenth of each one's children is in a namespace that it selects by label. In the end, a
//! namespace of children that are refused.

use std::time::{Duration, Instant};

use portcullis_api::{Change, Object};
use portcullis_gateway::{Settings, Translator};
use serde_json::{Value, json};

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let world = World { parents: arguments.next().unwrap_or(10), children: arguments.next().unwrap_or(100) };
    let mut translator =
        Translator::new(Settings { default_addresses: vec![[192, 0, 2, 1].into()], ..Settings::default() });
    let changes: Vec<_> = world.objects().into_iter().map(Change::Set).collect();
    let start = Instant::now();
    translator.apply(changes);
    println!("from scratch      {:>10.1?}", start.elapsed());
    let parents = world.parents;
    measure("one child", &mut translator, |at| vec![world.child(at % parents, at % world.children, at + 1)]);
    measure("one new child", &mut translator, |at| vec![world.child(at % parents, world.children + at, 0)]);
    measure("one parent's rule", &mut translator, |at| vec![world.parent(at % parents, at + 1)]);
    measure("a label for none", &mut translator, |at| vec![namespace("team-0", "shop", at)]);
    measure("a label for 10 %", &mut translator, |at| {
        vec![namespace("team-0", if at % 2 == 0 { "none" } else { "shop" }, at)]
    });
    measure("one Service", &mut translator, |at| vec![service("team-1", at)]);
    let before = resident();
    let start = Instant::now();
    translator.apply(hostile().map(Change::Set).collect());
    let (after, elapsed) = (resident(), start.elapsed());
    println!("40 hostile        {elapsed:>10.1?}   {:>6} KiB kept", after.saturating_sub(before));
}

/// 40 children of 9 KiB, 128 matches each, below as many matches of a parent: more than all its
/// children together may come to.
fn hostile() -> impl Iterator<Item = Object> {
    let matches = |name: &str, rule: usize| -> Value {
        let matched = |at| json!({"path": {"type": "PathPrefix", "value": format!("/{name}{rule}-{at}")}});
        (0..8).map(matched).collect()
    };
    let parent =
        |rule| json!({"matches": matches("p", rule), "allowedRoutes": {"namespaces": {"from": "All"}}});
    let parent_rules: Value = (0..16).map(parent).collect();
    let parent = object(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "wide", "namespace": "infra"},
        "spec": {"parentRefs": [{"name": "edge"}], "hostnames": ["wide.example.com"], "rules": parent_rules}}));
    let child = move |at: usize| {
        let rule =
            |rule| json!({"matches": matches("c", rule), "backendRefs": [{"name": "app", "port": 80}]});
        let rules: Value = (0..16).map(rule).collect();
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": format!("c{at}"), "namespace": "evil"},
            "spec": {"parentRefs": [{"kind": "HTTPRoute", "name": "wide", "namespace": "infra"}], "rules": rules}}))
    };
    std::iter::once(parent).chain((0..40).map(child))
}

/// Memory of the process, in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or_default()
}

fn measure(what: &str, translator: &mut Translator, change: impl Fn(usize) -> Vec<Object>) {
    const SAMPLES: usize = 100;
    let time = |at| {
        let changes = change(at).into_iter().map(Change::Set).collect();
        let start = Instant::now();
        translator.apply(changes);
        start.elapsed()
    };
    let mut times: Vec<Duration> = (0..SAMPLES).map(time).collect();
    times.sort();
    println!("{what:<17} p50 {:>9.1?}   p99 {:>9.1?}", times[SAMPLES / 2], times[SAMPLES * 99 / 100]);
}

const TEAMS: usize = 10;

struct World {
    parents: usize,
    children: usize,
}

impl World {
    fn objects(&self) -> Vec<Object> {
        let shared = [
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
                "metadata": {"name": "portcullis"}, "spec": {"controllerName": "portcullis.dev/gateway"}}),
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": "edge", "namespace": "infra"}, "spec": {"gatewayClassName": "portcullis",
                "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}}),
        ];
        let teams = (0..TEAMS).map(|team| format!("team-{team}"));
        let teams = teams.flat_map(|team| [namespace(&team, "shop", 0), service(&team, 0)]);
        let children = (0..self.parents)
            .flat_map(|parent| (0..self.children).map(move |child| self.child(parent, child, 0)));
        let parents = (0..self.parents).map(|parent| self.parent(parent, 0));
        shared.into_iter().map(object).chain(teams).chain(parents).chain(children).collect()
    }

    fn parent(&self, parent: usize, version: usize) -> Object {
        let filter = json!({"type": "RequestHeaderModifier",
            "requestHeaderModifier": {"set": [{"name": "x-version", "value": version.to_string()}]}});
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": format!("p{parent}"), "namespace": "infra"},
            "spec": {"parentRefs": [{"name": "edge"}], "hostnames": [format!("h{parent}.example.com")], "rules": [{
                "matches": [{"path": {"type": "PathPrefix", "value": "/shop"}}], "filters": [filter],
                "allowedRoutes": {"namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "shop"}}}}}]},
        }))
    }

    fn child(&self, parent: usize, child: usize, version: usize) -> Object {
        let rule = |path: String| {
            json!({"matches": [{"path": {"type": "PathPrefix", "value": path}}],
                "filters": [{"type": "ResponseHeaderModifier",
                    "responseHeaderModifier": {"set": [{"name": "x-child", "value": version.to_string()}]}}],
                "backendRefs": [{"name": "app", "port": 80}]})
        };
        object(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": format!("p{parent}-c{child}"), "namespace": format!("team-{}", child % TEAMS)},
            "spec": {"parentRefs": [{"kind": "HTTPRoute", "name": format!("p{parent}"), "namespace": "infra"}],
                "rules": [rule(format!("/c{child}/a")), rule(format!("/c{child}/b"))]},
        }))
    }
}

fn namespace(name: &str, team: &str, round: usize) -> Object {
    object(json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "labels": {"team": team, "round": round.to_string()}}}))
}

fn service(namespace: &str, version: usize) -> Object {
    object(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "app", "namespace": namespace, "annotations": {"version": version.to_string()}},
        "spec": {"ports": [{"port": 80}]}}))
}

fn object(manifest: Value) -> Object {
    match Object::from_json(manifest) {
        Ok(Some(object)) => object,
        other => unreachable!("the example's manifests are of kinds that translation uses: {other:?}"),
    }
}
