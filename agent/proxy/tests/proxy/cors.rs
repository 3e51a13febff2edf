//! CORS: preflight requests, which no backend sees, and what responses say to pages of other
//! origins. A row is a request, the status, and the fields of the response that concern CORS.

use std::num::NonZeroU32;
use std::sync::Arc;

use portcullis_model::{
    AllowedNames, AllowedOrigins, Cors, Credentials, Filter, Level, ObjectName, OriginPattern, Period,
    PolicyState, Protection, RateKey, RateLimit, RateScope, TrafficPolicy,
};

use crate::support::origin::serve_raw;
use crate::support::rules::{RuleSpec, edit, rule};
use crate::support::via::{Reply, Via};
use crate::support::world::World;

const FOO: &str = "https://www.foo.com";
const EVIL: &str = "https://evil.com";

fn cors(origins: &[&str]) -> Cors {
    let origins = match origins {
        ["*"] => AllowedOrigins::Any,
        listed => AllowedOrigins::Listed(listed.iter().map(|it| OriginPattern::parse(it).unwrap()).collect()),
    };
    let credentials = Credentials::Withheld;
    let (methods, headers) = (AllowedNames::None, AllowedNames::None);
    Cors { origins, credentials, methods, headers, expose: None, max_age: 5 }
}

/// Everything that can be said.
fn complete() -> Cors {
    Cors {
        credentials: Credentials::Allowed,
        methods: listed("GET, OPTIONS"),
        headers: listed("x-header-1, x-header-2"),
        expose: Some("x-header-3, x-header-4".parse().unwrap()),
        max_age: 3600,
        ..cors(&[FOO, "https://*.bar.com"])
    }
}

fn anything(credentials: Credentials) -> Cors {
    Cors { credentials, methods: AllowedNames::Any, headers: AllowedNames::Any, ..cors(&["*"]) }
}

fn listed(names: &str) -> AllowedNames {
    AllowedNames::Listed(names.parse().unwrap())
}

fn with(cors: Cors) -> RuleSpec {
    rule().filter(Filter::Cors(Box::new(cors)))
}

fn preflight(path: &str, origin: &str, method: &str, headers: &str) -> String {
    let headers = match headers {
        "" => String::new(),
        names => format!("access-control-request-headers: {names}\n"),
    };
    format!(
        "OPTIONS {path}\nhost: a.com\norigin: {origin}\naccess-control-request-method: {method}\n{headers}\n"
    )
}

fn get(path: &str, origin: &str) -> String {
    format!("GET {path}\nhost: a.com\norigin: {origin}\n\n")
}

/// The fields that concern CORS, without what all of them begin with.
fn said(reply: &Reply) -> String {
    let fields = reply.headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix("access-control-").or((name == "vary").then_some("vary"))?;
        Some(format!("{name}: {}", value.to_str().unwrap()))
    });
    let mut fields: Vec<_> = fields.collect();
    fields.sort();
    fields.join("; ")
}

const VARY: &str = "vary: access-control-request-headers; vary: access-control-request-method; vary: origin";
const FOO_ALLOWED: &str = "allow-credentials: true; allow-headers: x-header-1, x-header-2; allow-methods: GET, OPTIONS; \
     allow-origin: https://www.foo.com; expose-headers: x-header-3, x-header-4; max-age: 3600";

#[tokio::test]
async fn preflight_requests_are_answered_and_no_backend_sees_them() {
    let rules = vec![
        with(complete()).prefix("/1"),
        with(Cors { methods: AllowedNames::Any, ..cors(&[FOO]) }).prefix("/2"),
        with(Cors { methods: listed("PUT"), ..cors(&["*"]) }).prefix("/any"),
        with(anything(Credentials::Allowed)).prefix("/all"),
        with(anything(Credentials::Withheld)).prefix("/unauth"),
        with(cors(&[])).prefix("/none"),
    ];
    let (world, backend) = World::echo(rules).await;
    let header = "x-header-1, X-Header-2";
    for (request, expected) in [
        (preflight("/1", FOO, "GET", "x-header-1"), FOO_ALLOWED.to_owned()),
        (
            preflight("/1", "https://a.www.bar.com", "GET", ""),
            FOO_ALLOWED.replace(FOO, "https://a.www.bar.com"),
        ),
        (preflight("/1", EVIL, "GET", ""), String::new()),
        (preflight("/1", "null", "GET", ""), String::new()),
        (preflight("/2", FOO, "POST", ""), format!("allow-methods: *; allow-origin: {FOO}; max-age: 5")),
        (preflight("/any", EVIL, "PUT", ""), "allow-methods: PUT; allow-origin: *; max-age: 5".to_owned()),
        (preflight("/any", "null", "PUT", ""), "allow-methods: PUT; allow-origin: *; max-age: 5".to_owned()),
        (
            preflight("/all", EVIL, "PUT", header),
            format!(
                "allow-credentials: true; allow-headers: {header}; allow-methods: PUT; allow-origin: {EVIL}; max-age: 5"
            ),
        ),
        (
            preflight("/all", EVIL, "PUT", ""),
            format!("allow-credentials: true; allow-methods: PUT; allow-origin: {EVIL}; max-age: 5"),
        ),
        // What is no list of names is not repeated.
        (
            preflight("/all", EVIL, "PUT", "a b"),
            format!("allow-credentials: true; allow-methods: PUT; allow-origin: {EVIL}; max-age: 5"),
        ),
        (
            preflight("/unauth", EVIL, "PUT", header),
            "allow-headers: *; allow-methods: *; allow-origin: *; max-age: 5".to_owned(),
        ),
        (preflight("/none", FOO, "GET", ""), String::new()),
    ] {
        for via in Via::ALL {
            let reply = world.send(via, &request).await;
            let expected = [&*expected, VARY].join("; ");
            assert_eq!(
                (reply.status.as_u16(), &*said(&reply)),
                (204, expected.trim_start_matches("; ")),
                "{request}"
            );
            assert_eq!(reply.body, "");
        }
    }
    assert_eq!(backend.requests(), 0);
}

#[tokio::test]
async fn a_preflight_request_finds_the_rule_of_the_request_that_it_asks_about() {
    let put = || with(Cors { methods: listed("PUT"), ..cors(&[FOO]) });
    let rules = vec![
        put().prefix("/m").method("PUT"),
        rule().prefix("/m").method("GET"),
        with(cors(&[FOO])).prefix("/m").method("OPTIONS"),
        rule().prefix("/m"),
        rule().prefix("/own"),
        put().prefix("/own/put").method("PUT"),
        put().prefix("/broken").fail(500),
        put().prefix("/moved").redirect(|redirect| redirect.port = Some(81)),
        rule().prefix("/backend").backend_filter(Filter::Cors(Box::new(cors(&[FOO])))),
    ];
    let (world, backend) = World::echo(rules).await;
    let allowed = format!("allow-methods: PUT; allow-origin: {FOO}; max-age: 5; {VARY}");
    let plain = format!("allow-origin: {FOO}; max-age: 5; {VARY}");
    for (request, status, expected, reaches_backend) in [
        (preflight("/m", FOO, "PUT", ""), 204, &*allowed, false),
        // The rule for GET says nothing; the one for OPTIONS does.
        (preflight("/m", FOO, "GET", ""), 204, &plain, false),
        (preflight("/own/put", FOO, "PUT", ""), 204, &allowed, false),
        // Backends that answer themselves.
        (preflight("/own/put", FOO, "DELETE", ""), 200, "", true),
        (preflight("/own", FOO, "PUT", ""), 200, "", true),
        (preflight("/broken", FOO, "PUT", ""), 500, "allow-origin: https://www.foo.com; vary: Origin", false),
        (preflight("/moved", FOO, "PUT", ""), 204, &allowed, false),
        (preflight("/backend", FOO, "PUT", ""), 204, &plain, false),
        // No preflight requests, but OPTIONS.
        (format!("OPTIONS /own/put\nhost: a.com\norigin: {FOO}\n\n"), 200, "", true),
        ("OPTIONS /own/put\nhost: a.com\naccess-control-request-method: PUT\n\n".to_owned(), 200, "", true),
        (preflight("/own/put", FOO, "P U T", ""), 200, "", true),
    ] {
        let before = backend.requests();
        let reply = world.send(Via::Http1, &request).await;
        assert_eq!((reply.status.as_u16(), &*said(&reply)), (status, expected), "{request}");
        assert_eq!(backend.requests() > before, reaches_backend, "{request}");
    }
}

#[tokio::test]
async fn responses_say_who_may_read_them() {
    let rules = vec![
        with(complete()).prefix("/1"),
        with(cors(&["*"])).prefix("/any"),
        with(anything(Credentials::Allowed)).prefix("/all"),
        with(complete()).prefix("/moved").redirect(|redirect| redirect.port = Some(81)),
        with(complete()).prefix("/broken").fail(503),
        with(complete()).prefix("/gone").to("nothing"),
        rule().prefix("/backend").backend_filter(Filter::Cors(Box::new(cors(&[FOO])))),
        with(cors(&[FOO])).prefix("/edited").filter(Filter::ResponseHeaders(edit(
            &[("access-control-allow-origin", "https://set.com")],
            &[],
            &[],
        ))),
        rule().prefix("/plain"),
    ];
    let (world, _backend) = World::echo(rules).await;
    let allowed = |origin: &str| {
        format!(
            "allow-credentials: true; allow-origin: {origin}; expose-headers: x-header-3, x-header-4; vary: Origin"
        )
    };
    let nothing = || "vary: Origin".to_owned();
    for (request, status, expected) in [
        (get("/1", FOO), 200, allowed(FOO)),
        (get("/1", "https://WWW.bar.com:443"), 200, allowed("https://WWW.bar.com:443")),
        (get("/1", EVIL), 200, nothing()),
        (get("/1", "null"), 200, nothing()),
        (get("/1", "https://www.foo.com, https://evil.com"), 200, nothing()),
        (get("/1", "https://www.foo.com.evil.com"), 200, nothing()),
        (get("/1", &format!("{FOO}\norigin: {EVIL}")), 200, nothing()),
        (get("/1", &format!("{FOO}\norigin: {FOO}")), 200, nothing()),
        ("GET /1\nhost: a.com\n\n".to_owned(), 200, nothing()),
        (get("/any", EVIL), 200, "allow-origin: *; vary: Origin".to_owned()),
        (get("/any", "not an origin"), 200, nothing()),
        (get("/all", EVIL), 200, format!("allow-credentials: true; allow-origin: {EVIL}; vary: Origin")),
        (get("/all", "https://a.com, https://b.com"), 200, nothing()),
        // The gateway's own answers: pages are to read them, too.
        (get("/moved", FOO), 302, allowed(FOO)),
        (get("/moved", EVIL), 302, nothing()),
        (get("/broken", FOO), 503, allowed(FOO)),
        (get("/gone", FOO), 503, allowed(FOO)),
        (get("/backend", FOO), 200, format!("allow-origin: {FOO}; vary: Origin")),
        // Filters are applied in their order.
        (get("/edited", FOO), 200, "allow-origin: https://set.com; vary: Origin".to_owned()),
        (get("/plain", FOO), 200, String::new()),
    ] {
        let reply = world.send(Via::Http1, &request).await;
        assert_eq!((reply.status.as_u16(), said(&reply)), (status, expected), "{request}");
    }
}

#[tokio::test]
async fn pages_can_read_what_policies_of_the_rule_refuse() {
    let by = |protection: Protection| {
        let level = Level { target: "HTTPRoute test/r".into(), protection: Arc::new(protection) };
        TrafficPolicy::of(vec![level])
    };
    let one = NonZeroU32::MIN;
    let limit = RateLimit {
        requests: one,
        period: Period::Hour,
        burst: one,
        key: RateKey::All,
        scope: RateScope::Node,
    };
    let policy = || Protection::by(ObjectName::new("test", "p"));
    let limited = by(Protection { rate_limits: [limit].into(), ..policy() });
    let closed = by(Protection { state: PolicyState::Closed, ..policy() });
    let of_backend = rule().backend_filter(Filter::Cors(Box::new(cors(&[FOO]))));
    let rules = vec![
        with(cors(&[FOO])).prefix("/limited").policy(limited),
        with(cors(&[FOO])).prefix("/closed").policy(closed.clone()),
        of_backend.prefix("/backend").policy(closed.clone()),
        rule().prefix("/plain").policy(closed),
    ];
    let (world, _backend) = World::echo(rules).await;
    let allowed = format!("allow-origin: {FOO}; vary: Origin");
    for (request, status, expected) in [
        (get("/limited", FOO), 200, &*allowed),
        (get("/limited", FOO), 429, &allowed),
        (get("/limited", EVIL), 429, "vary: Origin"),
        (get("/closed", FOO), 500, &allowed),
        (get("/backend", FOO), 500, &allowed),
        (get("/plain", FOO), 500, ""),
    ] {
        let reply = world.send(Via::Http1, &request).await;
        assert_eq!((reply.status.as_u16(), &*said(&reply)), (status, expected), "{request}");
    }
}

#[tokio::test]
async fn what_backends_say_is_replaced() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\naccess-control-allow-origin: *\r\naccess-control-allow-origin: https://evil.com\r\n\
        Access-Control-Allow-Credentials: true\r\naccess-control-max-age: 1\r\nvary: Accept, origin\r\nx-other: 1\r\n\r\n";
    let mut world = World::new();
    world.backend("echo", portcullis_model::BackendProtocol::Http1, &[serve_raw(answer).await]);
    world.http("*", vec![with(cors(&[FOO])).prefix("/cors"), rule()]);
    world.apply().await;
    for (request, expected) in [
        (get("/cors", FOO), "allow-origin: https://www.foo.com; vary: Accept, origin"),
        (get("/cors", EVIL), "vary: Accept, origin"),
        ("GET /cors\nhost: a.com\n\n".to_owned(), "vary: Accept, origin"),
        (
            get("/", EVIL),
            "allow-credentials: true; allow-origin: *; allow-origin: https://evil.com; max-age: 1; vary: Accept, origin",
        ),
    ] {
        let reply = world.send(Via::Http1, &request).await;
        assert_eq!(said(&reply), expected, "{request}");
        assert_eq!(reply.header("x-other"), Some("1"));
    }
}
