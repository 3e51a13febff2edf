//! Bytes that a gateway must not pass on, written as they are.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use portcullis_proxy::Reason;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::backend::Backend;
use crate::support::client;
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec};

async fn gateway() -> (Gateway, Backend) {
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    let listener = ListenerSpec::new("main", "*", false, vec![RouteSpec::to("/", "app/echo:80")]);
    gateway.serve(vec![listener], &[("app/echo:80", &[backend.address])]).await;
    (gateway, backend)
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("closed")
}

#[tokio::test]
async fn malformed_and_ambiguous_requests_are_refused() {
    let (gateway, _backend) = gateway().await;
    let long = "x".repeat(9000);
    let many: String = (0..150).map(|n| format!("x-{n}: 1\r\n")).collect();
    let rows = [
        ("no Host", "GET / HTTP/1.1\r\n\r\n".to_owned(), "400"),
        ("two Hosts", "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n".to_owned(), "400"),
        ("user in Host", "GET / HTTP/1.1\r\nhost: a@b\r\n\r\n".to_owned(), "400"),
        ("path in Host", "GET / HTTP/1.1\r\nhost: a/x\r\n\r\n".to_owned(), "400"),
        (
            "TE identity",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n".to_owned(),
            "501",
        ),
        (
            "two lengths",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab".to_owned(),
            "400",
        ),
        ("signed length", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\na".to_owned(), "400"),
        ("NUL escape", "GET /%00 HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "400"),
        ("backslash", "GET /a\\b HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "400"),
        ("encoded slash", "GET /a/..%2fb HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "400"),
        ("path parameter", "GET /a/..;/b HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "400"),
        ("Connection: host", "GET / HTTP/1.1\r\nhost: a\r\nconnection: host\r\n\r\n".to_owned(), "400"),
        (
            "Connection: content-encoding",
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: Content-Encoding\r\ncontent-encoding: gzip\r\n\r\n"
                .to_owned(),
            "400",
        ),
        ("TRACE", "TRACE / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), "405"),
        ("CONNECT", "CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n".to_owned(), "405"),
        ("long target", format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"), "414"),
        ("many fields", format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"), "431"),
        ("bare CR", "GET / HTTP/1.1\r\nhost: a\r\nx: a\rb\r\n\r\n".to_owned(), "400"),
        ("space before colon", "GET / HTTP/1.1\r\nhost: a\r\nx : a\r\n\r\n".to_owned(), "400"),
    ];
    for (name, bytes, wanted) in rows {
        let answer = client::raw(gateway.address, bytes.as_bytes()).await;
        assert_eq!(status(&answer), wanted, "{name}: {answer}");
    }
}

/// They have no listener, and the HTTP library answers them.
#[tokio::test]
async fn requests_that_cannot_be_read_are_counted() {
    let (gateway, _backend) = gateway().await;
    let heads = [
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n",
        "GET / HTTP/1.1\nhost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: \0\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx : a\r\n\r\n",
        "GET /#x HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /\r\n\r\n",
    ];
    for (sent, head) in heads.iter().enumerate() {
        let answer = client::raw(gateway.address, head.as_bytes()).await;
        assert_eq!(status(&answer), "400", "{head:?}: {answer}");
        let expected = (sent as u64 + 1, BTreeMap::from([(Reason::Malformed, sent as u64 + 1)]));
        let counted = async {
            // The answer may be there before the connection has ended.
            loop {
                let stats = gateway.proxy.stats().await;
                if (stats.unrouted, stats.answers) == expected {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(50), counted).await.unwrap_or_else(|_| panic!("{head:?} is not counted"));
    }
}

/// The next hop might take the other one.
#[tokio::test]
async fn a_length_said_twice_is_refused_over_http2_too() {
    let (gateway, _backend) = gateway().await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let request = Request::post("http://a/").header("content-length", "5").header("content-length", "5");
    let answer = client::http2(stream, request.body(Bytes::from_static(b"hello")).unwrap()).await;
    assert_eq!(answer.status(), 400, "{answer:?}");
}

/// A backend that takes the connection for broken ends the requests of all that share it, and one
/// of HTTP/1 reads the value without its white space, which no route has seen.
#[tokio::test]
async fn white_space_around_values_is_refused_over_http2() {
    let (gateway, _backend) = gateway().await;
    for value in [" b", "b ", "\tb", " "] {
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let request = Request::get("http://a/").header("x-a", value).body(Bytes::new()).unwrap();
        let answer = client::http2(stream, request).await;
        assert_eq!(answer.status(), 400, "{value:?}: {answer:?}");
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\nx-a: {value}\r\nconnection: close\r\n\r\n");
        let answer = client::raw(gateway.address, head.as_bytes()).await;
        assert_eq!(status(&answer), "200", "{value:?}: {answer}");
    }
}

#[tokio::test]
async fn what_is_matched_is_what_is_forwarded() {
    let (gateway, _backend) = gateway().await;
    for (target, seen) in
        [("/a/../b?x=1", "GET /b?x=1\n"), ("/a/%2e%2e/b", "GET /b\n"), ("/a%20b", "GET /a%20b\n")]
    {
        let bytes = format!("GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let answer = client::raw(gateway.address, bytes.as_bytes()).await;
        assert!(answer.contains(seen), "{target}: {answer}");
    }
}

#[tokio::test]
async fn http2_is_not_offered_by_upgrade() {
    let (gateway, _backend) = gateway().await;
    let bytes = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade, http2-settings, close\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n\r\n";
    let answer = client::raw(gateway.address, bytes.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("upgrade:"), "{answer}");
}
