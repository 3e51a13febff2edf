//! Responses of HTTP/2 backends that come for many clients on one connection, some of which do not
//! read them; and backends that send what they may not.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::BodyExt;
use portcullis_model::BackendProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::via::{Client, Via};
use crate::support::world::World;

const LIMIT: Duration = Duration::from_secs(50);
const PREFACE: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200` (RFC 7541 appendix A).
const OK: u8 = 0x88;

async fn world(endpoint: SocketAddr) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::H2c, &[endpoint]);
    world.http("*", vec![rule()]);
    world.https("*", vec![rule()]);
    world.apply().await;
    world
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A backend that answers the first request of each connection with these frames.
async fn answer(frames: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let frames = frames.clone();
            tokio::spawn(async move {
                stream.read_exact(&mut [0; PREFACE]).await?;
                stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
                let mut head = [0; 9];
                while head[3] != HEADERS {
                    stream.read_exact(&mut head).await?;
                    let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
                    stream.read_exact(&mut payload).await?;
                }
                stream.write_all(&frames).await?;
                // What else comes is read, lest the kernel reset the connection.
                tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
            });
        }
    });
    address
}

#[tokio::test]
async fn clients_that_do_not_read_hold_up_no_others() {
    const SIZE: usize = 8 << 20;
    let origin = Origin::h2c_with(1000).await;
    let world = world(origin.address).await;
    let mut stalled = Vec::new();
    for _ in 0..100 {
        let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
        stalled.push((client.start("GET /?size=1000000000").await.unwrap(), client));
    }
    for via in [Via::H2c, Via::Http2Tls] {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        for _ in 0..99 {
            let response = timeout(LIMIT, client.start("GET /?size=1000000000")).await;
            let response = response.expect("others hold it up").unwrap();
            stalled.push((response, Client::connect(Via::H2c, world.plain, "any.test").await));
        }
        let own = timeout(LIMIT, client.start("GET /")).await;
        own.expect("its own other streams hold it up").unwrap();
    }
    for via in Via::ALL {
        let reply = timeout(LIMIT, world.send(via, &format!("GET /?size={SIZE}"))).await;
        assert_eq!(reply.expect("others hold it up").body.len(), SIZE, "{via:?}");
    }
    // Each core has one for all, and another if the hundred are given up before this is over,
    // because they do not read.
    assert!((2..=3).contains(&origin.connections()), "{}", origin.connections());
}

#[tokio::test]
async fn a_response_that_is_read_late_is_whole() {
    const SIZE: usize = 3 << 20;
    let origin = Origin::h2c().await;
    let world = world(origin.address).await;
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let mut body = client.start(&format!("GET /?size={SIZE}")).await.unwrap().into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap().len();
        let mut last = usize::MAX;
        while last != origin.produced.load(std::sync::atomic::Ordering::SeqCst) {
            last = origin.produced.load(std::sync::atomic::Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let rest = timeout(LIMIT, body.collect()).await.expect("it stopped").unwrap().to_bytes();
        assert_eq!(first + rest.len(), SIZE, "{via:?}");
    }
}

#[tokio::test]
async fn responses_that_are_given_up_leave_the_connection_to_others() {
    let origin = Origin::h2c().await;
    let world = world(origin.address).await;
    let mut client = Client::connect(Via::H2c, world.plain, "any.test").await;
    for round in 1..=5 {
        let mut responses = Vec::new();
        for _ in 0..90 {
            responses.push(client.start("GET /?size=1000000000").await.unwrap());
        }
        drop(responses);
        let reply = timeout(LIMIT, world.send(Via::Http1, "GET /?size=1000000")).await;
        assert_eq!(reply.expect("they are not over").body.len(), 1_000_000);
        // A hundred are as many as one connection is burdened with.
        assert!((1..=round).contains(&origin.connections()), "{round}: {}", origin.connections());
    }
}

#[tokio::test]
async fn a_backend_that_sends_more_than_its_window_is_stopped() {
    let head = frame(HEADERS, END_HEADERS, 1, &[OK]);
    let data = frame(DATA, 0, 1, &[b'x'; 16 << 10]).repeat(64);
    let world = world(answer([head, data].concat()).await).await;
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let reply = timeout(LIMIT, client.try_send("GET /")).await.expect("it goes on");
        assert!(reply.is_err() || reply.is_ok_and(|reply| reply.status == 502), "{via:?}");
    }
}

/// Each costs the backend nine bytes more than it carries; they are kept as one.
#[tokio::test]
async fn bytes_that_come_one_by_one_are_passed_on() {
    let head = frame(HEADERS, END_HEADERS, 1, &[OK]);
    let data = frame(DATA, 0, 1, b"x").repeat(2000);
    let end = frame(DATA, 1, 1, b"y");
    let frames = [head, data, end].concat();
    for via in Via::ALL {
        let world = world(answer(frames.clone()).await).await;
        let reply = timeout(LIMIT, world.send(via, "GET /")).await.expect("it stopped");
        assert_eq!(reply.body, "x".repeat(2000) + "y", "{via:?}");
    }
}

#[tokio::test]
async fn empty_frames_without_end_are_not_put_up_with() {
    let head = frame(HEADERS, END_HEADERS, 1, &[OK]);
    let world = world(answer([head, frame(DATA, 0, 1, &[]).repeat(1000)].concat()).await).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    let reply = timeout(LIMIT, client.try_send("GET /")).await.expect("it goes on");
    assert!(reply.is_err() || reply.is_ok_and(|reply| reply.status == 502));
}

#[tokio::test]
async fn a_response_that_is_reset_midway_breaks_off() {
    let head = frame(HEADERS, END_HEADERS, 1, &[OK]);
    let data = frame(DATA, 0, 1, &[b'x'; 10_000]);
    let reset = frame(RST_STREAM, 0, 1, &2_u32.to_be_bytes());
    let frames = [head, data, reset].concat();
    for via in Via::ALL {
        let world = world(answer(frames.clone()).await).await;
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let reply = timeout(LIMIT, client.try_send("GET /")).await.expect("it goes on");
        assert!(reply.is_err(), "{via:?}");
    }
}

/// Trailers without end are no way to fill memory either.
#[tokio::test]
async fn trailers_larger_than_heads_may_be_break_the_response_off() {
    let head = [frame(HEADERS, END_HEADERS, 1, &[OK]), frame(DATA, 0, 1, b"x")].concat();
    // A field `x` of 16,000 bytes, as a literal without indexing (RFC 7541 section 6.2.2).
    let field = [&[0, 1, b'x', 0x7f, 0x81, 0x7c][..], &[b'y'; 16_000]].concat();
    let first = frame(HEADERS, END_STREAM, 1, &field);
    let more = frame(CONTINUATION, 0, 1, &field).repeat(100);
    let world = world(answer([head, first, more].concat()).await).await;
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let reply = timeout(LIMIT, client.try_send("GET /")).await.expect("it goes on");
        assert!(reply.is_err() || reply.is_ok_and(|reply| reply.status == 502), "{via:?}");
    }
}
