//! Retries and time-outs of TrafficPolicies at listeners: they stand in for what rules leave open,
//! and override nothing that a rule says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use portcullis_model::{Defaults, Level, ObjectName, Protection, Retry, TimeLimit, Timeouts, TrafficPolicy};

use crate::support::origin::Origin;
use crate::support::rules::{RuleSpec, rule};
use crate::support::via::Via;
use crate::support::world::{World, eventually};

fn at(milliseconds: u64) -> TimeLimit {
    TimeLimit::Of(Duration::from_millis(milliseconds))
}

fn retry(attempts: Option<u32>, codes: Option<&[u16]>) -> Option<Retry> {
    let codes = codes.map(|codes| codes.iter().map(|code| StatusCode::from_u16(*code).unwrap()).collect());
    Some(Retry { attempts, codes, backoff: Some(Duration::ZERO) })
}

/// The policies of a listener, the widest first.
fn levels(defaults: Vec<Defaults>) -> Option<Arc<TrafficPolicy>> {
    let level = |defaults| {
        let defaults = Some(Arc::new(defaults));
        let protection = Protection { defaults, ..Protection::by(ObjectName::new("test", "p")) };
        Level { target: "Gateway test/gateway".into(), protection: Arc::new(protection) }
    };
    TrafficPolicy::of(defaults.into_iter().map(level).collect())
}

async fn world(defaults: Vec<Defaults>, rule: RuleSpec) -> (World, Origin) {
    let (mut world, origin) = World::echo(vec![rule]).await;
    world.policy = levels(defaults);
    world.apply().await;
    (world, origin)
}

#[tokio::test]
async fn a_request_is_sent_again_as_the_rule_says_or_else_the_listener() {
    let wide = || Defaults { retry: retry(Some(3), Some(&[503])), ..Defaults::default() };
    let narrow = || Defaults { retry: retry(Some(1), None), ..Defaults::default() };
    let says = |retry| RuleSpec { retry, ..rule() };
    for (defaults, rule, request, expected) in [
        (vec![], rule(), "GET /?status=503", 1),
        (vec![wide()], rule(), "GET /?status=503", 4),
        (vec![wide()], rule(), "POST /?status=503\n\nbody", 4),
        (vec![wide()], rule(), "GET /?status=500", 1),
        (vec![wide(), narrow()], rule(), "GET /?status=503", 2),
        (vec![wide()], says(retry(Some(0), None)), "GET /?status=503", 1),
        (vec![wide()], says(retry(Some(2), None)), "GET /?status=503", 3),
        (vec![wide()], says(retry(None, Some(&[500]))), "GET /?status=500", 4),
        (vec![wide()], says(retry(None, Some(&[500]))), "GET /?status=503", 1),
        (vec![wide()], says(retry(None, Some(&[]))), "GET /?status=503", 1),
    ] {
        let (world, origin) = world(defaults.clone(), rule.clone()).await;
        for via in [Via::Http1, Via::Http2Tls] {
            let before = origin.requests();
            let reply = world.send(via, request).await;
            assert!(reply.status.is_server_error());
            let sent = origin.requests() - before;
            assert_eq!(sent, expected, "{via:?} {request} {defaults:?} {:?}", rule.retry);
        }
    }
}

/// The answer takes half a second.
#[tokio::test]
async fn a_request_may_take_as_long_as_the_rule_says_or_else_the_listener() {
    let of = |request, backend_request| Defaults {
        timeouts: Timeouts { request, backend_request },
        ..Defaults::default()
    };
    let (unsaid, lifted) = (TimeLimit::Unsaid, TimeLimit::Lifted);
    let says =
        |request, backend_request| RuleSpec { timeouts: Timeouts { request, backend_request }, ..rule() };
    for (defaults, rule, expected) in [
        (vec![of(at(50), unsaid)], rule(), 504),
        (vec![of(unsaid, at(50))], rule(), 504),
        (vec![of(at(50), unsaid), of(lifted, unsaid)], rule(), 200),
        (vec![of(at(50), unsaid), of(unsaid, at(20_000))], rule(), 504),
        (vec![of(at(50), at(50))], says(lifted, lifted), 200),
        (vec![of(at(50), at(50))], says(at(20_000), lifted), 200),
        (vec![of(at(50), at(50))], says(at(20_000), unsaid), 504),
        (vec![of(at(20_000), unsaid)], says(at(50), unsaid), 504),
    ] {
        let (world, _origin) = world(defaults.clone(), rule.clone()).await;
        for via in [Via::Http1, Via::Http2Tls] {
            let begin = Instant::now();
            let reply = world.send(via, "GET /?delay=500").await;
            assert_eq!(reply.status.as_u16(), expected, "{via:?} {defaults:?} {:?}", rule.timeouts);
            assert!(begin.elapsed() < Duration::from_secs(19), "{:?}", begin.elapsed());
        }
    }
}

/// Time-outs of attempts are those of a listener with retries of a rule, and the other way round.
#[tokio::test]
async fn retries_and_time_outs_of_different_levels_are_of_one_request() {
    let timeouts = Timeouts { request: TimeLimit::Unsaid, backend_request: at(500) };
    let both = Defaults { timeouts, retry: retry(Some(2), None) };
    for (defaults, rule) in [
        (both.clone(), rule()),
        (Defaults { retry: None, ..both.clone() }, RuleSpec { retry: both.retry.clone(), ..rule() }),
        (Defaults { timeouts: Timeouts::default(), ..both }, RuleSpec { timeouts, ..rule() }),
    ] {
        let (world, origin) = world(vec![defaults], rule).await;
        assert_eq!(world.send(Via::Http1, "GET /?delay=5000").await.status, 504);
        // The last one may be given up before it is looked at.
        eventually("three attempts", async || origin.requests() >= 3).await;
        assert_eq!(origin.requests(), 3);
        assert_eq!(world.send(Via::Http1, "POST /?delay=5000\n\nbody").await.status, 504);
        eventually("another request", async || origin.requests() >= 4).await;
        assert_eq!(origin.requests(), 4, "it may have been processed");
    }
}
