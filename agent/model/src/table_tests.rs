//! The first match in the table must be the one that the specification's precedence picks: compared
//! with a plain arg-max over all entries, for random rules and requests.

use std::borrow::Cow;

use http::{HeaderName, Method, StatusCode};
use proptest::prelude::*;

use super::*;
use crate::{Action, Failure, ObjectName, Pattern, RouteOrigin, RuleId, Timeouts, ValueMatch};

#[derive(Clone, Debug)]
struct Request {
    method: Method,
    host: &'static str,
    path: String,
    headers: Vec<&'static str>,
    query: Vec<&'static str>,
}

impl RequestHead for Request {
    fn method(&self) -> &Method {
        &self.method
    }
    fn host(&self) -> &str {
        self.host
    }
    fn path(&self) -> &str {
        &self.path
    }
    fn header(&self, name: &HeaderName) -> Option<Cow<'_, [u8]>> {
        self.headers.contains(&name.as_str()).then_some(Cow::Borrowed(b"1"))
    }
    fn query_param(&self, name: &str) -> Option<Cow<'_, str>> {
        self.query.contains(&name).then_some(Cow::Borrowed("1"))
    }
}

type Route = (HostPattern, Entry);

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "ab"]), 0..4)
        .prop_map(|elements| format!("/{}", elements.join("/")))
}

fn names() -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::subsequence(vec!["x", "y", "z"], 0..=3)
}

fn path_match() -> impl Strategy<Value = PathMatch> {
    prop_oneof![
        path().prop_map(|path| PathMatch::Exact(path.into())),
        path().prop_map(|path| PathMatch::prefix(&path)),
        path().prop_map(|path| {
            let regex = regex::Regex::new(&format!("^(?:{path}.*)$")).unwrap();
            PathMatch::Regex(Pattern { written: format!("{path}.*").into(), regex })
        }),
    ]
}

fn host_pattern() -> impl Strategy<Value = HostPattern> {
    prop::sample::select(vec!["a.example.com", "*.example.com", "*.com", "*"])
        .prop_map(|text| HostPattern::parse(text).unwrap_or(HostPattern::Any))
}

fn request() -> impl Strategy<Value = Request> {
    (
        prop::sample::select(vec![Method::GET, Method::POST]),
        prop::sample::select(vec!["a.example.com", "b.example.com", "b.com", "local"]),
        path(),
        names(),
        names(),
    )
        .prop_map(|(method, host, path, headers, query)| Request { method, host, path, headers, query })
}

fn route() -> impl Strategy<Value = Route> {
    let matched = (
        path_match(),
        prop::option::of(prop::sample::select(vec![Method::GET, Method::POST])),
        names(),
        names(),
    );
    (host_pattern(), matched, 0..3_i64, 0..3_usize, 0..2_usize).prop_map(
        |(host, (path, method, headers, query), created, name, rule)| {
            let one = || ValueMatch::Exact("1".into());
            let matches = RouteMatch {
                path,
                method,
                headers: headers.iter().map(|name| (HeaderName::from_static(name), one())).collect(),
                query: query.iter().map(|name| ((*name).into(), one())).collect(),
            };
            (host, entry(matches, created, name, rule))
        },
    )
}

fn entry(matches: RouteMatch, created: i64, name: usize, index: usize) -> Entry {
    let route = Arc::new(ObjectName::new("ns", format!("route-{name}")));
    let origin = RouteOrigin { created, name: route.clone() };
    let precedence = Precedence::of(&matches, &origin, index, 0);
    let id = RuleId { kind: "HTTPRoute", route, index, name: None, parent: None };
    let action = Action::Fail(Failure { status: StatusCode::INTERNAL_SERVER_ERROR, reason: "test".into() });
    let rule = Rule {
        id: Arc::new(id),
        filters: Vec::new(),
        action,
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        policy: None,
    };
    Entry { precedence, matches: Arc::new(matches), rule: Arc::new(rule) }
}

fn table(routes: &[Route]) -> RouteTable {
    let mut by_host = std::collections::BTreeMap::<HostPattern, Vec<Entry>>::new();
    for (host, entry) in routes {
        by_host.entry(host.clone()).or_default().push(entry.clone());
    }
    let mut table = RouteTable::default();
    for (host, entries) in by_host {
        table.insert(&host, Arc::new(PathTable::new(entries)));
    }
    table
}

/// The specification, word for word: of all that match, the one with the greatest precedence.
fn arg_max<'r>(routes: &'r [Route], request: &Request) -> Option<&'r Route> {
    routes
        .iter()
        .filter(|(host, entry)| {
            host.matches(request.host)
                && entry.matches.path.matches(&request.path)
                && entry.matches.matches_beyond_path(request)
        })
        .min_by(|(a_host, a), (b_host, b)| a_host.cmp(b_host).then_with(|| a.precedence.cmp(&b.precedence)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_first_match_is_the_arg_max(routes in prop::collection::vec(route(), 0..24), request in request()) {
        let table = table(&routes);
        let found = table.find(&request);
        let wanted = arg_max(&routes, &request);
        prop_assert_eq!(found.map(|found| &found.rule.id), wanted.map(|(_, entry)| &entry.rule.id));
    }
}

#[test]
fn the_matched_prefix_is_reported() {
    let matches = RouteMatch { path: PathMatch::prefix("/a/b/"), ..RouteMatch::default() };
    let table = table(&[(HostPattern::Any, entry(matches, 0, 0, 0))]);
    let request =
        Request { method: Method::GET, host: "h", path: "/a/b/c/d".into(), headers: vec![], query: vec![] };
    assert_eq!(table.find(&request).map(|found| found.prefix), Some("/a/b"));
}

#[test]
fn long_paths_cost_no_more_look_ups_than_the_deepest_prefix() {
    assert_eq!(prefixes("/a/b/c/d", 2).collect::<Vec<_>>(), ["/a/b", "/a", ""]);
    assert_eq!(prefixes("/a", 3).collect::<Vec<_>>(), ["/a", ""]);
    assert_eq!(prefixes("/a/b", 0).collect::<Vec<_>>(), [""]);
    assert_eq!(prefixes("/a/", 2).collect::<Vec<_>>(), ["/a/", "/a", ""]);
}
