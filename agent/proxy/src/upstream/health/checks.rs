//! Checks of endpoints, by a thread of their own: one check per endpoint and agent, however many
//! cores there are, whose time does not depend on what the cores are busy with.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portcullis_model::{Backend, BackendName, EndpointCheck, Snapshot};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::core::crypto::provider;
use crate::core::task::or_abort;
use crate::upstream::health::endpoint::EndpointHealth;
use crate::upstream::health::probe::Prober;
use crate::upstream::health::{BackendHealth, SharedHealth};

/// Checks at once, of all backends, of those of a namespace, and of one: endpoints that hang hold
/// none of others up, as long as they are not those of many namespaces.
const MOST: usize = 512;
const MOST_OF_NAMESPACE: usize = 64;
const MOST_OF_BACKEND: usize = 16;
/// The part of its interval by which a check is earlier or later, so that agents do not ask
/// together.
const JITTER: f64 = 0.1;
/// The time within which an endpoint is checked for the first time.
const FIRST: Duration = Duration::from_millis(500);

/// The handle of the thread. There is none before a backend is to be checked.
#[derive(Debug)]
pub(crate) struct Checks {
    health: SharedHealth,
    thread: Mutex<Option<mpsc::UnboundedSender<Checked>>>,
}

/// The backends of a snapshot that are to be checked.
struct Checked {
    generation: u64,
    backends: Vec<Arc<Backend>>,
}

/// The checks of a backend. Dropped, they end.
struct Watch {
    backend: Arc<Backend>,
    health: Arc<BackendHealth>,
    prober: Rc<Prober>,
    check: Rc<EndpointCheck>,
    turns: Turns,
    endpoints: BTreeMap<SocketAddr, AbortOnDropHandle<()>>,
}

/// The checks of a backend take turns with others.
#[derive(Clone)]
struct Turns {
    of_backend: Rc<Semaphore>,
    of_namespace: Rc<Semaphore>,
    of_all: Rc<Semaphore>,
}

/// Counts as long as it lasts.
struct Counted(Arc<AtomicUsize>);

// === impl Checks ===

impl Checks {
    pub(crate) fn new(health: SharedHealth) -> Self {
        Self { health, thread: Mutex::default() }
    }

    /// Checks what the snapshot wants checked, and nothing else.
    pub(crate) fn follow(&self, snapshot: &Snapshot) {
        let is_checked = |backend: &&Arc<Backend>| {
            backend.resilience.as_ref().is_some_and(|resilience| resilience.check.is_some())
        };
        let backends: Vec<_> =
            snapshot.backends.iter().map(|(_, backend)| backend).filter(is_checked).cloned().collect();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() && !backends.is_empty() {
            *thread = start(self.health.clone())
                .inspect_err(|error| tracing::error!(%error, "endpoints are not checked: no thread"))
                .ok();
        }
        if let Some(thread) = &*thread {
            let _ = thread.send(Checked { generation: snapshot.generation, backends });
        }
    }

    pub(crate) fn stop(&self) {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn start(health: SharedHealth) -> io::Result<mpsc::UnboundedSender<Checked>> {
    let (sender, changes) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("checks".to_owned()).spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => runtime.block_on(or_abort(run(health, changes))),
            Err(error) => tracing::error!(%error, "endpoints are not checked: no runtime"),
        }
    })?;
    Ok(sender)
}

async fn run(health: SharedHealth, mut changes: mpsc::UnboundedReceiver<Checked>) {
    let mut watches = HashMap::<BackendName, Watch>::new();
    let of_all = Rc::new(Semaphore::new(MOST));
    let mut by_namespace = HashMap::<Box<str>, Rc<Semaphore>>::new();
    while let Some(Checked { generation, backends }) = changes.recv().await {
        let mut before = std::mem::take(&mut watches);
        for backend in backends {
            let known = before.remove(&backend.name);
            let of_namespace = by_namespace.entry(backend.name.namespace().into());
            let of_namespace = of_namespace.or_insert_with(|| Rc::new(Semaphore::new(MOST_OF_NAMESPACE)));
            let turns = Turns {
                of_backend: Rc::new(Semaphore::new(MOST_OF_BACKEND)),
                of_namespace: of_namespace.clone(),
                of_all: of_all.clone(),
            };
            if let Some(watch) = Watch::next(known, backend, generation, &health, turns) {
                watches.insert(watch.backend.name.clone(), watch);
            }
        }
        drop(before);
        by_namespace.retain(|_, of_namespace| Rc::strong_count(of_namespace) > 1);
    }
}

// === impl Watch ===

impl Watch {
    /// Endpoints that stay, and are checked as before, are not checked anew.
    fn next(
        known: Option<Self>,
        backend: Arc<Backend>,
        generation: u64,
        shared: &SharedHealth,
        turns: Turns,
    ) -> Option<Self> {
        let known = match known {
            Some(known) if Arc::ptr_eq(&known.backend, &backend) => return Some(known),
            known => known,
        };
        let check = backend.resilience.as_ref()?.check.as_ref()?;
        let health = shared.of(&backend, generation)?;
        let is_same = |known: &Self| {
            let Backend { protocol, encryption, proxy_header, .. } = &*known.backend;
            (protocol, encryption, proxy_header, &*known.check)
                == (&backend.protocol, &backend.encryption, &backend.proxy_header, check)
        };
        let mut watch = match known.filter(is_same) {
            Some(known) => Self { backend: backend.clone(), ..known },
            None => Self {
                backend: backend.clone(),
                health,
                prober: Rc::new(Prober::new(&backend, &check.probe, &Arc::new(provider()))),
                check: Rc::new(check.clone()),
                turns,
                endpoints: BTreeMap::new(),
            },
        };
        let mut before = std::mem::take(&mut watch.endpoints);
        for endpoint in watch.health.endpoints(&backend.endpoints) {
            let address = endpoint.address;
            let task = before.remove(&address).unwrap_or_else(|| {
                let counted = Counted::new(&shared.checked);
                let (prober, check) = (watch.prober.clone(), watch.check.clone());
                let turns = watch.turns.clone();
                let task = tokio::task::spawn_local(async move {
                    check_forever(&endpoint, &prober, &check, &turns).await;
                    drop(counted);
                });
                AbortOnDropHandle::new(task)
            });
            watch.endpoints.insert(address, task);
        }
        Some(watch)
    }
}

/// An endpoint that was never checked is in until its checks have failed as often as they have to.
async fn check_forever(endpoint: &EndpointHealth, prober: &Prober, check: &EndpointCheck, turns: &Turns) {
    sleep(FIRST.min(check.interval).mul_f64(fastrand::f64())).await;
    let (mut passed, mut failed) = (0_u32, 0_u32);
    loop {
        let Turns { of_backend, of_namespace, of_all } = turns;
        let turn = (of_backend.acquire().await, of_namespace.acquire().await, of_all.acquire().await);
        let probed = timeout(check.timeout, prober.probe(endpoint.address)).await;
        drop(turn);
        let probed = probed.unwrap_or_else(|_| Err(format!("no answer within {:?}", check.timeout)));
        endpoint.backend.checked(&probed);
        match probed {
            Ok(()) => {
                (passed, failed) = (passed.saturating_add(1), 0);
                if passed >= check.healthy_after.get() {
                    endpoint.set_healthy();
                }
            }
            Err(why) => {
                (passed, failed) = (0, failed.saturating_add(1));
                if failed >= check.unhealthy_after.get() {
                    endpoint.set_unhealthy(&why);
                }
            }
        }
        sleep(check.interval.mul_f64(1.0 + JITTER * (fastrand::f64() * 2.0 - 1.0))).await;
    }
}

// === impl Counted ===

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
