//! Requests that must be refused before they are routed, as raw bytes; clients that keep it
//! waiting.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_model::{BackendProtocol, Limits, ObjectName};
use portcullis_proxy::ExceededLimit;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support;
use crate::support::client::{raw, tls};
use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

const POST: &str = "POST / HTTP/1.1\r\nhost: a\r\n";

/// The preface of HTTP/2 and empty SETTINGS.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const END_HEADERS: u8 = 4;
const END_STREAM: u8 = 1;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `:scheme http`, `:authority a`, then method and path.
fn request(method: u8, path: &str) -> Vec<u8> {
    let path = [&[0x44, u8::try_from(path.len()).unwrap()], path.as_bytes()].concat();
    [&[0x86, 0x41, 1, b'a', method][..], &path].concat()
}

fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &request(0x82, path))
}

/// The kind and stream of the next frame; `None` at the end.
async fn next_frame(stream: &mut (impl AsyncRead + Unpin)) -> Option<(u8, u32)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, _, id @ ..] = head;
    stream.read_exact(&mut vec![0; u32::from_be_bytes([0, a, b, c]) as usize]).await.ok()?;
    Some((kind, u32::from_be_bytes(id)))
}

async fn sending(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Reads to the end.
async fn closes(what: &str, mut stream: impl AsyncRead + Unpin) {
    let mut answer = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
    assert!(end.is_ok(), "still open: {what}");
}

async fn echo_with(limits: Limits) -> (World, Origin) {
    let (mut world, origin) = World::echo(vec![rule()]).await;
    world.limit(limits);
    world.apply().await;
    (world, origin)
}

async fn refused(world: &World) -> BTreeMap<ExceededLimit, u64> {
    let mut gateways = world.proxy.stats().await.gateways;
    gateways.remove(&ObjectName::new("test", "gateway")).unwrap_or_default().refused
}

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
        ("absolute form without a path", "GET http://b?x=/y HTTP/1.1\r\nhost: a\r\n\r\n", "GET /?x=/y\n"),
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

/// The client sends no body that it was not told to send.
#[tokio::test]
async fn an_answer_in_place_of_continue_says_that_the_connection_ends() {
    let (world, _origin) = World::echo(vec![rule()]).await;
    let request = "TRACE / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
    let answer = raw(world.plain, request.as_bytes()).await;
    assert_eq!(status(&answer), "405", "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
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

/// An HTTP/2 client takes any bytes for frames: an answer of HTTP/1 would be a frame of 4.7 MB.
#[tokio::test]
async fn a_broken_preface_is_answered_in_http2_or_not_at_all() {
    let (world, _origin) = World::echo(vec![rule()]).await;
    for preface in [
        "INVALID CONNECTION PREFACE\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nXM\r\n\r\n",
        "PRI * HTTP/2.0\r\nhost: a\r\n\r\n",
    ] {
        let stream = sending(world.plain, preface.as_bytes()).await;
        closes(preface, stream).await;
        let answer = raw(world.plain, preface.as_bytes()).await;
        assert!(!answer.contains("HTTP/1"), "{preface:?}: {answer}");
    }
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
    // As rules see it.
    let reply =
        world.send(Via::Http2Tls, "GET /\ncookie: \ncookie: a=1\ncookie: \ncookie: b=2\ncookie: ").await;
    assert!(reply.body.contains("cookie: a=1; b=2\n"), "{}", reply.body);
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
async fn what_does_not_become_a_head_is_not_waited_for() {
    let header_timeout = Duration::from_millis(300);
    let (world, _origin) = echo_with(Limits { header_timeout, ..Limits::default() }).await;
    let starts = [&b"\r\n"[..], b"\r\n\r\n\r\n", &HTTP2[..24], &HTTP2[..30]];
    for start in starts {
        closes(&start.escape_ascii().to_string(), sending(world.plain, start).await).await;
    }
    let stream = TcpStream::connect(world.tls).await.unwrap();
    let mut stream = support::client::tls(stream, Some("any.test"), b"h2").await.unwrap();
    stream.write_all(b"P").await.unwrap();
    closes("P", stream).await;
    assert_eq!(refused(&world).await, BTreeMap::from([(ExceededLimit::HeaderTimeout, 5)]));
}

/// HTTP/2 ends with a PING that the client may leave without answer.
#[tokio::test]
async fn a_connection_that_was_told_to_end_does_not_depend_on_its_client() {
    let http2_idle_timeout = Duration::from_millis(300);
    let (world, _origin) = echo_with(Limits { http2_idle_timeout, ..Limits::default() }).await;
    closes("no answer to PING", sending(world.plain, HTTP2).await).await;
    assert_eq!(refused(&world).await, BTreeMap::from([(ExceededLimit::Http2IdleTimeout, 1)]));
}

/// RFC 9112 section 9.3.2.
#[tokio::test]
async fn a_head_behind_another_request_has_its_time_after_that() {
    let header_timeout = Duration::from_millis(500);
    let (world, _origin) = echo_with(Limits { header_timeout, ..Limits::default() }).await;
    let begin = b"GET /a?delay=1500 HTTP/1.1\r\nhost: a\r\n\r\nGET /b HT";
    let mut stream = sending(world.plain, begin).await;
    let mut buffer = [0; 4096];
    let count = stream.read(&mut buffer).await.unwrap();
    assert_eq!(status(&String::from_utf8_lossy(&buffer[..count])), "200");
    stream.write_all(b"TP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains("GET /b"), "{rest}");
    assert_eq!(refused(&world).await, BTreeMap::new());
}

#[tokio::test]
async fn clients_that_do_not_do_their_part_are_cut_and_no_others() {
    let limit = Duration::from_secs(1);
    let limits = Limits { idle_timeout: limit, http2_idle_timeout: limit, ..Limits::default() };
    let (world, _origin) = echo_with(limits).await;
    let mut events = Client::connect(Via::Http1, world.plain, "a").await;
    let _events = events.start("GET /?stall").await.unwrap();
    let poll = world.send(Via::Http1, "GET /?delay=3000");
    let mut slow = sending(world.plain, format!("{POST}content-length: 10\r\n\r\n").as_bytes()).await;
    let slow = async {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            slow.write_all(b"x").await.unwrap();
        }
        slow.read(&mut [0; 100]).await.unwrap()
    };
    // A stream of gRPC may be without a word from either side.
    let silent = [HTTP2, &frame(HEADERS, END_HEADERS, 1, &request(0x83, "/"))].concat();
    let silent = sending(world.plain, &silent).await;
    let stalled = async {
        let upload = sending(world.plain, format!("{POST}content-length: 10\r\n\r\nx").as_bytes()).await;
        let large = sending(world.plain, b"GET /?size=100000000 HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let large2 = sending(world.plain, &[HTTP2, &get(1, "/?size=100000000")].concat()).await;
        closes("no rest of the body", upload).await;
        closes("no window for the response", large2).await;
        let all = BTreeMap::from([(ExceededLimit::IdleTimeout, 2), (ExceededLimit::Http2IdleTimeout, 1)]);
        eventually("the response is not read", async || refused(&world).await == all).await;
        drop(large);
    };
    let (poll, slow, ()) = tokio::join!(poll, slow, stalled);
    assert_eq!(poll.status, 200, "a slow backend is not the client's fault");
    assert_ne!(slow, 0, "a slow client is not one that does nothing");
    assert!(!events.closed().await, "events may be rare");
    assert_eq!(refused(&world).await.values().sum::<u64>(), 3);
    drop(silent);
}

/// The kernel asks silent clients whether they are still there (timer 2 of /proc/net/tcp).
#[tokio::test]
async fn connections_are_kept_alive() {
    let (world, _origin) = World::echo(vec![rule()]).await;
    let client = TcpStream::connect(world.plain).await.unwrap();
    let port = |address: SocketAddr| format!(":{:04X}", address.port());
    let ends = [port(world.plain), port(client.local_addr().unwrap())];
    eventually("the timer runs", async || {
        let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut fields = connections.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        fields.any(|of| of[1].ends_with(&ends[0]) && of[2].ends_with(&ends[1]) && of[5].starts_with("02:"))
    })
    .await;
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
    let stream = sending(world.plain, HTTP2).await;
    let ping = frame(PING, 0, 0, &[7; 8]);
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

/// Each request is with the backend when it is reset (CVE-2023-44487).
#[tokio::test]
async fn a_flood_of_resets_is_cut() {
    let (world, origin) = World::echo(vec![rule()]).await;
    let mut stream = sending(world.plain, HTTP2).await;
    for id in (1..4000).step_by(2) {
        if stream.write_all(&get(id, "/?stall")).await.is_err() {
            break;
        }
        while next_frame(&mut stream).await.is_some_and(|frame| frame != (HEADERS, id)) {}
        let _ = stream.write_all(&frame(RST_STREAM, 0, id, &[0, 0, 0, 8])).await;
    }
    assert!((500..1000).contains(&origin.requests()), "{} requests were reset", origin.requests());
}

/// It leaves the PING behind GOAWAY unanswered, without which the last GOAWAY does not come.
#[tokio::test]
async fn a_client_that_does_not_go_is_refused_once_it_must_know_that_its_listener_is_gone() {
    let (world, _origin) = World::echo(vec![rule()]).await;
    let stream = TcpStream::connect(world.tls).await.unwrap();
    let mut stream = tls(stream, Some("any.test"), b"h2").await.unwrap();
    stream.write_all(&[HTTP2, &get(1, "/")].concat()).await.unwrap();
    while next_frame(&mut stream).await.expect("no answer") != (HEADERS, 1) {}
    let begun = Instant::now();
    assert!(world.proxy.apply(Arc::new(world.asking_for_certificates())).await.is_empty());
    let mut pause = tokio::time::interval(Duration::from_millis(100));
    let refused = async {
        for id in (3..).step_by(2) {
            pause.tick().await;
            stream.write_all(&get(id, "/")).await.unwrap();
            let of_stream = async |stream: &mut _| {
                loop {
                    match next_frame(stream).await.expect("the connection ends with its requests") {
                        (kind @ (HEADERS | RST_STREAM), at) if at == id => return kind,
                        _ => {}
                    }
                }
            };
            if of_stream(&mut stream).await == RST_STREAM {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), refused).await.expect("requests are served");
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}: it may not have heard", begun.elapsed());
}
