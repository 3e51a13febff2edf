//! Terms of backends, and endpoints that keep to them or not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use portcullis_model::{
    AllUnhealthy, BackendLimits, BackendProtocol, EndpointCheck, HttpProbe, OutlierDetection, Probe,
    Resilience,
};
use portcullis_proxy::BackendStats;
use tokio::sync::Semaphore;

use super::backend::Backend;
use super::rules::{RuleSpec, backend_name};
use super::world::World;

/// A backend whose status can be changed. It notes how many requests it has had, and how many at
/// once. Its `/health` has a status of its own.
pub struct Endpoint {
    pub backend: Backend,
    pub status: Arc<AtomicU16>,
    pub health: Arc<AtomicU16>,
    pub requests: Arc<AtomicUsize>,
    pub checks: Arc<AtomicUsize>,
    pub most_at_once: Arc<AtomicUsize>,
}

/// In place of a status: there is never an answer.
pub const HANGS: u16 = 0;

impl Endpoint {
    pub async fn start(status: u16) -> Self {
        Self::with_pause(status, Duration::ZERO).await
    }

    /// One that answers after so long.
    pub async fn with_pause(status: u16, pause: Duration) -> Self {
        Self::with(status, move || tokio::time::sleep(pause)).await
    }

    /// One that answers a request for each permit.
    pub async fn held(status: u16, answers: Arc<Semaphore>) -> Self {
        let permitted = move || {
            let answers = answers.clone();
            async move { answers.acquire().await.unwrap().forget() }
        };
        Self::with(status, permitted).await
    }

    async fn with<F: Future<Output = ()> + Send + 'static>(
        status: u16,
        pause: impl Fn() -> F + Clone + Send + 'static,
    ) -> Self {
        let (status, health) = (Arc::new(AtomicU16::new(status)), Arc::new(AtomicU16::new(200)));
        let (requests, checks, most, open) =
            <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let seen = (status.clone(), health.clone(), requests.clone(), checks.clone(), most.clone());
        let backend = Backend::start(move |request: Request<Incoming>| {
            let (status, health, requests, checks, most) = seen.clone();
            let (open, pause) = (open.clone(), pause.clone());
            async move {
                let mut response = Response::new(Full::new(Bytes::from_static(b"answer")));
                if request.uri().path() == "/health" {
                    checks.fetch_add(1, Ordering::SeqCst);
                    *response.status_mut() = health.load(Ordering::SeqCst).try_into().unwrap();
                    return response;
                }
                requests.fetch_add(1, Ordering::SeqCst);
                most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                pause().await;
                if status.load(Ordering::SeqCst) == HANGS {
                    std::future::pending::<()>().await;
                }
                open.fetch_sub(1, Ordering::SeqCst);
                *response.status_mut() = status.load(Ordering::SeqCst).try_into().unwrap();
                response
            }
        })
        .await;
        Self { backend, status, health, requests, checks, most_at_once: most }
    }

    pub fn address(&self) -> SocketAddr {
        self.backend.address
    }

    pub fn answer(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Ejections after so many failures in a row, for longer than any test lasts.
pub fn outliers(failures: u32) -> Resilience {
    outliers_for(Duration::from_secs(3600), failures)
}

/// Ejections that end while a test waits, and last while a busy machine looks at them.
pub fn brief_outliers(failures: u32) -> Resilience {
    outliers_for(Duration::from_secs(2), failures)
}

pub fn outliers_for(ejection: Duration, failures: u32) -> Resilience {
    let outliers = OutlierDetection {
        consecutive_failures: failures.try_into().unwrap(),
        base_ejection: ejection,
        max_ejection: ejection,
        max_ejected_percent: 50.try_into().unwrap(),
    };
    Resilience { outliers: Some(outliers), ..Resilience::default() }
}

pub fn limits(requests: u32, pending_requests: u32) -> Resilience {
    let limits = BackendLimits { connections: None, requests: requests.try_into().ok(), pending_requests };
    Resilience { limits, ..Resilience::default() }
}

/// Checks as often as can be, of which one decides. An endpoint that does not answer for long
/// fails; one that a busy machine has answer late does not.
pub fn checks(probe: Probe) -> Resilience {
    let check = EndpointCheck {
        probe,
        interval: Duration::from_millis(20),
        timeout: Duration::from_secs(10),
        unhealthy_after: 1.try_into().unwrap(),
        healthy_after: 1.try_into().unwrap(),
        all_unhealthy: AllUnhealthy::UseAll,
    };
    Resilience { check: Some(check), ..Resilience::default() }
}

pub fn http_check() -> Probe {
    let statuses = [(200, 299)].into();
    Probe::Http(HttpProbe { path: "/health".into(), host: Some("health.test".into()), statuses })
}

/// One backend with these terms, by the rule, on both cores.
pub async fn world(rule: RuleSpec, resilience: Resilience, endpoints: &[SocketAddr]) -> World {
    let mut world = World::new();
    world.backend("echo", BackendProtocol::Http1, endpoints);
    world.backends[0].resilience = Some(Arc::new(resilience));
    world.http("*", vec![rule.clone()]);
    world.https("*", vec![rule]);
    world.apply().await;
    world
}

/// Once requests have come to it.
pub async fn stats(world: &World) -> BackendStats {
    let stats = world.proxy.stats().await;
    stats.backends.get(&backend_name("echo")).cloned().unwrap_or_default()
}
