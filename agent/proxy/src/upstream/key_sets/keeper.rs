//! The thread that keeps key sets: a task for each, which fetches it over and over.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use foldhash::fast::RandomState;
use portcullis_model::{Backend, RemoteKeySet, Snapshot};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::core::clock;
use crate::core::log_budget::LogBudgets;
use crate::core::settings::Upstream;
use crate::core::snapshot::SnapshotCell;
use crate::core::task::or_abort;
use crate::upstream::health::SharedHealth;
use crate::upstream::key_sets::fetch::fetch;
use crate::upstream::key_sets::kept::{Asked, KeptSet};
use crate::upstream::key_sets::{Message, Published, Question};
use crate::upstream::pool::Pools;

/// Fetches at once: backends that hang do not hold those of others up for long.
const MOST: usize = 256;

pub(super) struct Keeper {
    snapshot: Rc<SnapshotCell>,
    sets: HashMap<Arc<RemoteKeySet>, Watched, RandomState>,
    shared: Rc<SharedByTasks>,
}

/// The parts that all tasks have.
struct SharedByTasks {
    pools: Rc<Pools>,
    turns: Semaphore,
    kept: RefCell<HashMap<Arc<RemoteKeySet>, Rc<Task>, RandomState>>,
    published: watch::Sender<Published>,
    lines: Arc<LogBudgets>,
}

/// A set with its task. Dropped, that ends.
struct Watched {
    task: Rc<Task>,
    /// As the last snapshot had it.
    backend: Option<Arc<Backend>>,
    _running: AbortOnDropHandle<()>,
}

struct Task {
    kept: RefCell<KeptSet>,
    /// It is to be fetched now.
    due: Notify,
}

/// Runs the thread's only task, and those that it spawns.
pub(super) fn block_on<F: Future<Output = ()>>(body: impl FnOnce() -> F) {
    match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
        Ok(runtime) => runtime.block_on(or_abort(body())),
        Err(error) => {
            tracing::error!(%error, "key sets are not fetched, so no token of theirs passes: no runtime");
        }
    }
}

// === impl Keeper ===

impl Keeper {
    pub(super) fn new(settings: Upstream, health: SharedHealth, published: watch::Sender<Published>) -> Self {
        let (snapshot, lines) = (Rc::<SnapshotCell>::default(), health.lines.clone());
        let pools = Rc::new(Pools::new(settings, snapshot.clone(), Rc::default(), health));
        let shared =
            SharedByTasks { pools, turns: Semaphore::new(MOST), kept: RefCell::default(), published, lines };
        Self { snapshot, sets: HashMap::default(), shared: Rc::new(shared) }
    }

    pub(super) async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>) {
        tokio::task::spawn_local(or_abort(self.shared.pools.clone().sweep_forever()));
        tokio::task::spawn_local(or_abort(tick_forever()));
        while let Some(message) = messages.recv().await {
            match message {
                Message::Follow(snapshot) => self.follow(&snapshot),
                Message::Ask(question) => self.ask(question),
            }
        }
    }

    /// Sets that stay are not fetched anew, but for those whose fetches fail and whose backend is
    /// another one now.
    fn follow(&mut self, snapshot: &Arc<Snapshot>) {
        self.snapshot.store(snapshot.clone());
        let mut before = std::mem::take(&mut self.sets);
        for set in snapshot.key_sets.iter() {
            let backend = snapshot.backends.get(set.backend.as_str()).cloned();
            let watched = match before.remove(set) {
                Some(known) => known.with_backend(backend),
                None => self.watch(set, backend),
            };
            self.sets.insert(set.clone(), watched);
        }
        let kept = self.sets.iter().map(|(set, watched)| (set.clone(), watched.task.clone()));
        self.shared.kept.replace(kept.collect());
        self.shared.publish();
    }

    fn watch(&self, set: &Arc<RemoteKeySet>, backend: Option<Arc<Backend>>) -> Watched {
        let kept = RefCell::new(KeptSet::new(set.clone(), self.shared.lines.clone(), Instant::now()));
        let task = Rc::new(Task { kept, due: Notify::new() });
        let running = tokio::task::spawn_local(or_abort(task.clone().run(self.shared.clone())));
        Watched { task, backend, _running: AbortOnDropHandle::new(running) }
    }

    /// A question about a set that is not kept is dropped.
    fn ask(&self, question: Question) {
        let Some(Watched { task, .. }) = self.sets.get(&question.set) else { return };
        if task.kept.borrow_mut().ask(question, Instant::now()) == Asked::Fetch {
            task.due.notify_one();
        }
    }
}

/// Keeps the thread's clock, by which connections are idle.
async fn tick_forever() {
    loop {
        clock::tick().await;
    }
}

// === impl SharedByTasks ===

impl SharedByTasks {
    fn publish(&self) {
        let kept = self.kept.borrow();
        let sets = kept.iter().map(|(set, task)| (set.clone(), task.kept.borrow().published()));
        self.published.send_replace(Arc::new(sets.collect()));
    }
}

// === impl Watched ===

impl Watched {
    fn with_backend(self, backend: Option<Arc<Backend>>) -> Self {
        let is_same = match (&self.backend, &backend) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !is_same && self.task.kept.borrow().is_failing() {
            self.task.due.notify_one();
        }
        Self { backend, ..self }
    }
}

// === impl Task ===

impl Task {
    async fn run(self: Rc<Self>, shared: Rc<SharedByTasks>) {
        let set = self.kept.borrow().set.clone();
        loop {
            self.kept.borrow_mut().begin();
            let turn = shared.turns.acquire().await;
            self.is_due_no_more();
            let outcome = fetch(&shared.pools, &set).await;
            drop(turn);
            let wait = self.kept.borrow_mut().end(outcome, Instant::now(), fastrand::f64());
            if !self.kept.borrow().is_failing() {
                self.is_due_no_more();
            }
            shared.publish();
            self.kept.borrow_mut().answer_waiting();
            tokio::select! {
                () = sleep(wait) => {}
                () = self.due.notified() => {}
            }
        }
    }

    /// A fetch that begins, and one that has just succeeded, is all that was asked for meanwhile.
    fn is_due_no_more(&self) {
        let _ = pin!(self.due.notified()).enable();
    }
}
