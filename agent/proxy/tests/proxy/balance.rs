//! The choice among a backend's endpoints, as clients and endpoints see it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use portcullis_model::{BackendProtocol, Balancing, Distance, HashKey, Locality};

use crate::support::origin::Origin;
use crate::support::rules::rule;
use crate::support::via::{Client, Via};
use crate::support::world::World;

async fn origins(count: usize) -> Vec<Origin> {
    let mut origins = Vec::new();
    for _ in 0..count {
        origins.push(Origin::http1().await);
    }
    origins
}

async fn world(origins: &[Origin], balancing: Balancing) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, &addresses(origins));
    world.backends[0].balancing = balancing;
    world.http("*", vec![rule()]);
    world.https("*", vec![rule()]);
    world.apply().await;
    world
}

fn addresses(origins: &[Origin]) -> Vec<SocketAddr> {
    origins.iter().map(|origin| origin.address).collect()
}

fn requests(origins: &[Origin]) -> Vec<usize> {
    origins.iter().map(Origin::requests).collect()
}

#[tokio::test]
async fn near_endpoints_have_all_requests_while_they_are_there() {
    let origins = origins(4).await;
    let mut world = world(&origins, Balancing::RoundRobin).await;
    let places = [Distance::Node, Distance::Zone, Distance::Zone, Distance::Elsewhere].into();
    world.backends[0].locality = Some(Arc::new(Locality { places, preferred: [1, 3].into() }));
    world.apply().await;
    let mut client = Client::connect(Via::Http1, world.plain, "any.test").await;
    for _ in 0..20 {
        assert_eq!(client.send("GET /").await.status, 200);
    }
    assert_eq!(requests(&origins), [20, 0, 0, 0]);
    // One that refuses connections is no reason to fail, and the zone's are next.
    let mut origins = origins;
    drop(origins.remove(0));
    for _ in 0..20 {
        assert_eq!(client.send("GET /").await.status, 200);
    }
    let asked = requests(&origins);
    assert!(asked[0] + asked[1] == 20 && asked[0].min(asked[1]) >= 5 && asked[2] == 0, "{asked:?}");
    let chosen = world.proxy.stats().await.chosen;
    assert!(
        chosen[&Distance::Node] > 20 && chosen[&Distance::Zone] == 20 && chosen[&Distance::Elsewhere] == 0
    );
}

#[tokio::test]
async fn requests_with_the_same_key_have_the_same_endpoint() {
    let origins = origins(5).await;
    for (key, fields) in [
        (HashKey::Header("x-user".parse().unwrap()), ["x-user: ann", "x-user: bob"]),
        (HashKey::Cookie("user".into()), ["cookie: a=b; user=ann", "cookie: user=bob; user=ann"]),
    ] {
        let world = world(&origins, Balancing::Hash(key)).await;
        for via in Via::ALL {
            let port = if matches!(via, Via::Http1 | Via::H2c) { world.plain } else { world.tls };
            let mut client = Client::connect(via, port, "any.test").await;
            for field in fields {
                let before = requests(&origins);
                for _ in 0..10 {
                    assert_eq!(client.send(&format!("GET /\n{field}")).await.status, 200);
                }
                let asked =
                    requests(&origins).iter().zip(before).filter(|(now, before)| **now != *before).count();
                assert_eq!(asked, 1, "{via:?} {field}");
            }
        }
    }
}

/// A rollout: each endpoint of a hundred is replaced, while clients ask all the time. What leaves
/// the Service ends only after the data plane knows, as pods do that wait before they end.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_fails_no_request() {
    let mut origins = origins(100).await;
    let mut world = world(&origins, Balancing::LeastRequest).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = tokio::task::JoinSet::new();
    let mut counts = Vec::new();
    for via in Via::ALL {
        let port = if matches!(via, Via::Http1 | Via::H2c) { world.plain } else { world.tls };
        let (is_over, count) = (is_over.clone(), Arc::new(AtomicUsize::new(0)));
        counts.push(count.clone());
        clients.spawn(async move {
            let mut client = Client::connect(via, port, "any.test").await;
            while !is_over.load(Ordering::SeqCst) {
                assert_eq!(client.send("POST /\n\nbody").await.status, 200);
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    for _ in 0..20 {
        let old: Vec<_> = origins.drain(..5).collect();
        for _ in &old {
            origins.push(Origin::http1().await);
        }
        world.backend("echo", BackendProtocol::Http1, &addresses(&origins));
        world.apply().await;
        // Of a client's second request from now on all began after the change.
        let enough: Vec<_> = counts.iter().map(|count| count.load(Ordering::SeqCst) + 10).collect();
        let are_done =
            || counts.iter().zip(&enough).all(|(count, most)| count.load(Ordering::SeqCst) >= *most);
        while !are_done() {
            assert!(clients.try_join_next().is_none(), "a client failed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(old);
    }
    is_over.store(true, Ordering::SeqCst);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
}
