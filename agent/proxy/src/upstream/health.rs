//! The state of backends whose terms ask for one: which of their endpoints are out, and how much
//! they are asked. The cores of an agent share it, so that a limit is one, and an endpoint that
//! fails is out for all after as many failures as its terms say. Other backends have none of this.

pub(crate) mod budget;
pub(crate) mod checks;
pub(crate) mod endpoint;
pub(crate) mod places;
pub(crate) mod probe;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use portcullis_model::{AllUnhealthy, Backend, BackendName, OutlierDetection, Resilience};

use crate::core::log_budget::LogBudgets;
use crate::core::stats::BackendStats;
use crate::upstream::health::budget::{Budget, SharedBudgets};
use crate::upstream::health::endpoint::{EndpointHealth, Failure};
use crate::upstream::health::places::Places;

/// The backends that have such terms. The lock is for finding one, once per core and version of the
/// backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedHealth {
    backends: Arc<Mutex<HashMap<BackendName, Weak<BackendHealth>>>>,
    /// Endpoints that are being checked.
    checked: Arc<AtomicUsize>,
    budgets: SharedBudgets,
    pub lines: Arc<LogBudgets>,
}

#[derive(Debug)]
pub(crate) struct BackendHealth {
    name: BackendName,
    state: Mutex<State>,
    /// Failures in a row after which an endpoint is ejected; 0: it never is.
    failures: AtomicU32,
    /// Milliseconds; 0: every endpoint has its whole share at once.
    slow_start: AtomicU64,
    refuses_unhealthy: AtomicU32,
    pub places: Places,
    ejections: AtomicU64,
    passed_checks: AtomicU64,
    failed_checks: AtomicU64,
    lines: Arc<LogBudgets>,
}

#[derive(Debug)]
struct State {
    /// Of the snapshot that the terms are of.
    generation: u64,
    terms: Arc<Resilience>,
    /// Those that a core or a check knows. A core without requests knows what was there before,
    /// too.
    endpoints: HashMap<SocketAddr, Weak<EndpointHealth>>,
    /// Those of the snapshot.
    current: HashSet<SocketAddr>,
}

// === impl SharedHealth ===

impl SharedHealth {
    /// The state of a backend as the snapshot of a generation has it; `None` if it needs none.
    pub(crate) fn of(&self, backend: &Backend, generation: u64) -> Option<Arc<BackendHealth>> {
        let terms = backend.resilience.as_ref()?;
        let mut backends = lock(&self.backends);
        let known = backends.get(&backend.name).and_then(Weak::upgrade);
        let health = known.unwrap_or_else(|| {
            backends.retain(|_, known| known.strong_count() > 0);
            let new = Arc::new(BackendHealth::new(backend.name.clone(), terms, self.lines.clone()));
            backends.insert(backend.name.clone(), Arc::downgrade(&new));
            new
        });
        drop(backends);
        health.follow(terms, &backend.endpoints, generation);
        Some(health)
    }

    /// The budget of retries of a backend; `None` if it has none.
    pub(crate) fn budget(&self, backend: &Backend) -> Option<Arc<Budget>> {
        backend.retry_budget.as_ref().map(|terms| self.budgets.of(terms))
    }

    /// Of the backends that have such terms, and the number of endpoints that are being checked.
    pub(crate) fn stats(&self) -> (BTreeMap<BackendName, BackendStats>, usize) {
        let backends: Vec<_> = lock(&self.backends).values().filter_map(Weak::upgrade).collect();
        let stats = backends.iter().map(|health| (health.name.clone(), health.stats())).collect();
        (stats, self.checked.load(Relaxed))
    }
}

// === impl BackendHealth ===

impl BackendHealth {
    fn new(name: BackendName, terms: &Arc<Resilience>, lines: Arc<LogBudgets>) -> Self {
        let (endpoints, current) = (HashMap::new(), HashSet::new());
        Self {
            name,
            state: Mutex::new(State { generation: 0, terms: terms.clone(), endpoints, current }),
            failures: AtomicU32::default(),
            slow_start: AtomicU64::default(),
            refuses_unhealthy: AtomicU32::default(),
            places: Places::default(),
            ejections: AtomicU64::default(),
            passed_checks: AtomicU64::default(),
            failed_checks: AtomicU64::default(),
            lines,
        }
    }

    /// Takes the terms and endpoints of a snapshot, unless a core has had those of a later one.
    fn follow(&self, terms: &Arc<Resilience>, endpoints: &[SocketAddr], generation: u64) {
        let mut state = lock(&self.state);
        if generation < state.generation {
            return;
        }
        state.generation = generation;
        state.terms = terms.clone();
        state.current = endpoints.iter().copied().collect();
        let failures = terms.outliers.as_ref().map_or(0, |it| it.consecutive_failures.get());
        self.failures.store(failures, Relaxed);
        self.slow_start.store(terms.slow_start.map_or(0, milliseconds), Relaxed);
        let refuses = terms.check.as_ref().is_some_and(|it| it.all_unhealthy == AllUnhealthy::Refuse);
        self.refuses_unhealthy.store(refuses.into(), Relaxed);
        self.places.limit(&terms.limits);
        for endpoint in state.endpoints.values().filter_map(Weak::upgrade) {
            if terms.outliers.is_none() {
                endpoint.pardon();
            }
            if terms.check.is_none() {
                endpoint.forget_checks();
            }
        }
    }

    /// The state of each endpoint, in the same order. Where others are known, a new one begins with
    /// a small share.
    pub(crate) fn endpoints(self: &Arc<Self>, addresses: &[SocketAddr]) -> Vec<Arc<EndpointHealth>> {
        let mut state = lock(&self.state);
        state.endpoints.retain(|_, known| known.strong_count() > 0);
        let are_others_known = !state.endpoints.is_empty();
        let of = |address: &SocketAddr| {
            let known = state.endpoints.get(address).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let new = Arc::new(EndpointHealth::new(*address, self.clone()));
                if are_others_known {
                    new.begin_slowly();
                }
                state.endpoints.insert(*address, Arc::downgrade(&new));
                new
            })
        };
        addresses.iter().map(of).collect()
    }

    /// True if a backend without healthy endpoints is one without endpoints.
    pub(crate) fn refuses_unhealthy(&self) -> bool {
        self.refuses_unhealthy.load(Relaxed) != 0
    }

    fn shortest_ejection(&self) -> Duration {
        lock(&self.state).terms.outliers.as_ref().map_or(Duration::ZERO, |it| it.base_ejection)
    }

    /// Ejects an endpoint, unless too many are.
    fn eject(&self, endpoint: &EndpointHealth, why: Failure) {
        let state = lock(&self.state);
        let Some(terms) = &state.terms.outliers else { return };
        if endpoint.is_ejected() && !endpoint.is_tried() {
            return;
        }
        let all = state.endpoints();
        let others = all.iter().filter(|it| it.address != endpoint.address && it.is_ejected()).count();
        let ejected = others < most_ejected(terms, all.len());
        if ejected {
            let time = endpoint.eject(terms);
            self.ejections.fetch_add(1, Relaxed);
            let (backend, address, number) = (&self.name, endpoint.address, terms.consecutive_failures);
            self.tell(|| {
                tracing::warn!(
                    "endpoint {address} of backend {backend} is asked nothing for {time:?}: {number} failures in a \
                     row, or one after it came back; the last: {why}"
                );
            });
        }
        // The lock goes before what it may have been that held an endpoint last.
        drop(state);
    }

    /// Writes a line about an endpoint, unless there were many.
    fn tell(&self, line: impl FnOnce()) {
        self.lines.tell_of_endpoint(&self.name, line);
    }

    fn checked(&self, outcome: &Result<(), String>) {
        let counter = if outcome.is_ok() { &self.passed_checks } else { &self.failed_checks };
        counter.fetch_add(1, Relaxed);
    }

    fn stats(&self) -> BackendStats {
        let endpoints = lock(&self.state).endpoints();
        let mut out: Vec<_> =
            endpoints.iter().filter_map(|it| Some((it.address, it.doubt().reason()?))).collect();
        out.sort_unstable();
        BackendStats {
            endpoints: endpoints.len() as u64,
            out,
            ejections: self.ejections.load(Relaxed),
            passed_checks: self.passed_checks.load(Relaxed),
            failed_checks: self.failed_checks.load(Relaxed),
            ..self.places.stats()
        }
    }
}

// === impl State ===

impl State {
    /// The endpoints of the snapshot that are known.
    fn endpoints(&self) -> Vec<Arc<EndpointHealth>> {
        let known = self.endpoints.iter().filter(|(address, _)| self.current.contains(address));
        known.filter_map(|(_, endpoint)| endpoint.upgrade()).collect()
    }
}

/// The endpoints that may be ejected at once: by their percentage, but one in any case, and not the
/// last.
fn most_ejected(terms: &OutlierDetection, endpoints: usize) -> usize {
    let by_percent = endpoints * usize::from(terms.max_ejected_percent.get()) / 100;
    by_percent.max(1).min(endpoints.saturating_sub(1))
}

/// Milliseconds since the process began to count them; never 0. The clocks of cores differ.
fn now() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    milliseconds(BEGIN.get_or_init(Instant::now).elapsed()) + 1
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;

    use super::*;

    /// A core that has had no request since holds on to what was there before.
    #[test]
    fn endpoints_that_are_gone_take_no_part() {
        let terms = OutlierDetection {
            consecutive_failures: 1.try_into().unwrap(),
            base_ejection: Duration::from_secs(30),
            max_ejection: Duration::from_secs(300),
            max_ejected_percent: NonZeroU8::new(30).unwrap(),
        };
        let resilience = Arc::new(Resilience { outliers: Some(terms), ..Resilience::default() });
        let backend = |hosts: std::ops::Range<u8>| Backend {
            resilience: Some(resilience.clone()),
            ..Backend::new(
                BackendName("shop/cart:80".into()),
                hosts.map(|host| ([10, 0, 0, host], 80).into()).collect(),
            )
        };
        let shared = SharedHealth::default();
        let fail = |endpoint: &EndpointHealth| endpoint.failed(Failure::Connect);
        let out = || shared.stats().0.values().map(|stats| stats.out.len()).sum::<usize>();
        let [before, after] = [backend(0..10), backend(20..22)];
        let health = shared.of(&before, 1).unwrap();
        let gone = health.endpoints(&before.endpoints);
        gone.iter().take(3).for_each(|endpoint| fail(endpoint));
        assert_eq!(out(), 3);
        let now = shared.of(&after, 2).unwrap().endpoints(&after.endpoints);
        assert_eq!(out(), 0);
        fail(&now[0]);
        assert_eq!(out(), 1, "what is gone leaves room for it");
        fail(&now[1]);
        assert_eq!(out(), 1, "one is left");
        // Nor does a core with an older snapshot bring back what was there.
        shared.of(&before, 1).unwrap();
        assert_eq!(out(), 1);
    }

    #[test]
    fn one_endpoint_is_always_left() {
        for (endpoints, percent, most) in [
            (0, 100, 0),
            (1, 100, 0),
            (2, 1, 1),
            (2, 100, 1),
            (3, 10, 1),
            (10, 10, 1),
            (10, 50, 5),
            (10, 100, 9),
            (1000, 33, 330),
        ] {
            let terms = OutlierDetection {
                consecutive_failures: 5.try_into().unwrap(),
                base_ejection: Duration::from_secs(30),
                max_ejection: Duration::from_secs(300),
                max_ejected_percent: NonZeroU8::new(percent).unwrap(),
            };
            assert_eq!(most_ejected(&terms, endpoints), most, "{percent} % of {endpoints}");
        }
    }
}
