//! Mirrors: what they get, and that no mirror delays or fails the request that its copy is of.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may")]

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use portcullis_model::{BackendProtocol, Filter, Mirror, PathRewrite, Share};
use portcullis_proxy::Mirrored;
use support::backend::{Backend, refusing};
use support::origin::{Origin, serve_raw};
use support::rules::{RuleSpec, backend_name, edit, rule};
use support::via::{Client, Via};
use support::world::{World, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Heads and bodies that a backend got.
type Seen = Arc<Mutex<Vec<(String, Bytes)>>>;

async fn recording() -> (Backend, Seen) {
    let seen = Seen::default();
    let recorded = seen.clone();
    let backend = Backend::start(move |request: Request<Incoming>| {
        let recorded = recorded.clone();
        async move {
            let (parts, body) = request.into_parts();
            let mut lines = vec![format!("{} {}", parts.method, parts.uri)];
            let fields =
                parts.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
            lines.extend(fields);
            lines[1..].sort();
            if let Ok(body) = body.collect().await {
                recorded.lock().unwrap().push((lines.join("\n"), body.to_bytes()));
            }
            Response::new(Full::new(Bytes::from_static(b"answer")))
        }
    });
    (backend.await, seen)
}

fn mirror(name: &str, share: Share) -> Filter {
    Filter::Mirror(Mirror { backend: backend_name(name), share })
}

/// A backend, and mirrors by name.
async fn world(rule: RuleSpec, backend: SocketAddr, mirrors: &[(&str, SocketAddr)]) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[backend]);
    for (name, address) in mirrors {
        world.backend(name, BackendProtocol::Http1, &[*address]);
    }
    world.http("*", vec![rule.clone()]);
    world.https("*", vec![rule]);
    world.apply().await;
    world
}

async fn mirrored(world: &World, outcome: Mirrored) -> u64 {
    world.proxy.stats().await.mirrored.get(&outcome).copied().unwrap_or_default()
}

/// Takes connections, and does nothing else; reads that much of each first.
async fn stalling(reads: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read_exact(&mut vec![0; reads]).await;
            counted.fetch_add(1, Ordering::SeqCst);
            open.push(stream);
        }
    });
    (address, count)
}

#[tokio::test]
async fn mirrors_get_what_the_backend_gets() {
    let rewrite =
        RuleSpec::rewrite(rule().prefix("/a"), Some("inner.test"), Some(PathRewrite::Prefix("/b".into())));
    let rule = rewrite
        .backend_filter(mirror("two", Share::ALL))
        .filter(mirror("one", Share::ALL))
        .filter(Filter::RequestHeaders(edit(&[("x-set", "1")], &[], &["x-gone"])));
    for (via, body) in Via::ALL.into_iter().flat_map(|via| ["", "some bytes"].map(|body| (via, body))) {
        let (backend, seen) = recording().await;
        let (one, first) = recording().await;
        let (two, second) = recording().await;
        let world = world(rule.clone(), backend.address, &[("one", one.address), ("two", two.address)]).await;
        let method = if body.is_empty() { "GET" } else { "POST" };
        let text = format!("{method} /a/c?d=e\nx-gone: 1\nx-kept: 2\n\n{body}");
        let reply = world.send(via, &text).await;
        assert_eq!((reply.status.as_u16(), reply.body.as_str()), (200, "answer"), "{via:?}");
        eventually("both copies", async || mirrored(&world, Mirrored::Answered).await == 2).await;
        let seen = seen.lock().unwrap();
        assert!(
            seen[0].0.starts_with(&format!("{method} /b/c?d=e\n")) && seen[0].0.contains("host: inner.test")
        );
        assert!(seen[0].0.contains("x-set: 1") && !seen[0].0.contains("x-gone"), "{}", seen[0].0);
        assert_eq!(seen[0].1, body);
        assert_eq!(*first.lock().unwrap(), *seen, "{via:?}");
        assert_eq!(*second.lock().unwrap(), *seen, "{via:?}");
    }
}

#[tokio::test]
async fn a_body_without_length_is_mirrored_and_goes_to_http2_mirrors() {
    let body = "0123456789".repeat(5000);
    for via in [Via::Http1, Via::Http2Tls] {
        let (backend, _seen) = recording().await;
        let (one, first) = recording().await;
        let h2c = Origin::h2c().await;
        let rule = rule().filter(mirror("one", Share::ALL)).filter(mirror("h2c", Share::ALL));
        let mut world = world(rule, backend.address, &[("one", one.address)]).await;
        world.backend("h2c", BackendProtocol::H2c, &[h2c.address]);
        world.apply().await;
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        assert_eq!(client.send_unsized(&format!("POST /?size=100000\n\n{body}")).await.status, 200);
        eventually("both copies", async || mirrored(&world, Mirrored::Answered).await == 2).await;
        assert_eq!(first.lock().unwrap()[0].1, body, "{via:?}");
        assert_eq!((h2c.requests(), h2c.produced.load(Ordering::SeqCst)), (1, 100_000));
    }
}

#[tokio::test]
async fn a_share_of_all_requests_is_mirrored() {
    for (share, least, most) in [(0, 0, 0), (50, 140, 260), (100, 400, 400)] {
        let (backend, seen) = recording().await;
        let (one, first) = recording().await;
        let rule = rule().filter(mirror("one", Share::new(share, 100).unwrap()));
        let world = world(rule, backend.address, &[("one", one.address)]).await;
        let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
        for _ in 0..400 {
            assert_eq!(client.send("GET /").await.status, 200);
        }
        let stats = world.proxy.stats().await.mirrored;
        eventually("all copies", async || {
            let answered = mirrored(&world, Mirrored::Answered).await as usize;
            answered == first.lock().unwrap().len() && answered >= least
        })
        .await;
        let count = first.lock().unwrap().len();
        assert!((least..=most).contains(&count), "{share}%: {count}, {stats:?}");
        assert_eq!(seen.lock().unwrap().len(), 400);
    }
}

#[tokio::test]
async fn a_mirror_that_is_dead_or_broken_harms_no_request() {
    let refusing = refusing();
    for mirror_address in
        [Some(refusing), Some(serve_raw(b"garbage").await), Some(serve_raw(b"").await), None]
    {
        let (backend, seen) = recording().await;
        let rule = rule().filter(mirror("one", Share::ALL));
        let mirrors: Vec<_> = mirror_address.into_iter().map(|address| ("one", address)).collect();
        let world = world(rule, backend.address, &mirrors).await;
        for request in ["GET /", "POST /\n\nbody"] {
            assert_eq!(world.send(Via::Http1, request).await.status, 200);
        }
        eventually("both fail", async || mirrored(&world, Mirrored::Failed).await == 2).await;
        assert_eq!(seen.lock().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_mirror_that_does_not_answer_delays_no_request_and_has_so_many_at_most() {
    let (backend, seen) = recording().await;
    let (address, held) = stalling(10).await;
    let world = world(rule().filter(mirror("one", Share::ALL)), backend.address, &[("one", address)]).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    let begin = Instant::now();
    for _ in 0..200 {
        assert_eq!(client.send("POST /\n\nbody").await.status, 200);
    }
    // A copy may take half a minute.
    assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    assert_eq!(seen.lock().unwrap().len(), 200);
    assert_eq!(mirrored(&world, Mirrored::Busy).await, 200 - 128);
    eventually("those under way", async || held.load(Ordering::SeqCst) == 128).await;
}

/// Of all that a core may have under way, one namespace's have half.
#[tokio::test]
async fn mirrors_of_one_namespace_leave_places_for_those_of_others() {
    let (backend, _) = recording().await;
    let (hanging, held) = stalling(10).await;
    let (other, copied) = recording().await;
    let names: Vec<_> = (0..8).map(|number| format!("hostile/{number}")).collect();
    let hostile =
        names.iter().fold(rule().prefix("/hostile"), |rule, name| rule.filter(mirror(name, Share::ALL)));
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[backend.address]);
    world.backend("other/one", BackendProtocol::Http1, &[other.address]);
    names.iter().for_each(|name| world.backend(name, BackendProtocol::Http1, &[hanging]));
    world.http("*", vec![hostile, rule().filter(mirror("other/one", Share::ALL))]);
    world.apply().await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    for _ in 0..130 {
        assert_eq!(client.send("GET /hostile").await.status, 200);
    }
    assert_eq!(mirrored(&world, Mirrored::Busy).await, 130 * 8 - 512);
    eventually("those under way", async || held.load(Ordering::SeqCst) == 512).await;
    for _ in 0..10 {
        assert_eq!(client.send("GET /").await.status, 200);
    }
    eventually("the others' copies", async || copied.lock().unwrap().len() == 10).await;
}

/// As large as 100 MiB, to a backend that takes it and a mirror that does not.
#[tokio::test]
async fn a_mirror_that_does_not_read_is_given_up_and_the_body_goes_on() {
    const SIZE: usize = 100 << 20;
    let received = Arc::new(AtomicUsize::new(0));
    let counted = received.clone();
    let backend = Backend::start(move |request: Request<Incoming>| {
        let counted = counted.clone();
        async move {
            let mut body = request.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                counted.fetch_add(frame.data_ref().map_or(0, Bytes::len), Ordering::SeqCst);
            }
            Response::new(Full::default())
        }
    });
    let (backend, (address, held)) = (backend.await, stalling(10).await);
    let world = world(rule().filter(mirror("one", Share::ALL)), backend.address, &[("one", address)]).await;
    let mut stream = TcpStream::connect(world.plain).await.unwrap();
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {SIZE}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let before = resident();
    let piece = vec![b'x'; 1 << 20];
    let mut most = before;
    for _ in 0..SIZE >> 20 {
        stream.write_all(&piece).await.unwrap();
        most = most.max(resident());
    }
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!((&answer, received.load(Ordering::SeqCst)), (b"HTTP/1.1 200", SIZE));
    eventually("the copy is given up", async || mirrored(&world, Mirrored::Behind).await == 1).await;
    assert_eq!(held.load(Ordering::SeqCst), 1);
    assert!(most < before + (40 << 20), "{} MiB more", (most - before) >> 20);
}

/// Bytes of memory of this process, without the pages of its program: other tests may use code for
/// the first time meanwhile.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: Vec<usize> = pages.split_whitespace().map(|pages| pages.parse().unwrap()).collect();
    (pages[1] - pages[2]) * 4096
}

/// A copy that breaks off must not look whole to the mirror.
#[tokio::test]
async fn a_request_that_breaks_off_has_no_whole_copy() {
    for (framing, begun) in
        [("content-length: 20", "0123456789"), ("transfer-encoding: chunked", "a\r\n0123456789\r\n")]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (backend, address) = (serve_raw(b"").await, listener.local_addr().unwrap());
        let world = world(rule().filter(mirror("one", Share::ALL)), backend, &[("one", address)]).await;
        let mut stream = TcpStream::connect(world.plain).await.unwrap();
        let text = format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n{begun}");
        stream.write_all(text.as_bytes()).await.unwrap();
        let (mut copy, _) = listener.accept().await.unwrap();
        let mut got = Vec::new();
        while !String::from_utf8_lossy(&got).contains("0123456789") {
            assert_ne!(copy.read_buf(&mut got).await.unwrap(), 0);
        }
        drop(stream);
        let _ = copy.read_to_end(&mut got).await;
        let got = String::from_utf8(got).unwrap();
        assert!(!got.ends_with("0\r\n\r\n") && got.contains("0123456789"), "{got:?}");
        eventually("it is counted", async || mirrored(&world, Mirrored::Broken).await == 1).await;
    }
}

#[tokio::test]
async fn responses_of_mirrors_are_discarded_and_their_connections_used_again() {
    let (backend, _seen) = recording().await;
    let origin = Origin::http1().await;
    let world =
        world(rule().filter(mirror("one", Share::ALL)), backend.address, &[("one", origin.address)]).await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    for (at, target) in ["/?status=503", "/?size=300000", "/?status=204", "/?trailers"].iter().enumerate() {
        let reply = client.send(&format!("GET {target}")).await;
        assert_eq!((reply.status.as_u16(), reply.body.as_str()), (200, "answer"));
        eventually("the copy", async || mirrored(&world, Mirrored::Answered).await == at as u64 + 1).await;
    }
    assert_eq!(origin.connections(), 1);
    // More than is read of a response.
    client.send("GET /?size=50000000").await;
    eventually("the copy", async || mirrored(&world, Mirrored::Answered).await == 5).await;
    assert!(origin.produced.load(Ordering::SeqCst) < 40_000_000);
}

#[tokio::test]
async fn copies_that_come_back_go_no_further() {
    let origin = Origin::http1().await;
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.backend("loop", BackendProtocol::Http1, &[world.plain]);
    world.http("*", vec![rule().filter(mirror("loop", Share::ALL))]);
    world.apply().await;
    assert_eq!(world.send(Via::Http1, "POST /\n\nbody").await.status, 200);
    eventually("the copy", async || mirrored(&world, Mirrored::Answered).await == 1).await;
    assert_eq!(world.proxy.stats().await.answers.get(&portcullis_proxy::Reason::Loop), Some(&1));
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn a_retry_is_not_mirrored_again() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let backend = Backend::start(move |request: Request<Incoming>| {
        let counted = counted.clone();
        async move {
            let _ = request.into_body().collect().await;
            let status = if counted.fetch_add(1, Ordering::SeqCst) < 2 { 503 } else { 200 };
            Response::builder().status(status).body(Full::default()).unwrap()
        }
    });
    let (backend, (one, seen)) = (backend.await, recording().await);
    let rule = rule().retry(2, &[503]).filter(mirror("one", Share::ALL));
    let world = world(rule, backend.address, &[("one", one.address)]).await;
    assert_eq!(world.send(Via::Http1, "POST /\n\nbody").await.status, 200);
    eventually("the copy", async || mirrored(&world, Mirrored::Answered).await == 1).await;
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
    assert_eq!(seen.lock().unwrap().iter().map(|(_, body)| body.clone()).collect::<Vec<_>>(), ["body"]);
}
