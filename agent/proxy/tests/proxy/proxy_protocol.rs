//! Clients that proxies in front name by PROXY protocol: who is believed, what has to come first,
//! and which address counts then.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use portcullis_model::{Admission, ClientList, ClientRules, Listener, OtherPeers, ProxyProtocol};
use portcullis_proxy::NotAdmitted;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::backend::Backend;
use crate::support::client;
use crate::support::fixture::{Gateway, ListenerSpec, RouteSpec, snapshot};
use crate::support::l4::{echo, tcp};

/// A proxy in front.
const PROXY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// A client that comes past it.
const DIRECT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 443\r\n";
/// The same, in version 2.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x0a\0\0\x01\x12\x67\x01\xbb";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

fn behind(others: OtherPeers) -> Admission {
    let levels = vec![vec!["127.0.0.2".parse().unwrap()]];
    Admission { proxies: Some(Arc::new(ProxyProtocol { levels, others })), ..Admission::default() }
}

fn denying(range: &str, admission: Admission) -> Admission {
    let deny = vec![range.parse().unwrap()];
    let clients = ClientRules::new(vec![ClientList { allow: Vec::new(), deny }]);
    Admission { clients: Some(Arc::new(clients)), ..admission }
}

fn web(name: &'static str, tls: bool, admission: Admission) -> Listener {
    let routes = vec![RouteSpec::to("/", "app/echo:80")];
    Listener { admission: admission.into(), ..ListenerSpec::new(name, name, tls, routes).build() }
}

async fn gateway(listeners: Vec<Listener>, backend: SocketAddr) -> Gateway {
    let gateway = Gateway::start();
    let snapshot = snapshot(gateway.address, listeners, &[("app/echo:80", &[backend][..])]);
    assert!(gateway.proxy.apply(Arc::new(snapshot)).await.is_empty());
    gateway
}

/// The connection may be closed as soon as it is there.
async fn connect(from: Ipv4Addr, gateway: &Gateway) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(gateway.address).await
}

/// The answer to a request behind these bytes.
async fn ask(from: Ipv4Addr, gateway: &Gateway, header: &[u8]) -> io::Result<String> {
    let mut stream = connect(from, gateway).await?;
    let request = b"GET / HTTP/1.1\r\nHost: a.com\r\nX-Forwarded-For: 1.1.1.1\r\nConnection: close\r\n\r\n";
    stream.write_all(&[header, request].concat()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

async fn kept_out(gateway: &Gateway, reason: NotAdmitted) -> u64 {
    let stats = gateway.proxy.stats().await;
    stats.gateways.into_values().next().unwrap().not_admitted.get(&reason).copied().unwrap_or_default()
}

#[tokio::test]
async fn only_proxies_name_clients_and_they_have_to() {
    let backend = Backend::echo().await;
    let gateway = gateway(vec![web("a.com", false, behind(OtherPeers::Accept))], backend.address).await;
    for (from, header, client) in [
        (PROXY, V1, "192.0.2.7"),
        (PROXY, V2, "192.0.2.7"),
        (PROXY, b"PROXY TCP6 2001:db8::7 ::1 1 2\r\n", "2001:db8::7"),
        (PROXY, b"PROXY TCP6 ::ffff:192.0.2.9 ::1 1 2\r\n", "192.0.2.9"),
        (PROXY, b"PROXY UNKNOWN\r\n", "127.0.0.2"),
        (PROXY, LOCAL, "127.0.0.2"),
        (DIRECT, b"", "127.0.0.3"),
    ] {
        let answer = ask(from, &gateway, header).await.unwrap();
        let named = format!("x-forwarded-for: {client}\n");
        assert!(answer.to_ascii_lowercase().contains(&named), "{}: {answer}", header.escape_ascii());
    }
    // Others' headers are a request of theirs, and a broken one; and there is one header.
    for (from, header) in
        [(DIRECT, V1), (DIRECT, V2), (PROXY, &[V1, V1].concat()[..]), (PROXY, &[V2, V1].concat())]
    {
        let answer = ask(from, &gateway, header).await.unwrap_or_default();
        let refused = answer.is_empty() || answer.starts_with("HTTP/1.1 400 ");
        assert!(refused, "{}: {answer}", header.escape_ascii());
    }
    let mut without = 0;
    for header in
        [&b""[..], b"PROXY TCP4 192.0.2.7\r\n", b"proxy UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\0"]
    {
        without += 1;
        assert!(ask(PROXY, &gateway, header).await.is_err(), "{}", header.escape_ascii());
        assert_eq!(kept_out(&gateway, NotAdmitted::ProxyHeader).await, without);
    }
}

#[tokio::test]
async fn the_address_of_the_named_client_is_what_counts() {
    let backend = Backend::echo().await;
    let denying_client = denying("192.0.2.0/24", behind(OtherPeers::Accept));
    let gateway = gateway(vec![web("a.com", false, denying_client)], backend.address).await;
    assert!(ask(PROXY, &gateway, V1).await.is_err());
    assert_eq!(kept_out(&gateway, NotAdmitted::Address).await, 1);
    let other = b"PROXY TCP4 198.51.100.7 10.0.0.1 4711 443\r\n";
    assert!(ask(PROXY, &gateway, other).await.unwrap().starts_with("HTTP/1.1 200 "));
    // A list with the proxy's own address concerns what it does for itself.
    let denying_proxy = denying("127.0.0.2", behind(OtherPeers::Refuse));
    let gateway = self::gateway(vec![web("a.com", false, denying_proxy)], backend.address).await;
    assert!(ask(PROXY, &gateway, V1).await.unwrap().starts_with("HTTP/1.1 200 "));
    assert!(ask(PROXY, &gateway, LOCAL).await.is_err());
    assert!(ask(DIRECT, &gateway, b"").await.is_err(), "refused: it is no proxy");
    assert_eq!(kept_out(&gateway, NotAdmitted::Address).await, 2);
}

#[tokio::test]
async fn the_header_comes_before_tls_however_it_is_cut() {
    let backend = Backend::echo().await;
    let gateway = gateway(vec![web("a.com", true, behind(OtherPeers::Accept))], backend.address).await;
    for header in [V1, V2] {
        let mut stream = connect(PROXY, &gateway).await.unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in header {
            stream.write_all(&[*byte]).await.unwrap();
            stream.flush().await.unwrap();
        }
        let stream = client::tls(stream, Some("a.com"), b"http/1.1").await.unwrap();
        let request = Request::get("https://a.com/").body(Bytes::new()).unwrap();
        let answer = client::http1(stream, request).await;
        let text = answer.body().to_ascii_lowercase();
        assert!(text.contains("x-forwarded-for: 192.0.2.7"), "{text}");
    }
    assert!(client::tls(connect(PROXY, &gateway).await.unwrap(), Some("a.com"), b"http/1.1").await.is_err());
}

#[tokio::test]
async fn bytes_behind_the_header_are_the_backends() {
    let backend = echo("backend").await;
    let listener = Listener { admission: behind(OtherPeers::Accept).into(), ..tcp("app/echo:80") };
    let gateway = gateway(vec![listener], backend).await;
    for (from, header, expected) in [
        (PROXY, V1, &b"backendPROXY hello\n"[..]),
        (PROXY, V2, b"backendPROXY hello\n"),
        (DIRECT, b"", b"backendPROXY hello\n"),
    ] {
        let mut stream = connect(from, &gateway).await.unwrap();
        stream.write_all(&[header, b"PROXY hello\n"].concat()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, expected);
    }
}

#[tokio::test]
async fn nothing_is_taken_at_a_port_whose_listeners_do_not_agree() {
    let backend = Backend::echo().await;
    let listeners =
        vec![web("a.com", false, behind(OtherPeers::Accept)), web("b.com", false, Admission::default())];
    let gateway = gateway(listeners, backend.address).await;
    for (from, header) in [(PROXY, V1), (PROXY, b""), (DIRECT, b"")] {
        assert!(ask(from, &gateway, header).await.is_err());
    }
    assert_eq!(kept_out(&gateway, NotAdmitted::ProxyHeader).await, 3);
}
