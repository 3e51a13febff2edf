//! Answers of the gateway itself as gRPC clients get them.

use std::net::SocketAddr;

use portcullis_model::BackendProtocol;

use crate::support::backend::refusing;
use crate::support::origin::{Origin, serve_raw};
use crate::support::rules::{RuleSpec, rule};
use crate::support::via::{Reply, Via};
use crate::support::world::World;

const CALL: &str = "POST /shop.Cart/Add\ncontent-type: application/grpc+proto\nte: trailers";
const GRPC: [Via; 2] = [Via::H2c, Via::Http2Tls];

async fn world(rules: Vec<RuleSpec>, endpoints: &[SocketAddr]) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::H2c, endpoints);
    world.http("*", rules.clone());
    world.https("*", rules);
    world.apply().await;
    world
}

fn check(reply: &Reply, code: &str, name: &str) {
    assert_eq!(reply.status, 200, "{name}: {reply:?}");
    assert_eq!(reply.header("grpc-status"), Some(code), "{name}: {reply:?}");
    assert!(reply.header("grpc-message").is_some_and(|words| !words.is_empty()), "{name}: {reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/grpc+proto"), "{name}");
    assert!(reply.body.is_empty() && reply.trailers.is_empty(), "{name}: the head says it all: {reply:?}");
}

#[tokio::test]
async fn failures_are_told_as_grpc_statuses() {
    let refusing = refusing();
    let broken = serve_raw(b"this is no HTTP/2").await;
    let slow = Origin::h2c().await;
    let elsewhere = vec![rule().prefix("/other")];
    for (name, rules, endpoints, code) in [
        ("no rule", elsewhere, vec![slow.address], "12"),
        ("a rule that fails", vec![rule().fail(503)], vec![slow.address], "14"),
        ("an invalid backend", vec![rule().invalid_backend()], vec![slow.address], "14"),
        ("no endpoint", vec![rule()], vec![], "14"),
        ("a backend that refuses", vec![rule()], vec![refusing], "14"),
        ("a backend of another protocol", vec![rule()], vec![broken], "14"),
        ("a time-out", vec![rule().request_timeout(50)], vec![slow.address], "4"),
    ] {
        let world = world(rules, &endpoints).await;
        for via in GRPC {
            let call = if code == "4" { CALL.replace("Add", "Add?delay=30000") } else { CALL.to_owned() };
            check(&world.send(via, &call).await, code, name);
        }
    }
}

#[tokio::test]
async fn a_host_without_listener_is_unimplemented() {
    let mut world = World::new();
    world.http("only.test", vec![rule()]);
    world.apply().await;
    check(&world.send(Via::H2c, &format!("{CALL}\nhost: other.test")).await, "12", "no listener");
}

/// The counters of the listener still show a failure.
#[tokio::test]
async fn failures_count_as_failures() {
    let world = world(vec![rule()], &[]).await;
    check(&world.send(Via::H2c, CALL).await, "14", "no endpoint");
    let stats = world.proxy.stats().await;
    let classes = stats.listeners.values().map(|listener| listener.requests).find(|requests| requests[5] > 0);
    assert_eq!(classes, Some([0, 0, 0, 0, 0, 1, 0]), "{stats:?}");
}

#[tokio::test]
async fn what_is_not_grpc_sees_the_http_status() {
    let world = world(vec![rule()], &[]).await;
    for request in [
        "GET /shop.Cart/Add\ncontent-type: application/grpc",
        "POST /shop.Cart/Add\ncontent-type: application/json",
        "POST /shop.Cart/Add\ncontent-type: application/grpcish",
        "POST /shop.Cart/Add",
    ] {
        for via in Via::ALL {
            let reply = world.send(via, request).await;
            assert_eq!(reply.status, 503, "{via:?} {request}");
            assert_eq!(reply.header("grpc-status"), None, "{via:?} {request}");
        }
    }
    let reply = world.send(Via::Http1, &CALL.replace("grpc+proto", "grpc-web")).await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("grpc-status")),
        (200, Some("14")),
        "gRPC-Web, over HTTP/1"
    );
    assert_eq!(reply.header("content-type"), Some("application/grpc-web"));
}

#[tokio::test]
async fn what_a_backend_says_passes() {
    let origin = Origin::h2c().await;
    let world = world(vec![rule()], &[origin.address]).await;
    for via in GRPC {
        let reply = world.send(via, CALL).await;
        assert_eq!((reply.status.as_u16(), reply.header("grpc-status")), (200, None), "{via:?}");
    }
}
