//! Listeners that the data plane does not serve: said, refused, and no harm to others of the port.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use portcullis_model::{BackendTarget, FrontendKey, Serves, Split, WeightedBackend};
use portcullis_proxy::{Proxy, Settings, SocketMode, Unbound};
use support::client;
use support::fixture::{Gateway, ListenerSpec, snapshot};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

fn split() -> Arc<Split> {
    let target = BackendTarget::Known(portcullis_model::BackendName("app/echo:80".into()));
    Arc::new(Split::new(vec![WeightedBackend { weight: 1, target, filters: Vec::new() }]).unwrap())
}

fn refusal(frontend: FrontendKey, listener: &str, protocol: &str) -> Unbound {
    let problem = format!(
        "Gateway infra/web listener {listener} has protocol {protocol}, which is not served: use HTTP or HTTPS"
    );
    Unbound { frontend, problem }
}

#[tokio::test]
async fn connections_to_a_port_that_is_not_served_are_closed() {
    let gateway = Gateway::start();
    let mut listener = ListenerSpec::new("db", "*", false, Vec::new()).build();
    listener.serves = Serves::Tcp(split());
    let unbound = gateway.proxy.apply(Arc::new(snapshot(gateway.address, [listener], &[]))).await;
    assert_eq!(unbound, [refusal(FrontendKey::tcp(gateway.address), "db", "TCP")]);
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
    listener.serves = Serves::Udp(split());
    let unbound = proxy.apply(Arc::new(snapshot(address, [listener], &[]))).await;
    assert_eq!(unbound, [refusal(FrontendKey::tcp(address), "dns", "UDP")]);
    TcpStream::connect(address).await.unwrap_err();
}

#[tokio::test]
async fn a_server_name_that_is_not_served_leaves_its_neighbours_alone() {
    let gateway = Gateway::start();
    let served = ListenerSpec::new("web", "a.example.com", true, Vec::new()).build();
    let mut passed = ListenerSpec::new("passed", "b.example.com", true, Vec::new()).build();
    passed.serves = Serves::TlsPassthrough(Arc::default());
    let snapshot = snapshot(gateway.address, [served, passed], &[]);
    let unbound = gateway.proxy.apply(Arc::new(snapshot)).await;
    assert_eq!(unbound, [refusal(FrontendKey::tcp(gateway.address), "passed", "TLS")]);
    let connect =
        async |name| client::tls(TcpStream::connect(gateway.address).await.unwrap(), Some(name), b"h2").await;
    assert!(connect("a.example.com").await.is_ok());
    let error = connect("b.example.com").await.unwrap_err();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
}
