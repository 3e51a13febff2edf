//! Limits and access logs of listeners: narrower than those of their Gateway, and nothing to the
//! listeners beside them.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use portcullis_model::{
    AccessLog, Admission, BackendProtocol, BudgetOwner, ListenerLimits, LogLines, LogPatch, LogTerms,
    ObjectName, OpenLimit, OtherPeers, ParentKind, ProxyProtocol,
};
use portcullis_proxy::{LogOutput, NotAdmitted, Settings};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support;
use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::settings::settings;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

const SOON: Duration = Duration::from_millis(500);
/// Sooner than any limit of the Gateway.
const IN_TIME: Duration = Duration::from_secs(8);

fn limits(limits: ListenerLimits) -> Arc<Admission> {
    Arc::new(Admission { limits: Some(Box::new(limits)), ..Admission::default() })
}

fn open(most: u32) -> Arc<Admission> {
    let owner =
        BudgetOwner { kind: ParentKind::Gateway, name: ObjectName::new("test", "gateway"), listener: None };
    let open = vec![OpenLimit { owner, most: NonZeroU32::new(most).unwrap() }];
    Arc::new(Admission { open, ..Admission::default() })
}

async fn world(admission: Arc<Admission>) -> (World, Origin) {
    let (mut world, origin) = World::echo(vec![rule()]).await;
    world.admission = admission;
    world.apply().await;
    (world, origin)
}

/// Sends a ClientHello. At the plain port a reset comes before a byte is read, maybe in the middle
/// of the handshake of TCP; at the other one after the hello.
async fn hello(to: SocketAddr) -> io::Result<usize> {
    let mut stream = TcpStream::connect(to).await?;
    let mut hello = Vec::new();
    support::client::connection("any.test").write_tls(&mut hello)?;
    stream.write_all(&hello).await?;
    stream.read(&mut [0]).await
}

async fn answer(to: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: any.test\r\nConnection: close\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test]
async fn no_more_connections_are_open_than_the_target_may_have() {
    let (world, _origin) = world(open(2)).await;
    // Both ports are another core's each, and have one limit together.
    let mut plain = Client::connect(Via::Http1, world.plain, "any.test").await;
    let mut tls = Client::connect(Via::Http2Tls, world.tls, "any.test").await;
    assert_eq!(plain.send("GET /").await.status, 200);
    assert_eq!(tls.send("GET /").await.status, 200);
    for address in [world.plain, world.tls] {
        assert!(hello(address).await.is_err(), "reset");
    }
    let stats = world.proxy.stats().await;
    let of_gateways = stats.gateways.into_values().map(|stats| stats.not_admitted);
    let of_listeners = stats.listeners.into_values().map(|stats| stats.not_admitted);
    let counted = of_gateways.chain(of_listeners).filter_map(|it| it.get(&NotAdmitted::Connections).copied());
    assert_eq!(counted.sum::<u64>(), 2);
    drop(tls);
    eventually("a place is free again", async || {
        let answer = answer(world.plain).await;
        answer.is_ok_and(|text| text.starts_with("HTTP/1.1 200 "))
    })
    .await;
    assert_eq!(plain.send("GET /").await.status, 200, "the first one has its place");
}

#[tokio::test]
async fn a_connection_ends_after_its_last_request() {
    let two = ListenerLimits { requests: NonZeroU32::new(2), ..ListenerLimits::default() };
    let (world, _origin) = world(limits(two)).await;
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let mut closing = Vec::new();
        for _ in 0..2 {
            let reply = client.send("GET /").await;
            assert_eq!(reply.status, 200, "{via:?}");
            closing.push(reply.headers.contains_key("connection"));
        }
        let is_http1 = matches!(via, Via::Http1 | Via::Http1Tls);
        assert_eq!(closing, [false, is_http1], "{via:?}");
        eventually("the connection ends", async || client.try_send("GET /").await.is_err()).await;
    }
}

#[tokio::test]
async fn requests_of_a_listener_are_smaller_than_its_gateway_takes() {
    let small = ListenerLimits {
        target_bytes: Some(256),
        header_bytes: Some(1024),
        header_fields: Some(10),
        ..ListenerLimits::default()
    };
    let (world, _origin) = world(limits(small)).await;
    let path = format!("GET /{}", "x".repeat(300));
    let long = format!("GET /\nx-long: {}", "x".repeat(1024));
    let many = format!("GET /{}", (0..12).map(|at| format!("\nx-{at}: y")).collect::<String>());
    for via in Via::ALL {
        for (request, expected) in [("GET /", 200), (&path, 414), (&long, 431), (&many, 431)] {
            let reply = world.send(via, request).await;
            assert_eq!(reply.status.as_u16(), expected, "{via:?} {request}");
        }
    }
}

/// The number of streams that the first frame of a server gives a client.
async fn streams(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Option<u32> {
    const MAX_CONCURRENT_STREAMS: [u8; 2] = [0, 3];
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    stream.flush().await.unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).await.unwrap();
    let setting = settings.chunks_exact(6).find(|setting| setting[..2] == MAX_CONCURRENT_STREAMS);
    setting.map(|setting| u32::from_be_bytes(setting[2..].try_into().unwrap()))
}

#[tokio::test]
async fn a_connection_has_as_many_streams_as_its_listener_gives() {
    let few = ListenerLimits { http2_streams: Some(3), ..ListenerLimits::default() };
    let (mut world, _origin) = world(limits(few)).await;
    for expected in [3, 100] {
        assert_eq!(streams(TcpStream::connect(world.plain).await.unwrap()).await, Some(expected));
        let stream = TcpStream::connect(world.tls).await.unwrap();
        let stream = support::client::tls(stream, Some("any.test"), b"h2").await.unwrap();
        assert_eq!(streams(stream).await, Some(expected));
        world.admission = limits(ListenerLimits { http2_streams: Some(1000), ..ListenerLimits::default() });
        world.apply().await;
    }
}

#[tokio::test]
async fn clients_have_the_time_that_the_listener_gives() {
    let short =
        ListenerLimits { header_timeout: Some(SOON), idle_timeout: Some(SOON), ..ListenerLimits::default() };
    let (world, _origin) = world(limits(short)).await;
    for begun in ["GET / HTTP/1.1\r\nHost: any.test\r\n\r\n", "GET / HTTP/1.1\r\nHost"] {
        let mut stream = TcpStream::connect(world.plain).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        let ended = timeout(IN_TIME, stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "{begun:?}");
    }
}

/// Before a byte has come, too: with PROXY protocol before the header, and without TLS after it.
#[tokio::test]
async fn clients_that_say_nothing_have_the_time_that_all_listeners_give() {
    let short = ListenerLimits { header_timeout: Some(SOON), ..ListenerLimits::default() };
    let from = vec![vec!["127.0.0.0/8".parse().unwrap()]];
    let proxies = Arc::new(ProxyProtocol { levels: from, others: OtherPeers::Accept });
    for proxies in [None, Some(proxies)] {
        let of_proxies = proxies.is_some();
        let limits = Some(Box::new(short.clone()));
        let (world, _origin) = world(Arc::new(Admission { limits, proxies, ..Admission::default() })).await;
        let begun: &[&[u8]] = if of_proxies { &[b"", b"PROXY ", b"PROXY UNKNOWN\r\n"] } else { &[b""] };
        for begun in begun {
            let mut stream = TcpStream::connect(world.plain).await.unwrap();
            stream.write_all(begun).await.unwrap();
            let ended = timeout(IN_TIME, stream.read_to_end(&mut Vec::new())).await;
            assert!(ended.is_ok(), "{:?}", begun.escape_ascii().to_string());
        }
    }
}

#[tokio::test]
async fn without_tls_clients_have_the_time_of_the_listeners_that_they_ask() {
    let short = ListenerLimits {
        idle_timeout: Some(SOON),
        http2_idle_timeout: Some(SOON),
        ..ListenerLimits::default()
    };
    let mut world = World::new();
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    for host in ["short.test", "usual.test"] {
        world.http(host, vec![rule()]);
    }
    world.admissions.insert("short.test", limits(short));
    world.apply().await;
    for via in [Via::Http1, Via::H2c] {
        let (of_short, of_usual) = ("GET /\nhost: short.test", "GET /\nhost: usual.test");
        let mut both = Client::connect(via, world.plain, "").await;
        let mut other = Client::connect(via, world.plain, "").await;
        assert_eq!(both.send(of_usual).await.status, 200, "{via:?}");
        assert_eq!(both.send(of_short).await.status, 200, "{via:?}");
        assert_eq!(other.send(of_usual).await.status, 200, "{via:?}");
        let mut short = Client::connect(via, world.plain, "").await;
        assert_eq!(short.send(of_short).await.status, 200, "{via:?}");
        eventually("a client that asked no other has little time", async || short.closed().await).await;
        // They have been idle for longer.
        assert_eq!(both.send(of_short).await.status, 200, "{via:?}");
        assert_eq!(other.send(of_usual).await.status, 200, "{via:?}");
    }
}

#[tokio::test]
async fn a_listener_has_a_log_of_its_own() {
    let some = LogPatch { lines: LogLines::Some, format: None, minimum_status: None, omit: None };
    let none = LogPatch { lines: LogLines::None, ..some };
    for (parameters, terms, expected) in [
        (None, None, 0),
        (None, Some(LogTerms { of_gateway: Some(some), of_listener: None }), 1),
        (None, Some(LogTerms { of_gateway: None, of_listener: Some(some) }), 1),
        (Some(AccessLog::default()), Some(LogTerms { of_gateway: Some(none), of_listener: None }), 0),
        (Some(AccessLog::default()), Some(LogTerms { of_gateway: None, of_listener: Some(none) }), 1),
    ] {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let access_log = LogOutput::File(Arc::new(File::from(OwnedFd::from(writer))));
        let mut world = World::with(Settings { access_log, drain: SOON, ..settings() });
        let origin = Origin::http1().await;
        world.backend("echo", BackendProtocol::Http1, &[origin.address]);
        world.http("*", vec![rule()]);
        world.gateways.iter_mut().for_each(|gateway| gateway.access_log = parameters);
        world.admission = Arc::new(Admission { log: terms, ..Admission::default() });
        world.apply().await;
        assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
        let World { proxy, .. } = world;
        proxy.drain().await;
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count(), expected, "{parameters:?} {terms:?}: {text}");
    }
}
