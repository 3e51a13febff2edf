//! Effects of a Gateway's limits on its clients, and on those of another Gateway
//! of the same agent.

use std::collections::BTreeMap;
use std::time::Duration;

use portcullis_model::{BackendProtocol, Gateway, Limits, ObjectName};
use portcullis_proxy::{ExceededLimit, GatewayStats, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support;
use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::settings::settings;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

fn gateway(name: &str, limits: Limits) -> Gateway {
    Gateway { limits, ..Gateway::new(ObjectName::new("test", name)) }
}

/// Gateway `strict` on the plain port, Gateway `lax` on the TLS port. Each port is another core's.
async fn two_gateways(strict: Limits) -> (World, Origin) {
    let (mut world, origin) = World::echo(vec![rule()]).await;
    world.gateways = [gateway("strict", strict), gateway("lax", Limits::default())];
    world.apply().await;
    (world, origin)
}

/// One Gateway on both ports, and so on both cores.
async fn one_gateway(limits: Limits) -> (World, Origin) {
    let (mut world, origin) = World::echo(vec![rule()]).await;
    world.limit(limits);
    world.apply().await;
    (world, origin)
}

async fn stats(world: &World, gateway: &str) -> GatewayStats {
    let name = ObjectName::new("test", gateway);
    world.proxy.stats().await.gateways.remove(&name).unwrap_or_default()
}

async fn open(world: &World, gateway: &str) -> u64 {
    stats(world, gateway).await.open
}

/// A connection on which a request was answered, unless it was refused.
async fn connect(world: &World, via: Via) -> Option<Client> {
    let mut client = match via {
        Via::Http1 | Via::H2c => Client::connect(via, world.plain, "any.test").await,
        // A refused connection ends in the middle of the handshake.
        Via::Http1Tls | Via::Http2Tls => {
            let stream = TcpStream::connect(world.tls).await.unwrap();
            support::client::tls(stream, Some("any.test"), b"http/1.1").await.ok()?;
            Client::connect(via, world.tls, "any.test").await
        }
    };
    let reply = client.try_send("GET /").await.ok()?;
    assert_eq!(reply.status, 200);
    Some(client)
}

#[tokio::test]
async fn sizes_are_those_of_the_gateway() {
    let strict = Limits { target_bytes: 300, header_bytes: 1024, header_fields: 10, ..Limits::default() };
    let (world, _origin) = two_gateways(strict).await;
    let rows = [
        (format!("GET /{}", "x".repeat(400)), 414),
        (format!("GET /\nx: {}", "x".repeat(1024)), 431),
        (format!("GET /{}", "\nx: 1".repeat(12)), 431),
        ("GET /".to_owned(), 200),
    ];
    for (request, refused) in rows {
        for via in [Via::Http1, Via::H2c] {
            assert_eq!(world.send(via, &request).await.status, refused, "{via:?} {request}");
        }
        for via in [Via::Http1Tls, Via::Http2Tls] {
            assert_eq!(world.send(via, &request).await.status, 200, "{via:?} {request}");
        }
    }
}

/// Both at their limit: neither is part of the other.
#[tokio::test]
async fn target_and_fields_have_room_next_to_each_other() {
    let limits = Limits { target_bytes: 32 << 10, header_bytes: 64 << 10, ..Limits::default() };
    let (world, _origin) = one_gateway(limits).await;
    let request = format!("GET /{}\nx: {}", "x".repeat(32_000), "x".repeat(65_000));
    for via in Via::ALL {
        assert_eq!(world.send(via, &request).await.status, 200, "{via:?}");
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A connection of HTTP/2 that makes so many requests, and the number that it may make at a time.
async fn ask_at_once(world: &World, requests: u32) -> (TcpStream, u32) {
    let mut bytes = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat();
    // GET, http, /, and the authority a.
    let request = |n: u32| frame(1, 5, 2 * n + 1, &[0x82, 0x86, 0x84, 0x41, 1, b'a']);
    bytes.extend((0..requests).flat_map(request));
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3..5], [4, 0], "SETTINGS come first");
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).await.unwrap();
    let streams = settings.chunks(6).find(|setting| setting[..2] == [0, 3]).unwrap();
    (stream, u32::from_be_bytes(streams[2..].try_into().unwrap()))
}

/// Two hundred connections with a hundred requests each once ended an agent with 256 MiB before any
/// could be seen to stall.
#[tokio::test]
async fn connections_share_the_requests_that_there_is_memory_for() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // Half for each core: 30 responses of 32 KiB.
    let mut world = World::with(Settings { buffers: 2 * 30 * (32 << 10), ..settings() });
    world.backend("echo", BackendProtocol::Http1, &[silent.local_addr().unwrap()]);
    world.http("*", vec![rule()]);
    world.apply().await;
    let (first, streams) = ask_at_once(&world, 20).await;
    assert_eq!(streams, 30);
    eventually("the next has what the first leaves", async || ask_at_once(&world, 0).await.1 == 10).await;
    let (_second, _) = ask_at_once(&world, 10).await;
    eventually("each has some", async || ask_at_once(&world, 0).await.1 == 8).await;
    drop(first);
    eventually("a client that goes gives its own back", async || ask_at_once(&world, 0).await.1 == 20).await;
}

#[tokio::test]
async fn a_full_gateway_takes_no_more_and_others_do() {
    let (world, _origin) = two_gateways(Limits { connections: Some(2), ..Limits::default() }).await;
    let first = connect(&world, Via::Http1).await.expect("there is room");
    let _second = connect(&world, Via::H2c).await.expect("there is room");
    assert!(connect(&world, Via::Http1).await.is_none());
    assert!(connect(&world, Via::Http2Tls).await.is_some(), "another Gateway is not full");
    let full = stats(&world, "strict").await;
    assert_eq!((full.open, full.refused), (2, BTreeMap::from([(ExceededLimit::Connections, 1)])));
    assert_eq!(stats(&world, "lax").await.refused, BTreeMap::new());
    drop(first);
    eventually("a place is free", async || open(&world, "strict").await == 1).await;
    assert!(connect(&world, Via::Http1).await.is_some());
}

#[tokio::test]
async fn connections_are_counted_on_all_cores_together() {
    let (world, _origin) = one_gateway(Limits { connections: Some(1), ..Limits::default() }).await;
    let stream = TcpStream::connect(world.plain).await.unwrap();
    eventually("it is counted", async || open(&world, "gateway").await == 1).await;
    let tls = TcpStream::connect(world.tls).await.unwrap();
    assert!(support::client::tls(tls, Some("any.test"), b"h2").await.is_err(), "the other core knows");
    drop(stream);
    eventually("it is gone", async || open(&world, "gateway").await == 0).await;
    let tls = TcpStream::connect(world.tls).await.unwrap();
    assert!(support::client::tls(tls, Some("any.test"), b"h2").await.is_ok());
}

#[tokio::test]
async fn a_changed_limit_ends_no_connection_and_counts_those_that_are_open() {
    let (mut world, _origin) = one_gateway(Limits::default()).await;
    let mut before = Vec::new();
    for _ in 0..3 {
        before.push(connect(&world, Via::Http1).await.expect("there is no limit"));
    }
    let tight = Limits { connections: Some(3), target_bytes: 256, ..Limits::default() };
    world.limit(tight.clone());
    world.apply().await;
    assert!(connect(&world, Via::Http1).await.is_none(), "three are open already");
    let long = format!("GET /{}", "x".repeat(300));
    for client in &mut before {
        assert_eq!(client.send(&long).await.status, 200, "it keeps the limits that it began with");
    }
    world.limit(Limits { connections: Some(4), ..tight });
    world.apply().await;
    let mut after = connect(&world, Via::Http1).await.expect("there is room for one more");
    assert_eq!(after.send(&long).await.status, 414);
    let stats = stats(&world, "gateway").await;
    assert_eq!((stats.open, stats.refused), (4, BTreeMap::from([(ExceededLimit::Connections, 1)])));
}

#[tokio::test]
async fn a_tunnel_counts_as_the_connection_that_it_was() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (mut world, _origin) = one_gateway(Limits::default()).await;
    world.backend("echo", BackendProtocol::Http1, &[address]);
    world.apply().await;
    let mut client = TcpStream::connect(world.plain).await.unwrap();
    let upgrade = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    client.write_all(upgrade).await.unwrap();
    let (mut backend, _) = listener.accept().await.unwrap();
    assert_ne!(backend.read(&mut [0; 4096]).await.unwrap(), 0);
    let switched = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    backend.write_all(switched).await.unwrap();
    backend.write_all(b"!").await.unwrap();
    let mut tunnelled = Vec::new();
    while tunnelled.last() != Some(&b'!') {
        tunnelled.push(client.read_u8().await.unwrap());
    }
    assert_eq!(open(&world, "gateway").await, 1);
    drop((client, backend));
    eventually("the tunnel is gone", async || open(&world, "gateway").await == 0).await;
}

#[tokio::test]
async fn timeouts_are_the_gateways() {
    let limit = Duration::from_millis(300);
    let strict = Limits { header_timeout: limit, idle_timeout: limit, ..Limits::default() };
    let (world, _origin) = two_gateways(strict).await;
    let mut idle = connect(&world, Via::Http1).await.unwrap();
    let mut patient = Client::connect(Via::Http1Tls, world.tls, "any.test").await;
    assert_eq!(patient.send("GET /").await.status, 200);
    for start in ["", "GET / HT"] {
        let mut stream = TcpStream::connect(world.plain).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    }
    eventually("the idle connection is closed", async || idle.closed().await).await;
    assert_eq!(stats(&world, "strict").await.refused, BTreeMap::from([(ExceededLimit::HeaderTimeout, 2)]));
    assert_eq!(patient.send("GET /").await.status, 200);
}

#[tokio::test]
async fn a_handshake_takes_as_long_as_the_gateway_allows() {
    let limits = Limits { tls_handshake_timeout: Duration::from_millis(300), ..Limits::default() };
    let (world, _origin) = one_gateway(limits).await;
    let mut silent = TcpStream::connect(world.tls).await.unwrap();
    silent.read_to_end(&mut Vec::new()).await.unwrap();
    let failures = world.proxy.stats().await.handshake_failures;
    assert_eq!(failures[&portcullis_proxy::HandshakeFailure::Timeout], 1);
}

/// The limit is announced in the connection's SETTINGS.
#[tokio::test]
async fn http2_streams_are_as_many_as_the_gateway_allows() {
    let (world, _origin) = one_gateway(Limits { http2_streams: 7, ..Limits::default() }).await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).await.unwrap();
    assert_eq!(head[3], 4, "SETTINGS come first");
    let streams = settings.chunks(6).find(|setting| setting[..2] == [0, 3]).expect("MAX_CONCURRENT_STREAMS");
    assert_eq!(streams[2..], [0, 0, 0, 7]);
}

/// Declared or not, over either version on either side.
#[tokio::test]
async fn bodies_are_as_long_as_the_gateway_allows() {
    let (mut world, _origin) = two_gateways(Limits { body_bytes: Some(1000), ..Limits::default() }).await;
    let h2c = Origin::h2c().await;
    let (fits, over) = ("x".repeat(1000), "x".repeat(1001));
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        if protocol == BackendProtocol::H2c {
            world.backend("echo", protocol, &[h2c.address]);
            world.apply().await;
        }
        for via in [Via::Http1, Via::H2c] {
            assert_eq!(world.send(via, &format!("POST /\n\n{fits}")).await.status, 200, "{via:?}");
            assert_eq!(world.send(via, &format!("POST /\n\n{over}")).await.status, 413, "{via:?}");
        }
        for (body, status) in [(&fits, "200"), (&over, "413")] {
            let head =
                "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
            let (begin, end) = body.split_at(400);
            let chunks = format!("{:x}\r\n{begin}\r\n{:x}\r\n{end}\r\n0\r\n\r\n", begin.len(), end.len());
            let answer = support::client::raw(world.plain, format!("{head}{chunks}").as_bytes()).await;
            assert_eq!(answer.split(' ').nth(1), Some(status), "{protocol:?}: {answer}");
        }
        assert_eq!(
            world.send(Via::Http2Tls, &format!("POST /\n\n{over}")).await.status,
            200,
            "another Gateway"
        );
    }
    assert_eq!(world.proxy.stats().await.answers[&portcullis_proxy::Reason::BodyTooLarge], 6);
}
