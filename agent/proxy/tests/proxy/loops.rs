//! Services whose endpoint is a gateway: a request must not go round.

use portcullis_model::{BackendProtocol, Filter};
use portcullis_proxy::Reason;

use crate::support::rules::{edit, rule};
use crate::support::via::Via;
use crate::support::world::World;

/// Gives up, so that a loop that is not found ends some time.
const TIMEOUT: u64 = 2000;

async fn forwarding(world: &mut World, protocol: BackendProtocol, to: &World) {
    world.backend("echo", protocol, &[to.plain]);
    let rules = vec![rule().request_timeout(TIMEOUT)];
    world.http("*", rules.clone());
    world.https("*", rules);
    world.apply().await;
}

async fn loops_found(world: &World) -> u64 {
    world.proxy.stats().await.answers.get(&Reason::Loop).copied().unwrap_or_default()
}

#[tokio::test]
async fn a_gateway_that_is_its_own_backend_answers_508() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::H2c] {
        let mut world = World::new();
        let address = world.plain;
        world.backend("echo", protocol, &[address]);
        world.http("*", vec![rule().request_timeout(TIMEOUT)]);
        world.apply().await;
        for via in [Via::Http1, Via::H2c] {
            assert_eq!(world.send(via, "GET /").await.status, 508, "{via:?} to {protocol:?}");
        }
        let stats = world.proxy.stats().await;
        assert!(stats.accepted <= 4, "{} connections for 2 requests", stats.accepted);
        assert_eq!(loops_found(&world).await, 2);
    }
}

#[tokio::test]
async fn two_agents_that_are_each_others_backend_find_the_loop() {
    let (mut one, mut other) = (World::new(), World::new());
    forwarding(&mut other, BackendProtocol::Http1, &one).await;
    forwarding(&mut one, BackendProtocol::Http1, &other).await;
    for via in Via::ALL {
        assert_eq!(one.send(via, "GET /").await.status, 508, "{via:?}");
    }
    assert_eq!((loops_found(&one).await, loops_found(&other).await), (4, 0));
}

#[tokio::test]
async fn so_many_gateways_may_be_passed() {
    let (world, _origin) = World::echo(vec![rule()]).await;
    for (passed, status) in [(7, 200), (8, 508)] {
        let ids: Vec<_> = (0..passed).map(|n| format!("portcullis-{n}")).collect();
        let request = format!("GET /\ncdn-loop: example.com;x=y, {}", ids.join(", "));
        for via in Via::ALL {
            let reply = world.send(via, &request).await;
            assert_eq!(reply.status, status, "{via:?}: {passed}");
            let seen = reply.body.lines().find(|line| line.starts_with("cdn-loop: "));
            assert_eq!(seen.is_some_and(|line| line.matches("portcullis-").count() == 8), status == 200);
        }
    }
}

/// The code is that of gRPC's own mapping from HTTP; unlike `Unavailable` it is no reason to try
/// again.
#[tokio::test]
async fn a_grpc_client_is_told_of_a_loop() {
    let mut world = World::new();
    let address = world.plain;
    world.backend("echo", BackendProtocol::H2c, &[address]);
    world.http("*", vec![rule().request_timeout(TIMEOUT)]);
    world.apply().await;
    let reply = world.send(Via::H2c, "POST /shop.Cart/Add\ncontent-type: application/grpc").await;
    assert_eq!((reply.status.as_u16(), reply.header("grpc-status")), (200, Some("2")), "{reply:?}");
    assert_eq!(reply.header("grpc-message"), Some("this request came here before"));
    assert!(reply.body.is_empty() && reply.trailers.is_empty(), "the head says it all: {reply:?}");
    assert_eq!(loops_found(&world).await, 1);
}

/// Or else the owner of the route could hide the loop.
#[tokio::test]
async fn filters_and_connection_options_leave_the_signature_alone() {
    let hide = edit(&[("cdn-loop", "x")], &[], &["cdn-loop"]);
    let (world, _origin) = World::echo(vec![rule().filter(Filter::RequestHeaders(hide))]).await;
    let reply = world.send(Via::Http1, "GET /\ncdn-loop: a.com").await;
    let seen = reply.body.lines().find(|line| line.starts_with("cdn-loop: ")).unwrap();
    assert!(seen.starts_with("cdn-loop: a.com, portcullis-"), "{seen}");
    let hidden = "GET /\ncdn-loop: a.com\nconnection: cdn-loop";
    assert_eq!(world.send(Via::Http1, hidden).await.status, 400);
}
