//! Clients that proxies in front list in `X-Forwarded-For`: by whom those are believed, and which
//! address counts then.

use std::io::{PipeReader, Read};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use portcullis_model::{
    AccessLog, Admission, BackendProtocol, Balancing, ClientList, ClientRules, GatewayView, HashKey, Level,
    ListedClients, ObjectName, Period, Protection, RateKey, RateLimit, RateScope, TrafficPolicy,
    TrustedProxies, View,
};
use portcullis_proxy::{LogOutput, NotAdmitted, Settings};

use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::settings::settings;
use crate::support::via::{Client, Via};
use crate::support::world::World;

/// The peer of every test's connections is on loopback.
const HERE: &[&str] = &["127.0.0.0/8"];
const CDN: &[&str] = &["127.0.0.0/8", "203.0.113.0/24"];

fn ranges(texts: &[&str]) -> TrustedProxies {
    TrustedProxies::Ranges(texts.iter().map(|text| text.parse().unwrap()).collect())
}

fn denying(range: &str) -> ClientRules {
    ClientRules::new(vec![ClientList { allow: Vec::new(), deny: vec![range.parse().unwrap()] }])
}

fn view(proxies: TrustedProxies, clients: Option<ClientRules>) -> View {
    View { proxies, clients }
}

fn admission(of_listener: View, of_gateway: GatewayView) -> Arc<Admission> {
    let listed = Some(Arc::new(ListedClients { of_listener, of_gateway }));
    Arc::new(Admission { listed, ..Admission::default() })
}

fn believing(proxies: TrustedProxies) -> Arc<Admission> {
    admission(view(proxies, None), GatewayView::Shared)
}

async fn status(world: &World, via: Via, listed: &str) -> u16 {
    world.send(via, &format!("GET /\nx-forwarded-for: {listed}")).await.status.as_u16()
}

#[tokio::test]
async fn the_backend_gets_what_believed_proxies_list() {
    let (mut world, _origin) = World::echo(vec![rule()]).await;
    for (proxies, listed, sent) in [
        (TrustedProxies::Hops(0), "1.1.1.1", "127.0.0.1"),
        (TrustedProxies::Hops(1), "1.1.1.1, 198.51.100.1", "198.51.100.1, 127.0.0.1"),
        (ranges(HERE), "1.1.1.1, 198.51.100.1", "198.51.100.1, 127.0.0.1"),
        (ranges(CDN), "1.1.1.1, 198.51.100.1, 203.0.113.1", "198.51.100.1, 203.0.113.1, 127.0.0.1"),
        (ranges(&["203.0.113.0/24"]), "1.1.1.1, 203.0.113.1", "127.0.0.1"),
    ] {
        world.admission = believing(proxies);
        world.apply().await;
        for via in Via::ALL {
            let request = format!("GET /\nx-forwarded-for: {listed}\nx-forwarded-proto: gopher");
            let reply = world.send(via, &request).await;
            assert!(reply.body.contains(&format!("x-forwarded-for: {sent}\n")), "{via:?} {}", reply.body);
            let is_believed = reply.body.contains("x-forwarded-proto: gopher\n");
            assert_eq!(is_believed, sent != "127.0.0.1", "{via:?} {}", reply.body);
        }
    }
}

/// Requests of one connection are for different clients, and each is judged.
#[tokio::test]
async fn clients_are_let_in_by_the_address_that_is_listed() {
    let (mut world, _origin) = World::echo(vec![rule()]).await;
    world.admission = admission(view(ranges(HERE), Some(denying("192.0.2.0/24"))), GatewayView::Shared);
    world.apply().await;
    for via in Via::ALL {
        let mut client = Client::connect(via, world.address(via), "any.test").await;
        for (listed, expected) in [
            ("198.51.100.1", 200),
            ("192.0.2.1", 403),
            ("198.51.100.1, 192.0.2.1:4711", 403),
            ("192.0.2.1, 198.51.100.1", 200),
            ("198.51.100.1\nx-forwarded-for: ::ffff:192.0.2.1", 403),
            ("unknown", 403),
        ] {
            let reply = client.send(&format!("GET /\nx-forwarded-for: {listed}")).await;
            assert_eq!(reply.status.as_u16(), expected, "{via:?} {listed}");
        }
        assert_eq!(client.send("GET /").await.status, 200, "the proxy itself");
    }
    let counted = world.proxy.stats().await.listeners.into_values();
    let kept_out: u64 =
        counted.filter_map(|stats| stats.not_admitted.get(&NotAdmitted::Address).copied()).sum();
    assert_eq!(kept_out, 4 * Via::ALL.len() as u64);
}

/// A tenant that believes every client opens its own lists to forgery, and none of the Gateway's.
#[tokio::test]
async fn the_gateways_lists_and_limits_go_by_the_proxies_that_its_owner_believes() {
    let (mut world, _origin) = World::echo(vec![rule()]).await;
    let own = || view(TrustedProxies::Hops(2), Some(denying("10.0.0.0/8")));
    let of_gateway = GatewayView::Own(view(ranges(HERE), Some(denying("192.0.2.0/24"))));
    world.admission = admission(own(), of_gateway);
    world.apply().await;
    for (listed, expected) in [
        // The tenant's own eyes see the first address, the Gateway's the second.
        ("198.51.100.1, 198.51.100.2", 200),
        ("198.51.100.1, 192.0.2.1", 403),
        ("192.0.2.1, 198.51.100.1", 200),
        ("10.0.0.1, 198.51.100.1", 403),
        ("198.51.100.1, 10.0.0.1", 200),
    ] {
        assert_eq!(status(&world, Via::Http1, listed).await, expected, "{listed}");
    }
    // Policies of requests are no different.
    world.admission =
        admission(view(TrustedProxies::Hops(2), None), GatewayView::Own(view(ranges(HERE), None)));
    let name = || ObjectName::new("test", "p");
    let level = |protection| Level { target: "test".into(), protection: Arc::new(protection) };
    let deny = |range| level(Protection { clients: Some(denying(range)), ..Protection::by(name()) });
    world.policy = TrafficPolicy::below(Some(deny("192.0.2.0/24")), vec![deny("10.0.0.0/8")]);
    world.apply().await;
    for (listed, expected) in [
        ("198.51.100.1, 192.0.2.1", 403),
        ("192.0.2.1, 198.51.100.1", 200),
        ("10.0.0.1, 198.51.100.1", 403),
        ("198.51.100.1, 10.0.0.1", 200),
    ] {
        assert_eq!(status(&world, Via::Http2Tls, listed).await, expected, "{listed}");
    }
    let two = NonZeroU32::new(2).unwrap();
    let limit = RateLimit {
        requests: two,
        period: Period::Hour,
        burst: two,
        key: RateKey::ClientAddress,
        scope: RateScope::Node,
    };
    let limited = level(Protection { rate_limits: [limit].into(), ..Protection::by(name()) });
    world.policy = TrafficPolicy::below(Some(limited), Vec::new());
    world.apply().await;
    let mut passed = Vec::new();
    for forged in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        passed.push(status(&world, Via::H2c, &format!("{forged}, 198.51.100.1")).await);
    }
    assert_eq!(passed, [200, 200, 429]);
}

/// A request of a client that is not let in takes nothing from a limit that others have, too.
#[tokio::test]
async fn a_client_that_is_not_let_in_uses_nothing_up() {
    let (mut world, _origin) = World::echo(vec![rule()]).await;
    world.admission = admission(view(ranges(HERE), Some(denying("192.0.2.0/24"))), GatewayView::Shared);
    let one = NonZeroU32::new(1).unwrap();
    let limit = RateLimit {
        requests: one,
        period: Period::Hour,
        burst: one,
        key: RateKey::All,
        scope: RateScope::Node,
    };
    let protection =
        Protection { rate_limits: [limit].into(), ..Protection::by(ObjectName::new("test", "p")) };
    let level = Level { target: "test".into(), protection: Arc::new(protection) };
    world.policy = TrafficPolicy::of(vec![level]);
    world.apply().await;
    for (listed, expected) in
        [("192.0.2.1", 403), ("192.0.2.1", 403), ("198.51.100.1", 200), ("198.51.100.1", 429)]
    {
        assert_eq!(status(&world, Via::Http1, listed).await, expected, "{listed}");
    }
}

#[tokio::test]
async fn clients_that_proxies_list_keep_their_endpoint() {
    let (mut world, first) = World::echo(vec![rule()]).await;
    let mut origins = vec![first];
    for _ in 0..3 {
        origins.push(Origin::http1().await);
    }
    let endpoints: Vec<_> = origins.iter().map(|origin| origin.address).collect();
    world.backend("echo", BackendProtocol::Http1, &endpoints);
    world.backends[0].balancing = Balancing::Hash(HashKey::ClientAddress);
    world.admission = believing(ranges(HERE));
    world.apply().await;
    let mut chosen = std::collections::BTreeSet::new();
    for client in 1..=16 {
        let before: Vec<_> = origins.iter().map(Origin::requests).collect();
        for _ in 0..3 {
            assert_eq!(status(&world, Via::Http1, &format!("198.51.100.{client}")).await, 200);
        }
        let asked: Vec<_> =
            origins.iter().zip(before).map(|(origin, before)| origin.requests() - before).collect();
        let at = asked.iter().position(|count| *count == 3);
        chosen.insert(at.unwrap_or_else(|| panic!("one endpoint for a client: {asked:?}")));
    }
    assert!(chosen.len() > 1, "clients are told apart");
}

/// Whom a tenant believes is no matter of the Gateway's log.
#[tokio::test]
async fn the_access_log_has_the_addresses_that_the_gateways_owner_believes() {
    let (mut reader, writer): (PipeReader, _) = std::io::pipe().unwrap();
    let access_log = LogOutput::File(Arc::new(std::fs::File::from(std::os::fd::OwnedFd::from(writer))));
    let drain = Duration::from_secs(1);
    let mut world = World::with(Settings { access_log, drain, ..settings() });
    let origin = Origin::http1().await;
    world.backend("echo", BackendProtocol::Http1, &[origin.address]);
    world.http("*", vec![rule()]);
    world.gateways.iter_mut().for_each(|gateway| gateway.access_log = Some(AccessLog::default()));
    let tenant = || view(TrustedProxies::Hops(2), None);
    for of_gateway in
        [GatewayView::Shared, GatewayView::Own(view(ranges(HERE), None)), GatewayView::AsStarted]
    {
        world.admission = admission(tenant(), of_gateway);
        world.apply().await;
        assert_eq!(status(&world, Via::Http1, "1.1.1.1, 198.51.100.1").await, 200);
    }
    let World { proxy, .. } = world;
    proxy.drain().await;
    drop(proxy);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let told: Vec<_> = lines.map(|line| line["forwarded_for"].as_str().map(str::to_owned)).collect();
    let expected = [Some("1.1.1.1, 198.51.100.1, 127.0.0.1"), Some("198.51.100.1, 127.0.0.1"), None];
    assert_eq!(told, expected.map(|text| text.map(str::to_owned)));
}
