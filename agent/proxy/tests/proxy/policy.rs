//! TrafficPolicies of listeners and rules: every level holds, whatever the protocol.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderName, StatusCode};
use portcullis_model::{
    BackendProtocol, ClientList, ClientRules, Level, ObjectName, Period, PolicyState, Protection, RateKey,
    RateLimit, RateScope, TrafficPolicy,
};
use portcullis_proxy::Settings;
use tokio::task::JoinSet;

use crate::support::origin::Origin;
use crate::support::rules::{RuleSpec, rule};
use crate::support::settings::settings;
use crate::support::via::{Client, Via};
use crate::support::world::World;

const HERE: &str = "127.0.0.0/8";
const ELSEWHERE: &str = "192.0.2.0/24";

fn policy(levels: Vec<Protection>) -> Option<Arc<TrafficPolicy>> {
    let level = |protection| Level { target: "HTTPRoute test/r".into(), protection: Arc::new(protection) };
    TrafficPolicy::of(levels.into_iter().map(level).collect())
}

fn by_nobody() -> Protection {
    Protection::by(ObjectName::new("test", "p"))
}

fn clients(allow: &[&str], deny: &[&str]) -> Protection {
    let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let list = ClientList { allow: ranges(allow), deny: ranges(deny) };
    Protection { clients: Some(ClientRules::new(vec![list])), ..by_nobody() }
}

fn bodies(most: u64) -> Protection {
    Protection { most_body_bytes: Some(most), ..by_nobody() }
}

async fn status(world: &World, via: Via, request: &str) -> u16 {
    world.send(via, request).await.status.as_u16()
}

#[tokio::test]
async fn every_level_of_listener_and_rule_has_to_permit_the_client() {
    let open = || clients(&[HERE], &[]);
    let shut = || clients(&[], &[HERE]);
    for (listener, of_rule, expected) in [
        (vec![], vec![], 200),
        (vec![open()], vec![open(), open()], 200),
        (vec![shut()], vec![open()], 403),
        (vec![open(), shut()], vec![], 403),
        (vec![open()], vec![shut(), open()], 403),
        (vec![open()], vec![open(), clients(&[ELSEWHERE], &[])], 403),
    ] {
        let (mut world, _origin) = World::echo(vec![rule().policy(policy(of_rule))]).await;
        world.policy = policy(listener);
        world.apply().await;
        for via in Via::ALL {
            assert_eq!(status(&world, via, "GET /").await, expected, "{via:?}");
        }
    }
}

#[tokio::test]
async fn a_listeners_policy_holds_without_a_route_and_a_rules_for_its_own_requests_only() {
    let closed = || Protection { state: PolicyState::Closed, ..by_nobody() };
    let under = |path: &str, levels| RuleSpec { host: "*", ..rule() }.prefix(path).policy(policy(levels));
    let rules = vec![under("/closed", vec![closed()]), under("/open", vec![])];
    let (mut world, origin) = World::echo(rules).await;
    assert_eq!(status(&world, Via::Http1, "GET /closed/..%2fopen").await, 400, "paths are normal first");
    assert_eq!(status(&world, Via::Http1, "GET /closed").await, 500);
    assert_eq!(status(&world, Via::Http1, "GET /closed/../open").await, 200);
    assert_eq!(status(&world, Via::Http1, "GET /open/../closed").await, 500);
    assert_eq!(status(&world, Via::Http1, "GET /missing").await, 404);
    world.policy = policy(vec![closed()]);
    world.apply().await;
    for path in ["/closed", "/open", "/missing"] {
        assert_eq!(status(&world, Via::Http2Tls, &format!("GET {path}")).await, 500, "{path}");
    }
    drop(origin);
}

#[tokio::test]
async fn redirects_and_preflight_requests_are_judged_too() {
    let shut = || policy(vec![clients(&[ELSEWHERE], &[])]);
    let rules = vec![rule().redirect(|redirect| redirect.hostname = Some("b.test".into())).policy(shut())];
    let (world, _origin) = World::echo(rules).await;
    let preflight = "OPTIONS /\norigin: https://a.test\naccess-control-request-method: PUT";
    for request in ["GET /", preflight] {
        assert_eq!(status(&world, Via::Http1, request).await, 403, "{request}");
    }
}

#[tokio::test]
async fn the_client_behind_trusted_proxies_is_judged_and_not_what_it_claims() {
    let mut world = World::with(Settings { trusted_hops: 1, ..settings() });
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule().policy(policy(vec![clients(&[ELSEWHERE], &[])]))]);
    world.apply().await;
    for (listed, expected) in [
        ("192.0.2.1", 200),
        ("10.0.0.1, 192.0.2.1", 200),
        ("192.0.2.1, 10.0.0.1", 403),
        ("192.0.2.1, unknown", 403),
        ("192.0.2.1\nx-forwarded-for: 10.0.0.1", 403),
        ("192.0.2.1,10.0.0.1,", 403),
    ] {
        let request = format!("GET /\nx-forwarded-for: {listed}");
        assert_eq!(status(&world, Via::Http1, &request).await, expected, "{listed}");
    }
    assert_eq!(status(&world, Via::Http1, "GET /").await, 403, "past the proxy, from loopback");
}

#[tokio::test]
async fn the_smallest_body_of_all_levels_is_the_longest_that_passes() {
    for (listener, of_rule) in
        [(vec![bodies(10)], vec![bodies(100)]), (vec![bodies(100)], vec![bodies(10), bodies(50)])]
    {
        let (mut world, _origin) = World::echo(vec![rule().policy(policy(of_rule))]).await;
        world.policy = policy(listener);
        world.apply().await;
        for via in [Via::Http1, Via::H2c, Via::Http2Tls] {
            assert_eq!(status(&world, via, "POST /\n\n0123456789").await, 200, "{via:?}");
            assert_eq!(status(&world, via, "POST /\n\n0123456789a").await, 413, "{via:?}");
            let address = if via == Via::Http2Tls { world.tls } else { world.plain };
            let mut client = Client::connect(via, address, "any.test").await;
            let unsized_body = client.send_unsized("POST /\n\n0123456789a").await;
            assert_eq!(unsized_body.status, StatusCode::PAYLOAD_TOO_LARGE, "{via:?}");
        }
    }
}

fn limit(requests: u32, key: RateKey) -> Protection {
    let requests = NonZeroU32::new(requests).unwrap();
    let limit = RateLimit { requests, period: Period::Hour, burst: requests, key, scope: RateScope::Node };
    Protection { rate_limits: [limit].into(), ..by_nobody() }
}

/// Both ports are another core's each.
#[tokio::test]
async fn cores_share_a_limit_and_what_is_over_it_is_told_when_to_come_again() {
    let (world, _origin) = World::echo(vec![rule().policy(policy(vec![limit(5, RateKey::All)]))]).await;
    let mut passed = 0;
    for via in [Via::Http1, Via::Http2Tls].repeat(5) {
        let reply = world.send(via, "GET /").await;
        if reply.status == StatusCode::OK {
            passed += 1;
            continue;
        }
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        let wait: u32 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=720).contains(&wait), "{wait}");
        assert_eq!(reply.header("ratelimit-policy"), Some("\"limit\";q=5;w=3600"));
        assert_eq!(reply.header("ratelimit"), Some(&*format!("\"limit\";r=0;t={wait}")));
    }
    assert_eq!(passed, 5);
}

#[tokio::test]
async fn a_limit_tells_requests_apart_by_its_key_and_outlives_the_configuration() {
    let by_key = || limit(2, RateKey::Header(HeaderName::from_static("x-key")));
    let (mut world, _origin) = World::echo(vec![rule().policy(policy(vec![by_key()]))]).await;
    for request in ["GET /\nx-key: a", "GET /\nx-key: b", "GET /"] {
        let mut passed = Vec::new();
        for _ in 0..3 {
            passed.push(status(&world, Via::Http1, request).await);
        }
        assert_eq!(passed, [200, 200, 429], "{request}");
    }
    // Another policy of the same name, target and limit, as a change of anything else makes it.
    world.listeners[0].rules = vec![rule().policy(policy(vec![by_key(), bodies(1)]))];
    world.apply().await;
    assert_eq!(status(&world, Via::Http1, "GET /\nx-key: a").await, 429);
    assert_eq!(status(&world, Via::Http1, "GET /\nx-key: c").await, 200);
    assert_eq!(status(&world, Via::Http1, "GET /\nx-key: a\nx-key: c").await, 200, "another text");
}

/// HTTP/2 has it in another place, and a port or another case make no other host.
#[tokio::test]
async fn a_host_is_one_wherever_the_request_names_it() {
    let by_host = limit(6, RateKey::Header(HeaderName::from_static("host")));
    let (world, _origin) = World::echo(vec![rule().policy(policy(vec![by_host]))]).await;
    for host in ["a.test", "b.test"] {
        let mut passed = Vec::new();
        for via in [Via::Http1, Via::H2c, Via::Http2Tls] {
            passed.push(status(&world, via, &format!("GET /\nhost: {host}")).await);
        }
        let upper = host.to_ascii_uppercase();
        for (via, host) in [(Via::Http1, &upper), (Via::H2c, &upper), (Via::Http1, &format!("{host}:8080"))] {
            passed.push(status(&world, via, &format!("GET /\nhost: {host}")).await);
        }
        assert_eq!(passed, [200; 6], "{host}");
        for via in [Via::Http1, Via::H2c] {
            assert_eq!(status(&world, via, &format!("GET /\nhost: {host}")).await, 429, "{host} {via:?}");
        }
    }
}

/// In any time no more pass than the rate and the burst allow, though one core has nine requests of
/// ten.
#[tokio::test]
async fn uneven_cores_let_no_more_pass_than_the_rate_allows() {
    // Less than clients ask for, whatever the machine does beside them.
    const RATE: u32 = 30;
    const BURST: u32 = 20;
    const TIME: Duration = Duration::from_secs(2);
    const CLIENTS: usize = 4;
    for key in [RateKey::All, RateKey::ClientAddress] {
        let [requests, burst] = [RATE, BURST].map(|number| NonZeroU32::new(number).unwrap());
        let limit = RateLimit { requests, period: Period::Second, burst, key, scope: RateScope::Node };
        let protection = Protection { rate_limits: [limit].into(), ..by_nobody() };
        let (world, _origin) = World::echo(vec![rule().policy(policy(vec![protection]))]).await;
        let begin = Instant::now();
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (plain, tls) = (world.plain, world.tls);
            clients.spawn(async move {
                let mut busy = Client::connect(Via::Http1, plain, "any.test").await;
                let mut idle = Client::connect(Via::Http2Tls, tls, "any.test").await;
                let (mut asked, mut passed) = ([0, 0], 0);
                while begin.elapsed() < TIME {
                    for turn in 0..10 {
                        let (core, client) = if turn < 9 { (0, &mut busy) } else { (1, &mut idle) };
                        asked[core] += 1;
                        passed += u32::from(client.send("GET /").await.status == StatusCode::OK);
                    }
                }
                (asked, passed)
            });
        }
        let (mut asked, mut passed) = ([0, 0], 0);
        for (of_client, passed_of_it) in clients.join_all().await {
            asked.iter_mut().zip(of_client).for_each(|(all, more)| *all += more);
            passed += passed_of_it;
        }
        let elapsed = begin.elapsed();
        let most = f64::from(RATE) * elapsed.as_secs_f64() * 1.01 + f64::from(BURST);
        println!("{passed} of {asked:?} by core passed in {elapsed:?}, of {most:.0} that may");
        assert!(f64::from(passed) <= most, "{passed} of {asked:?} in {elapsed:?}, {most} at most");
        assert!(passed >= BURST && passed < asked[0] + asked[1], "{passed} of {asked:?}");
    }
}

#[tokio::test]
async fn agents_share_a_limit_of_all_and_their_number_gives_nothing_back() {
    let mut of_all = limit(12, RateKey::ClientAddress);
    of_all.rate_limits[0].scope = RateScope::Cluster;
    let each = || limit(12, RateKey::All);
    let rules = [("/all", of_all), ("/each", each())];
    let rules = rules.map(|(path, limits)| rule().prefix(path).policy(policy(vec![limits])));
    let (mut world, _origin) = World::echo(rules.into()).await;
    for (agents, passed) in [(3, 4), (2, 0), (12, 0), (1, 0)] {
        world.agents = NonZeroU32::new(agents);
        world.apply().await;
        let mut statuses = Vec::new();
        for via in [Via::Http1, Via::Http2Tls].repeat(3) {
            statuses.push(status(&world, via, "GET /all").await);
        }
        let counted = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(counted, passed, "{agents}: {statuses:?}");
    }
    for _ in 0..12 {
        assert_eq!(status(&world, Via::H2c, "GET /each").await, 200);
    }
    assert_eq!(status(&world, Via::H2c, "GET /each").await, 429);
}

/// The owner of a rule loosens nothing that the listener's asks for.
#[tokio::test]
async fn the_limits_of_all_levels_hold() {
    let many = limit(1000, RateKey::ClientAddress);
    let (mut world, _origin) = World::echo(vec![rule().policy(policy(vec![many]))]).await;
    world.policy = policy(vec![limit(2, RateKey::ClientAddress)]);
    world.apply().await;
    let mut passed = Vec::new();
    for _ in 0..3 {
        passed.push(status(&world, Via::H2c, "GET /missing").await);
    }
    assert_eq!(passed, [200, 200, 429]);
}
