//! Retries of rules (GEP-1731): what is worth another attempt, what can be sent again, and what
//! ends it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use portcullis_model::BackendProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::support::backend::{Backend, refusing};
use crate::support::origin::Origin;
use crate::support::rules::{RuleSpec, rule};
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

type Seen = Arc<Mutex<Vec<Bytes>>>;

/// Answers with this status so many times, then with 200; notes the bodies that it got.
async fn failing(times: usize, status: u16) -> (Backend, Seen) {
    let (seen, count) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
    let bodies = seen.clone();
    let backend = Backend::start(move |request: Request<Incoming>| {
        let (bodies, count) = (bodies.clone(), count.clone());
        async move {
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            bodies.lock().unwrap().push(body);
            let status = if count.fetch_add(1, Ordering::SeqCst) < times { status } else { 200 };
            Response::builder().status(status).body(Full::new(Bytes::from_static(b"answer"))).unwrap()
        }
    });
    (backend.await, seen)
}

/// Takes connections and requests, and closes them without a word; counts them.
async fn closing() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    (address, count)
}

async fn world(rule: RuleSpec, endpoints: &[SocketAddr]) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, endpoints);
    world.http("*", vec![rule.clone()]);
    world.https("*", vec![rule]);
    world.apply().await;
    world
}

/// Failures of the backend, the rule's attempts and codes; the status that the client gets, and the
/// requests that the backend does.
#[tokio::test]
async fn responses_with_the_rules_codes_are_tried_again() {
    for (failures, status, attempts, codes, expected) in [
        (2, 503, 2, &[503][..], (200, 3)),
        (2, 503, 5, &[500, 503], (200, 3)),
        (3, 503, 2, &[503], (503, 3)),
        (1, 500, 2, &[503], (500, 1)),
        (1, 503, 2, &[], (503, 1)),
        (1, 503, 0, &[503], (503, 1)),
        (1, 429, 1, &[429], (200, 2)),
        (1, 599, 1, &[599], (200, 2)),
    ] {
        for via in [Via::Http1, Via::Http2Tls] {
            let (backend, seen) = failing(failures, status).await;
            let world = world(rule().retry(attempts, codes), &[backend.address]).await;
            let reply = world.send(via, "GET /").await;
            let retries = world.proxy.stats().await.upstream_retries;
            let got = (reply.status.as_u16(), seen.lock().unwrap().len());
            assert_eq!(got, expected, "{failures} of {status}, {attempts} for {codes:?}");
            assert_eq!((reply.body.as_str(), retries as usize), ("answer", expected.1 - 1));
            assert_eq!(backend.connections(), 1, "what was discarded left its connection to be used");
        }
    }
}

/// A listener that as many may connect to at once as a test has clients. At tokio's own, with room
/// for 128, the kernel goes over to SYN cookies and resets some of those who come too early.
fn roomy() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(1024).unwrap()
}

#[tokio::test]
async fn a_body_is_sent_again_byte_for_byte() {
    let body: String = (0..5000).map(|at| format!("{at:x};")).collect();
    let text = format!("POST /\n\n{body}");
    for via in Via::ALL {
        let (backend, seen) = failing(2, 503).await;
        let world = world(rule().retry(3, &[503]), &[backend.address]).await;
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        assert_eq!(client.send(&text).await.status, 200, "{via:?}");
        assert_eq!(client.send_unsized(&text).await.status, 200, "{via:?}");
        assert!(seen.lock().unwrap().iter().all(|seen| *seen == body), "{via:?}");
        assert_eq!(seen.lock().unwrap().len(), 4, "{via:?}");
    }
}

#[tokio::test]
async fn a_body_is_sent_again_to_http2_backends() {
    let origin = Origin::h2c().await;
    let body = "x".repeat(60_000);
    let mut world = World::new();
    world.backend("echo", BackendProtocol::H2c, &[origin.address]);
    world.http("*", vec![rule().retry(2, &[503])]);
    world.apply().await;
    let reply = world.send(Via::Http1, &format!("PUT /?status=503\n\n{body}")).await;
    assert_eq!((reply.status.as_u16(), origin.requests()), (503, 3));
    assert!(reply.body.ends_with(&body), "the third got all of it, too");
}

/// 64 KiB are kept.
#[tokio::test]
async fn a_body_that_is_not_kept_is_not_sent_again() {
    for (size, expected) in [(60 << 10, (200, 2)), (70 << 10, (503, 1)), (1 << 20, (503, 1))] {
        for via in [Via::Http1, Via::H2c] {
            let (backend, seen) = failing(1, 503).await;
            let world = world(rule().retry(3, &[503]), &[backend.address]).await;
            let reply = world.send(via, &format!("POST /\n\n{}", "x".repeat(size))).await;
            let lengths: Vec<_> = seen.lock().unwrap().iter().map(Bytes::len).collect();
            assert_eq!((reply.status.as_u16(), lengths.len()), expected, "{via:?}: {size}");
            assert!(lengths.iter().all(|length| *length == size), "{via:?}: {lengths:?}");
        }
    }
}

#[tokio::test]
async fn what_a_core_keeps_is_given_back() {
    let (backend, seen) = failing(usize::MAX, 503).await;
    let world = world(rule().retry(1, &[503]), &[backend.address]).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    let text = format!("POST /\n\n{}", "x".repeat(60 << 10));
    // More than all that a core may keep at once.
    for _ in 0..200 {
        client.send(&text).await;
    }
    assert_eq!(seen.lock().unwrap().len(), 400);
}

/// Of all bodies that a core keeps, one namespace's have half of the room.
#[tokio::test]
async fn bodies_for_one_namespace_leave_room_for_those_for_others() {
    let listener = roomy();
    let hanging = listener.local_addr().unwrap();
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = begun.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.read_exact(&mut vec![0; 60 << 10]).await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            open.push(stream);
        }
    });
    let (backend, seen) = failing(3, 503).await;
    let mut world = World::new();
    world.backend("hostile/hanging", BackendProtocol::Http1, &[hanging]);
    world.backend("other/one", BackendProtocol::Http1, &[backend.address]);
    let retried = || rule().retry(3, &[503]);
    world.http("*", vec![retried().prefix("/hostile").to("hostile/hanging"), retried().to("other/one")]);
    world.apply().await;
    // More than the whole room.
    let text = format!("POST /hostile\n\n{}", "x".repeat(60 << 10));
    let address = world.plain;
    let hostile: Vec<_> = (0..300)
        .map(|_| {
            let text = text.clone();
            tokio::spawn(
                async move { Client::connect(Via::Http1, address, "any.test").await.send(&text).await },
            )
        })
        .collect();
    eventually("all are under way", async || begun.load(Ordering::SeqCst) == 300).await;
    assert_eq!(world.send(Via::Http1, "POST /\n\nbody").await.status, 200);
    assert_eq!(seen.lock().unwrap().len(), 4);
    hostile.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn another_endpoint_gets_what_one_refuses() {
    let origin = Origin::http1().await;
    let endpoints = [refusing(), refusing(), refusing(), origin.address];
    for (attempts, expected) in [(0, None), (3, Some(200)), (100, Some(200))] {
        for _ in 0..10 {
            let world = world(rule().retry(attempts, &[]), &endpoints).await;
            let reply = world.send(Via::Http1, "POST /\n\nbody").await;
            let stats = world.proxy.stats().await;
            assert!(stats.upstream_retries <= u64::from(attempts).min(3), "{attempts}: {stats:?}");
            if let Some(expected) = expected {
                assert_eq!(reply.status, expected, "{attempts}");
            }
        }
    }
    let world = world(rule().retry(2, &[]), &[refusing()]).await;
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 503);
    assert_eq!(world.proxy.stats().await.upstream_retries, 2, "the only endpoint is tried again");
}

/// A request that got no answer may have been processed.
#[tokio::test]
async fn a_connection_that_breaks_is_retried_where_that_is_safe_or_wanted() {
    for (request, codes, expected) in [
        ("GET /", &[][..], 3),
        ("PUT /\n\nbody", &[], 3),
        ("POST /\n\nbody", &[], 1),
        ("POST /", &[503], 1),
        ("POST /\n\nbody", &[502], 3),
    ] {
        let (address, count) = closing().await;
        let world = world(rule().retry(2, codes), &[address]).await;
        assert_eq!(world.send(Via::Http1, request).await.status, 502);
        assert_eq!(count.load(Ordering::SeqCst), expected, "{request} {codes:?}");
    }
}

/// Requests that are slow at one endpoint: the attempts' time-out, and another endpoint.
#[tokio::test]
async fn each_attempt_has_its_own_time_out() {
    for (request, codes, expected) in [
        ("GET /slow", &[][..], 200),
        ("PUT /slow\n\nbody", &[], 200),
        ("POST /slow\n\nbody", &[504], 200),
        ("POST /slow\n\nbody", &[], 504),
    ] {
        let (slow, fast) = (Backend::echo().await, Origin::http1().await);
        let rule = rule().retry(1, codes).backend_timeout(1500);
        let world = world(rule, &[slow.address, fast.address]).await;
        let mut statuses = Vec::new();
        // Either may be the first.
        while slow.connections() == 0 {
            statuses.push(world.send(Via::Http1, request).await.status.as_u16());
        }
        assert_eq!(statuses.pop(), Some(expected), "{request} {codes:?}");
        assert!(statuses.iter().all(|status| *status == 200), "{request} {codes:?}");
    }
}

#[tokio::test]
async fn the_rules_time_out_ends_retries() {
    let (backend, seen) = failing(usize::MAX, 500).await;
    let world = world(rule().retry(1000, &[500]).request_timeout(2000), &[backend.address]).await;
    let begin = Instant::now();
    let reply = world.send(Via::Http1, "GET /").await;
    assert_eq!(reply.status, 504);
    assert!((1900..20_000).contains(&begin.elapsed().as_millis()), "{:?}", begin.elapsed());
    let seen = seen.lock().unwrap().len();
    assert!((3..=200).contains(&seen), "no sooner than after a pause each: {seen}");
}

/// Nor does the client wait for what it would not get.
#[tokio::test]
async fn a_pause_that_is_longer_than_what_is_left_is_not_begun() {
    let (backend, seen) = failing(usize::MAX, 500).await;
    let mut rule = rule().retry(5, &[500]).request_timeout(30_000);
    rule.retry.as_mut().unwrap().backoff = Some(Duration::from_secs(31));
    let world = world(rule, &[backend.address]).await;
    let begin = Instant::now();
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 504);
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn the_rules_time_out_counts_from_the_first_attempt() {
    let origin = Origin::http1().await;
    let rule = rule().retry(100, &[500]).request_timeout(2100).backend_timeout(1900);
    let world = world(rule, &[origin.address]).await;
    let begin = Instant::now();
    assert_eq!(world.send(Via::Http1, "GET /?status=500&delay=600").await.status, 504);
    // All attempts would take a minute.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert!((2..=4).contains(&origin.requests()), "{}", origin.requests());
}

/// An answer may come before the body is there; the attempt after it reads the rest.
#[tokio::test]
async fn an_early_answer_is_retried_with_the_whole_body() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Seen::default();
    let bodies = seen.clone();
    tokio::spawn(async move {
        let (mut first, _) = listener.accept().await.unwrap();
        let _ = first.read(&mut [0; 1024]).await;
        first.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        let (mut second, _) = listener.accept().await.unwrap();
        let mut got = Vec::new();
        while !got.ends_with(b"END") {
            assert_ne!(second.read_buf(&mut got).await.unwrap(), 0);
        }
        bodies.lock().unwrap().push(got.into());
        second.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        drop(first);
    });
    let world = world(rule().retry(1, &[503]), &[address]).await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nBEGIN,").await.unwrap();
    eventually("a retry", async || world.proxy.stats().await.upstream_retries == 1).await;
    stream.write_all(b"END").await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert!(seen.lock().unwrap()[0].ends_with(b"\r\n\r\nBEGIN,END"), "{:?}", seen.lock().unwrap());
}
