//! Tables: request → what the backend saw → what the client got, over HTTP/1, HTTP/1 over TLS and
//! HTTP/2 over TLS.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use portcullis_model::{
    Action, Failure, Filter, HeaderEdit, PathRewrite, Redirect, Rewrite, Scheme, TimeLimit, Timeouts,
};

use crate::support::backend::{Backend, refusing};
use crate::support::client::{self, Text, Transport};
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, forward};

const ALL: [Transport; 3] = [Transport::Http1, Transport::Https1, Transport::Https2];
const HOST: &str = "a.example.com";

/// Serves the routes with an echoing backend and asks for `target`.
async fn ask(transport: Transport, routes: Vec<RouteSpec>, target: &str, headers: &[(&str, &str)]) -> Text {
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    let listener = ListenerSpec::new("main", HOST, transport != Transport::Http1, routes);
    gateway
        .serve(
            vec![listener],
            &[("app/echo:80", &[backend.address]), ("app/gone:80", &[]), ("app/closed:80", &[refusing()])],
        )
        .await;
    client::send(transport, gateway.address, request(target, headers)).await
}

fn request(target: &str, headers: &[(&str, &str)]) -> Request<Bytes> {
    let request = Request::get(format!("http://{HOST}{target}"));
    headers
        .iter()
        .fold(request, |request, (name, value)| request.header(*name, *value))
        .body(Bytes::new())
        .unwrap()
}

fn header_edit(set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]) -> HeaderEdit {
    let field = |(name, value): &(&str, &str)| -> (HeaderName, HeaderValue) {
        (name.parse().unwrap(), value.parse().unwrap())
    };
    HeaderEdit {
        set: set.iter().map(field).collect(),
        add: add.iter().map(field).collect(),
        remove: remove.iter().map(|name| name.parse().unwrap()).collect(),
    }
}

fn redirect(change: impl FnOnce(&mut Redirect)) -> Action {
    let status = StatusCode::FOUND;
    let mut redirect = Redirect { scheme: None, hostname: None, path: None, port: None, status };
    change(&mut redirect);
    Action::Redirect(Box::new(redirect))
}

#[tokio::test]
async fn backends_see_the_request_and_the_client_sees_the_answer() {
    for transport in ALL {
        let answer = ask(
            transport,
            vec![RouteSpec::to("/", "app/echo:80")],
            "/p?q=1",
            &[("x-a", "1"), ("connection", "x-a")],
        )
        .await;
        let body = answer.body();
        assert_eq!(answer.status(), StatusCode::OK, "{transport:?}");
        assert!(body.starts_with("GET /p?q=1\n"), "{transport:?}: {body}");
        assert!(body.contains("host: a.example.com\n"), "{body}");
        assert!(body.contains("x-forwarded-for: 127.0.0.1\n"), "{body}");
        let proto = if transport == Transport::Http1 { "http" } else { "https" };
        assert!(body.contains(&format!("x-forwarded-proto: {proto}\n")), "{body}");
        assert!(transport == Transport::Https2 || !body.contains("x-a:"), "named by Connection: {body}");
        assert_eq!(answer.headers()["x-backend"], "echo");
    }
}

#[tokio::test]
async fn a_client_cannot_forge_its_address() {
    let routes = vec![RouteSpec::to("/", "app/echo:80")];
    let answer = ask(
        Transport::Http1,
        routes,
        "/",
        &[("x-forwarded-for", "1.2.3.4"), ("x-forwarded-proto", "gopher")],
    )
    .await;
    assert!(!answer.body().contains("1.2.3.4") && !answer.body().contains("gopher"), "{}", answer.body());
}

#[tokio::test]
async fn filters_change_request_and_response() {
    for transport in ALL {
        let request = Filter::RequestHeaders(header_edit(&[("x-set", "s")], &[("x-add", "a")], &["x-gone"]));
        let response = Filter::ResponseHeaders(header_edit(&[("x-out", "o")], &[], &["x-backend"]));
        let rewrite = Rewrite {
            hostname: Some(HeaderValue::from_static("in.example.com")),
            path: Some(PathRewrite::Prefix("/new".into())),
        };
        let route = RouteSpec::to("/old", "app/echo:80")
            .filter(request)
            .filter(response)
            .filter(Filter::Rewrite(rewrite));
        let answer =
            ask(transport, vec![route], "/old/p?q", &[("x-gone", "1"), ("x-add", "0"), ("x-set", "0")]).await;
        let body = answer.body();
        assert!(
            body.starts_with("GET /new/p?q\n") && body.contains("host: in.example.com\n"),
            "{transport:?}: {body}"
        );
        assert!(
            body.contains("x-set: s\n") && body.contains("x-add: 0\nx-add: a\n") && !body.contains("x-gone"),
            "{body}"
        );
        assert_eq!(answer.headers()["x-out"], "o");
        assert!(!answer.headers().contains_key("x-backend"));
    }
}

#[tokio::test]
async fn statuses_of_our_own() {
    let failure =
        Action::Fail(Failure { status: StatusCode::INTERNAL_SERVER_ERROR, reason: "no backend".into() });
    let slow = RouteSpec {
        timeouts: Timeouts {
            request: TimeLimit::Of(Duration::from_millis(50)),
            backend_request: TimeLimit::Unsaid,
        },
        ..RouteSpec::action("/slow", forward("app/echo:80"))
    };
    for (target, status) in
        [("/none", 404), ("/fail", 500), ("/gone", 503), ("/closed", 503), ("/unknown", 503), ("/slow", 504)]
    {
        for transport in ALL {
            let routes = vec![
                RouteSpec::action("/fail", failure.clone()),
                RouteSpec::to("/gone", "app/gone:80"),
                RouteSpec::to("/closed", "app/closed:80"),
                RouteSpec::to("/unknown", "app/unknown:80"),
                slow.clone(),
            ];
            let answer = ask(transport, routes, target, &[]).await;
            assert_eq!(answer.status().as_u16(), status, "{target} over {transport:?}");
        }
    }
}

#[tokio::test]
async fn redirects_follow_the_port_rules() {
    let port = |location: &str| location.replace(|c: char| c.is_ascii_digit(), "#");
    for (action, target, location) in [
        (redirect(|r| r.scheme = Some(Scheme::Https)), "/p?q=z", "https://a.example.com/p?q=z"),
        (redirect(|r| r.hostname = Some("b.com".into())), "/p", "http://b.com:#####/p"),
        (redirect(|r| r.port = Some(80)), "/p", "http://a.example.com/p"),
        (redirect(|r| r.port = Some(8443)), "/p", "http://a.example.com:####/p"),
        (
            redirect(|r| r.path = Some(PathRewrite::Full("/all".into()))),
            "/p/x",
            "http://a.example.com:#####/all",
        ),
        (
            redirect(|r| r.path = Some(PathRewrite::Prefix("/n".into()))),
            "/p/x",
            "http://a.example.com:#####/n/x",
        ),
    ] {
        let answer = ask(Transport::Http1, vec![RouteSpec::action("/p", action)], target, &[]).await;
        assert_eq!(answer.status(), StatusCode::FOUND);
        assert_eq!(port(answer.headers()["location"].to_str().unwrap()), location);
    }
}

#[tokio::test]
async fn hosts_choose_the_most_specific_listener_and_no_other() {
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    let to = |path: &str| vec![RouteSpec::to(path, "app/echo:80")];
    let listeners = vec![
        ListenerSpec::new("any", "*", false, to("/")),
        ListenerSpec::new("wild", "*.example.com", false, to("/wild")),
        ListenerSpec::new("exact", HOST, false, to("/exact")),
    ];
    gateway.serve(listeners, &[("app/echo:80", &[backend.address])]).await;
    for (host, path, status) in [
        ("a.example.com", "/exact", 200),
        ("A.Example.com:99", "/exact", 200),
        ("a.example.com", "/wild", 404),
        ("b.example.com", "/wild", 200),
        ("b.example.com", "/x", 404),
        ("other.org", "/x", 200),
    ] {
        let request = Request::get(path).header("host", host).body(Bytes::new()).unwrap();
        let answer = client::send(Transport::Http1, gateway.address, request).await;
        assert_eq!(answer.status().as_u16(), status, "{host}{path}");
    }
}

#[tokio::test]
async fn a_large_response_streams_whole() {
    for transport in ALL {
        let answer = ask(transport, vec![RouteSpec::to("/", "app/echo:80")], "/large", &[]).await;
        assert_eq!(answer.body().len(), 5 << 20, "{transport:?}");
    }
}

#[tokio::test]
async fn connections_to_backends_are_reused() {
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    let listener = ListenerSpec::new("main", HOST, false, vec![RouteSpec::to("/", "app/echo:80")]);
    gateway.serve(vec![listener], &[("app/echo:80", &[backend.address])]).await;
    for _ in 0..20 {
        let answer = client::send(Transport::Http1, gateway.address, request("/", &[])).await;
        assert_eq!(answer.status(), StatusCode::OK);
    }
    assert_eq!(backend.connections(), 1);
    let stats = gateway.proxy.stats().await;
    let requests: Vec<_> = stats.listeners.values().map(|it| it.requests[2]).collect();
    assert_eq!((requests, stats.upstream_connects, stats.accepted), (vec![20], 1, 20));
}

#[tokio::test]
async fn what_is_not_routed_is_counted_and_nothing_else() {
    let gateway = Gateway::start();
    let routes = vec![RouteSpec::to("/there", "app/nowhere:80")];
    gateway.serve(vec![ListenerSpec::new("main", HOST, false, routes)], &[]).await;
    for (request, status, unrouted) in [
        ("GET /none HTTP/1.1\r\nHost: {HOST}", 404, 1),
        ("GET / HTTP/1.1\r\nHost: other.test", 404, 2),
        ("GET /%2f HTTP/1.1\r\nHost: {HOST}", 400, 3),
        ("TRACE / HTTP/1.1\r\nHost: {HOST}", 405, 4),
        ("OPTIONS * HTTP/1.1\r\nHost: {HOST}", 200, 4),
        ("GET /there HTTP/1.1\r\nHost: {HOST}", 503, 4),
    ] {
        let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let request = format!("{}\r\nConnection: close\r\n\r\n", request.replace("{HOST}", HOST));
        tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert_eq!(gateway.proxy.stats().await.unrouted, unrouted, "{request}");
    }
}
