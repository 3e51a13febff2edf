//! Connections to backends: kept, shared, replaced when they turn out closed; and what happens when
//! a backend does not do its part.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use portcullis_model::BackendProtocol;
use portcullis_proxy::{Settings, Upstream};
use support::client::raw;
use support::origin::{Origin, serve_raw};
use support::rules::rule;
use support::via::{Client, Reply, Via};
use support::world::World;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// An address that refuses connections.
fn refusing() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn world(protocol: BackendProtocol, endpoints: &[SocketAddr]) -> World {
    let mut world = World::new();
    world.backend("echo", protocol, endpoints);
    world.http("*", vec![rule()]);
    world.https("*", vec![rule()]);
    world.apply().await;
    world
}

#[tokio::test]
async fn a_burst_shares_one_http2_connection() {
    let origin = Origin::h2c().await;
    let world = world(BackendProtocol::H2c, &[origin.address]).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(Client::connect(Via::Http1, world.plain, "any.test").await);
    }
    let burst = clients
        .into_iter()
        .map(|mut client| tokio::spawn(async move { client.send("GET /?delay=20").await.status.as_u16() }));
    for status in burst.collect::<Vec<_>>() {
        assert_eq!(status.await.unwrap(), 200);
    }
    assert_eq!((origin.connections(), origin.requests()), (1, 20));
}

/// A stream that the peer does not take at once would wait until another one ends; watches never
/// end.
#[tokio::test]
async fn what_one_http2_connection_has_no_room_for_gets_another() {
    let origin = Origin::h2c_with(3).await;
    let world = world(BackendProtocol::H2c, &[origin.address]).await;
    let mut client = Client::connect(Via::H2c, world.plain, "any.test").await;
    let mut watches = Vec::new();
    for _ in 0..10 {
        let watch = timeout(Duration::from_secs(10), client.start("GET /?stall")).await;
        watches.push(watch.expect("it waits for a place").unwrap());
    }
    assert_eq!(origin.connections(), 4);
    drop(watches);
    for _ in 0..10 {
        assert_eq!(client.send("GET /").await.status, 200);
    }
    assert_eq!(origin.connections(), 4);
}

/// A listener that takes no more connections: it does not answer, as if it were behind a firewall.
fn full() -> (SocketAddr, Vec<socket2::Socket>) {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut sockets = vec![listener];
    loop {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let connected = socket.connect_timeout(&address, Duration::from_millis(300)).is_ok();
        sockets.push(socket);
        if !connected {
            return (address.as_socket().unwrap(), sockets);
        }
    }
}

#[tokio::test]
async fn nobody_waits_for_a_connection_longer_than_the_time_out() {
    const LIMIT: Duration = Duration::from_millis(500);
    let (address, _sockets) = full();
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let upstream = Upstream { connect: LIMIT, ..Upstream::default() };
        let mut world = World::with(Settings { upstream, ..Settings::default() });
        world.backend("echo", protocol, &[address]);
        world.http("*", vec![rule()]);
        world.apply().await;
        let begin = Instant::now();
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
            requests.spawn(async move { client.send("GET /").await.status.as_u16() });
        }
        assert_eq!(requests.join_all().await, [504; 20], "{protocol:?}");
        assert!(begin.elapsed() < 5 * LIMIT, "{protocol:?}: {:?}", begin.elapsed());
    }
}

/// The backend closes after every response without saying so; every second request meets a closed
/// connection.
#[tokio::test]
async fn a_kept_connection_that_was_closed_costs_no_request() {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let origin = serve_raw(ANSWER).await;
    let world = world(BackendProtocol::Http1, &[origin]).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    for _ in 0..200 {
        assert_eq!(client.send("GET /").await.status, 200);
    }
}

/// The connection is reset with the request on its way, so hyper has nothing to give back.
#[tokio::test]
async fn an_idempotent_request_is_sent_again_when_a_kept_connection_breaks() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut buffer).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            // Takes the second request and drops the connection.
            let _ = stream.read(&mut buffer).await;
        }
    });
    let world = world(BackendProtocol::Http1, &[address]).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    assert_eq!(client.send("GET /").await.status, 200);
    assert_eq!(client.send("GET /").await.status, 200, "sent again on a new connection");
    assert_eq!(client.send("POST /\n\nbody").await.status, 502, "a body cannot be sent twice");
    assert_eq!(world.proxy.stats().await.upstream_retries, 1);
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_passed_over() {
    let origin = Origin::http1().await;
    let world = world(BackendProtocol::Http1, &[refusing(), origin.address, refusing()]).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    for _ in 0..50 {
        assert_eq!(client.send("POST /\n\nbody").await.status, 200);
    }
    assert_eq!(origin.connections(), 1);
    let failures = world.proxy.stats().await.upstream_connect_failures;
    assert!(failures <= 2, "each refusing endpoint is asked once: {failures}");
}

#[tokio::test]
async fn what_is_no_response_is_a_bad_gateway() {
    for answer in [
        &b""[..],
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ] {
        let world = world(BackendProtocol::Http1, &[serve_raw(answer).await]).await;
        for via in [Via::Http1, Via::Http2Tls] {
            let reply = world.send(via, "GET /").await;
            assert_eq!(reply.status, 502, "{via:?}: {:?}", String::from_utf8_lossy(answer));
        }
    }
}

/// `Content-Length: 5` would cut ten bytes in half and pass them off as whole (RFC 9112 section
/// 6.3).
#[tokio::test]
async fn transfer_encoding_overrides_content_length() {
    let answer =
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n";
    let world = world(BackendProtocol::Http1, &[serve_raw(answer).await]).await;
    for via in Via::ALL {
        let reply = world.send(via, "GET /").await;
        assert_eq!((reply.body.as_str(), reply.header("content-length")), ("0123456789", None), "{via:?}");
    }
}

#[tokio::test]
async fn a_backends_version_is_its_own() {
    let origin = serve_raw(b"HTTP/1.0 200 OK\r\n\r\nto the end").await;
    let world = world(BackendProtocol::Http1, &[origin]).await;
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    let reply = raw(world.plain, request).await;
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("transfer-encoding: chunked"), "{reply}");
}

#[tokio::test]
async fn a_response_that_breaks_off_is_not_passed_off_as_whole() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
    let world = world(BackendProtocol::Http1, &[serve_raw(answer).await]).await;
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        assert!(client.try_send("GET /").await.is_err(), "{via:?}");
    }
}

#[tokio::test]
async fn a_time_out_ends_a_response_that_has_begun() {
    let origin = Origin::http1().await;
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule().request_timeout(200)]);
    world.https("*", vec![rule().backend_timeout(200)]);
    world.apply().await;
    for via in Via::ALL {
        let begin = Instant::now();
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let response = client.start("GET /?stall").await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(Reply::read(response).await.is_err(), "{via:?}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{via:?}");
    }
}

/// A client that does not read stops the backend, not fills the gateway's memory.
#[tokio::test]
async fn backpressure_reaches_the_backend() {
    const SIZE: usize = 256 << 20;
    let origin = Origin::http1().await;
    let world = world(BackendProtocol::Http1, &[origin.address]).await;
    for via in Via::ALL {
        origin.produced.store(0, Ordering::SeqCst);
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let mut body = client.start(&format!("GET /?size={SIZE}")).await.unwrap().into_body();
        let mut last = usize::MAX;
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = origin.produced.load(Ordering::SeqCst);
            if now == last {
                break;
            }
            last = now;
        }
        assert!(last < SIZE / 4, "{via:?}: {last} bytes left the backend unread");
        let mut received = 0;
        while received < 32 << 20 {
            received += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
        }
    }
}

#[tokio::test]
async fn a_large_upload_arrives_whole() {
    let origin = Origin::http1().await;
    let over_http2 = Origin::h2c().await;
    let body = "0123456789".repeat(1 << 19);
    for (protocol, origin) in [(BackendProtocol::Http1, &origin), (BackendProtocol::H2c, &over_http2)] {
        let world = world(protocol, &[origin.address]).await;
        for via in Via::ALL {
            let reply = world.send(via, &format!("POST /\n\n{body}")).await;
            assert!(reply.body.ends_with(&body), "{via:?} to {protocol:?}: {}", reply.body.len());
        }
    }
}

// --- upgrades ---

const UPGRADE: &str =
    "GET /{} HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\r\n";

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn a_tunnel_passes_any_bytes_both_ways() {
    let origin = Origin::http1().await;
    let world = world(BackendProtocol::Http1, &[origin.address]).await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    stream.write_all(UPGRADE.replace("{}", "").as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await.to_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: websocket"), "{head}");
    // Bytes that no HTTP request may have.
    let bytes = b"\n\nGET / HTTP/1.1\n\0".repeat(5000);
    let (mut read, mut write) = stream.into_split();
    let sent = bytes.clone();
    let writing = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut echoed = Vec::new();
    read.read_to_end(&mut echoed).await.unwrap();
    writing.await.unwrap();
    assert!(echoed == bytes, "{} of {} bytes", echoed.len(), bytes.len());
}

#[tokio::test]
async fn a_refused_upgrade_is_an_ordinary_exchange() {
    let origin = Origin::http1().await;
    let world = world(BackendProtocol::Http1, &[origin.address]).await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    for _ in 0..3 {
        stream.write_all(UPGRADE.replace("{}", "?refuse").as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 200") && !head.contains("upgrade"), "{head}");
    }
}

/// Early data could be a request that only one of the two hops sees (CVE-2026-2833).
#[tokio::test]
async fn early_data_ends_a_tunnel_before_it_begins() {
    let origin = Origin::http1().await;
    let world = world(BackendProtocol::Http1, &[origin.address]).await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    let early = format!("{}early", UPGRADE.replace("{}", ""));
    stream.write_all(early.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("early"));
}
