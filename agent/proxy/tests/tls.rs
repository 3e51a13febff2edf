//! Server names, certificates, misdirected requests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use bytes::Bytes;
use http::Request;
use portcullis_proxy::HandshakeFailure;
use support::backend::Backend;
use support::client;
use support::fixture::{Gateway, ListenerSpec, RouteSpec, certificate, snapshot};
use tokio::net::TcpStream;

fn listeners() -> Vec<ListenerSpec> {
    let to = || vec![RouteSpec::to("/", "app/echo:80")];
    vec![
        ListenerSpec::new("a", "a.example.com", true, to()),
        ListenerSpec::new("wild", "*.example.com", true, to()),
        ListenerSpec::new("other", "other.org", true, to()),
    ]
}

async fn gateway(listeners: Vec<ListenerSpec>) -> (Gateway, Backend) {
    let backend = Backend::echo().await;
    let gateway = Gateway::start();
    gateway.serve(listeners, &[("app/echo:80", &[backend.address])]).await;
    (gateway, backend)
}

#[tokio::test]
async fn a_connection_made_for_another_host_is_misdirected() {
    let (gateway, _backend) = gateway(listeners()).await;
    for (name, host, status) in [
        ("a.example.com", "a.example.com", 200),
        ("b.example.com", "c.example.com", 200),
        ("b.example.com", "a.example.com", 421),
        ("a.example.com", "b.example.com", 421),
        ("a.example.com", "other.org", 421),
        ("a.example.com", "nowhere.net", 404),
    ] {
        for alpn in [&b"h2"[..], b"http/1.1"] {
            let stream = TcpStream::connect(gateway.address).await.unwrap();
            let stream = client::tls(stream, Some(name), alpn).await.unwrap();
            let request = Request::get(format!("https://{host}/")).body(Bytes::new()).unwrap();
            let answer = match alpn {
                b"h2" => client::http2(stream, request).await,
                _ => client::http1(stream, request).await,
            };
            assert_eq!(answer.status().as_u16(), status, "{name} asked for {host}");
        }
    }
}

#[tokio::test]
async fn an_unknown_server_name_is_refused_and_counted() {
    let (gateway, _backend) = gateway(listeners()).await;
    for name in [Some("nowhere.net"), None] {
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let error = client::tls(stream, name, b"h2").await.unwrap_err();
        assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    }
    let stats = gateway.proxy.stats().await;
    assert_eq!(stats.handshake_failures[&HandshakeFailure::UnknownName], 2);
}

#[tokio::test]
async fn without_a_server_name_the_listener_for_any_host_serves() {
    let any = ListenerSpec::new("any", "*", true, vec![RouteSpec::to("/", "app/echo:80")]);
    let (gateway, _backend) = gateway(vec![any]).await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let stream = client::tls(stream, None, b"h2").await.unwrap();
    let request = Request::get("https://whatever.net/").body(Bytes::new()).unwrap();
    assert_eq!(client::http2(stream, request).await.status(), 200);
}

#[tokio::test]
async fn the_longest_matching_certificate_serves() {
    let gateway = Gateway::start();
    let mut listener = ListenerSpec::new("wild", "*.example.com", true, Vec::new()).build();
    let certificates =
        [certificate(&["*.example.com"]), certificate(&["a.example.com"]), certificate(&["x.org"])];
    let chains = certificates.clone().map(|it| it.key.cert[0].clone());
    let tls = portcullis_model::TlsTermination { certificates: certificates.to_vec().into() };
    listener.serves = portcullis_model::Serves::Https { tls, routes: std::sync::Arc::default() };
    gateway.proxy.apply(std::sync::Arc::new(snapshot(gateway.address, [listener], &[]))).await;
    for (name, wanted) in [("a.example.com", 1), ("b.example.com", 0), ("a.b.example.com", 0)] {
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let stream = client::tls(stream, Some(name), b"h2").await.unwrap();
        assert_eq!(stream.get_ref().1.peer_certificates().unwrap()[0], chains[wanted], "{name}");
    }
}
