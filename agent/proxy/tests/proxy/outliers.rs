//! Endpoints that fail time and again are asked nothing for a while, by all cores; and are asked
//! again.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderValue, Response};
use http_body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portcullis_model::{BackendProtocol, Resilience};
use tokio::net::TcpListener;

use crate::support;
use crate::support::backend::{Backend, refusing};
use crate::support::origin::Body;
use crate::support::resilience::{Endpoint, HANGS, brief_outliers, outliers, outliers_for, stats, world};
use crate::support::rules::{RuleSpec, rule};
use crate::support::via::Via;
use crate::support::world::{World, eventually};

const BOTH_CORES: [Via; 2] = [Via::Http1, Via::Http1Tls];

/// Sends requests by both cores until an endpoint is out; which are, then.
async fn until_ejected(world: &World) -> Vec<(SocketAddr, &'static str)> {
    let mut out = Vec::new();
    eventually("an ejection", async || {
        for via in BOTH_CORES {
            world.send(via, "GET /").await;
        }
        let stats = stats(world).await;
        out = stats.out;
        stats.ejections > 0
    })
    .await;
    out
}

#[tokio::test]
async fn an_endpoint_that_answers_500_is_ejected_for_all_cores_and_comes_back() {
    let (good, bad) = (Endpoint::start(200).await, Endpoint::start(500).await);
    let world = world(rule(), brief_outliers(3), &[good.address(), bad.address()]).await;
    assert_eq!(until_ejected(&world).await, [(bad.address(), "ejected")]);
    let before = bad.requests();
    assert!((3..=8).contains(&before), "cores count together: {before}");
    // On a machine that is busy its time may be over meanwhile: each request that it gets then has
    // it ejected anew.
    let mut failed = 0;
    for via in BOTH_CORES {
        for _ in 0..10 {
            failed += usize::from(world.send(via, "GET /").await.status != 200);
        }
    }
    assert_eq!(bad.requests(), before + failed);
    assert_eq!(stats(&world).await.ejections, 1 + failed as u64);
    // One request finds that it still fails; then another that it no longer does.
    eventually("another ejection", async || {
        world.send(Via::Http1, "GET /").await;
        stats(&world).await.ejections > 1 + failed as u64
    })
    .await;
    assert_eq!(bad.requests(), before + failed + 1);
    bad.answer(200);
    eventually("requests again", async || {
        world.send(Via::Http1Tls, "GET /").await;
        bad.requests() > before + failed + 5
    })
    .await;
    assert_eq!(stats(&world).await.out, []);
}

/// Nor is one ejected for answers that speak of the request, or for a failure now and then.
#[tokio::test]
async fn one_endpoint_is_always_left() {
    let (one, other) = (Endpoint::start(500).await, Endpoint::start(503).await);
    let endpoints = [one.address(), other.address()];
    let world = world(rule(), outliers(1), &endpoints).await;
    for _ in 0..20 {
        for via in BOTH_CORES {
            assert!([500, 503].contains(&world.send(via, "GET /").await.status.as_u16()));
        }
    }
    assert_eq!(stats(&world).await.out.len(), 1);
}

#[tokio::test]
async fn answers_that_speak_of_the_request_are_no_failures() {
    let (one, other) = (Endpoint::start(501).await, Endpoint::start(404).await);
    let world = world(rule(), outliers(1), &[one.address(), other.address()]).await;
    for _ in 0..20 {
        world.send(Via::Http1, "GET /").await;
    }
    one.answer(500);
    for _ in 0..20 {
        world.send(Via::Http1, "GET /").await;
        one.answer(if one.requests() % 2 == 0 { 200 } else { 501 });
    }
    let first = stats(&world).await;
    assert!(first.ejections <= 1, "{first:?}");
}

/// Nor do requests that are given up, or that no answer decides, keep one out that is well.
#[tokio::test]
async fn what_decides_nothing_keeps_no_endpoint_out() {
    for answer in [501, HANGS] {
        let (good, bad) = (Endpoint::start(200).await, Endpoint::start(500).await);
        let ejection = Duration::from_secs(3);
        let world = world(rule(), outliers_for(ejection, 1), &[good.address(), bad.address()]).await;
        until_ejected(&world).await;
        bad.answer(answer);
        let (before, mut first) = (bad.requests(), None);
        eventually("a trial, and what comes after it", async || {
            let sending = world.send(Via::Http1, "GET /");
            if let Ok(reply) = tokio::time::timeout(Duration::from_millis(100), sending).await {
                assert!([200, 501].contains(&reply.status.as_u16()));
            }
            if bad.requests() > before {
                first.get_or_insert_with(Instant::now);
            }
            bad.requests() >= before + 3
        })
        .await;
        let since = first.unwrap().elapsed();
        assert!(since < ejection, "one trial follows the other: {since:?}");
        bad.answer(200);
        eventually("a return", async || {
            world.send(Via::Http1, "GET /").await;
            stats(&world).await.out.is_empty()
        })
        .await;
        assert_eq!(stats(&world).await.ejections, 1);
    }
}

/// Connections that cannot be made, and that break.
#[tokio::test]
async fn endpoints_that_refuse_or_break_connections_are_ejected() {
    let refusing = refusing();
    let closing = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let breaking = closing.local_addr().unwrap();
    tokio::spawn(async move { while closing.accept().await.is_ok() {} });
    for bad in [refusing, breaking] {
        let good = Endpoint::start(200).await;
        let world = world(rule(), outliers(2), &[good.address(), bad]).await;
        assert_eq!(until_ejected(&world).await, [(bad, "ejected")]);
    }
}

/// With retries and without. A client's own time-out, or body, is no failure of an endpoint.
#[tokio::test]
async fn an_endpoint_that_hangs_is_ejected() {
    // For longer than the other endpoint takes, on a busy machine, too.
    let [each, whole] = [rule().backend_timeout(1000), rule().request_timeout(1000)];
    tokio::join!(
        ejects_what_hangs(each.clone()),
        ejects_what_hangs(each.retry(1, &[])),
        ejects_what_hangs(whole.clone()),
        ejects_what_hangs(whole.retry(1, &[])),
    );
}

async fn ejects_what_hangs(rule: RuleSpec) {
    let (good, hanging) = (Endpoint::start(200).await, Backend::echo().await);
    let named = format!("{:?} {:?}", rule.timeouts, rule.retry);
    let world = world(rule, outliers(1), &[good.address(), hanging.address]).await;
    for _ in 0..8 {
        world.send(Via::Http1, "POST /slow\n\nbody").await;
    }
    assert_eq!(stats(&world).await.ejections, 0, "{named}: a body takes its time");
    eventually("an ejection", async || {
        world.send(Via::Http1, "GET /slow").await;
        stats(&world).await.ejections > 0
    })
    .await;
    assert_eq!(stats(&world).await.out, [(hanging.address, "ejected")], "{named}");
    assert_eq!(world.send(Via::Http1, "GET /slow").await.status, 200, "{named}");
}

#[tokio::test]
async fn terms_that_go_pardon_endpoints() {
    let (good, bad) = (Endpoint::start(200).await, Endpoint::start(500).await);
    let endpoints: [SocketAddr; 2] = [good.address(), bad.address()];
    let mut world = world(rule(), outliers(1), &endpoints).await;
    until_ejected(&world).await;
    bad.answer(200);
    world.backends[0].resilience = Some(Resilience::default().into());
    world.apply().await;
    let before = bad.requests();
    eventually("requests", async || {
        world.send(Via::Http1, "GET /").await;
        bad.requests() > before
    })
    .await;
}

/// The share of one that came later is a tenth at first.
#[tokio::test]
async fn a_new_endpoint_begins_with_a_small_share() {
    let (old, new) = (Endpoint::start(200).await, Endpoint::start(200).await);
    let terms = Resilience { slow_start: Some(Duration::from_secs(36_000)), ..Resilience::default() };
    let mut world = world(rule(), terms, &[old.address()]).await;
    world.send(Via::Http1, "GET /").await;
    world.backends[0].endpoints.push(new.address());
    world.apply().await;
    let mut client = support::via::Client::connect(Via::Http1, world.plain, "any.test").await;
    for _ in 0..400 {
        client.send("GET /").await;
    }
    assert!((10..=120).contains(&new.requests()), "{} of 400", new.requests());
}

/// A server whose calls all have one status, in the head or in trailers.
async fn grpc_server(code: &Arc<AtomicU16>, place: StatusIn) -> SocketAddr {
    server(200, "application/grpc", code, place).await
}

/// A server whose answers all have this status and type, and a `grpc-status`.
async fn server(status: u16, kind: &'static str, code: &Arc<AtomicU16>, place: StatusIn) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let code = code.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let code = code.clone();
            let service = service_fn(move |_| {
                let code = HeaderValue::from(code.load(Ordering::SeqCst));
                let mut response = Response::new(Body::Frames(Vec::new().into_iter()));
                *response.status_mut() = status.try_into().unwrap();
                response.headers_mut().insert("content-type", HeaderValue::from_static(kind));
                match place {
                    StatusIn::Head => drop(response.headers_mut().insert("grpc-status", code)),
                    StatusIn::Trailers => {
                        let trailers = [("grpc-status".parse().unwrap(), code)].into_iter().collect();
                        let frames = vec![Frame::data("message".into()), Frame::trailers(trailers)];
                        *response.body_mut() = Body::Frames(frames.into_iter());
                    }
                }
                async { Ok::<_, Infallible>(response) }
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

#[derive(Clone, Copy, Debug)]
enum StatusIn {
    Head,
    Trailers,
}

#[tokio::test]
async fn grpc_calls_count_by_their_status() {
    const CALL: &str = "POST /shop.Cart/Add\ncontent-type: application/grpc\nte: trailers";
    for (place, failures) in [(StatusIn::Head, [13, 14]), (StatusIn::Trailers, [2, 15])] {
        let codes = [Arc::new(AtomicU16::new(0)), Arc::new(AtomicU16::new(5))];
        let endpoints = [grpc_server(&codes[0], place).await, grpc_server(&codes[1], place).await];
        let mut world = World::new();
        world.backend("echo", BackendProtocol::H2c, &endpoints);
        world.backends[0].resilience = Some(Arc::new(brief_outliers(3)));
        world.http("*", vec![rule()]);
        world.apply().await;
        for code in [0, 1, 4, 5, 12] {
            codes[0].store(code, Ordering::SeqCst);
            for _ in 0..20 {
                world.send(Via::H2c, CALL).await;
            }
            assert_eq!(stats(&world).await.ejections, 0, "{place:?} {code}");
        }
        for (times, code) in failures.into_iter().enumerate() {
            codes[0].store(code, Ordering::SeqCst);
            let mut out = Vec::new();
            eventually("an ejection", async || {
                world.send(Via::H2c, CALL).await;
                let stats = stats(&world).await;
                out = stats.out;
                stats.ejections > times as u64
            })
            .await;
            assert_eq!(out, [(endpoints[0], "ejected")], "{place:?} {code}");
            codes[0].store(0, Ordering::SeqCst);
            eventually("a return", async || {
                world.send(Via::H2c, CALL).await;
                stats(&world).await.out.is_empty()
            })
            .await;
        }
    }
}

/// Of what is no gRPC call the HTTP status decides, whatever `grpc-status` says.
#[tokio::test]
async fn the_status_of_a_call_is_nothing_to_other_answers() {
    for kind in ["text/html", "application/grpc-web+proto", "application/grpcish"] {
        for place in [StatusIn::Head, StatusIn::Trailers] {
            let [good, bad] = [0, 14].map(|code| Arc::new(AtomicU16::new(code)));
            let endpoints = [server(200, kind, &bad, place).await, server(500, kind, &good, place).await];
            let mut world = World::new();
            world.backend("echo", BackendProtocol::H2c, &endpoints);
            world.backends[0].resilience = Some(Arc::new(outliers(3)));
            world.http("*", vec![rule()]);
            world.apply().await;
            eventually("an ejection", async || {
                world.send(Via::H2c, "GET /").await;
                stats(&world).await.ejections > 0
            })
            .await;
            assert_eq!(stats(&world).await.out, [(endpoints[1], "ejected")], "{kind} {place:?}");
        }
    }
}
