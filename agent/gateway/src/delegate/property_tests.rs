//! Random families. A family serves what its printed ephemeral route serves alone, and what it
//! would without the children that are refused; no family,
//! valid or not, panics or lets a request through to a backend whose own conditions, or those of
//! the rule it was included by, do not hold.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::family_tests::{Get, Granting, World, answer, parsed, route, table};
use super::*;

const PATHS: [&str; 4] = ["/", "/a", "/b", "/a/b"];
const HOSTS: [&str; 4] = ["*.example.com", "www.example.com", "api.example.com", "other.net"];

/// The conditions of a rule, kept apart from its JSON to judge answers by.
#[derive(Clone, Debug)]
struct Match {
    path: Option<(&'static str, &'static str)>,
    method: Option<&'static str>,
    header: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct Rule {
    matches: Vec<Match>,
    filter: Option<&'static str>,
    timeout: Option<&'static str>,
    delegates: bool,
}

#[derive(Clone, Debug)]
struct Random {
    hosts: Vec<&'static str>,
    rules: Vec<Rule>,
    section: Option<usize>,
    created: u32,
}

fn matched(types: &'static [&'static str]) -> impl Strategy<Value = Match> {
    let path = (prop::sample::select(types), prop::sample::select(PATHS.to_vec()));
    let method = prop::option::weighted(0.2, prop::sample::select(vec!["GET", "POST"]));
    let header = prop::option::weighted(0.3, prop::sample::select(vec!["1", "2"]));
    (prop::option::weighted(0.8, path), method, header).prop_map(|(path, method, header)| Match {
        path,
        method,
        header,
    })
}

fn rule(
    types: &'static [&'static str],
    filters: &'static [&'static str],
    delegates: bool,
) -> impl Strategy<Value = Rule> {
    let filter = prop::option::weighted(0.3, prop::sample::select(filters));
    let timeout = prop::option::weighted(0.2, prop::sample::select(vec!["0s", "1s", "1m"]));
    (prop::collection::vec(matched(types), 0..3), filter, timeout, prop::bool::weighted(0.7)).prop_map(
        move |(matches, filter, timeout, delegating)| Rule {
            matches,
            filter,
            timeout,
            delegates: delegates && delegating,
        },
    )
}

fn random(
    types: &'static [&'static str],
    filters: &'static [&'static str],
    delegates: bool,
) -> impl Strategy<Value = Random> {
    let hosts = prop_oneof![2 => Just(Vec::new()), 1 => prop::sample::subsequence(HOSTS.to_vec(), 1..3)];
    let rules = prop::collection::vec(rule(types, filters, delegates), 1..4);
    (hosts, rules, prop::option::of(0..3_usize), 0..3_u32)
        .prop_map(|(hosts, rules, section, created)| Random { hosts, rules, section, created })
}

fn request() -> impl Strategy<Value = (&'static str, &'static str, String, Option<&'static str>)> {
    let element = prop::sample::select(vec!["a", "b", "c"]);
    let path = (prop::collection::vec(element, 0..4), prop::sample::select(vec!["", "/"]));
    let path = path.prop_map(|(elements, end)| match elements.as_slice() {
        [] => "/".to_owned(),
        elements => format!("/{}{end}", elements.join("/")),
    });
    (
        prop::sample::select(vec!["GET", "POST"]),
        prop::sample::select(vec!["www.example.com", "api.example.com", "x.example.com", "other.net"]),
        path,
        prop::option::of(prop::sample::select(vec!["1", "2"])),
    )
}

// === as manifests ===

fn match_json(matched: &Match) -> Value {
    let mut value = json!({});
    if let Some((r#type, path)) = matched.path {
        value["path"] = json!({"type": r#type, "value": path});
    }
    if let Some(method) = matched.method {
        value["method"] = json!(method);
    }
    if let Some(header) = matched.header {
        value["headers"] = json!([{"name": "x", "value": header}]);
    }
    value
}

fn filter_json(filter: &str) -> Value {
    match filter {
        "rewrite" => json!({"type": "URLRewrite", "urlRewrite": {"hostname": "in.example"}}),
        "prefix" => json!({"type": "URLRewrite",
            "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}}),
        "redirect" => json!({"type": "RequestRedirect", "requestRedirect": {}}),
        "later" => json!({"type": "Later"}),
        name => {
            json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": name, "value": "1"}]}})
        }
    }
}

fn rule_json(rule: &Rule, name: String, backend: &str) -> Value {
    let mut value = json!({"name": name});
    if !rule.matches.is_empty() {
        value["matches"] = rule.matches.iter().map(match_json).collect();
    }
    if let Some(filter) = rule.filter {
        value["filters"] = json!([filter_json(filter)]);
    }
    if let Some(timeout) = rule.timeout {
        value["timeouts"] = json!({"request": timeout});
    }
    if rule.delegates {
        value["allowedRoutes"] = json!({"namespaces": {"from": "All"}});
    } else {
        value["backendRefs"] = json!([{"name": backend, "port": 80}]);
    }
    value
}

fn manifest(random: &Random, name: &str, parent_refs: Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    let rules = random.rules.iter().enumerate();
    let rules: Vec<_> =
        rules.map(|(at, rule)| rule_json(rule, format!("r{at}"), &format!("{name}-{at}"))).collect();
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": namespace, "name": name, "generation": 1,
            "creationTimestamp": format!("2026-01-01T00:00:0{}Z", random.created)},
        "spec": {"parentRefs": parent_refs, "hostnames": random.hosts, "rules": rules}})
}

fn family(parent: &Random, children: &[Random]) -> Arc<Family> {
    let (parent, children) = routes(parent, children);
    bind(&parent, &children, &World::new(Granting::All), None)
}

/// Without the children that cannot be bound.
fn valid_family(parent: &Random, children: &[Random]) -> Arc<Family> {
    let (parent, mut children) = routes(parent, children);
    let family = bind(&parent, &children, &World::new(Granting::All), None);
    children.retain(|child| family.report(&child.key).is_some_and(ChildReport::is_bound));
    bind(&parent, &children, &World::new(Granting::All), None)
}

fn routes(parent: &Random, children: &[Random]) -> (Arc<ParsedRoute>, Vec<Arc<ParsedRoute>>) {
    let parent = parsed(manifest(parent, "gw/parent", json!([{"name": "edge"}])));
    let child = |(at, child): (usize, &Random)| {
        let mut reference = json!({"kind": "HTTPRoute", "namespace": "gw", "name": "parent"});
        if let Some(section) = child.section {
            reference["sectionName"] = json!(format!("r{section}"));
        }
        let namespace = if at % 2 == 0 { "gw" } else { "shop" };
        parsed(manifest(child, &format!("{namespace}/c{at}"), json!([reference])))
    };
    let children = children.iter().enumerate().map(child).collect();
    (parent, children)
}

// === judging ===

fn holds(matched: &Match, request: &Get<'_>, below: &str) -> bool {
    let path = matched.path.is_none_or(|(r#type, path)| {
        let wanted = format!("{}{path}", below.trim_end_matches('/'));
        match r#type {
            "Exact" => request.path == wanted,
            _ => {
                let wanted = wanted.trim_end_matches('/');
                request.path.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    });
    path && matched.method.is_none_or(|method| method == request.method)
        && matched.header.is_none_or(|value| request.headers.contains(&("x", value)))
}

fn any_holds(matches: &[Match], request: &Get<'_>, below: &str) -> bool {
    matches.is_empty() || matches.iter().any(|matched| holds(matched, request, below))
}

fn alternatives(rule: &Rule) -> Vec<Option<&Match>> {
    if rule.matches.is_empty() { vec![None] } else { rule.matches.iter().map(Some).collect() }
}

/// The backend's name says which rule it belongs to: `gw/parent-1:80`, `shop/c1-0:80`.
fn may_answer(backend: &str, parent: &Random, children: &[Random], request: &Get<'_>) -> bool {
    let (_, name) = backend.split_once('/').unwrap();
    let (route, rule) = name.trim_end_matches(":80").split_once('-').unwrap();
    let rule: usize = rule.parse().unwrap();
    if route == "parent" {
        return any_holds(&parent.rules[rule].matches, request, "");
    }
    let child = &children[route[1..].parse::<usize>().unwrap()];
    let delegating = parent
        .rules
        .iter()
        .enumerate()
        .filter(|(at, rule)| rule.delegates && child.section.is_none_or(|section| section == *at));
    delegating.flat_map(|(_, rule)| alternatives(rule)).any(|ours| {
        let own = ours.is_none_or(|matched| holds(matched, request, ""));
        let below = ours.and_then(|matched| matched.path).map_or("", |(_, path)| path);
        own && any_holds(&child.rules[rule].matches, request, below)
    })
}

const PREFIX: &[&str] = &["PathPrefix"];
const EVERY: &[&str] = &["PathPrefix", "Exact", "Glob"];
/// No two of these are in each other's way, wherever they stand.
const MILD: &[&str] = &["y"];
const WILD: &[&str] = &["y", "z", "rewrite", "prefix", "redirect", "later"];

fn get<'r>(request: &'r (&'static str, &'static str, String, Option<&'static str>)) -> Get<'r> {
    let headers = request.3.map(|value| ("x", value)).into_iter().collect();
    Get { method: request.0.parse().unwrap(), host: request.1, path: &request.2, headers }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_valid_family_serves_what_its_printed_route_serves(
        parent in random(PREFIX, MILD, true),
        children in prop::collection::vec(random(PREFIX, MILD, false), 0..4),
        requests in prop::collection::vec(request(), 1..12),
    ) {
        let family = valid_family(&parent, &children);
        prop_assert!(family.children.iter().all(|child| child.is_bound()));
        let world = World::new(Granting::All);
        let alone: Vec<_> = family.objects().into_iter().map(parsed).collect();
        for route in &alone {
            prop_assert!(route.refusal().is_none() && route.partly_invalid().is_none(), "{:?}", route.partly_invalid());
        }
        let (served, printed) = (table(family.routes(), &world), table(&alone, &world));
        for request in &requests {
            let request = get(request);
            prop_assert_eq!(answer(&served, &request), answer(&printed, &request), "{} {}", request.host, request.path);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    /// "A failed binding should result in no changes to the configuration of the active Ephemeral
    /// route" (GEP-1058).
    #[test]
    fn refused_children_change_nothing(
        parent in random(EVERY, WILD, true),
        children in prop::collection::vec(random(EVERY, WILD, false), 0..5),
        requests in prop::collection::vec(request(), 1..12),
    ) {
        let (family, without) = (family(&parent, &children), valid_family(&parent, &children));
        prop_assert_eq!(family.objects(), without.objects());
        let world = World::new(Granting::All);
        let alone: Vec<_> = family.objects().into_iter().map(parsed).collect();
        let [served, printed, others] =
            [table(family.routes(), &world), table(&alone, &world), table(without.routes(), &world)];
        for request in &requests {
            let request = get(request);
            let answer = [&served, &printed, &others].map(|table| answer(table, &request));
            prop_assert!(answer.iter().all(|it| *it == answer[0]), "{answer:?} {} {}", request.host, request.path);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]
    #[test]
    fn no_family_panics_or_lets_more_through_than_its_rules_say(
        parent in random(EVERY, WILD, true),
        children in prop::collection::vec(random(EVERY, WILD, false), 0..4),
        requests in prop::collection::vec(request(), 1..6),
    ) {
        let family = family(&parent, &children);
        let served = table(family.routes(), &World::new(Granting::All));
        for request in &requests {
            let request = get(request);
            let answer = answer(&served, &request);
            if answer.contains('/') {
                prop_assert!(may_answer(&answer, &parent, &children, &request), "{answer} took {}", request.path);
            }
        }
    }
}

/// Nested or malformed references do not recurse: there are two tiers, whatever is written.
#[test]
fn routes_that_name_themselves_and_each_other_end() {
    let wild = |name: &str| {
        route(
            name,
            json!({"parentRefs": [{"kind": "HTTPRoute", "name": "a"}, {"kind": "HTTPRoute", "name": "b"}],
        "rules": [{"backendRefs": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "*"}]}]}),
        )
    };
    let both = [wild("gw/a"), wild("gw/b")];
    let family = bind(&both[0], &both, &World::new(Granting::All), None);
    assert!(family.children.iter().all(|child| !child.is_bound()));
}
