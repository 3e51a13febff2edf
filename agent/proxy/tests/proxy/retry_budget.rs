//! Retry budgets: a backend that fails all requests gets no more of them than its budget permits,
//! whatever rules ask for, from whichever core.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use portcullis_model::{BackendProtocol, ObjectName, Retry, RetryBudget, RetryRate};
use portcullis_proxy::Reason;

use crate::support::resilience::Endpoint;
use crate::support::rules::{RuleSpec, rule};
use crate::support::via::{Client, Via};
use crate::support::world::World;

/// Of an hour, so that nothing is over before the test is.
fn budget(percent: u8, least: u32) -> Option<Arc<RetryBudget>> {
    let interval = Duration::from_secs(3600);
    let least = RetryRate { count: least.try_into().unwrap(), interval };
    Some(Arc::new(RetryBudget { service: ObjectName::new("test", "echo"), percent, interval, least }))
}

fn retrying(attempts: u32) -> RuleSpec {
    let codes = Some([StatusCode::INTERNAL_SERVER_ERROR].into());
    let retry = Retry { attempts: Some(attempts), codes, backoff: Some(Duration::ZERO) };
    RuleSpec { retry: Some(retry), ..rule() }
}

/// Two endpoints of one Service, at two of its ports: `/other` is the other one's.
async fn world(endpoints: [&Endpoint; 2], budget: Option<Arc<RetryBudget>>) -> World {
    let mut world = World::new();
    for (name, endpoint) in ["echo", "other"].into_iter().zip(endpoints) {
        world.backend(name, BackendProtocol::Http1, &[endpoint.address()]);
    }
    for backend in &mut world.backends {
        backend.retry_budget.clone_from(&budget);
    }
    let rules = vec![retrying(3), retrying(3).prefix("/other").to("other"), rule().prefix("/once")];
    world.http("*", rules.clone());
    world.https("*", rules);
    world.apply().await;
    world
}

#[tokio::test]
async fn retries_end_with_the_budget_of_the_service() {
    let (one, other) = (Endpoint::start(500).await, Endpoint::start(500).await);
    let world = world([&one, &other], budget(20, 5)).await;
    // Five in any case: the first request has three, the next one what is left of them.
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 500);
    let refused = world.send(Via::Http1Tls, "GET /other").await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.body, "the backend failed\n");
    assert_eq!((one.requests(), other.requests()), (4, 3));
    // Requests that are never sent again count, too.
    for via in [Via::Http1, Via::Http2Tls] {
        for _ in 0..14 {
            assert_eq!(world.send(via, "GET /once").await.status, 500);
        }
    }
    assert_eq!(one.requests() + other.requests(), 7 + 28);
    // The 31st request, of which six may be sent again.
    assert_eq!(world.send(Via::H2c, "GET /other").await.status, 503);
    assert_eq!(one.requests() + other.requests(), 7 + 28 + 2);
    assert_eq!(world.proxy.stats().await.answers[&Reason::RetryBudget], 2);
    // Once it is well again nothing is refused.
    other.answer(200);
    assert_eq!(world.send(Via::H2c, "GET /other").await.status, 200);
}

#[tokio::test]
async fn clients_on_all_cores_share_a_budget() {
    const REQUESTS: usize = 100;
    let (one, other) = (Endpoint::start(500).await, Endpoint::start(500).await);
    let world = world([&one, &other], budget(20, 1)).await;
    let mut clients = tokio::task::JoinSet::new();
    for via in Via::ALL {
        let address = world.address(via);
        clients.spawn(async move {
            let mut client = Client::connect(via, address, "any.test").await;
            let mut refused = 0;
            for number in 0..REQUESTS {
                let path = if number % 2 == 0 { "GET /" } else { "GET /other" };
                match client.send(path).await.status.as_u16() {
                    500 => {}
                    503 => refused += 1,
                    other => panic!("{other}"),
                }
            }
            refused
        });
    }
    let refused: usize = clients.join_all().await.into_iter().sum();
    let sent = REQUESTS * Via::ALL.len();
    let retries = one.requests() + other.requests() - sent;
    assert!((sent / 5 - 3..=sent / 5).contains(&retries), "{retries} retries of {sent} requests");
    assert!(refused >= sent * 3 / 4, "{refused}");
}

#[tokio::test]
async fn without_a_budget_rules_have_what_they_ask_for() {
    let (one, other) = (Endpoint::start(500).await, Endpoint::start(500).await);
    let mut world = world([&one, &other], None).await;
    for _ in 0..20 {
        assert_eq!(world.send(Via::Http1, "GET /").await.status, 500);
    }
    assert_eq!(one.requests(), 80);
    // One that comes counts from then on.
    for backend in &mut world.backends {
        backend.retry_budget = budget(0, 2);
    }
    world.apply().await;
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 503);
    assert_eq!(world.send(Via::Http1, "GET /").await.status, 503);
    assert_eq!(one.requests(), 80 + 3 + 1);
}
