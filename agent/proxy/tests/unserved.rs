//! Listeners that the data plane does not serve: reported, refused, and no harm to others of the
//! port.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use portcullis_model::{FrontendKey, L4Action, L4Rule, ObjectName, RuleId, Serves, Unserved};
use portcullis_proxy::{Proxy, Settings, SocketMode};
use support::client;
use support::fixture::{Gateway, ListenerSpec, snapshot};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

fn rule() -> Arc<L4Rule> {
    let route = Arc::new(ObjectName::new("app", "db"));
    let id = RuleId { kind: "TCPRoute", route, index: 0, name: None, parent: None };
    Arc::new(L4Rule { id, action: L4Action::Refuse("the rule has no backendRefs".into()) })
}

fn reason(listener: &str, protocol: &str) -> String {
    format!(
        "Gateway infra/web listener {listener} has protocol {protocol}, which is not served: use HTTP or HTTPS"
    )
}

fn refused(address: SocketAddr, why: String) -> Unserved {
    Unserved { frontends: [(FrontendKey::tcp(address), why)].into(), ..Unserved::default() }
}

#[tokio::test]
async fn connections_to_a_port_that_is_not_served_are_closed() {
    let gateway = Gateway::start();
    let mut listener = ListenerSpec::new("db", "*", false, Vec::new()).build();
    listener.serves = Serves::Tcp(rule());
    let unserved = gateway.proxy.apply(Arc::new(snapshot(gateway.address, [listener], &[]))).await;
    assert_eq!(unserved, refused(gateway.address, reason("db", "TCP")));
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    assert_eq!(stream.read_to_end(&mut Vec::new()).await.unwrap(), 0);
}

#[tokio::test]
async fn a_port_that_is_not_served_is_not_bound() {
    let proxy =
        Proxy::start(Settings { cores: 1, sockets: SocketMode::Bound, ..Settings::default() }).unwrap();
    let free = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: SocketAddr = free.local_addr().unwrap();
    drop(free);
    let mut listener = ListenerSpec::new("dns", "*", false, Vec::new()).build();
    listener.serves = Serves::Udp(rule());
    let unserved = proxy.apply(Arc::new(snapshot(address, [listener], &[]))).await;
    assert_eq!(unserved, refused(address, reason("dns", "UDP")));
    TcpStream::connect(address).await.unwrap_err();
}

#[tokio::test]
async fn a_server_name_that_is_not_served_leaves_its_neighbours_alone() {
    let gateway = Gateway::start();
    let served = ListenerSpec::new("web", "a.example.com", true, Vec::new()).build();
    let mut passed = ListenerSpec::new("passed", "b.example.com", true, Vec::new()).build();
    passed.serves = Serves::TlsPassthrough(Arc::default());
    let alone = (FrontendKey::tcp(gateway.address), passed.id.clone());
    let snapshot = snapshot(gateway.address, [served, passed], &[]);
    let unserved = gateway.proxy.apply(Arc::new(snapshot)).await;
    let expected = Unserved { listeners: [(alone, reason("passed", "TLS"))].into(), ..Unserved::default() };
    assert_eq!(unserved, expected);
    let connect =
        async |name| client::tls(TcpStream::connect(gateway.address).await.unwrap(), Some(name), b"h2").await;
    assert!(connect("a.example.com").await.is_ok());
    let error = connect("b.example.com").await.unwrap_err();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
}
