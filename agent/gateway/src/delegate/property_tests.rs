//! Random families. A family serves what its printed ephemeral route serves alone, and what it
//! would without the children that are refused; no family, valid or not, panics or lets a request
//! through to a backend whose own conditions, or those of the rule it was included by, do not hold.

use portcullis_model::{Action, BackendTarget, RouteTable};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::family_tests::{Get, Granting, World, answer, parsed, printed, route, table};
use super::print_tests::applied;
use super::*;

const PATHS: [&str; 4] = ["/", "/a", "/b", "/a/b"];
const NAMESPACES: [&str; 3] = ["gw", "shop", "third"];
/// Those that references need which change their rights by being printed.
const GRANTS: [(&str, &str); 4] = [("shop", "gw"), ("gw", "shop"), ("shop", "third"), ("gw", "third")];
const HOSTS: [&str; 4] = ["*.example.com", "www.example.com", "api.example.com", "other.net"];
/// Together with those of [`MANY_OTHERS`] they match more names than a route can have.
const MANY: [&str; 13] = [
    "*.example.com",
    "other.net",
    "n0.net",
    "n1.net",
    "n2.net",
    "n3.net",
    "n4.net",
    "n5.net",
    "n6.net",
    "n7.net",
    "n8.net",
    "n9.net",
    "n10.net",
];
const MANY_OTHERS: [&str; 7] = [
    "*.net",
    "www.example.com",
    "api.example.com",
    "e0.example.com",
    "e1.example.com",
    "e2.example.com",
    "x.example.com",
];

/// The conditions of a rule, kept apart from its JSON to judge answers by.
#[derive(Clone, Debug)]
struct Match {
    path: Option<(&'static str, &'static str)>,
    method: Option<&'static str>,
    /// Type and value.
    header: Option<(&'static str, &'static str)>,
    query: Option<(&'static str, &'static str)>,
}

#[derive(Clone, Debug)]
struct Rule {
    matches: Vec<Match>,
    filters: Vec<&'static str>,
    timeout: Option<&'static str>,
    /// With the namespace if it is written.
    backends: Vec<(Weighted, Option<&'static str>)>,
    /// In place of the backends.
    delegation: Option<Delegating>,
}

/// A reference with weight and filter.
type Weighted = (u32, Option<&'static str>);

#[derive(Clone, Debug)]
enum Delegating {
    Allowed,
    /// By number of the child; `None` names all children of a namespace.
    Listed(Vec<(Option<usize>, Weighted)>),
}

#[derive(Clone, Debug)]
struct Random {
    hosts: Vec<&'static str>,
    rules: Vec<Rule>,
    section: Option<usize>,
    created: u32,
}

fn value() -> impl Strategy<Value = (&'static str, &'static str)> {
    prop::sample::select(vec![
        ("Exact", "1"),
        ("Exact", "2"),
        ("RegularExpression", "[12]"),
        ("RegularExpression", "2?"),
    ])
}

fn matched(types: &'static [&'static str]) -> impl Strategy<Value = Match> {
    let path = (prop::sample::select(types), prop::sample::select(PATHS.to_vec()));
    let method = prop::option::weighted(0.2, prop::sample::select(vec!["GET", "POST"]));
    let (header, query) = (prop::option::weighted(0.3, value()), prop::option::weighted(0.2, value()));
    (prop::option::weighted(0.8, path), method, header, query)
        .prop_map(|(path, method, header, query)| Match { path, method, header, query })
}

fn weighted(filters: &'static [&'static str]) -> impl Strategy<Value = Weighted> {
    (0..4_u32, prop::option::weighted(0.2, prop::sample::select(filters)))
}

fn delegating(filters: &'static [&'static str]) -> impl Strategy<Value = Delegating> {
    let listed = (prop::option::weighted(0.8, 0..4_usize), weighted(filters));
    prop_oneof![
        2 => Just(Delegating::Allowed),
        1 => prop::collection::vec(listed, 1..4).prop_map(Delegating::Listed),
    ]
}

fn rule(
    types: &'static [&'static str],
    filters: &'static [&'static str],
    delegates: bool,
) -> impl Strategy<Value = Rule> {
    let timeout = prop::option::weighted(0.2, prop::sample::select(vec!["0s", "1s", "1m"]));
    let namespace = prop::option::weighted(0.4, prop::sample::select(NAMESPACES.to_vec()));
    let some_filters = prop_oneof![
        2 => Just(Vec::new()),
        1 => prop::collection::vec(prop::sample::select(filters), 1..3),
    ];
    (
        prop::collection::vec(matched(types), 0..3),
        some_filters,
        timeout,
        prop::collection::vec((weighted(filters), namespace), 0..3),
        prop::option::weighted(0.7, delegating(filters)),
    )
        .prop_map(move |(matches, filters, timeout, backends, delegation)| Rule {
            matches,
            filters,
            timeout,
            backends,
            delegation: delegation.filter(|_| delegates),
        })
}

fn random(
    types: &'static [&'static str],
    filters: &'static [&'static str],
    delegates: bool,
) -> impl Strategy<Value = Random> {
    let many = if delegates { MANY.to_vec() } else { MANY_OTHERS.to_vec() };
    let hosts = prop_oneof![
        4 => Just(Vec::new()),
        2 => prop::sample::subsequence(HOSTS.to_vec(), 1..3),
        1 => Just(many),
    ];
    let rules = prop::collection::vec(rule(types, filters, delegates), 1..4);
    (hosts, rules, prop::option::of(0..3_usize), 0..3_u32)
        .prop_map(|(hosts, rules, section, created)| Random { hosts, rules, section, created })
}

#[derive(Clone, Debug)]
struct Request {
    method: &'static str,
    host: &'static str,
    path: String,
    header: Option<&'static str>,
    query: Option<&'static str>,
}

impl Request {
    fn get(&self) -> Get<'_> {
        Get {
            method: self.method.parse().unwrap(),
            host: self.host,
            path: &self.path,
            headers: self.header.map(|value| ("x", value)).into_iter().collect(),
            query: self.query,
        }
    }
}

fn request() -> impl Strategy<Value = Request> {
    let element = prop::sample::select(vec!["a", "b", "c"]);
    let path = (prop::collection::vec(element, 0..4), prop::sample::select(vec!["", "/"]));
    let path = path.prop_map(|(elements, end)| match elements.as_slice() {
        [] => "/".to_owned(),
        elements => format!("/{}{end}", elements.join("/")),
    });
    let value = || prop::option::of(prop::sample::select(vec!["1", "2"]));
    let hosts =
        vec!["www.example.com", "api.example.com", "x.example.com", "e0.example.com", "other.net", "n9.net"];
    (prop::sample::select(vec!["GET", "POST"]), prop::sample::select(hosts), path, value(), value())
        .prop_map(|(method, host, path, header, query)| Request { method, host, path, header, query })
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
    for (list, condition) in [("headers", matched.header), ("queryParams", matched.query)] {
        if let Some((r#type, wanted)) = condition {
            value[list] = json!([{"name": "x", "type": r#type, "value": wanted}]);
        }
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
        own @ ("headers" | "path" | "response-of" | "broken" | "missing") => {
            let name = own.trim_end_matches("-of");
            json!({"type": "ExtensionRef",
                "extensionRef": {"group": "portcullis.dev", "kind": "RouteFilter", "name": name}})
        }
        "extension" => json!({"type": "ExtensionRef",
            "extensionRef": {"group": "example.com", "kind": "Later", "name": "l"}}),
        "mirror" => {
            json!({"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "m", "port": 80}}})
        }
        "response" => {
            json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["y"], "set": [{"name": "z", "value": "1"}]}})
        }
        "many" => {
            let headers: Vec<_> = (0..16).map(|at| json!({"name": format!("h{at}"), "value": "1"})).collect();
            json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": headers}})
        }
        name => {
            json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": name, "value": "1"}]}})
        }
    }
}

fn backend_json(reference: Value, (weight, filter): Weighted) -> Value {
    let mut reference = reference;
    reference["weight"] = json!(weight);
    if let Some(filter) = filter {
        reference["filters"] = json!([filter_json(filter)]);
    }
    reference
}

/// Backends are named after route and rule; children are where [`routes`] puts them.
fn rule_json(rule: &Rule, name: String, backend: &str) -> Value {
    let mut value = json!({"name": name});
    if !rule.matches.is_empty() {
        value["matches"] = rule.matches.iter().map(match_json).collect();
    }
    if !rule.filters.is_empty() {
        value["filters"] = rule.filters.iter().map(|filter| filter_json(filter)).collect();
    }
    if let Some(timeout) = rule.timeout {
        value["timeouts"] = json!({"request": timeout});
    }
    match &rule.delegation {
        Some(Delegating::Allowed) => value["allowedRoutes"] = json!({"namespaces": {"from": "All"}}),
        Some(Delegating::Listed(children)) => {
            let references = children.iter().map(|(child, weighted)| {
                let name = child.map_or("*".to_owned(), |at| format!("c{at}"));
                let namespace = child.map_or("gw", namespace_of);
                let reference = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute",
                    "name": name, "namespace": namespace});
                backend_json(reference, *weighted)
            });
            value["backendRefs"] = references.collect();
        }
        None if rule.backends.is_empty() => {}
        None => {
            let references = rule.backends.iter().enumerate();
            let references = references.map(|(at, (weighted, namespace))| {
                let reference =
                    json!({"name": format!("{backend}-{at}"), "namespace": namespace, "port": 80});
                backend_json(reference, *weighted)
            });
            value["backendRefs"] = references.collect();
        }
    }
    value
}

fn namespace_of(child: usize) -> &'static str {
    if child.is_multiple_of(2) { "gw" } else { "shop" }
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
        parsed(manifest(child, &format!("{}/c{at}", namespace_of(at)), json!([reference])))
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
            // Below another path there is none.
            "RegularExpression" => request.path == path,
            _ => {
                let wanted = wanted.trim_end_matches('/');
                request.path.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    });
    path && matched.method.is_none_or(|method| method == request.method)
        && matched.header.is_none_or(|wanted| request.headers.iter().any(|(_, value)| meets(wanted, value)))
        && matched.query.is_none_or(|wanted| request.query.is_some_and(|value| meets(wanted, value)))
}

fn meets((_, wanted): (&str, &str), value: &str) -> bool {
    match wanted {
        "[12]" => true,
        "2?" => value == "2",
        exact => exact == value,
    }
}

/// All that a request meets there; failures by their status, whatever their reason is.
fn fare(table: &RouteTable, request: &Get<'_>) -> String {
    let Some(found) = table.find(request) else { return "404".to_owned() };
    match &found.rule.action {
        Action::Fail(failure) => failure.status.to_string(),
        Action::Redirect(redirect) => format!("{:?} {redirect:?}", found.rule.filters),
        Action::Respond(response) => format!("{:?} {response:?}", found.rule.filters),
        Action::Forward(split) => {
            let mut backends = String::new();
            for backend in split.backends() {
                let target = match &backend.target {
                    BackendTarget::Known(name) => name.to_string(),
                    BackendTarget::Respond(response) => format!("{response:?}"),
                    BackendTarget::Invalid(failure) => failure.status.to_string(),
                };
                backends += &format!("{} {target} {:?}; ", backend.weight, backend.filters);
            }
            format!("{:?} {:?} {backends}", found.rule.filters, found.rule.timeouts)
        }
    }
}

fn any_holds(matches: &[Match], request: &Get<'_>, below: &str) -> bool {
    matches.is_empty() || matches.iter().any(|matched| holds(matched, request, below))
}

fn alternatives(rule: &Rule) -> Vec<Option<&Match>> {
    if rule.matches.is_empty() { vec![None] } else { rule.matches.iter().map(Some).collect() }
}

/// The backend's name says which rule it belongs to: `gw/parent-1-0:80`, `shop/c1-0-1:80`.
fn may_answer(backend: &str, parent: &Random, children: &[Random], request: &Get<'_>) -> bool {
    let (_, name) = backend.split_once('/').unwrap();
    let mut parts = name.split('-');
    let (route, rule) = (parts.next().unwrap(), parts.next().unwrap());
    let rule: usize = rule.parse().unwrap();
    if route == "parent" {
        return any_holds(&parent.rules[rule].matches, request, "");
    }
    let child = &children[route[1..].parse::<usize>().unwrap()];
    let delegating =
        parent.rules.iter().enumerate().filter(|(at, rule)| {
            rule.delegation.is_some() && child.section.is_none_or(|section| section == *at)
        });
    delegating.flat_map(|(_, rule)| alternatives(rule)).any(|ours| {
        let own = ours.is_none_or(|matched| holds(matched, request, ""));
        let below = ours.and_then(|matched| matched.path).map_or("", |(_, path)| path);
        own && any_holds(&child.rules[rule].matches, request, below)
    })
}

const TYPES: &[&str] = &["PathPrefix", "PathPrefix", "PathPrefix", "Exact", "RegularExpression", "Glob"];
const FILTERS: &[&str] = &[
    "y",
    "z",
    "many",
    "response",
    "mirror",
    "extension",
    "headers",
    "path",
    "response-of",
    "broken",
    "missing",
    "rewrite",
    "prefix",
    "redirect",
    "later",
];

/// A route that is none of the family's, as old as its parent and behind it by name.
fn neighbour(created: u32) -> Arc<ParsedRoute> {
    parsed(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": "gw", "name": "parent-a", "generation": 1,
            "creationTimestamp": format!("2026-01-01T00:00:0{created}Z")},
        "spec": {"parentRefs": [{"name": "edge"}],
            "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/a"}}],
                "backendRefs": [{"name": "neighbour", "port": 80}]}]}}))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    /// "A failed binding should result in no changes to the configuration of the active Ephemeral
    /// route" (GEP-1058), and "the system would accept and deploy it as a valid config".
    #[test]
    fn what_is_printed_is_valid_and_serves_the_same_and_refused_children_change_nothing(
        parent in random(TYPES, FILTERS, true),
        children in prop::collection::vec(random(TYPES, FILTERS, false), 0..5),
        requests in prop::collection::vec(request(), 1..12),
        grants in prop::sample::subsequence(GRANTS.to_vec(), 0..=GRANTS.len()),
    ) {
        let (family, without) = (family(&parent, &children), valid_family(&parent, &children));
        prop_assert_eq!(printed(&family), printed(&without));
        if family.parent.refusal().is_some() {
            return Ok(());
        }
        let world = || World::new(Granting::All).granting(&grants);
        let other = neighbour(parent.created);
        let with_other =
            |routes: Vec<Arc<ParsedRoute>>, world: &World| table(routes.iter().chain([&other]), world);
        let (printed, granted) = applied(&family, &["gw/parent-a"], world());
        let printed = with_other(printed, &granted);
        let served = with_other(family.routes().cloned().collect(), &world());
        let others = with_other(without.routes().cloned().collect(), &world());
        for request in &requests {
            let request = request.get();
            let fares = [&served, &printed, &others].map(|table| fare(table, &request));
            prop_assert!(fares.iter().all(|it| *it == fares[0]), "{fares:?} {} {}", request.host, request.path);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn no_family_panics_or_lets_more_through_than_its_rules_say(
        parent in random(TYPES, FILTERS, true),
        children in prop::collection::vec(random(TYPES, FILTERS, false), 0..4),
        requests in prop::collection::vec(request(), 1..6),
    ) {
        let family = family(&parent, &children);
        let served = table(family.routes(), &World::new(Granting::All));
        for request in &requests {
            let request = request.get();
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
