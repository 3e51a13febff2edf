//! Snapshots come and go: who notices, and who must not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portcullis_model::{BackendProtocol, FrontendKey, Limits, Listener, Serves};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support;
use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

async fn two_tenants() -> (World, Origin) {
    let origin = Origin::http1().await;
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("a.test", vec![rule()]);
    world.https("a.test", vec![rule()]);
    world.https("b.test", vec![rule()]);
    world.apply().await;
    (world, origin)
}

#[tokio::test]
async fn connections_of_a_listener_that_is_gone_end_and_others_stay() {
    let (mut world, _origin) = two_tenants().await;
    for via in [Via::Http1Tls, Via::Http2Tls] {
        let mut stays = Client::connect(via, world.tls, "a.test").await;
        let mut goes = Client::connect(via, world.tls, "b.test").await;
        assert_eq!(goes.send("GET /\nhost: b.test").await.status, 200);
        world.listeners.retain(|spec| spec.host != "b.test");
        world.apply().await;
        eventually("the removed listener's connection is closed", async || goes.closed().await).await;
        assert_eq!(stays.send("GET /\nhost: a.test").await.status, 200);
        world.https("b.test", vec![rule()]);
        world.apply().await;
        assert_eq!(stays.send("GET /\nhost: a.test").await.status, 200);
    }
}

/// The same listener by name.
#[tokio::test]
async fn connections_of_https_end_when_their_listener_passes_tls_on() {
    let (world, _origin) = two_tenants().await;
    for via in [Via::Http1Tls, Via::Http2Tls] {
        let mut client = Client::connect(via, world.tls, "b.test").await;
        assert_eq!(client.send("GET /\nhost: b.test").await.status, 200);
        let mut snapshot = world.snapshot();
        let port = Arc::make_mut(snapshot.frontends.get_mut(&FrontendKey::tcp(world.tls)).unwrap());
        let https = port.listeners.sorted().into_iter().find(|it| it.hostname.to_string() == "b.test");
        let mut passed = Listener::clone(https.unwrap());
        passed.serves = Serves::TlsPassthrough(Arc::default());
        port.listeners.add(Arc::new(passed)).unwrap();
        assert!(world.proxy.apply(Arc::new(snapshot)).await.is_empty());
        eventually("the connection is closed", async || client.closed().await).await;
        assert!(world.proxy.apply(Arc::new(world.snapshot())).await.is_empty());
    }
}

/// The sweep at a change finds connections that have been opened; these come after it.
#[tokio::test]
async fn handshakes_for_a_listener_that_goes_meanwhile_come_to_nothing() {
    let (mut world, _origin) = two_tenants().await;
    // Or the connection would end for want of a request.
    world.limit(Limits { header_timeout: Duration::from_secs(300), ..Limits::default() });
    world.apply().await;
    let silent = TcpStream::connect(world.tls).await.unwrap();
    let mut halfway = TcpStream::connect(world.tls).await.unwrap();
    let mut client = support::client::connection("b.test");
    write_tls(&mut client, &mut halfway).await;
    while client.is_handshaking() {
        let mut flight = [0; 4096];
        let count = halfway.read(&mut flight).await.unwrap();
        client.read_tls(&mut &flight[..count]).unwrap();
        client.process_new_packets().unwrap();
    }
    eventually("both are accepted", async || world.proxy.stats().await.accepted == 2).await;
    world.listeners.retain(|spec| spec.host != "b.test");
    world.apply().await;
    write_tls(&mut client, &mut halfway).await;
    let ended = timeout(Duration::from_secs(50), halfway.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the connection stays although its listener is gone");
    assert!(support::client::tls(silent, Some("b.test"), b"h2").await.is_err(), "its listener is gone");
}

async fn write_tls(client: &mut rustls::ClientConnection, stream: &mut TcpStream) {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    stream.write_all(&bytes).await.unwrap();
}

#[tokio::test]
async fn requests_of_a_listener_that_is_gone_finish() {
    let (mut world, origin) = two_tenants().await;
    let mut client = Client::connect(Via::Http2Tls, world.tls, "b.test").await;
    let request = tokio::spawn(async move { client.send("GET /?delay=300\nhost: b.test").await });
    eventually("the request is under way", async || origin.requests() == 1).await;
    world.listeners.retain(|spec| spec.host != "b.test");
    world.apply().await;
    assert_eq!(request.await.unwrap().status, 200);
}

/// A connection made for the wildcard must not reach a listener that was carved out of it later.
#[tokio::test]
async fn a_new_listener_takes_no_part_in_old_connections() {
    let origin = Origin::http1().await;
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.https("*.test", vec![rule()]);
    world.apply().await;
    let mut client = Client::connect(Via::Http2Tls, world.tls, "x.test").await;
    assert_eq!(client.send("GET /\nhost: x.test").await.status, 200);
    world.https("x.test", vec![rule()]);
    world.apply().await;
    assert_eq!(client.send("GET /\nhost: x.test").await.status, 421);
    assert_eq!(client.send("GET /\nhost: y.test").await.status, 200);
}

/// No certificate: not even a translation that breaks its promise may take the others down.
#[tokio::test]
async fn one_broken_listener_harms_no_other() {
    let (mut world, _origin) = two_tenants().await;
    let broken = world.listeners.iter_mut().find(|spec| spec.host == "b.test").unwrap();
    broken.certificates = Some(Vec::new());
    world.apply().await;
    let stream = tokio::net::TcpStream::connect(world.tls).await.unwrap();
    assert!(support::client::tls(stream, Some("b.test"), b"h2").await.is_err());
    assert_eq!(world.send(Via::Http2Tls, "GET /\nhost: a.test").await.status, 200);
}

#[tokio::test]
async fn everything_changes_under_load_and_nothing_fails() {
    let (mut world, origin) = two_tenants().await;
    let second = Origin::h2c().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for via in Via::ALL {
        let (stop, address) = (stop.clone(), world.address(via));
        let mut client = Client::connect(via, address, "a.test").await;
        clients.push(tokio::spawn(async move {
            let mut answered = 0;
            while !stop.load(Ordering::SeqCst) {
                let reply = client.send("POST /\nhost: a.test\n\nbody").await;
                assert_eq!(reply.status, 200, "{via:?} after {answered}: {reply:?}");
                answered += 1;
            }
            answered
        }));
    }
    for round in 0..150 {
        world.listeners.truncate(3);
        world.https("c.test", vec![rule()]);
        let renewed = support::fixture::certificate(&["a.test"]);
        world.listeners[1].certificates = Some(vec![renewed]);
        let (protocol, address) = match round % 3 {
            0 => (BackendProtocol::H2c, second.address),
            _ => (BackendProtocol::Http1, origin.address),
        };
        world.backend("echo", protocol, &[address]);
        world.apply().await;
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        assert!(client.await.unwrap() > 0);
    }
}

/// Sessions are resumed on whichever core and after whichever change; only the certificate's own
/// change may cost one.
#[tokio::test]
async fn sessions_outlive_changes_of_other_listeners() {
    let (mut world, _origin) = two_tenants().await;
    let config = support::client::resuming();
    for round in 0..3 {
        let resumed = support::client::exchange_resuming(&config, world.tls, "a.test").await;
        assert_eq!(resumed, round > 0, "round {round}");
        world.listeners.retain(|spec| spec.host != "b.test");
        world.https("b.test", vec![rule()]);
        world.apply().await;
    }
}

#[tokio::test]
async fn a_drain_ends_idle_connections_and_waits_for_busy_ones() {
    let (world, origin) = two_tenants().await;
    let mut idle = Vec::new();
    let mut busy = Vec::new();
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "a.test").await;
        assert_eq!(client.send("GET /\nhost: a.test").await.status, 200);
        idle.push(client);
        let mut client = Client::connect(via, world.address(via), "a.test").await;
        busy.push(tokio::spawn(async move { client.send("GET /?delay=500\nhost: a.test").await.status }));
    }
    eventually("all are under way", async || origin.requests() == 8).await;
    let (plain, begin) = (world.plain, std::time::Instant::now());
    world.proxy.drain().await;
    assert!(begin.elapsed() < std::time::Duration::from_secs(25), "{:?}", begin.elapsed());
    for client in busy {
        assert_eq!(client.await.unwrap(), 200);
    }
    for mut client in idle {
        eventually("an idle connection is closed", async || client.closed().await).await;
    }
    assert!(tokio::net::TcpStream::connect(plain).await.is_err());
}
