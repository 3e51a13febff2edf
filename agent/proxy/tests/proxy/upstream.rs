//! Connections to backends: kept, shared, replaced when they turn out closed; and what happens when
//! a backend does not do its part.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use http_body_util::BodyExt;
use portcullis_model::BackendProtocol;
use portcullis_proxy::{Reason, Settings, Upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::backend::refusing;
use crate::support::client::raw;
use crate::support::origin::{Origin, serve_pieces, serve_raw};
use crate::support::rules::rule;
use crate::support::settings::settings;
use crate::support::via::{Client, Reply, Via};
use crate::support::world::World;

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
        let watch = timeout(Duration::from_secs(50), client.start("GET /?stall")).await;
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
async fn no_request_waits_for_a_connection_longer_than_the_time_out() {
    const LIMIT: Duration = Duration::from_millis(1500);
    let (address, _sockets) = full();
    let long = Duration::from_secs(3600);
    for (protocol, connect, own) in [
        (BackendProtocol::Http1, LIMIT, None),
        (BackendProtocol::H2c, LIMIT, None),
        (BackendProtocol::Http1, long, Some(LIMIT)),
    ] {
        let upstream = Upstream { connect, ..Upstream::default() };
        let mut world = World::with(Settings { upstream, ..settings() });
        world.backend("echo", protocol, &[address]);
        world.backends[0].connections.connect = own;
        world.http("*", vec![rule()]);
        world.apply().await;
        let mut clients = Vec::new();
        for _ in 0..20 {
            clients.push(Client::connect(Via::Http1, world.plain, "any.test").await);
        }
        let begin = Instant::now();
        let mut requests = tokio::task::JoinSet::new();
        for mut client in clients {
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

/// They come before a final response, which they say nothing about.
#[tokio::test]
async fn informational_responses_do_not_break_the_final_one() {
    const FINAL: &str = "HTTP/1.1 200 OK\r\nx-final: 1\r\ncontent-length: 2\r\n\r\nok";
    for informational in [
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 102 Processing\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nx-final: 0\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nconnection: close\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\ntransfer-encoding: chunked\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\ntransfer-encoding: gzip\r\n\r\n",
        "HTTP/1.1 199 Whatever\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n",
    ] {
        for pieces in [vec![informational.to_owned() + FINAL], vec![informational.into(), FINAL.into()]] {
            let world = world(BackendProtocol::Http1, &[serve_pieces(pieces).await]).await;
            for (via, request) in [(Via::Http1, "GET /"), (Via::Http2Tls, "POST /\n\nbody")] {
                let reply = world.send(via, request).await;
                let got = (reply.status.as_u16(), reply.body.as_str(), reply.header("x-final"));
                assert_eq!(got, (200, "ok", Some("1")), "{via:?} after {informational:?}");
                assert_eq!(reply.header("link"), None);
            }
        }
    }
    for broken in [
        "HTTP/1.1 103 Early Hints\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ] {
        let world = world(BackendProtocol::Http1, &[serve_pieces(vec![broken.into()]).await]).await;
        assert_eq!(world.send(Via::Http1, "GET /").await.status, 502, "{broken:?}");
    }
}

#[tokio::test]
async fn nor_do_those_of_an_http2_backend() {
    let status = |code: &[u8]| [&[0x08, 3], code].concat();
    let frame = |kind: u8, flags: u8, payload: &[u8]| {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1][..], payload].concat()
    };
    let head = |code: &[u8]| frame(1, 4, &status(code));
    let body = frame(0, 1, b"ok");
    let of = |heads: &[&[u8]]| heads.iter().flat_map(|code| head(code)).collect::<Vec<_>>();
    for (answer, expected) in [
        ([of(&[b"200"]), body.clone()].concat(), 200),
        ([of(&[b"103", b"200"]), body.clone()].concat(), 200),
        ([of(&[b"100", b"102", b"103", b"103", b"200"]), body.clone()].concat(), 200),
        ([of(&[b"101"]), body.clone()].concat(), 502),
        ([of(&[b"103", b"101"]), body.clone()].concat(), 502),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let written = answer.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // SETTINGS, and the acknowledgement of the client's.
                stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0]).await.unwrap();
                let mut seen = Vec::new();
                // The head of stream 1.
                while !seen.windows(6).any(|part| part[0] == 1 && part[2..] == [0, 0, 0, 1]) {
                    stream.read_buf(&mut seen).await.unwrap();
                }
                stream.write_all(&written).await.unwrap();
                let _ = stream.read_to_end(&mut seen).await;
            }
        });
        let world = world(BackendProtocol::H2c, &[address]).await;
        let reply = timeout(Duration::from_secs(50), world.send(Via::Http1, "GET /")).await.unwrap();
        assert_eq!(reply.status.as_u16(), expected, "{answer:?}");
    }
}

/// Clients of HTTP/2 may take a response that has it for malformed.
#[tokio::test]
async fn white_space_around_values_of_an_http2_backend_is_taken_off() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let padded = HeaderValue::from_static("\t b\tc  ");
                let mut response = http::Response::new(());
                for (name, value) in [
                    ("x-a", padded.clone()),
                    ("x-blank", HeaderValue::from_static(" ")),
                    ("trailer", "x-b".parse().unwrap()),
                ] {
                    response.headers_mut().insert(name, value);
                }
                let mut body = respond.send_response(response, false).unwrap();
                body.send_data("ok".into(), false).unwrap();
                body.send_trailers([(HeaderName::from_static("x-b"), padded)].into_iter().collect()).unwrap();
            }
        }
    });
    let world = world(BackendProtocol::H2c, &[address]).await;
    for via in [Via::Http1, Via::H2c] {
        let reply = world.send(via, "GET /\nte: trailers").await;
        let of_head = [reply.header("x-a"), reply.header("x-blank")];
        assert_eq!((&*reply.body, of_head), ("ok", [Some("b\tc"), Some("")]), "{via:?}");
        assert_eq!(reply.trailers["x-b"], "b\tc", "{via:?}");
    }
}

/// The client waits for our 100, which tells nothing of the backend.
#[tokio::test]
async fn only_a_client_that_asked_is_told_to_continue() {
    let pieces = ["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"];
    let origin = serve_pieces(pieces.map(str::to_owned).to_vec()).await;
    let world = world(BackendProtocol::Http1, &[origin]).await;
    for (expect, continues) in [("", false), ("expect: 100-continue\r\n", true)] {
        let request = format!("POST / HTTP/1.1\r\nhost: a\r\n{expect}content-length: 4\r\n\r\nbody");
        let answer = raw(world.plain, request.as_bytes()).await;
        assert_eq!(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\n"), continues, "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1 + usize::from(continues), "{answer}");
    }
}

#[tokio::test]
async fn a_response_in_another_transfer_coding_is_a_bad_gateway() {
    for codings in [
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: gzip",
        "transfer-encoding: identity",
        "transfer-encoding: chunked, chunked",
        "transfer-encoding: gzip\r\ntransfer-encoding: chunked",
        "content-length: 5\r\ntransfer-encoding: xchunked",
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{codings}\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        let world = world(BackendProtocol::Http1, &[serve_pieces(vec![answer]).await]).await;
        for via in [Via::Http1, Via::Http2Tls] {
            assert_eq!(world.send(via, "GET /").await.status, 502, "{via:?}: {codings}");
        }
        let stats = world.proxy.stats().await;
        let counted = stats.answers.get(&Reason::ResponseCoding).copied().unwrap_or_default();
        assert_eq!(counted, 2, "{codings}");
    }
}

/// The head that the client gets is written anew, so leniency harms no client; the length of a
/// chunk is another matter.
#[tokio::test]
async fn a_bare_lf_is_taken_in_heads_and_nowhere_else() {
    for (answer, expected) in [
        ("HTTP/1.1 200 OK\nx-a: 1\ncontent-length: 2\n\nok", Some("ok")),
        ("HTTP/1.1 200 OK\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n2\nok\r\n0\r\n\r\n", None),
        ("HTTP/1.1 200 OK\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n2;a\nok\r\n0\r\n\r\n", None),
        ("HTTP/1.1 200 OK\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\n0\r\n\r\n", None),
    ] {
        let world = world(BackendProtocol::Http1, &[serve_pieces(vec![answer.into()]).await]).await;
        let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
        let body = client.try_send("GET /").await.ok().map(|reply| reply.body);
        assert_eq!(body.as_deref(), expected, "{answer:?}");
        if expected.is_some() {
            let written = raw(world.plain, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
            assert!(written.contains("\r\nx-a: 1\r\n"), "{written:?}");
        }
    }
    for bad in ["x: a\rb", "x: a\0b", "x : a"] {
        let answer = format!("HTTP/1.1 200 OK\r\n{bad}\r\ncontent-length: 0\r\n\r\n");
        let world = world(BackendProtocol::Http1, &[serve_pieces(vec![answer]).await]).await;
        assert_eq!(world.send(Via::Http1, "GET /").await.status, 502, "{bad:?}");
    }
}

#[tokio::test]
async fn a_response_head_over_the_limits_says_so() {
    let field = |bytes| format!("x: {}\r\n", "v".repeat(bytes));
    for (fields, status) in [
        (field(30 << 10), 200),
        (field(40 << 10), 502),
        (field(1 << 20), 502),
        (field(1).repeat(19), 200),
        (field(1).repeat(20), 502),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{fields}\r\n");
        let origin = serve_pieces(vec![answer]).await;
        let upstream = Upstream { header_bytes: 32 << 10, header_fields: 20, ..Upstream::default() };
        let mut world = World::with(Settings { upstream, ..settings() });
        world.backend("echo", BackendProtocol::Http1, &[origin]);
        world.http("*", vec![rule()]);
        world.apply().await;
        let answer = raw(world.plain, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{} bytes: {answer:.40}", fields.len());
        let stats = world.proxy.stats().await;
        let counted = stats.answers.get(&Reason::ResponseTooLarge).copied().unwrap_or_default();
        assert_eq!(counted, u64::from(status == 502));
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
    world.http("*", vec![rule().request_timeout(1500)]);
    world.https("*", vec![rule().backend_timeout(1500)]);
    world.apply().await;
    for via in Via::ALL {
        let begin = Instant::now();
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let response = client.start("GET /?stall").await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(Reply::read(response).await.is_err(), "{via:?}");
        assert!(begin.elapsed() < Duration::from_secs(30), "{via:?}");
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

/// A backend that answers a head with the first bytes, and the whole request with the last.
async fn hasty(length: usize, first: &'static str, last: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // It is used again if the whole request was out before the response was looked at.
            while stream.peek(&mut [0]).await.is_ok_and(|bytes| bytes > 0) {
                let has_body = read_head(&mut stream).await.starts_with("POST");
                stream.write_all(first.as_bytes()).await.unwrap();
                stream.read_exact(&mut vec![0; if has_body { length } else { 0 }]).await.unwrap();
                stream.write_all(last.as_bytes()).await.unwrap();
            }
        }
    });
    address
}

#[tokio::test]
async fn the_rest_of_a_request_follows_a_response_that_comes_early() {
    const BODY: usize = 4_000_000;
    let backend = hasty(BODY, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nearly", "late").await;
    let world = world(BackendProtocol::Http1, &[backend]).await;
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        let request = format!("POST /\ncontent-length: {BODY}\n\n{}", "x".repeat(BODY));
        assert_eq!(client.send(&request).await.body, "earlylate", "{via:?}");
        assert_eq!(client.send(&request).await.body, "earlylate", "{via:?}");
    }
}

/// A client that still sends when its connection closes may lose the response.
#[tokio::test]
async fn a_request_goes_on_for_a_while_after_its_response() {
    const BODY: usize = 4_000_000;
    let backend = hasty(BODY, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly", "").await;
    let world = world(BackendProtocol::Http1, &[backend]).await;
    let mut client = TcpStream::connect(world.plain).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {BODY}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"));
    client.read_exact(&mut [0; 5]).await.unwrap();
    client.write_all(&vec![b'x'; BODY]).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    assert!(read_head(&mut client).await.starts_with("HTTP/1.1 200"), "on the same connection");
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
