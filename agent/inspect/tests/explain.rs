//! Explanations of requests to a small shop, translated from its manifests and with paths read by
//! the data plane's own function.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use portcullis_control::offline::{DefaultAddresses, translate};
use portcullis_gateway::Settings;
use portcullis_inspect::{
    EarlyAnswer, Explanation, Look, Outcome, Question, Reading, Search, dump_snapshot, explain, routes,
};
use portcullis_model::{ClientCertificates, Listener, Serves, Snapshot, TlsTermination};
use portcullis_proxy::Reason;

fn shop() -> Arc<Snapshot> {
    snapshot("shop.yaml")
}

fn snapshot(manifests: &str) -> Arc<Snapshot> {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(manifests);
    translate(&[manifests], u64::MAX, Settings::default(), DefaultAddresses::Shared).outcome.snapshot
}

fn snapshot_of(name: &str, manifests: &str) -> Arc<Snapshot> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, manifests).unwrap();
    translate(&[file], u64::MAX, Settings::default(), DefaultAddresses::Shared).outcome.snapshot
}

const READING: Reading = Reading {
    host: |authority| portcullis_proxy::bare_host(authority).map_err(early_answer),
    path: |path| portcullis_proxy::normalise_path(path).map_err(early_answer),
    method: |method| portcullis_proxy::check_method(method).map_err(early_answer),
    sees: portcullis_proxy::is_seen,
    is_claim: portcullis_proxy::is_claim,
    search: || Search {
        permits: portcullis_proxy::search_limit(),
        over: early_answer(Reason::SlowExpressions),
    },
    fields: || early_answer(Reason::FieldsTooLarge),
};

fn early_answer(reason: Reason) -> EarlyAnswer {
    EarlyAnswer { status: reason.status().as_u16(), words: reason.text().trim_end() }
}

fn ask(url: &str, method: &str, headers: &[&str]) -> String {
    explained(url, method, headers).text(Look::default())
}

fn explained(url: &str, method: &str, headers: &[&str]) -> Explanation {
    explain_in(&shop(), url, method, headers)
}

fn explain_in(snapshot: &Snapshot, url: &str, method: &str, headers: &[&str]) -> Explanation {
    let headers = headers.iter().map(ToString::to_string).collect();
    let question = Question { url: url.to_owned(), method: method.to_owned(), headers, all: false };
    explain(snapshot, &question, READING, &[]).unwrap()
}

#[test]
fn the_terms_of_clients_are_told_as_they_are() {
    let snapshot = snapshot("clients.yaml");
    let terms = |url: &str| -> Vec<String> {
        let text = explain_in(&snapshot, url, "GET", &[]).text(Look::default());
        let told = |line: &&str| line.starts_with("clients ") || line.starts_with("log ");
        text.lines().filter(told).map(str::to_owned).collect()
    };
    assert_eq!(terms("http://denied.example:8080/"), ["clients   none of 192.0.2.0/24; they are refused"]);
    assert_eq!(
        terms("http://allowed.example:8080/"),
        ["clients   of 198.51.100.0/24; none of 192.0.2.0/24; others are refused"]
    );
    assert_eq!(
        terms("http://quiet.example:8080/"),
        ["clients   none of 192.0.2.0/24; they are refused", "log       nothing besides"]
    );
}

#[test]
fn certificates_that_clients_need_are_told() {
    let required = |sets: usize| ClientCertificates::Required(vec![Arc::default(); sets].into());
    let needs = |whose: &str| format!("need a certificate ({whose}); without one TLS is refused");
    let any = "are asked for a certificate (tls.frontend of its Gateway); any will do, or none";
    for (clients, told) in [
        (ClientCertificates::NotAsked, None),
        (ClientCertificates::Any, Some(any.to_owned())),
        (required(1), Some(needs("tls.frontend of its Gateway"))),
        (required(2), Some(needs("tls.frontend of its Gateway, and of the one that this is attached to"))),
    ] {
        let mut snapshot = Snapshot::clone(&snapshot("streams.yaml"));
        let mut ports = snapshot.frontends.values_mut();
        let port = Arc::make_mut(ports.find(|port| port.key.number == 443).unwrap());
        let own = port.listeners.iter().find(|it| it.serves == Serves::NoCertificate).unwrap();
        let tls = TlsTermination { clients, ..TlsTermination::default() };
        let serves = Serves::Https { tls, routes: Arc::default() };
        port.listeners.add(Arc::new(Listener { serves, ..Listener::clone(own) })).unwrap();
        let text = explain_in(&snapshot, "https://own.test/", "GET", &[]).text(Look::default());
        let line = text.lines().find_map(|line| line.strip_prefix("clients   "));
        assert_eq!(line, told.as_deref(), "{text}");
    }
}

/// Without TLS, a connection has its streams before it is known for which listener it is.
#[test]
fn streams_that_are_more_than_the_listener_says_are_told() {
    let snapshot = snapshot("clients.yaml");
    let text = |url| explain_in(&snapshot, url, "GET", &[]).text(Look::default());
    let quiet = text("http://quiet.example:8080/");
    let told = "streams   100 on a connection, and not 10: it may be for other listeners of the port, too\n";
    assert!(quiet.contains("limits    http2Streams 10\n") && quiet.contains(told), "{quiet}");
    assert!(!text("http://denied.example:8080/").contains("streams"));
}

/// A tenant's rules and a long value are no way to have the agent write without end.
#[test]
fn an_explanation_has_an_end() {
    let headers = |wanted: usize| format!("headers: [{{name: x-a, value: '{}{wanted}'}}]", "v".repeat(1000));
    let matches: Vec<_> = (0..64).map(|at| format!("    - {}\n", headers(at))).collect();
    let route = |at: usize| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: r{at}}}\n\
             spec:\n  parentRefs: [{{name: g}}]\n  rules:\n  - matches:\n{}",
            matches.concat()
        )
    };
    let gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec:\n  \
                   gatewayClassName: portcullis\n  addresses: [{value: 127.0.0.1}]\n  listeners: [{name: http, port: 80, protocol: HTTP}]\n";
    let manifests = gateway.to_owned() + &(0..40).map(route).collect::<String>();
    let snapshot = snapshot_of("many.yaml", &manifests);
    let long = format!("X-A: {}", "x".repeat(30_000));
    let question = Question {
        url: "http://a.example/".to_owned(),
        method: "GET".to_owned(),
        headers: vec![long],
        all: true,
    };
    let explanation = explain(&snapshot, &question, READING, &[]).unwrap();
    let bytes: usize = explanation.lines.iter().map(|line| line.text.len()).sum();
    assert!(
        bytes < (1 << 20) + 10_000 && explanation.lines.len() > 300,
        "{bytes} {:?}",
        explanation.lines.first()
    );
    let told = |words: &str| explanation.lines.iter().filter(|line| line.text.contains(words)).count();
    assert_eq!(told("the request has \"xxx"), told("… (30000 bytes)"));
    assert_eq!(told("more candidates"), 1);
}

/// An address of its own comes before all addresses; a name may lead to either.
#[test]
fn an_address_is_one_gateways() {
    let snapshot = snapshot("addresses.yaml");
    let gateways = |url: &str| -> Vec<String> {
        let text = explain_in(&snapshot, url, "GET", &[]).text(Look::default());
        let lines = text.lines().filter_map(|line| line.strip_prefix("gateway   "));
        lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(gateways("http://192.0.2.1:8080/"), ["infra/one"]);
    assert_eq!(gateways("http://192.0.2.2:8080/"), ["infra/all"]);
    assert_eq!(gateways("http://192.0.2.1:8081/"), ["infra/all"], "the other has not this port");
    assert_eq!(gateways("http://shop.example:8080/"), ["infra/all", "infra/one"]);
}

#[test]
fn the_rule_that_wins_and_the_others_are_named() {
    let text = ask("http://www.shop.example:8080/cart/items", "GET", &[]);
    let expected = "\
gateway   infra/web port 8080 (HTTP) on tcp/127.0.0.1:8080
listener  ListenerSet shop/shop listener http: takes it: hostname *.shop.example is the most specific that matches www.shop.example
listener  Gateway infra/web listener http: not this one: hostname * matches, but is less specific
rule      HTTPRoute shop/cart rule 1: host www.shop.example, PathPrefix /cart
backend   9 of 10: shop/cart:80 → 127.0.0.1:9000
backend   1 of 10: 500: Service shop/nowhere does not exist
not       HTTPRoute shop/cart rule 0 (beta): host www.shop.example, PathPrefix /cart, header x-channel=beta: header x-channel=beta is wanted, the request has none
not       HTTPRoute shop/cart rule 2: host www.shop.example, PathPrefix /: it matches, too, but its path is less specific
";
    assert_eq!(text, expected);
}

/// Limits of scope Cluster are divided by the agents that are ready.
#[test]
fn the_part_of_an_agent_in_limits_of_all_is_shown() {
    let mut snapshot = Arc::unwrap_or_clone(snapshot("shared-limit.yaml"));
    for (agents, part) in [
        (0, "all: no other agent is known of"),
        (1, "all: no other is ready"),
        (3, "one part in 3: so many are ready"),
    ] {
        snapshot.agents = NonZeroU32::new(agents);
        let text = explain_in(&snapshot, "http://127.0.0.1:8080/", "GET", &[]).text(Look::default());
        let policy = "90 requests a minute, 90 at once, of all agents together\n";
        assert!(text.contains(policy), "{text}");
        assert!(text.contains(&format!("share     of limits of all agents together, {part}\n")), "{text}");
        let text = explain_in(&snapshot, "http://127.0.0.1:8080/own", "GET", &[]).text(Look::default());
        assert!(text.contains("9 requests a minute") && !text.contains("share "), "{text}");
        assert_eq!(dump_snapshot(&snapshot).get("agents").is_some(), agents > 0);
    }
}

/// Of the rule, or else of the listener's policies, field by field.
#[test]
fn time_outs_and_retries_are_those_in_force() {
    let snapshot = snapshot("defaults.yaml");
    let lines = |path: &str| -> Vec<String> {
        let text =
            explain_in(&snapshot, &format!("http://127.0.0.1:8080{path}"), "GET", &[]).text(Look::default());
        let lines = text.lines().filter(|line| line.starts_with("time-outs") || line.starts_with("retry"));
        lines.map(str::to_owned).collect()
    };
    let codes = "503 or a connection that fails";
    assert_eq!(
        lines("/"),
        [
            "time-outs request 10s, backendRequest 3s".to_owned(),
            format!("retry     up to 2 more attempts, after 25ms at least, for {codes}"),
        ]
    );
    assert_eq!(lines("/written"), ["time-outs request none, backendRequest 3s", "retry     none"]);
    let text = explain_in(&snapshot, "http://127.0.0.1:8080/", "GET", &[]).text(Look::default());
    let policy = "TrafficPolicy infra/web on Gateway infra/web: where rules say nothing, \
        time-outs: request 60s, backendRequest 3s; retries: attempts 2, codes 503\n";
    assert!(text.contains(policy), "{text}");
}

#[test]
fn headers_and_the_host_header_count() {
    let text = ask("http://127.0.0.1:8080/cart", "GET", &["Host: www.shop.example:8080", "X-Channel: beta"]);
    assert!(text.contains("rule      HTTPRoute shop/cart rule 0 (beta): "), "{text}");
    let text = ask("http://www.shop.example:8080/cart", "GET", &["x-channel: alpha"]);
    assert!(text.contains("header x-channel=beta is wanted, the request has \"alpha\""), "{text}");
}

#[test]
fn what_no_rule_takes_is_explained_too() {
    use Outcome::{Answered, Unanswered};
    for (url, line, outcome) in [
        ("http://a.shop.example:8080/", "answer    404: the listener has no rule that matches", Answered),
        (
            "https://a.shop.example:8080/",
            "answer    none: this port speaks HTTP, ask with http://",
            Unanswered,
        ),
        (
            "https://pay.shop.example:8443/",
            "answer    none: Gateway infra/web listener pay has no certificate that can be used, TLS is refused",
            Unanswered,
        ),
        (
            "http://a.shop.example/",
            "no listener on port 80 for GET a.shop.example/; listeners: tcp/127.0.0.1:8080 (Gateway infra/web), tcp/127.0.0.1:8443 (Gateway infra/web)",
            Unanswered,
        ),
        (
            "http://127.0.0.1/",
            "no listener on port 80 for GET 127.0.0.1/; on 127.0.0.1 there are tcp/127.0.0.1:8080 (Gateway infra/web), tcp/127.0.0.1:8443 (Gateway infra/web)",
            Unanswered,
        ),
        (
            "http://127.0.0.2:8080/",
            "no listener on port 8080 for GET 127.0.0.2/; no Gateway is served on 127.0.0.2",
            Unanswered,
        ),
        ("http://other.example:8080/", "answer    redirect 302", Answered),
    ] {
        let explained = explained(url, "GET", &[]);
        assert!(
            explained.text(Look::default()).lines().any(|it| it == line),
            "{url}: {}",
            explained.text(Look::default())
        );
        assert_eq!(explained.outcome, outcome, "{url}");
    }
}

/// So is its host.
#[test]
fn hosts_are_read_as_the_data_plane_reads_them() {
    let rule = "rule      HTTPRoute shop/cart rule 1: host www.shop.example, PathPrefix /cart";
    let refused = "answer    400: Host is not a host name: no route is asked";
    for (authority, headers, line) in [
        ("www.shop.example.:8080", &[][..], rule),
        ("user:word@WWW.shop.example:8080", &[], rule),
        ("127.0.0.1:8080", &["Host: www.shop.example.:8080"], rule),
        ("127.0.0.1:8080", &["Host: www.shop.example:"], rule),
        ("127.0.0.1:8080", &["Host: www.shop.example:99999"], refused),
        ("127.0.0.1:8080", &["Host: a@www.shop.example"], refused),
        ("www.shop_example:8080", &["Host:"], refused),
    ] {
        let text = ask(&format!("http://{authority}/cart"), "GET", headers);
        assert!(text.lines().any(|it| it == line), "{authority} {headers:?}: {text}");
    }
}

/// The path of a request is not always the one that is matched.
#[test]
fn paths_are_read_as_the_data_plane_reads_them() {
    for (path, line) in [
        ("/x/../cart/a", "request   GET www.shop.example/x/../cart/a, routed as /cart/a"),
        ("/x/%2e%2E/cart", "rule      HTTPRoute shop/cart rule 1: host www.shop.example, PathPrefix /cart"),
        ("//cart", "rule      HTTPRoute shop/cart rule 1: host www.shop.example, PathPrefix /cart"),
        ("/cart/..", "rule      HTTPRoute shop/cart rule 2: host www.shop.example, PathPrefix /"),
        ("/cart/..%2f", "answer    400: encoded slash in the path: no route is asked"),
    ] {
        let text = ask(&format!("http://www.shop.example:8080{path}"), "GET", &[]);
        assert!(text.lines().any(|it| it == line), "{path}: {text}");
    }
    assert!(!ask("http://www.shop.example:8080/cart", "GET", &[]).contains("\nrequest "));
}

#[test]
fn methods_that_no_route_is_asked_for_are_refused() {
    for method in ["TRACE", "CONNECT"] {
        let text = ask("http://www.shop.example:8080/cart", method, &[]);
        assert!(text.contains("answer    405: ") && !text.contains("\nrule "), "{method}: {text}");
    }
    // Small letters are of another method.
    for method in ["OPTIONS", "trace"] {
        assert!(ask("http://www.shop.example:8080/cart", method, &[]).contains("\nrule "), "{method}");
    }
}

/// Crumbs of a cookie are one field, and nothing that a client says of its certificate is seen.
#[test]
fn fields_are_read_as_the_data_plane_reads_them() {
    let snapshot = snapshot_of(
        "fields.yaml",
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec:\n  \
         gatewayClassName: portcullis\n  addresses: [{value: 127.0.0.1}]\n  listeners: [{name: http, port: 80, protocol: HTTP}]\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\nspec:\n  \
         parentRefs: [{name: g}]\n  rules:\n  - matches:\n    \
         - headers: [{name: cookie, value: 'a=1; b=2'}]\n    \
         - headers: [{name: ssl-client-verify, value: SUCCESS}]\n    \
         - {method: GET, path: {value: /get}}\n",
    );
    let answer = |path: &str, method: &str, headers: &[&str]| {
        explain_in(&snapshot, &format!("http://a.example{path}"), method, headers).text(Look::default())
    };
    let takes = |text: &str| text.contains("\nrule      HTTPRoute default/r rule 0");
    for (path, method, headers, is_taken) in [
        ("/", "GET", &["Cookie: a=1", "cookie: b=2"][..], true),
        ("/", "GET", &["Cookie:", "Cookie: a=1", "cookie:", "cookie: b=2", "Cookie:"], true),
        ("/", "GET", &["Cookie: a=1,b=2"], false),
        ("/", "GET", &["SSL-Client-Verify: SUCCESS"], false),
        ("/get", "GET", &[], true),
        ("/get", "get", &[], false),
    ] {
        let text = answer(path, method, headers);
        assert_eq!(takes(&text), is_taken, "{method} {path} {headers:?}: {text}");
    }
}

/// A question has no peer that could be believed or not.
#[test]
fn fields_about_the_client_are_seen_where_a_proxy_is_believed() {
    let manifests = |client_address: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: g}}\nspec:\n  \
             gatewayClassName: portcullis\n  addresses: [{{value: 127.0.0.1}}]\n  listeners: [{{name: http, port: 80, protocol: HTTP}}]\n---\n\
             apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: r}}\nspec:\n  \
             parentRefs: [{{name: g}}]\n  rules:\n  - matches:\n    \
             - headers: [{{name: x-forwarded-proto, value: https}}]\n---\n\
             apiVersion: portcullis.dev/v1alpha1\nkind: ListenerPolicy\nmetadata: {{name: p}}\nspec:\n  \
             targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: g}}]\n  {client_address}\n"
        )
    };
    for (name, client_address, why, is_seen) in [
        (
            "started",
            "deny: [192.0.2.0/24]",
            "as of a proxy that is believed (--trusted-hops of the agent); rules see none of others",
            true,
        ),
        (
            "none",
            "clientAddress: {trustedHops: 0}",
            "rules do not see it: the listener believes no proxy",
            false,
        ),
        (
            "proxies",
            "clientAddress: {trustedProxies: [10.0.0.0/8]}",
            "as of a proxy that the listener believes; rules see none of others",
            true,
        ),
    ] {
        let snapshot = snapshot_of(&format!("claims-{name}.yaml"), &manifests(client_address));
        let headers = ["X-Forwarded-Proto: https", "X-Other: 1"];
        let text = explain_in(&snapshot, "http://a.example/", "GET", &headers).text(Look::default());
        let told: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("field     ")).collect();
        assert_eq!(told, [format!("x-forwarded-proto: {why}")], "{text}");
        assert_eq!(text.contains("\nrule      HTTPRoute default/r rule 0"), is_seen, "{text}");
        let without = explain_in(&snapshot, "http://a.example/", "GET", &headers[1..]).text(Look::default());
        assert!(!without.contains("field "), "{without}");
    }
}

#[test]
fn fields_that_are_too_many_or_too_long_get_to_no_route() {
    let many: Vec<_> = (0..200).map(|at| format!("X-{at}: a")).collect();
    let long = format!("X-A: {}", "a".repeat(60_000));
    for (headers, line) in [
        (
            many.iter().map(String::as_str).collect(),
            "answer    431: it has 201 header fields, and the Gateway takes ",
        ),
        (vec![long.as_str()], "answer    431: its header fields have 60036 bytes, and the Gateway takes "),
    ] {
        let text = ask("http://www.shop.example:8080/cart", "GET", &headers);
        assert!(text.contains(line) && !text.contains("\nrule "), "{text}");
    }
}

/// As the data plane gives it up.
#[test]
fn a_search_that_takes_too_long_finds_no_rule() {
    let snapshot = snapshot_of(
        "expressions.yaml",
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec:\n  \
         gatewayClassName: portcullis\n  addresses: [{value: 127.0.0.1}]\n  listeners: [{name: http, port: 80, protocol: HTTP}]\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\nspec:\n  \
         parentRefs: [{name: g}]\n  rules:\n  - matches:\n    \
         - headers: [{type: RegularExpression, name: x-a, value: 'a*b'}]\n  - {}\n",
    );
    let text = |bytes: usize| {
        let header = format!("X-A: {}", "a".repeat(bytes));
        explain_in(&snapshot, "http://a.example/", "GET", &[&header]).text(Look::default())
    };
    assert!(text(8000).contains("\nrule      HTTPRoute default/r rule 1"), "{}", text(8000));
    let over = text(9000);
    assert!(over.contains("\nanswer    503: the route of this request takes too long to find: "), "{over}");
    assert!(!over.contains("\nrule "), "{over}");
}

#[test]
fn a_target_that_is_too_long_gets_to_no_route() {
    let long = |bytes: usize| format!("/{}?{}", "a".repeat(8000), "b".repeat(bytes - 8001));
    for (bytes, is_answered) in [(8192, false), (8193, true)] {
        let text = ask(&format!("http://www.shop.example:8080{}", long(bytes)), "GET", &[]);
        let answer =
            "answer    414: path and query have 8193 bytes, and the Gateway takes 8192: no route is asked";
        assert_eq!(text.lines().any(|it| it == answer), is_answered, "{text}");
        assert_ne!(text.contains("\nrule "), is_answered, "{text}");
    }
}

/// The other questions that `docs/cli.md` shows.
#[test]
fn connections_are_explained_as_requests_are() {
    let snapshot = snapshot("streams.yaml");
    let text = explain_in(&snapshot, "tls://mail.example", "GET", &[]).text(Look::default());
    let expected = "\
gateway   infra/web port 443 (HTTPS, TLS) on tcp/127.0.0.1:443
listener  Gateway infra/web listener passed: takes it: hostname *.example is the most specific that matches mail.example
rule      TLSRoute infra/mail rule 0: server name mail.example
backend   3 of 4: infra/mail:993 → 127.0.0.1:9993
backend   1 of 4: refused: Service infra/gone does not exist
not       TLSRoute infra/rest rule 0: server name *.example: it matches, too, but is less specific
";
    assert_eq!(text, expected);
    for same in ["https://mail.example/whatever", "tls://MAIL.example:443"] {
        assert_eq!(explain_in(&snapshot, same, "GET", &[]).text(Look::default()), expected, "{same}");
    }
    assert_eq!(
        explain_in(&snapshot, "tls://127.0.0.1", "GET", &["Host: mail.example"]).text(Look::default()),
        expected
    );
}

#[test]
fn what_no_rule_passes_on_is_explained_too() {
    use Outcome::{Answered, Unanswered};
    let snapshot = snapshot("streams.yaml");
    for (url, line, outcome) in [
        ("tcp://127.0.0.1:5432", "rule      TCPRoute infra/db rule 0 (all)", Answered),
        ("tcp://127.0.0.1:5432", "backend   1 of 1: infra/db:5432 → no ready endpoints: refused", Answered),
        ("udp://127.0.0.1:53", "backend   1 of 1: infra/dns:53/udp → 127.0.0.1:9053", Answered),
        ("tcp://127.0.0.1:9000", "answer    none: refused: no route is attached to the listener", Unanswered),
        ("tls://127.0.0.1", "answer    none: no listener has this server name, TLS is refused", Unanswered),
        (
            "tls://own.test",
            "answer    none: Gateway infra/web listener https has no certificate that can be used, TLS is refused",
            Unanswered,
        ),
        (
            "tls://more.test:8443",
            "answer    none: Gateway infra/web listener more has no route for this server name, TLS is refused",
            Unanswered,
        ),
        ("http://127.0.0.1:8443/", "answer    none: this port speaks TLS, ask with tls://", Unanswered),
        (
            "http://127.0.0.1:443/",
            "answer    none: this port speaks HTTPS, TLS, ask with https://",
            Unanswered,
        ),
        ("http://127.0.0.1:5432/", "answer    none: this port speaks TCP, ask with tcp://", Unanswered),
    ] {
        let explained = explain_in(&snapshot, url, "GET", &[]);
        assert!(
            explained.text(Look::default()).lines().any(|it| it == line),
            "{url}: {}",
            explained.text(Look::default())
        );
        assert_eq!(explained.outcome, outcome, "{url}");
    }
    let elsewhere = explain_in(&snapshot, "tcp://127.0.0.1:53", "GET", &[]).text(Look::default());
    assert!(elsewhere.starts_with("no listener on port 53 for a connection; on 127.0.0.1 "), "{elsewhere}");
}

#[test]
fn rules_for_connections_are_listed_beside_those_for_requests() {
    let listed = routes(&snapshot("streams.yaml")).text(Look::default());
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let rows: Vec<_> = rows.iter().map(|row| [row[0], row[row.len() - 1]]).collect();
    assert_eq!(
        rows,
        [
            ["PORT", "ACTION"],
            ["443", "4)"],
            ["443", "infra/db:5432"],
            ["5432", "infra/db:5432"],
            ["53/udp", "infra/dns:53/udp"],
        ],
        "{listed}"
    );
}

#[test]
fn a_url_is_a_question() {
    let question: Question = serde_json::from_str("{\"url\": \"http://shop.example/\"}").unwrap();
    assert_eq!((question.method.as_str(), question.headers.len(), question.all), ("GET", 0, false));
}

#[test]
fn what_is_no_request_is_refused() {
    for url in ["shop.example", "ftp://shop.example/", "http://a b/", "tcp://127.0.0.1"] {
        let question = Question { url: url.to_owned(), ..Question::default() };
        assert!(explain(&Snapshot::default(), &question, READING, &[]).is_err(), "{url}");
    }
    for port in ["0", "99999", "x80"] {
        let url = format!("http://shop.example:{port}/");
        let question = Question { url: url.clone(), method: "GET".to_owned(), ..Question::default() };
        assert!(explain(&Snapshot::default(), &question, READING, &[]).is_err(), "{url}");
    }
}
