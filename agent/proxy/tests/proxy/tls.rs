//! Server names, certificates, misdirected requests.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use portcullis_model::{Certificate, TlsTermination};
use portcullis_proxy::HandshakeFailure;
use rustls::SignatureScheme;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::backend::Backend;
use crate::support::client;
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, certificate, certificate_with, snapshot};
use crate::support::world::eventually;

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
async fn a_reset_before_the_hello_is_whole_is_no_fault_of_the_protocol() {
    let (gateway, _backend) = gateway(listeners()).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    eventually("the failure is counted", async || {
        let failures = gateway.proxy.stats().await.handshake_failures;
        assert_eq!(failures.get(&HandshakeFailure::Protocol).copied().unwrap_or_default(), 0);
        failures.get(&HandshakeFailure::Reset) == Some(&1)
    })
    .await;
}

#[tokio::test]
async fn a_name_without_certificate_is_refused_and_falls_to_no_wildcard() {
    let (gateway, backend) = gateway(listeners()).await;
    let connect =
        async |name| client::tls(TcpStream::connect(gateway.address).await.unwrap(), Some(name), b"h2").await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let mut before = client::tls(stream, Some("a.example.com"), b"http/1.1").await.unwrap();
    before.write_all(b"GET / HTTP/1.1\r\nhost: a.example.com\r\n\r\n").await.unwrap();
    assert_eq!(&before.read_u64().await.unwrap().to_be_bytes(), b"HTTP/1.1");
    let listeners = listeners().into_iter().map(|spec| {
        let mut listener = spec.build();
        if &*listener.id.name == "a" {
            listener.serves = portcullis_model::Serves::NoCertificate;
        }
        listener
    });
    let snapshot = snapshot(gateway.address, listeners, &[("app/echo:80", &[backend.address])]);
    let unserved = gateway.proxy.apply(std::sync::Arc::new(snapshot)).await;
    assert_eq!(unserved, portcullis_model::Unserved::default());
    let error = connect("a.example.com").await.unwrap_err();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    assert_eq!(gateway.proxy.stats().await.handshake_failures[&HandshakeFailure::NoCertificate], 1);
    let request = Request::get("https://a.example.com/").body(Bytes::new()).unwrap();
    let neighbour = connect("b.example.com").await.unwrap();
    assert_eq!(client::http2(neighbour, request).await.status(), 421);
    // A connection that it still had is closed.
    before.read_to_end(&mut Vec::new()).await.unwrap();
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

/// A gateway with one listener for `*.example.com` and these certificates.
async fn with_certificates(certificates: &[Certificate]) -> Gateway {
    let gateway = Gateway::start();
    let mut listener = ListenerSpec::new("wild", "*.example.com", true, Vec::new()).build();
    let tls = TlsTermination { certificates: certificates.to_vec().into(), ..TlsTermination::default() };
    listener.serves = portcullis_model::Serves::Https { tls, routes: std::sync::Arc::default() };
    gateway.proxy.apply(std::sync::Arc::new(snapshot(gateway.address, [listener], &[]))).await;
    gateway
}

#[tokio::test]
async fn the_longest_matching_certificate_serves() {
    let certificates =
        [certificate(&["*.example.com"]), certificate(&["a.example.com"]), certificate(&["x.org"])];
    let gateway = with_certificates(&certificates).await;
    let chains = certificates.map(|it| it.key.cert[0].clone());
    for (name, wanted) in [("a.example.com", 1), ("b.example.com", 0), ("a.b.example.com", 0)] {
        let stream = TcpStream::connect(gateway.address).await.unwrap();
        let stream = client::tls(stream, Some(name), b"h2").await.unwrap();
        assert_eq!(stream.get_ref().1.peer_certificates().unwrap()[0], chains[wanted], "{name}");
    }
}

#[tokio::test]
async fn the_certificate_is_one_that_the_client_can_verify() {
    const RSA: &[SignatureScheme] = &[SignatureScheme::RSA_PSS_SHA256, SignatureScheme::RSA_PKCS1_SHA256];
    const ECDSA: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];
    let rsa = certificate_with(&rcgen::PKCS_RSA_SHA256, &["a.example.com"]);
    let ecdsa = certificate(&["*.example.com", "a.example.com"]);
    for certificates in [[rsa.clone(), ecdsa.clone()], [ecdsa.clone(), rsa.clone()]] {
        let gateway = with_certificates(&certificates).await;
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            for (schemes, wanted) in
                [(RSA, &rsa), (ECDSA, &ecdsa), (&[RSA, ECDSA].concat(), &certificates[0])]
            {
                let stream = TcpStream::connect(gateway.address).await.unwrap();
                let stream = client::tls_taking(schemes, version, stream, "a.example.com").await.unwrap();
                let served = &stream.get_ref().1.peer_certificates().unwrap()[0];
                assert_eq!(served, &wanted.key.cert[0], "{schemes:?}, {version:?}");
            }
            // The only certificate of the name, or none.
            let stream = TcpStream::connect(gateway.address).await.unwrap();
            let stream = client::tls_taking(ECDSA, version, stream, "b.example.com").await.unwrap();
            assert_eq!(stream.get_ref().1.peer_certificates().unwrap()[0], ecdsa.key.cert[0]);
        }
    }
}

/// The client's library sends none, so the name is changed where it is written.
#[tokio::test]
async fn a_server_name_may_end_in_a_dot() {
    let (gateway, _backend) = gateway(listeners()).await;
    for (name, record) in [("a.example.com.", 22), ("A.Example.Com.", 22), ("nowhere.example.net.", 21)] {
        let placeholder = name.to_lowercase().replace('.', "x");
        let mut connection = client::connection(&placeholder);
        let mut hello = Vec::new();
        connection.write_tls(&mut hello).unwrap();
        let at = hello.windows(name.len()).position(|part| part == placeholder.as_bytes()).unwrap();
        hello[at..at + name.len()].copy_from_slice(name.as_bytes());
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        let first = stream.read_u8().await.unwrap();
        assert_eq!(first, record, "{name}: a handshake record (22), or an alert (21)");
    }
}
