//! Decisions about a head that no HTTP library knows.

use std::sync::Arc;

use http::{HeaderName, Method, StatusCode, header};
use portcullis_model::{
    BackendName, Entry, Gateway, HostPattern, ListenerId, ObjectName, ParentKind, PathMatch, PathRewrite,
    PathTable, Pattern, PortKey, PortListeners, Precedence, Redirect, Rewrite, RouteMatch, RouteOrigin,
    RuleId, Serves, Split, Timeouts, TlsTermination, TrustedProxies, ValueMatch, WeightedBackend,
};

use super::*;
use crate::core::head::plain::{PlainHead, get};
use crate::http::plan::HostToSend;
use crate::http::rate_limit::SharedRateLimits;

const HOST: (&str, &str) = ("host", "a.com:8080");

fn rule(name: &'static str, matches: RouteMatch, filters: Vec<Filter>, action: Action) -> Entry {
    let route = Arc::new(ObjectName::new("test", name));
    let origin = RouteOrigin { created: 0, name: route.clone() };
    let id = RuleId { kind: "HTTPRoute", route, index: 0, name: None, parent: None };
    let precedence = Precedence::of(&matches, &origin, 0, 0);
    let rule = Arc::new(Rule {
        id: id.into(),
        filters,
        action,
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        policy: None,
    });
    Entry { precedence, matches: Arc::new(matches), rule }
}

fn under(path: &str) -> RouteMatch {
    RouteMatch { path: PathMatch::prefix(path), ..RouteMatch::default() }
}

fn to_echo() -> Action {
    let target = BackendTarget::Known(BackendName::new("test", "echo", PortKey::tcp(80)));
    Action::Forward(Split::new(vec![WeightedBackend { weight: 1, target, filters: Vec::new() }]).unwrap())
}

fn listener(name: &str, serves: Serves) -> Arc<Listener> {
    let gateway = ObjectName::new("test", "gateway");
    let id = ListenerId { parent: gateway.clone(), gateway, kind: ParentKind::Gateway, name: name.into() };
    Arc::new(Listener {
        id,
        hostname: HostPattern::parse(name).unwrap(),
        serves,
        admission: Arc::default(),
        filters: Arc::default(),
        policy: None,
    })
}

fn port(listeners: PortListeners) -> Port {
    let gateway = Arc::new(Gateway::new(ObjectName::new("test", "gateway")));
    Port::new(gateway, PortKey::tcp(8080), listeners)
}

/// A port whose listener for `a.com` has these rules.
fn serving(entries: Vec<Entry>) -> Port {
    let mut table = RouteTable::default();
    table.insert(&HostPattern::Any, Arc::new(PathTable::new(entries)));
    port(PortListeners::of(listener("a.com", Serves::Http(Arc::new(table)))))
}

fn shown(port: &Port, tls: Option<&Arc<Listener>>, head: &PlainHead) -> String {
    shown_behind(&TrustedProxies::Hops(0), port, tls, head)
}

fn shown_behind(
    proxies: &TrustedProxies,
    port: &Port,
    tls: Option<&Arc<Listener>>,
    head: &PlainHead,
) -> String {
    let limits = Limits::default();
    let pseudonym = HeaderValue::from_static("portcullis-1");
    let rates = Rc::new(RateLimits::new(SharedRateLimits::default()));
    let address = HeaderValue::from_static("192.0.2.1");
    let connected = Connected {
        peer: "192.0.2.1:4711".parse().unwrap(),
        address: &address,
        server_name: Some("a.com"),
        proxies,
        request_id: None,
    };
    let rates = &rates;
    let arrival = Arrival { limits: &limits, tls, pseudonym: &pseudonym, sessions: None, rates, connected };
    let (decision, listener) = decide(arrival, Some(port), head, |_, _| Ok(()));
    let decision = match decision {
        Decision::Forward(plan) => {
            let (authority, path) = (plan.authority, plan.path);
            let host = match plan.host {
                HostToSend::Unchanged => None,
                HostToSend::Authority => Some(authority.clone()),
                HostToSend::Rewritten(host) => Some(host),
            };
            format!("{} {authority:?} {path:?} {host:?}", plan.rule.id.route.name)
        }
        Decision::Own(OwnAnswer::Redirect { status, location, .. }) => {
            format!("{} {location}", status.as_u16())
        }
        Decision::Own(OwnAnswer::Preflight { rule, .. }) => format!("preflight {}", rule.id.route.name),
        Decision::Own(OwnAnswer::Failed { status, .. }) => {
            format!("{} {}", status.as_u16(), Reason::Rule.name())
        }
        Decision::Guarded(guarded) => format!("guarded by {} filters", guarded.steps.len()),
        Decision::Own(OwnAnswer::Response(given)) => format!("{} given", given.response.status.as_u16()),
        Decision::Own(OwnAnswer::Challenge(reason, _)) => reason.name().to_owned(),
        Decision::Own(OwnAnswer::Reason(reason, status)) => format!("{} {}", status.as_u16(), reason.name()),
        Decision::Own(OwnAnswer::OfRule { rule, .. }) => format!("told by {}", rule.id.route.name),
        Decision::Own(OwnAnswer::Exhausted(exhausted)) => format!("429 {exhausted:?}"),
    };
    let listener = listener.map_or("none", |listener| &*listener.id.name);
    format!("{listener}: {decision}")
}

#[test]
fn rules_see_every_part_of_a_head() {
    let exactly = |value: &str| ValueMatch::Exact(value.into());
    let port = serving(vec![
        rule("path", under("/a"), Vec::new(), to_echo()),
        rule("method", RouteMatch { method: Some(Method::POST), ..under("/m") }, Vec::new(), to_echo()),
        rule(
            "field",
            RouteMatch { headers: vec![(HeaderName::from_static("x"), exactly("1,2"))], ..under("/f") },
            Vec::new(),
            to_echo(),
        ),
        rule(
            "query",
            RouteMatch { query: vec![("q".into(), exactly("a b"))], ..under("/q") },
            Vec::new(),
            to_echo(),
        ),
    ]);
    let unchanged = r#""a.com:8080" None None"#;
    for (head, expected) in [
        (get("/a/b", &[HOST]), format!("path {unchanged}")),
        (get("/a/../a", &[HOST]), r#"path "a.com:8080" Some("/a") None"#.to_owned()),
        (PlainHead { method: Method::POST, ..get("/m", &[HOST]) }, format!("method {unchanged}")),
        (get("/m", &[HOST]), "404 no_route".to_owned()),
        (get("/f", &[HOST, ("X", "1"), ("x", "2")]), format!("field {unchanged}")),
        (get("/f", &[HOST, ("x", "1")]), "404 no_route".to_owned()),
        (get("/q?p=1&q=a+b&q=c", &[HOST]), format!("query {unchanged}")),
        (get("/q?q=c", &[HOST]), "404 no_route".to_owned()),
    ] {
        let path = head.path;
        assert_eq!(shown(&port, None, &head), format!("a.com: {expected}"), "{path}");
    }
    assert_eq!(shown(&port, None, &get("/a", &[("host", "b.com")])), "none: 404 no_listener");
    assert_eq!(shown(&port, None, &get("/a", &[])), "none: 400 no_host");
}

/// As backends of HTTP/1 get it.
#[test]
fn crumbs_of_a_cookie_are_matched_as_one() {
    let cookie = ValueMatch::Exact("a=1; b=2".into());
    let matches = RouteMatch { headers: vec![(header::COOKIE, cookie)], ..under("/") };
    let port = serving(vec![rule("cookie", matches, Vec::new(), to_echo())]);
    let taken = |fields: &[(&str, &str)]| shown(&port, None, &get("/", fields)).starts_with("a.com: cookie");
    assert!(taken(&[HOST, ("cookie", "a=1; b=2")]));
    assert!(taken(&[HOST, ("cookie", "a=1"), ("cookie", "b=2")]));
    assert!(!taken(&[HOST, ("cookie", "a=1,b=2")]));
    for at in 0..3 {
        let mut crumbs = vec![HOST, ("cookie", "a=1"), ("cookie", "b=2")];
        crumbs.insert(at + 1, ("cookie", ""));
        assert!(taken(&crumbs), "an empty one is none: {crumbs:?}");
    }
}

#[test]
fn rules_see_claims_of_those_who_are_believed() {
    let names =
        ["x-forwarded-proto", "x-real-ip", "x_real_ip", "forwarded", "ssl-client-verify", "x-request-id"];
    let entry = |name: &'static str| {
        let value = ValueMatch::Exact("1".into());
        let matches = RouteMatch { headers: vec![(HeaderName::from_static(name), value)], ..under("/") };
        rule(name, matches, Vec::new(), to_echo())
    };
    let port = serving(names.map(entry).into());
    for (hops, seen) in [(0, &["x-request-id"][..]), (1, &["x-forwarded-proto", "x-real-ip", "x-request-id"])]
    {
        for name in names {
            let head = get("/", &[HOST, ("x-forwarded-for", "192.0.2.7"), (name, "1")]);
            let shown = shown_behind(&TrustedProxies::Hops(hops), &port, None, &head);
            assert_eq!(shown.starts_with(&format!("a.com: {name}")), seen.contains(&name), "{hops}: {shown}");
        }
        let past_them =
            shown_behind(&TrustedProxies::Hops(hops), &port, None, &get("/", &[HOST, ("x-real-ip", "1")]));
        assert_eq!(past_them, "a.com: 404 no_route");
    }
}

#[test]
fn rules_rewrite_redirect_and_fail() {
    let rewrite = Rewrite {
        hostname: Some(HeaderValue::from_static("b.com")),
        path: Some(PathRewrite::Prefix("/new".into())),
    };
    let redirect = |scheme, port, path| {
        let status = StatusCode::FOUND;
        Action::Redirect(Box::new(Redirect { scheme, hostname: None, path, port, status }))
    };
    let moved = Some(PathRewrite::Full("/new".into()));
    let port = serving(vec![
        rule("rewrite", under("/w"), vec![Filter::Rewrite(rewrite)], to_echo()),
        rule("same", under("/s"), Vec::new(), redirect(None, None, None)),
        rule("scheme", under("/https"), Vec::new(), redirect(Some(Scheme::Https), None, moved)),
        rule("port", under("/port"), Vec::new(), redirect(None, Some(80), None)),
        rule(
            "fail",
            under("/no"),
            Vec::new(),
            Action::Fail(Failure { status: StatusCode::INTERNAL_SERVER_ERROR, reason: "test".into() }),
        ),
    ]);
    for (path, expected) in [
        ("/w/x", r#"rewrite "a.com:8080" Some("/new/x") Some("b.com")"#),
        ("/s?q=1", "302 http://a.com:8080/s?q=1"),
        ("/https?q=1", "302 https://a.com/new?q=1"),
        ("/port", "302 http://a.com/port"),
        ("/no", "500 rule"),
    ] {
        assert_eq!(shown(&port, None, &get(path, &[HOST])), format!("a.com: {expected}"));
    }
}

#[test]
fn a_tls_connection_keeps_to_its_listener() {
    let https =
        |name| listener(name, Serves::Https { tls: TlsTermination::default(), routes: Arc::default() });
    let (a, b) = (https("a.com"), https("b.com"));
    let mut listeners = PortListeners::of(a.clone());
    listeners.add(b).unwrap();
    let port = port(listeners);
    assert_eq!(shown(&port, Some(&a), &get("/", &[("host", "a.com")])), "a.com: 404 no_route");
    assert_eq!(shown(&port, Some(&a), &get("/", &[("host", "b.com")])), "none: 421 misdirected");
}

/// Expressions take as long as they like where they are few, but not together.
#[test]
fn expressions_of_routes_do_not_hold_up_a_core() {
    let rules = |count: usize, repeated: usize| {
        let rule_of = |at: usize| {
            let expression = format!("^(?:.*a[ab]{{{repeated}}}{at}x)$");
            let regex = regex::bytes::Regex::new(&expression).unwrap();
            let value = ValueMatch::Regex(Pattern { written: expression.into(), regex });
            let headers = vec![(HeaderName::from_static("x"), value)];
            rule("costly", RouteMatch { headers, ..under("/") }, Vec::new(), to_echo())
        };
        let last = rule("last", under("/"), Vec::new(), to_echo());
        serving((0..count).map(rule_of).chain([last]).collect())
    };
    let (costly, ordinary) = (rules(280, 500), rules(50, 2));
    let noise =
        |length: usize| -> String { (0..length).map(|_| fastrand::choice(['a', 'b']).unwrap()).collect() };
    let ask = |port: &Port, value: &str| shown(port, None, &get("/", &[HOST, ("x", value)]));
    assert_eq!(ask(&costly, &noise(4000)), "a.com: 503 slow_expressions");
    assert_eq!(ask(&ordinary, &noise(9000)), "a.com: 503 slow_expressions", "too long to be looked at");
    assert!(ask(&ordinary, &noise(100)).starts_with("a.com: last "));
    assert!(shown(&costly, None, &get("/", &[HOST])).starts_with("a.com: last "));
}
