//! Durations of requests and handshakes, and requests by route and backend.

use std::sync::Arc;
use std::time::Duration;

use portcullis_model::{
    BackendName, BackendProtocol, ClientList, ClientRules, Level, ObjectName, Protection, TrafficPolicy,
};
use portcullis_proxy::{DurationStats, Histogram, Measure, RequestStats, RouteName, Settings};
use tokio::io::AsyncReadExt;

use crate::support::backend::refusing;
use crate::support::origin::{Origin, serve_pieces};
use crate::support::rules::{RuleSpec, backend_name, rule};
use crate::support::settings::settings;
use crate::support::via::Via;
use crate::support::world::{World, eventually};

/// With a series of their own for each of so many names.
async fn world(series: usize, rules: Vec<RuleSpec>) -> (World, Origin) {
    let measure = Measure { series, ..Measure::default() };
    let mut world = World::with(Settings { measure, ..settings() });
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", rules.clone());
    world.https("*", rules);
    world.apply().await;
    (world, origin)
}

fn permitting_nobody() -> Option<Arc<TrafficPolicy>> {
    let list = ClientList { allow: Vec::new(), deny: vec!["127.0.0.0/8".parse().unwrap()] };
    let clients = Some(ClientRules::new(vec![list]));
    let protection = Protection { clients, ..Protection::by(ObjectName::new("test", "p")) };
    TrafficPolicy::of(vec![Level { target: "HTTPRoute test/r".into(), protection: Arc::new(protection) }])
}

fn route(namespace: &str) -> Option<RouteName> {
    Some(RouteName { kind: "HTTPRoute", route: ObjectName::new(namespace, "route").into(), parent: None })
}

/// Requests are counted when the client has the last byte, perhaps a moment after.
async fn measured(world: &World, requests: u64) -> DurationStats {
    let all = |stats: &DurationStats| stats.listeners.values().map(|it| it.requests.count()).sum::<u64>();
    eventually("all are counted", async || all(&world.proxy.stats().await.durations) == requests).await;
    world.proxy.stats().await.durations
}

/// By class; none was aborted.
fn counted(stats: &RequestStats, requests: [u64; 6]) {
    assert_eq!(stats.requests.split_last(), Some((&0, requests.as_slice())));
    assert_eq!(stats.durations.count(), requests.iter().sum::<u64>());
}

fn of_backend(stats: &DurationStats, name: Option<BackendName>) -> &RequestStats {
    stats.backends.get(&name).unwrap()
}

#[tokio::test]
async fn requests_count_by_the_route_that_took_them_and_the_backend_they_went_to() {
    let rules = vec![
        rule(),
        rule().of("dead").prefix("/dead").to("dead"),
        rule().of("none").prefix("/none").to("none"),
        rule().of("invalid").prefix("/invalid").invalid_backend(),
        rule().of("denied").prefix("/denied").policy(permitting_nobody()),
        rule().of("moved").prefix("/moved").redirect(|_| {}),
        rule().of("only-posts").host("posts.test").method("POST"),
    ];
    let (mut world, _origin) = world(100, rules).await;
    world.backend("dead", BackendProtocol::Http1, &[refusing()]);
    world.backend("none", BackendProtocol::Http1, &[]);
    world.apply().await;
    for via in Via::ALL {
        for (request, status) in [
            ("GET /", 200),
            ("POST /\n\nsome", 200),
            ("GET /dead", 503),
            ("GET /none", 503),
            ("GET /invalid", 500),
            ("GET /denied", 403),
            ("GET /moved", 302),
            ("GET /\nhost: posts.test", 200),
        ] {
            assert_eq!(world.send(via, request).await.status, status, "{via:?} {request}");
        }
    }
    let stats = measured(&world, 8 * 4).await;
    for (namespace, requests) in [
        ("test", [0, 0, 3 * 4, 0, 0, 0]),
        ("dead", [0, 0, 0, 0, 0, 4]),
        ("none", [0, 0, 0, 0, 0, 4]),
        ("invalid", [0, 0, 0, 0, 0, 4]),
        ("denied", [0, 0, 0, 0, 4, 0]),
        ("moved", [0, 0, 0, 4, 0, 0]),
    ] {
        counted(&stats.routes[&route(namespace)], requests);
    }
    assert!(!stats.routes.contains_key(&route("only-posts")), "{:?}", stats.routes);
    counted(of_backend(&stats, Some(backend_name("echo"))), [0, 0, 3 * 4, 0, 0, 0]);
    counted(of_backend(&stats, Some(backend_name("dead"))), [4, 0, 0, 0, 0, 0]);
    counted(of_backend(&stats, Some(backend_name("none"))), [4, 0, 0, 0, 0, 0]);
    let handshakes = stats.listeners.values().map(|it| it.handshakes.count());
    assert_eq!(handshakes.sum::<u64>(), 8 * 2, "one for each connection with TLS");
    counted(&stats.routes[&None], [0; 6]);
}

#[tokio::test]
async fn a_request_ends_with_its_response_and_its_backends_part_where_that_begins() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n";
    let late_head = serve_pieces(["", head, "ab"].map(str::to_owned).into()).await;
    let late_body = serve_pieces([head, "a", "b"].map(str::to_owned).into()).await;
    let rules = vec![rule().of("head").prefix("/head").to("head"), rule().of("body").to("body")];
    let (mut world, _origin) = world(100, rules).await;
    world.backend("head", BackendProtocol::Http1, &[late_head]);
    world.backend("body", BackendProtocol::Http1, &[late_body]);
    world.apply().await;
    for via in Via::ALL {
        assert_eq!(world.send(via, "GET /head").await.body, "ab");
        assert_eq!(world.send(via, "GET /body").await.body, "ab");
    }
    let stats = measured(&world, 2 * 4).await;
    // Pauses of 20 ms each: two for all of it, one for a head.
    let none_below = |histogram: &Histogram, bound: Duration| {
        let below = Histogram::BOUNDS.iter().zip(histogram.buckets).filter(|(it, _)| **it <= bound);
        assert_eq!(below.map(|(_, count)| count).sum::<u64>(), 0, "{histogram:?}");
    };
    let (whole, pause) = (Duration::from_millis(25), Duration::from_millis(10));
    none_below(&stats.routes[&route("head")].durations, whole);
    none_below(&stats.routes[&route("body")].durations, whole);
    none_below(&of_backend(&stats, Some(backend_name("head"))).durations, pause);
    let [head, body] =
        ["head", "body"].map(|name| of_backend(&stats, Some(backend_name(name))).durations.sum);
    assert!(head >= 4 * Duration::from_millis(20), "{head:?}");
    assert!(body < stats.routes[&route("body")].durations.sum, "{body:?}");
}

#[tokio::test]
async fn a_request_whose_client_does_not_wait_counts_with_its_time() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut world, _origin) = world(100, vec![rule().of("silent").to("silent")]).await;
    world.backend("silent", BackendProtocol::Http1, &[silent.local_addr().unwrap()]);
    world.apply().await;
    let client_timeout = Duration::from_millis(30);
    let mut taken = Vec::new();
    for via in Via::ALL {
        let given_up = async {
            let (mut backend, _) = silent.accept().await.unwrap();
            backend.read_u8().await.unwrap();
            // The request is there: its client waits no longer.
            tokio::time::sleep(client_timeout).await;
            backend
        };
        tokio::select! {
            reply = world.send(via, "GET /") => panic!("{via:?}: {reply:?}"),
            backend = given_up => taken.push(backend),
        }
    }
    let stats = measured(&world, 4).await;
    for of in [&stats.routes[&route("silent")], of_backend(&stats, Some(backend_name("silent")))] {
        assert_eq!((of.requests, of.durations.count()), ([0, 0, 0, 0, 0, 0, 4], 4));
    }
    assert!(stats.routes[&route("silent")].durations.sum >= client_timeout, "{stats:?}");
    let of_listeners = world.proxy.stats().await.listeners.into_values();
    assert_eq!(of_listeners.map(|it| it.requests[6]).sum::<u64>(), 4);
}

#[tokio::test]
async fn a_body_that_is_too_long_is_its_rules() {
    let list = Protection { most_body_bytes: Some(3), ..Protection::by(ObjectName::new("test", "p")) };
    let level = Level { target: "HTTPRoute test/r".into(), protection: Arc::new(list) };
    let (world, _origin) = world(100, vec![rule().of("small").policy(TrafficPolicy::of(vec![level]))]).await;
    for via in Via::ALL {
        assert_eq!(world.send(via, "POST /\n\nlong").await.status, 413, "{via:?}");
    }
    let stats = measured(&world, 4).await;
    counted(&stats.routes[&route("small")], [0, 0, 0, 0, 4, 0]);
    assert!(!stats.backends.contains_key(&Some(backend_name("echo"))), "{stats:?}");
}

#[tokio::test]
async fn names_beyond_the_limit_share_a_series_until_another_one_is_gone() {
    let (first, second) = (rule().of("first").prefix("/first"), rule().of("second").prefix("/second"));
    let (mut world, _origin) = world(1, vec![first, second.clone()]).await;
    for request in ["GET /first", "GET /second", "GET /second"] {
        assert_eq!(world.send(Via::Http1, request).await.status, 200);
    }
    let stats = measured(&world, 3).await;
    assert_eq!(stats.limit, 1);
    counted(&stats.routes[&route("first")], [0, 0, 1, 0, 0, 0]);
    counted(&stats.routes[&None], [0, 0, 2, 0, 0, 0]);
    world.listeners.iter_mut().for_each(|listener| listener.rules = vec![second.clone()]);
    world.apply().await;
    assert!(!world.proxy.stats().await.durations.routes.contains_key(&route("first")));
    assert_eq!(world.send(Via::Http1, "GET /second").await.status, 200);
    let stats = measured(&world, 4).await;
    counted(&stats.routes[&route("second")], [0, 0, 1, 0, 0, 0]);
    counted(&stats.routes[&None], [0, 0, 2, 0, 0, 0]);
}

#[tokio::test]
async fn what_is_not_to_be_measured_has_no_series() {
    let measure = Measure { listeners: false, routes: false, backends: false, series: 1 };
    let mut world = World::with(Settings { measure, ..settings() });
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule()]);
    world.apply().await;
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 200);
    let stats = world.proxy.stats().await.durations;
    assert_eq!(stats, DurationStats { limit: 1, ..DurationStats::default() });
}
