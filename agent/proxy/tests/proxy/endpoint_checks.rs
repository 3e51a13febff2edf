//! Checks of endpoints: whatever these answer, or do not; while clients go on, and endpoints come
//! and go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use portcullis_model::{AllUnhealthy, BackendProtocol, EndpointCheck, Probe, Resilience};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::backend::refusing;
use crate::support::l4;
use crate::support::resilience::{Endpoint, checks, http_check, stats, world};
use crate::support::rules::rule;
use crate::support::tls_origin::{Authority, Setup, TlsOrigin};
use crate::support::via::{Client, Via};
use crate::support::world::{World, eventually};

/// Waits until these are out.
async fn out(world: &World, expected: &[SocketAddr]) {
    eventually("the endpoints are out", async || {
        let out = stats(world).await.out;
        out.iter().map(|(address, _)| address).eq(expected)
    })
    .await;
}

#[tokio::test]
async fn endpoints_are_out_while_their_checks_fail() {
    let (one, other) = (Endpoint::start(200).await, Endpoint::start(200).await);
    let world = world(rule(), checks(http_check()), &[one.address(), other.address()]).await;
    other.health.store(503, Ordering::SeqCst);
    out(&world, &[other.address()]).await;
    let before = other.requests();
    for via in [Via::Http1, Via::Http1Tls] {
        for _ in 0..10 {
            assert_eq!(world.send(via, "GET /").await.status, 200);
        }
    }
    assert_eq!(other.requests(), before);
    other.health.store(204, Ordering::SeqCst);
    out(&world, &[]).await;
    eventually("requests again", async || {
        world.send(Via::Http1, "GET /").await;
        other.requests() > before
    })
    .await;
}

#[tokio::test]
async fn without_healthy_endpoints_all_are_asked_or_none() {
    let endpoint = Endpoint::start(200).await;
    endpoint.health.store(500, Ordering::SeqCst);
    let mut terms = checks(http_check());
    let mut world = world(rule(), terms.clone(), &[endpoint.address()]).await;
    out(&world, &[endpoint.address()]).await;
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
    terms.check.as_mut().unwrap().all_unhealthy = AllUnhealthy::Refuse;
    world.backends[0].resilience = Some(terms.into());
    world.apply().await;
    eventually("requests are refused", async || world.send(Via::Http1, "GET /").await.status == 503).await;
    let reply = world.send(Via::Http1Tls, "GET /").await;
    assert_eq!((reply.status.as_u16(), &*reply.body), (503, "no healthy backend\n"));
}

/// An endpoint that does this with each connection.
async fn serving(pieces: &'static [&'static str], is_endless: bool) -> SocketAddr {
    l4::backend(move |mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        for piece in pieces {
            let _ = stream.write_all(piece.as_bytes()).await;
        }
        let last = pieces.last().copied().unwrap_or_default();
        while is_endless && stream.write_all(last.as_bytes()).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let _ = stream.read(&mut [0; 1024]).await;
    })
    .await
}

#[tokio::test]
async fn hostile_endpoints_fail_and_hold_nothing_up() {
    let dripping = l4::backend(|mut stream| async move {
        while stream.write_all(b"H").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut hostile = vec![
        dripping.await,
        silent.local_addr().unwrap(),
        serving(&["HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1/health\r\n\r\n"], false).await,
        serving(&["HTTP/1.1 100 Continue\r\n\r\n"], true).await,
        serving(&["HTTP/1.1 200 OK\r\n", "x: y\r\n"], true).await,
        serving(&["SSH-2.0-OpenSSH\r\n"], false).await,
        serving(&["HTTP/1.1 101 Switching Protocols\r\n\r\n"], false).await,
        serving(&[], false).await,
    ];
    hostile.sort_unstable();
    let fine = [
        serving(&["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 \r\n\r\nHTTP/1.1 200 OK\r\n\r\n"], false)
            .await,
        serving(&["HTTP/1.1 299 \r\n\r\n", "endless"], true).await,
    ];
    let endpoints: Vec<_> = hostile.iter().chain(&fine).copied().collect();
    // Some of them say nothing, or do not end.
    let mut terms = checks(http_check());
    terms.check.as_mut().unwrap().timeout = Duration::from_millis(500);
    let world = world(rule(), terms, &endpoints).await;
    out(&world, &hostile).await;
    let before = stats(&world).await.passed_checks;
    eventually("others are checked", async || stats(&world).await.passed_checks > before + 20).await;
    out(&world, &hostile).await;
}

/// As many as run at once, and more.
#[tokio::test]
async fn endpoints_of_one_namespace_that_hang_do_not_keep_those_of_others_waiting() {
    let silent = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let hanging: Vec<_> = (1..=16).map(|last| SocketAddr::from(([127, 9, 0, last], port))).collect();
    let terms = Resilience {
        check: checks(http_check())
            .check
            .map(|check| EndpointCheck { timeout: Duration::from_secs(60), ..check }),
        ..Resilience::default()
    };
    let mut world = World::new();
    for number in 0..40 {
        world.backend(&format!("hostile/{number}"), BackendProtocol::Http1, &hanging);
    }
    for backend in &mut world.backends {
        backend.resilience = Some(Arc::new(terms.clone()));
    }
    world.http("*", vec![rule()]);
    world.apply().await;
    eventually("all are checked", async || world.proxy.stats().await.checked_endpoints == 640).await;
    let good = Endpoint::start(200).await;
    world.backend("echo", BackendProtocol::Http1, &[good.address()]);
    world.backends.last_mut().unwrap().resilience = Some(Arc::new(checks(http_check())));
    world.apply().await;
    eventually("others are checked", async || stats(&world).await.passed_checks > 20).await;
    good.health.store(503, Ordering::SeqCst);
    out(&world, &[good.address()]).await;
}

#[tokio::test]
async fn tcp_checks_make_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let good = listener.local_addr().unwrap();
    let refusing = refusing();
    let world = world(rule(), checks(Probe::Tcp), &[good, refusing]).await;
    out(&world, &[refusing]).await;
}

/// Answers every call with this message and these trailers, or with trailers only.
async fn grpc(message: Option<&'static [u8]>, status: &'static str) -> SocketAddr {
    l4::backend(move |stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            assert_eq!(request.headers()["content-type"], "application/grpc");
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static(status));
            let mut head = Response::new(());
            let Some(message) = message else {
                *head.headers_mut() = trailers;
                respond.send_response(head, true).unwrap();
                continue;
            };
            let mut body = respond.send_response(head, false).unwrap();
            body.send_data(Bytes::from_static(message), false).unwrap();
            body.send_trailers(trailers).unwrap();
        }
    })
    .await
}

#[tokio::test]
async fn grpc_checks_ask_the_health_service() {
    let serving = grpc(Some(&[0, 0, 0, 0, 2, 8, 1]), "0").await;
    let mut failing = vec![
        grpc(Some(&[0, 0, 0, 0, 2, 8, 2]), "0").await,
        grpc(Some(&[0, 0, 0, 0, 0]), "0").await,
        grpc(Some(&[0, 0, 0, 0, 2, 8, 1]), "14").await,
        grpc(Some(&[0]), "0").await,
        grpc(Some(&[0; 1 << 15]), "0").await,
        grpc(None, "12").await,
        Endpoint::start(200).await.address(),
    ];
    failing.sort_unstable();
    let endpoints: Vec<_> = failing.iter().copied().chain([serving]).collect();
    let mut world = World::new();
    world.backend("echo", BackendProtocol::H2c, &endpoints);
    world.backends[0].resilience = Some(checks(Probe::Grpc { service: "shop.Cart".into() }).into());
    world.http("*", vec![rule()]);
    world.apply().await;
    out(&world, &failing).await;
}

#[tokio::test]
async fn checks_go_through_the_backends_tls() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let origin = TlsOrigin::new(Setup::new(authority.issue(&["a.example"]), &["h2", "http/1.1"])).await;
    for (policy, is_out) in [(&authority, false), (&foreign, true)] {
        let mut world = World::new();
        let encryption = policy.policy("a.example", &[]);
        world.encrypted("echo", BackendProtocol::Negotiated, encryption, &[origin.address]);
        world.backends[0].resilience = Some(checks(http_check()).into());
        world.http("*", vec![rule()]);
        world.apply().await;
        eventually("checks", async || {
            let stats = stats(&world).await;
            stats.passed_checks + stats.failed_checks > 2
        })
        .await;
        let expected: Vec<_> = is_out.then_some(origin.address).into_iter().collect();
        out(&world, &expected).await;
    }
}

/// Under load, no client notices.
#[tokio::test]
async fn clients_notice_nothing_of_checks_that_flap() {
    let endpoints = [Endpoint::start(200).await, Endpoint::start(200).await];
    let addresses = endpoints.each_ref().map(Endpoint::address);
    let world = world(rule(), checks(http_check()), &addresses).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = tokio::task::JoinSet::new();
    for via in [Via::Http1, Via::H2c, Via::Http1Tls, Via::Http2Tls] {
        let (address, is_over) = (world.address(via), is_over.clone());
        clients.spawn(async move {
            let mut client = Client::connect(via, address, "any.test").await;
            let mut count = 0;
            while !is_over.load(Ordering::SeqCst) {
                assert_eq!(client.send("GET /").await.status, 200);
                count += 1;
            }
            count
        });
    }
    for flip in 0..20 {
        let endpoint = &endpoints[flip % 2];
        endpoint.health.store(503, Ordering::SeqCst);
        out(&world, &[endpoint.address()]).await;
        endpoint.health.store(200, Ordering::SeqCst);
        out(&world, &[]).await;
    }
    is_over.store(true, Ordering::SeqCst);
    assert!(clients.join_all().await.iter().all(|count| *count > 0));
}

/// However often they change, there is one check for each endpoint that is there.
#[tokio::test]
async fn no_check_outlives_its_endpoint() {
    let endpoints = [Endpoint::start(200).await, Endpoint::start(200).await, Endpoint::start(200).await];
    let [one, two, three] = endpoints.each_ref().map(Endpoint::address);
    let mut world = world(rule(), checks(http_check()), &[one]).await;
    for turn in 0..50 {
        world.backends[0].endpoints = if turn % 2 == 0 { vec![one, two] } else { vec![two, three] };
        world.apply().await;
    }
    let checked = async |world: &World| world.proxy.stats().await.checked_endpoints;
    eventually("two are checked", async || checked(&world).await == 2).await;
    eventually("they are asked", async || endpoints[2].checks.load(Ordering::SeqCst) > 2).await;
    let of_first = endpoints[0].checks.load(Ordering::SeqCst);
    let of_third = endpoints[2].checks.load(Ordering::SeqCst);
    eventually("it goes on", async || endpoints[2].checks.load(Ordering::SeqCst) > of_third + 5).await;
    assert_eq!(endpoints[0].checks.load(Ordering::SeqCst), of_first);
    world.backends[0].resilience = Some(Resilience::default().into());
    world.apply().await;
    eventually("none is checked", async || checked(&world).await == 0).await;
    world.proxy.drain().await;
}
