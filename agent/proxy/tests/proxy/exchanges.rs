//! The table: a request, what the backend saw of it, what the client got. Every row runs over
//! HTTP/1.1 and HTTP/2, with and without TLS, and to an HTTP/1.1 and an HTTP/2 backend.

use http::StatusCode;
use portcullis_model::{BackendProtocol, Filter, PathRewrite, Scheme};
use portcullis_proxy::Settings;

use crate::support::backend::refusing;
use crate::support::client::raw;
use crate::support::origin::Origin;
use crate::support::rules::{RuleSpec, edit, rule};
use crate::support::settings::settings;
use crate::support::via::{Client, Reply, Via};
use crate::support::world::World;

struct Row {
    name: &'static str,
    rules: Vec<RuleSpec>,
    request: &'static str,
    /// Lines of what the backend saw; a leading `!` says that no line starts so. Empty: it saw
    /// nothing.
    saw: &'static [&'static str],
    /// Status, then lines of the response's header in the same way.
    got: (u16, &'static [&'static str]),
}

fn row(name: &'static str, rules: Vec<RuleSpec>) -> Row {
    Row { name, rules, request: "GET /", saw: &[], got: (200, &[]) }
}

fn request_headers() -> Vec<Row> {
    vec![
        Row {
            request: "GET /a/b?c=d\nuser-agent: test",
            saw: &["GET /a/b?c=d", "host: any.test", "user-agent: test"],
            got: (200, &["x-backend: echo", "!connection", "!server"]),
            ..row("what the client sends arrives", vec![rule()])
        },
        Row {
            request: "POST /form\ncontent-type: text/plain\n\nhello",
            saw: &["POST /form", "content-length: 5", "hello"],
            ..row("bodies arrive", vec![rule()])
        },
        Row {
            saw: &["x-forwarded-for: 127.0.0.1", "x-forwarded-host: any.test", "!forwarded"],
            ..row("the backend learns who asks", vec![rule()])
        },
        Row {
            request: "GET /\nx-forwarded-for: 6.6.6.6\nx-forwarded-host: evil\nx-forwarded-proto: gopher",
            saw: &["x-forwarded-for: 127.0.0.1", "x-forwarded-host: any.test"],
            ..row("a client cannot say who it is", vec![rule()])
        },
        Row {
            request: "GET /\nx_forwarded_for: 6.6.6.6",
            saw: &["!x_forwarded_for"],
            ..row("nor in a spelling that some backends read alike", vec![rule()])
        },
        Row {
            request: "GET /\nx-forwarded-port: 1\nx-forwarded-prefix: /evil\nforwarded: for=6.6.6.6",
            saw: &["GET /", "!x-forwarded-port", "!x-forwarded-prefix", "!forwarded"],
            ..row("nor by which port and path it came", vec![rule()])
        },
        Row {
            request: "GET /\nx-real-ip: 6.6.6.6\nx_real_ip: 7.7.7.7\nx-real_ip: 8.8.8.8\nx_request_id: a",
            saw: &["!x-real-ip", "!x_real_ip", "!x-real_ip", "!x_request_id", "x-forwarded-for: 127.0.0.1"],
            ..row("nor by the fields of other proxies", vec![rule()])
        },
        Row {
            request: "GET /\nx-request-id: mine",
            saw: &["!x-request-id: mine"],
            ..row("nor which request it is", vec![rule()])
        },
        Row {
            request: "GET /\nte: trailers\naccept-encoding: gzip",
            saw: &["te: trailers", "accept-encoding: gzip"],
            ..row("gRPC's te: trailers passes", vec![rule()])
        },
        Row {
            request: "GET /\nexpect: 100-continue\nx-a: 1",
            saw: &["!expect", "x-a: 1"],
            ..row("expectations are met here", vec![rule()])
        },
    ]
}

fn filters() -> Vec<Row> {
    let set = |name| Filter::RequestHeaders(edit(&[(name, "set")], &[], &[]));
    vec![
        Row {
            request: "GET /\nx-set: old\nx-add: old\nx-remove: old",
            saw: &["x-set: new", "x-add: old", "x-add: more", "!x-remove", "!x-set: old"],
            ..row(
                "RequestHeaderModifier",
                vec![rule().filter(Filter::RequestHeaders(edit(
                    &[("x-set", "new")],
                    &[("x-add", "more")],
                    &["x-remove"],
                )))],
            )
        },
        Row {
            saw: &["GET /"],
            got: (200, &["x-set: new", "!x-backend", "x-add: 1"]),
            ..row(
                "ResponseHeaderModifier",
                vec![rule().filter(Filter::ResponseHeaders(edit(
                    &[("x-set", "new")],
                    &[("x-add", "1")],
                    &["x-backend"],
                )))],
            )
        },
        Row {
            saw: &["x-rule: set", "x-backend-ref: set"],
            ..row(
                "filters of a backendRef",
                vec![rule().backend_filter(set("x-backend-ref")).filter(set("x-rule"))],
            )
        },
        Row {
            request: "GET /old/a?q=1",
            saw: &["GET /new/a?q=1", "host: other.test", "x-forwarded-host: any.test"],
            ..row(
                "URLRewrite of host and prefix",
                vec![
                    rule()
                        .prefix("/old")
                        .rewrite(Some("other.test"), Some(PathRewrite::Prefix("/new".into()))),
                ],
            )
        },
        Row {
            request: "GET /old/a?q=1",
            saw: &["GET /full?q=1"],
            ..row(
                "URLRewrite of the full path",
                vec![rule().rewrite(None, Some(PathRewrite::Full("/full".into())))],
            )
        },
        Row {
            request: "GET /x",
            saw: &["host: set"],
            ..row("a filter may set Host", vec![rule().filter(set("host"))])
        },
    ]
}

fn redirects() -> Vec<Row> {
    vec![
        Row {
            request: "GET /a?q=1\nhost: any.test:99",
            got: (302, &["location: https://any.test/a?q=1"]),
            ..row("to https", vec![rule().redirect(|it| it.scheme = Some(Scheme::Https))])
        },
        Row {
            got: (302, &["location: http://any.test/"]),
            ..row("to http", vec![rule().redirect(|it| it.scheme = Some(Scheme::Http))])
        },
        Row {
            got: (301, &["location: https://any.test:8443/"]),
            ..row(
                "to a port",
                vec![rule().redirect(|it| {
                    (it.scheme, it.port, it.status) =
                        (Some(Scheme::Https), Some(8443), StatusCode::MOVED_PERMANENTLY);
                })],
            )
        },
        Row {
            got: (302, &["location: http://any.test:443/"]),
            ..row(
                "a port that is well-known for another scheme is named",
                vec![rule().redirect(|it| (it.scheme, it.port) = (Some(Scheme::Http), Some(443)))],
            )
        },
        Row {
            request: "GET /old/a",
            got: (302, &["location: https://new.test/new/a"]),
            ..row(
                "host and prefix",
                vec![rule().prefix("/old").redirect(|it| {
                    it.scheme = Some(Scheme::Https);
                    it.hostname = Some("new.test".into());
                    it.path = Some(PathRewrite::Prefix("/new".into()));
                })],
            )
        },
        Row {
            got: (308, &["x-set: 1", "location: https://any.test/p"]),
            ..row(
                "response filters apply to redirects",
                vec![rule().filter(Filter::ResponseHeaders(edit(&[("x-set", "1")], &[], &[]))).redirect(
                    |it| {
                        it.scheme = Some(Scheme::Https);
                        it.status = StatusCode::PERMANENT_REDIRECT;
                        it.path = Some(PathRewrite::Full("/p".into()));
                    },
                )],
            )
        },
    ]
}

fn routing() -> Vec<Row> {
    vec![
        Row { got: (404, &[]), request: "GET /b", ..row("no route", vec![rule().prefix("/a")]) },
        Row { got: (404, &[]), ..row("another host's route", vec![rule().host("other.test")]) },
        Row {
            request: "GET /\nhost: OTHER.test:8080",
            saw: &["host: OTHER.test:8080"],
            ..row("host without case and port", vec![rule().host("other.test")])
        },
        Row {
            request: "GET /?x=a%20b&y=1\nx-env: canary",
            saw: &["GET /?x=a%20b&y=1"],
            ..row("header and query matches", vec![rule().header("x-env", "canary").query("x", "a b")])
        },
        Row { got: (404, &[]), ..row("method", vec![rule().method("POST")]) },
        Row { got: (500, &[]), ..row("invalid backend", vec![rule().invalid_backend()]) },
        Row { got: (503, &[]), ..row("a rule that cannot serve", vec![rule().fail(503)]) },
        Row { got: (503, &[]), ..row("unknown backend", vec![rule().to("nowhere")]) },
        Row { got: (503, &[]), ..row("backend without endpoint", vec![rule().to("empty")]) },
        Row { got: (503, &[]), ..row("no socket listens", vec![rule().to("refusing")]) },
        Row {
            request: "GET /?delay=20000",
            got: (504, &[]),
            ..row("request time-out", vec![rule().request_timeout(50)])
        },
        Row {
            request: "GET /?delay=20000",
            got: (504, &[]),
            ..row("backend time-out", vec![rule().backend_timeout(50)])
        },
        Row {
            request: "GET /?status=418",
            saw: &["GET /?status=418"],
            got: (418, &["x-backend: echo"]),
            ..row("the backend's own errors pass", vec![rule()])
        },
        Row { request: "HEAD /", got: (200, &["x-backend: echo"]), ..row("HEAD", vec![rule()]) },
        Row { request: "HEAD /", got: (404, &[]), ..row("HEAD for nothing", vec![rule().prefix("/a")]) },
    ]
}

/// A normalised path is forwarded as it was matched.
fn paths() -> Vec<Row> {
    let normalised = |request, saw| Row { request, saw, ..row(request, vec![rule().prefix("/ok")]) };
    let refused = |request| Row { request, got: (400, &[]), ..row(request, vec![rule()]) };
    vec![
        normalised("GET /x/../ok/a", &["GET /ok/a"]),
        normalised("GET /x/%2e%2E/ok", &["GET /ok"]),
        normalised("GET /./ok/./b?c=/../d", &["GET /ok/b?c=/../d"]),
        normalised("GET //ok//a", &["GET /ok/a"]),
        normalised("GET /%6fk/%7Eme", &["GET /ok/~me"]),
        normalised("GET /ok/a%20b;v=1", &["GET /ok/a%20b;v=1"]),
        normalised("GET /ok/..", &["!GET"]),
        refused("GET /a%00"),
        refused("GET /a/..%2fb"),
        refused("GET /a%5cb"),
        refused("GET /a/..;/b"),
        refused("GET /a/%2e%2e;x=1/b"),
        refused("GET /a%zz"),
        Row {
            request: "TRACE /",
            got: (405, &["allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"]),
            ..row("TRACE", vec![rule()])
        },
    ]
}

async fn run(rows: Vec<Row>) {
    let backends =
        [(BackendProtocol::Http1, Origin::http1().await), (BackendProtocol::H2c, Origin::h2c().await)];
    let refusing = refusing();
    let mut world = World::new();
    world.backend("empty", BackendProtocol::Http1, &[]);
    world.backend("refusing", BackendProtocol::Http1, &[refusing]);
    for row in rows {
        world.listeners.clear();
        world.http("*", row.rules.clone());
        world.https("*", row.rules.clone());
        for (protocol, backend) in &backends {
            world.backend("echo", *protocol, &[backend.address]);
            world.apply().await;
            for via in Via::ALL {
                let reply = world.send(via, row.request).await;
                check(&row, &reply, &format!("{}, {via:?} to {protocol:?}", row.name));
            }
        }
    }
}

fn check(row: &Row, reply: &Reply, name: &str) {
    if row.name.contains("..") && row.saw == ["!GET"] {
        assert_eq!(reply.status, 404, "{name}: {reply:?}");
        return;
    }
    assert_eq!(reply.status.as_u16(), row.got.0, "{name}: {reply:?}");
    check_lines(row.saw, &reply.body, name);
    let headers = reply.headers.iter().map(|(n, v)| format!("{n}: {}\n", v.to_str().unwrap()));
    check_lines(row.got.1, &headers.collect::<String>(), name);
}

fn check_lines(wanted: &[&str], text: &str, name: &str) {
    for line in wanted {
        match line.strip_prefix('!') {
            Some(absent) => {
                assert!(!text.lines().any(|it| it.starts_with(absent)), "{name}: {absent:?} in\n{text}");
            }
            None => assert!(text.lines().any(|it| it == *line), "{name}: no {line:?} in\n{text}"),
        }
    }
}

#[tokio::test]
async fn request_headers_pass_and_are_completed() {
    run(request_headers()).await;
}

#[tokio::test]
async fn filters_change_requests_and_responses() {
    run(filters()).await;
}

#[tokio::test]
async fn redirects_follow_the_api() {
    run(redirects()).await;
}

#[tokio::test]
async fn requests_find_their_rule_or_an_answer() {
    run(routing()).await;
}

#[tokio::test]
async fn paths_are_normalised_once_or_refused() {
    run(paths()).await;
}

/// Without a scheme in the filter, the port is the listener's, not the one of `Host`.
#[tokio::test]
async fn a_redirect_without_scheme_keeps_the_listeners_port() {
    let (mut world, _backend) =
        World::echo(vec![rule().redirect(|it| it.hostname = Some("x.test".into()))]).await;
    let request = "GET /\nhost: any.test:1234";
    for (via, location) in [(Via::Http1, "http://x.test/"), (Via::Http2Tls, "https://x.test/")] {
        assert_eq!(world.send(via, request).await.header("location"), Some(location));
    }
    world.listeners.clear();
    world.apply().await;
}

#[tokio::test]
async fn trailers_pass_both_kinds_of_backend() {
    let (mut world, backend) = World::echo(vec![rule()]).await;
    let over_http2 = Origin::h2c().await;
    for (protocol, backend) in [(BackendProtocol::Http1, &backend), (BackendProtocol::H2c, &over_http2)] {
        world.backend("echo", protocol, &[backend.address]);
        world.apply().await;
        for via in Via::ALL {
            let reply = world.send(via, "GET /?trailers\nte: trailers").await;
            let sum = reply.trailers.get("x-sum").map(|sum| sum.to_str().unwrap());
            assert_eq!(sum, Some("42"), "{via:?} to {protocol:?}");
        }
    }
}

/// Trailers may not say what header fields may not.
#[tokio::test]
async fn trailers_of_a_request_are_restricted_as_its_header_fields_are() {
    let secret = Filter::RequestHeaders(edit(&[("x-set", "own")], &[], &["x-secret"]));
    let (mut world, backend) = World::echo(vec![rule().filter(secret)]).await;
    let over_http2 = Origin::h2c().await;
    for (protocol, backend) in [(BackendProtocol::Http1, &backend), (BackendProtocol::H2c, &over_http2)] {
        world.backend("echo", protocol, &[backend.address]);
        world.apply().await;
        let names =
            "x-sum, x-real-ip, x-forwarded-for, x_real_ip, x-secret, x-set, authorization, x-request-id";
        let request = format!(
            "POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntrailer: {names}\r\ntransfer-encoding: chunked\r\n\
             \r\n2\r\nhi\r\n0\r\nx-sum: 42\r\nx-real-ip: 6.6.6.6\r\nx-forwarded-for: 6.6.6.6\r\n\
             x_real_ip: 6.6.6.6\r\nx-secret: 6.6.6.6\r\nx-set: 6.6.6.6\r\nauthorization: 6.6.6.6\r\n\
             x-request-id: 6.6.6.6\r\n\r\n"
        );
        let reply = raw(world.plain, request.as_bytes()).await;
        assert!(reply.contains("x-sum: 42"), "{protocol:?}: {reply}");
        assert!(!reply.contains("6.6.6.6"), "{protocol:?}: {reply}");
    }
}

/// As searches are sent: a GET whose body does not say its length.
#[tokio::test]
async fn a_get_keeps_its_body_of_unknown_length() {
    let (mut world, backend) = World::echo(vec![rule()]).await;
    let over_http2 = Origin::h2c().await;
    for (protocol, backend) in [(BackendProtocol::Http1, &backend), (BackendProtocol::H2c, &over_http2)] {
        world.backend("echo", protocol, &[backend.address]);
        world.apply().await;
        let chunked =
            b"GET /_search HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        let reply = raw(world.plain, chunked).await;
        assert!(reply.contains("\nhello"), "{protocol:?}: {reply}");
        for via in [Via::H2c, Via::Http2Tls] {
            let mut client = Client::connect(via, world.address(via), "any.test").await;
            let reply = client.send_unsized("GET /_search\n\nhello").await;
            assert!(reply.body.ends_with("\nhello"), "{via:?} to {protocol:?}: {}", reply.body);
        }
    }
}

#[tokio::test]
async fn a_question_to_the_whole_server_is_answered() {
    let (world, backend) = World::echo(vec![rule()]).await;
    let reply = raw(world.plain, b"OPTIONS * HTTP/1.1\r\nhost: any.test\r\n\r\n").await.to_lowercase();
    assert!(reply.starts_with("http/1.1 200") && reply.contains("\nallow: get, head"), "{reply}");
    let reply = raw(world.plain, b"OPTIONS * HTTP/1.1\r\n\r\n").await;
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
    assert_eq!(backend.requests(), 0);
}

#[tokio::test]
async fn a_client_that_names_no_host_reaches_both_kinds_of_backend() {
    let (mut world, _backend) = World::echo(vec![rule()]).await;
    let over_http2 = Origin::h2c().await;
    assert!(raw(world.plain, b"GET / HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.0 200"));
    world.backend("echo", BackendProtocol::H2c, &[over_http2.address]);
    world.apply().await;
    let reply = raw(world.plain, b"GET / HTTP/1.0\r\n\r\n").await;
    assert!(reply.starts_with("HTTP/1.0 200"), "{reply}");
    assert!(reply.contains(&format!("host: {}", over_http2.address)), "{reply}");
}

/// Two proxies in front: what they say is kept, and nothing of what was before them.
#[tokio::test]
async fn trusted_proxies_are_believed() {
    let mut world = World::with(Settings { trusted_hops: 2, ..settings() });
    let backend = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[backend.address]);
    world.http("*", vec![rule()]);
    world.https("*", vec![rule()]);
    world.apply().await;
    for via in Via::ALL {
        let claims = "x-forwarded-proto: gopher\nx-forwarded-port: 8443\nx_forwarded_for: 6.6.6.6\nforwarded: for=6.6.6.6";
        let through = format!("GET /\nx-forwarded-for: 6.6.6.6, 7.7.7.7\nx-forwarded-for: 8.8.8.8\n{claims}");
        let saw = world.send(via, &through).await.body;
        check_lines(
            &[
                "x-forwarded-for: 7.7.7.7, 8.8.8.8, 127.0.0.1",
                "x-forwarded-proto: gopher",
                "x-forwarded-host: any.test",
                "x-forwarded-port: 8443",
                "!x_forwarded_for",
                "!forwarded",
            ],
            &saw,
            &format!("{via:?}"),
        );
        let past_them = world.send(via, &format!("GET /\n{claims}")).await.body;
        let wanted = ["x-forwarded-for: 127.0.0.1", "!x-forwarded-proto: gopher", "!x-forwarded-port"];
        check_lines(&wanted, &past_them, &format!("past them, {via:?}"));
    }
}

/// By default a request does not say that it passed a proxy: some backends send no compressed
/// responses then.
#[tokio::test]
async fn requests_name_the_agent_only_if_it_is_given_a_name() {
    for (name, via, seen) in [
        (None, Via::Http1, None),
        (Some("edge"), Via::Http1, Some("1.1 edge")),
        (Some("edge"), Via::Http2Tls, Some("2 edge")),
    ] {
        let mut world = World::with(Settings { via: name.map(Into::into), ..settings() });
        let origin = Origin::http1().await;
        world.backend("echo", BackendProtocol::Http1, &[origin.address]);
        world.http("*", vec![rule()]);
        world.https("*", vec![rule()]);
        world.apply().await;
        let reply = world.send(via, "GET /").await;
        assert_eq!(reply.body.lines().find_map(|line| line.strip_prefix("via: ")), seen, "{via:?}");
        let reply = world.send(via, "GET /\nvia: 1.0 fred").await;
        let all: Vec<_> = reply.body.lines().filter_map(|line| line.strip_prefix("via: ")).collect();
        assert_eq!(all, ["1.0 fred"].into_iter().chain(seen).collect::<Vec<_>>(), "{via:?}");
    }
}
