//! What a gateway must refuse before it is routed, as raw bytes; and clients that keep it waiting.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::time::{Duration, Instant};

use portcullis_model::{BackendProtocol, Limits};
use support::client::raw;
use support::origin::Origin;
use support::rules::rule;
use support::via::{Client, Via};
use support::world::{World, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const POST: &str = "POST / HTTP/1.1\r\nhost: a\r\n";

/// Status of the first answer, `closed` if there is none.
fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("closed")
}

#[tokio::test]
async fn ambiguous_framing_is_refused_and_nothing_after_it_is_read() {
    let (world, origin) = World::echo(vec![rule()]).await;
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    let huge = "x".repeat(20 << 10);
    let rows: Vec<(&str, String, &str)> = vec![
        (
            "CL and TE",
            format!("{POST}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "TE and CL",
            format!("{POST}transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "two TE",
            format!("{POST}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "TE identity, chunked",
            format!("{POST}transfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n"),
            "501",
        ),
        (
            "TE chunked, identity",
            format!("{POST}transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        ("TE xchunked", format!("{POST}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"), "400"),
        ("TE with space before colon", format!("{POST}transfer-encoding : chunked\r\n\r\n0\r\n\r\n"), "400"),
        (
            "TE in HTTP/1.0",
            "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".into(),
            "400",
        ),
        ("two CL", format!("{POST}content-length: 3\r\ncontent-length: 4\r\n\r\nabcd"), "400"),
        ("two equal CL", format!("{POST}content-length: 3\r\ncontent-length: 3\r\n\r\nabc"), "400"),
        ("CL list", format!("{POST}content-length: 3, 3\r\n\r\nabc"), "400"),
        ("CL +3", format!("{POST}content-length: +3\r\n\r\nabc"), "400"),
        ("CL 0x3", format!("{POST}content-length: 0x3\r\n\r\nabc"), "400"),
        ("CL 3 x", format!("{POST}content-length: 3 x\r\n\r\nabc"), "400"),
        ("bare LF", "GET / HTTP/1.1\nhost: a\n\n".into(), "400"),
        ("bare LF in a field", "GET / HTTP/1.1\r\nx: a\nhost: a\r\n\r\n".into(), "400"),
        ("bare CR", "GET / HTTP/1.1\r\nhost: a\r\nx: a\rb\r\n\r\n".into(), "400"),
        ("obs-fold", "GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n".into(), "400"),
        ("NUL in a value", "GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n".into(), "400"),
        ("no Host", "GET / HTTP/1.1\r\n\r\n".into(), "400"),
        ("two Hosts", "GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n".into(), "400"),
        ("Host a@b", "GET / HTTP/1.1\r\nhost: a@b\r\n\r\n".into(), "400"),
        ("Host a/x", "GET / HTTP/1.1\r\nhost: a/x\r\n\r\n".into(), "400"),
        ("Host a b", "GET / HTTP/1.1\r\nhost: a b\r\n\r\n".into(), "400"),
        ("empty Host", "GET / HTTP/1.1\r\nhost:\r\n\r\n".into(), "400"),
        ("absolute form without Host", "GET http://a/ HTTP/1.1\r\n\r\n".into(), "400"),
        ("fragment", "GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n".into(), "400"),
        ("two spaces", "GET  / HTTP/1.1\r\nhost: a\r\n\r\n".into(), "400"),
        ("tab", "GET\t/ HTTP/1.1\r\nhost: a\r\n\r\n".into(), "400"),
        ("HTTP/1.2", "GET / HTTP/1.2\r\nhost: a\r\n\r\n".into(), "400"),
        ("HTTP/2.0", "GET / HTTP/2.0\r\nhost: a\r\n\r\n".into(), "400"),
        ("HTTP/0.9", "GET /\r\n".into(), "400"),
        ("TRACE", "TRACE / HTTP/1.1\r\nhost: a\r\n\r\n".into(), "405"),
        ("CONNECT", "CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n".into(), "405"),
        ("OPTIONS *", "OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n".into(), "400"),
        ("Connection: host", "GET / HTTP/1.1\r\nhost: a\r\nconnection: close, Host\r\n\r\n".into(), "400"),
        (
            "Connection: x-forwarded-for",
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: X-Forwarded-For\r\n\r\n".into(),
            "400",
        ),
        (
            "chunk size overflow",
            format!("{POST}transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n"),
            "400",
        ),
        ("chunk size 0x3", format!("{POST}transfer-encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n"), "400"),
        (
            "chunk terminator",
            format!("{POST}transfer-encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n"),
            "400",
        ),
        ("chunk line LF", format!("{POST}transfer-encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n"), "400"),
        (
            "LF in chunk extension",
            format!("{POST}transfer-encoding: chunked\r\n\r\n3;a\nbc\r\n0\r\n\r\n"),
            "400",
        ),
        (
            "20 KB chunk extension",
            format!("{POST}transfer-encoding: chunked\r\n\r\n3;{huge}\r\nabc\r\n0\r\n\r\n"),
            "400",
        ),
        ("9 KB URI", format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", &huge[..9 << 10]), "414"),
        ("150 fields", format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: 1\r\n".repeat(150)), "431"),
        ("70 KB field", format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", huge.repeat(4)), "431"),
    ];
    for (name, bytes, wanted) in rows {
        let answer = raw(world.plain, format!("{bytes}{smuggled}").as_bytes()).await;
        assert_eq!(status(&answer), wanted, "{name}: {answer}");
        let refused = ["400", "501"].contains(&wanted);
        assert!(!refused || answer.matches("HTTP/1.1 ").count() == 1, "{name}: answered again: {answer}");
    }
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
    drop(origin);
}

#[tokio::test]
async fn what_is_odd_but_clear_is_served() {
    let (world, _origin) = World::echo(vec![rule()]).await;
    for (name, bytes, seen) in [
        ("empty line first", "\r\nGET /a HTTP/1.1\r\nhost: a\r\n\r\n", "GET /a"),
        ("absolute form wins", "GET http://b/a HTTP/1.1\r\nhost: a\r\n\r\n", "host: b"),
        ("absolute form", "GET http://b HTTP/1.1\r\nhost: a\r\n\r\n", "GET /\n"),
        ("HTTP/1.0 without Host", "GET /a HTTP/1.0\r\n\r\n", "GET /a"),
        (
            "h2c is not spoken of",
            "GET /a HTTP/1.1\r\nhost: a\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n\r\n",
            "GET /a",
        ),
    ] {
        let answer = raw(world.plain, bytes.as_bytes()).await;
        assert!(answer.contains(seen) && !answer.contains("upgrade:"), "{name}: {answer}");
    }
    let two = "POST /1 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\na\nb\r\n0\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\n";
    let answer = raw(world.plain, two.as_bytes()).await;
    assert!(answer.contains("POST /1") && answer.contains("GET /2"), "pipelined: {answer}");
}

#[tokio::test]
async fn a_malformed_body_spoils_its_backend_connection() {
    let (world, origin) = World::echo(vec![rule()]).await;
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
    let bytes = format!("{POST}transfer-encoding: chunked\r\n\r\n3\r\nabcX");
    assert_eq!(status(&raw(world.plain, bytes.as_bytes()).await), "400");
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
    assert_eq!(origin.connections(), 2, "the connection with half a request must not be reused");
}

#[tokio::test]
async fn http2_authority_and_host_agree() {
    let (world, _origin) = World::echo(vec![rule()]).await;
    for (host, status) in [("any.test", 200), ("other.test", 400)] {
        let mut client = Client::connect(Via::H2c, world.plain, "any.test").await;
        assert_eq!(client.send_with_host("GET /", host).await.status, status, "{host}");
    }
}

#[tokio::test]
async fn cookie_crumbs_are_joined_and_limited() {
    let (world, _origin) = World::echo(vec![rule()]).await;
    let crumbs = |count| "\ncookie: a=1".repeat(count);
    let reply = world.send(Via::Http2Tls, &format!("GET /{}", crumbs(3))).await;
    assert!(reply.body.contains("cookie: a=1; a=1; a=1\n"), "{}", reply.body);
    assert_eq!(world.send(Via::Http2Tls, &format!("GET /{}", crumbs(65))).await.status, 431);
}

#[tokio::test]
async fn clients_that_dawdle_over_a_head_are_closed() {
    let mut world = World::new();
    world.limit(Limits { header_timeout: Duration::from_millis(500), ..Limits::default() });
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule()]);
    world.apply().await;
    for start in ["", "G", "GET / HTTP/1.1\r\nhost: a\r\n", "GET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HT"] {
        let mut stream = TcpStream::connect(world.plain).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        let begin = Instant::now();
        let _ = stream.read_to_end(&mut Vec::new()).await;
        assert!(begin.elapsed() >= Duration::from_millis(400), "{start:?}: {:?}", begin.elapsed());
    }
    let mut patient = Client::connect(Via::Http1, world.plain, "a").await;
    for _ in 0..3 {
        assert_eq!(patient.send("GET /?delay=700").await.status, 200, "a slow backend is no slow head");
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let mut world = World::new();
    let idle_timeout = Duration::from_millis(300);
    world.limit(Limits { idle_timeout, http2_idle_timeout: idle_timeout, ..Limits::default() });
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule()]);
    world.https("*", vec![rule()]);
    world.apply().await;
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        assert_eq!(client.send("GET /").await.status, 200);
        eventually("an idle connection is closed", async || client.closed().await).await;
    }
}

#[tokio::test]
async fn a_flood_of_pings_is_cut() {
    let (world, _origin) = World::echo(vec![rule()]).await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[7; 8]].concat();
    let mut acknowledged = 0;
    let (mut read, mut write) = stream.into_split();
    let flood = tokio::spawn(async move {
        for _ in 0..20_000 {
            if write.write_all(&ping).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = [0; 17 * 1024];
    while let Ok(count @ 1..) = read.read(&mut buffer).await {
        acknowledged += count / 17;
    }
    flood.await.unwrap();
    assert!(acknowledged < 3000, "{acknowledged} pings were answered");
}
