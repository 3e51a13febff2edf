//! The loop: a source's changes are translated, the data plane takes the snapshot and says what it
//! could not take, and statuses follow from both. Generic over all ends, so that a directory and an
//! API server differ only there.

mod guarded;
mod reporter;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use portcullis_api::ObjectKey;
use portcullis_gateway::{Fault, Feedback, Outcome};
use portcullis_model::{FrontendKey, ObjectName, Snapshot};
use tokio::sync::watch;

use crate::source::{Problem, Source, Update};
use crate::status::StatusSink;
use reporter::StatusReporter;

pub use guarded::{Translate, is_translating};

/// Interval after which the data plane is asked again for what it refused: the port may have been
/// another process's for a moment.
const RETRY: Duration = Duration::from_secs(5);

/// The data plane: it serves snapshots.
pub trait DataPlane: Send {
    /// Returns once the snapshot is served, except for what the answer says.
    fn apply(&mut self, snapshot: Arc<Snapshot>) -> impl Future<Output = Acknowledgement> + Send;
}

/// The data plane's answer to a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Frontends that cannot be served, and why. All others of the snapshot are.
    pub refused: BTreeMap<FrontendKey, String>,
}

/// Gateways that could not get what is generated for them, and why; `None` as long as that is not
/// known.
pub type Provisioning = Option<BTreeMap<ObjectName, Fault>>;

/// The state in force, for the admin endpoints. Published after every step.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Acknowledged by the data plane.
    pub snapshot: Arc<Snapshot>,
    pub refused: BTreeMap<FrontendKey, String>,
    pub problems: Arc<[Problem]>,
    /// Problems that translation found and no status can tell.
    pub unsaid: Arc<BTreeMap<ObjectKey, Vec<String>>>,
    /// Number of updates applied, and the time they took from the source to the data plane's
    /// answer.
    pub applied: u64,
    pub apply_time: Duration,
    pub last_applied: Option<SystemTime>,
}

pub struct Applier<S, T, D, W> {
    source: S,
    translator: T,
    data_plane: D,
    reporter: StatusReporter<W>,
    state: watch::Sender<State>,
    /// Of a cluster; without one, nothing is generated.
    provisioning: Option<watch::Receiver<Provisioning>>,
    /// The next outcome is all there is.
    is_from_scratch: bool,
    /// The source has said everything; the sink hears of it with the next outcome.
    is_complete: bool,
    /// The last translation is to be neither served nor reported.
    is_draft: bool,
}

impl<S: Source, T: Translate, D: DataPlane, W: StatusSink + 'static> Applier<S, T, D, W> {
    pub fn new(source: S, translator: T, data_plane: D, sink: W) -> Self {
        Self {
            source,
            translator,
            data_plane,
            reporter: StatusReporter::new(sink),
            state: watch::Sender::default(),
            provisioning: None,
            is_from_scratch: true,
            is_complete: false,
            is_draft: false,
        }
    }

    /// Has statuses say what the cluster could not give to Gateways.
    #[must_use]
    pub fn observing(self, provisioning: watch::Receiver<Provisioning>) -> Self {
        Self { provisioning: Some(provisioning), ..self }
    }

    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Applies what the source says until the future is dropped; nothing is left half done then.
    pub async fn run(&mut self) {
        let update = self.source.next().await;
        self.step(update).await;
        loop {
            if !self.is_draft {
                self.reporter.start();
            }
            let refused = !self.state.borrow().refused.is_empty();
            tokio::select! {
                update = self.source.next() => self.step(update).await,
                () = tokio::time::sleep(RETRY), if refused => self.retry().await,
                provisioning = changed(&mut self.provisioning) => self.take_provisioning(provisioning),
                () = self.reporter.reported() => {}
            }
        }
    }

    async fn step(&mut self, update: Update) {
        let started = Instant::now();
        report(&self.state.borrow().problems, update.problems.as_deref());
        self.is_complete |= update.is_complete;
        let Some(mut outcome) = guarded::translate(&mut self.translator, update.changes) else {
            self.is_from_scratch = true;
            return self.note_problems(update.problems);
        };
        if let Some(needs) = outcome.needs.take() {
            self.source.need(needs);
        }
        self.is_draft = update.is_draft;
        if self.is_draft {
            return self.hand_out(outcome);
        }
        let translated = started.elapsed();
        let snapshot = outcome.snapshot.clone();
        let answer = self.serve(&snapshot).await;
        let took = started.elapsed();
        tracing::debug!(?translated, ?took, generation = snapshot.generation, "applied");
        self.note_unsaid(std::mem::take(&mut outcome.problems));
        self.hand_out(outcome);
        self.take_answer(&answer);
        self.note_problems(update.problems);
        self.publish(snapshot, answer, took);
    }

    fn hand_out(&mut self, outcome: Outcome) {
        let pending = self.reporter.pending();
        match std::mem::take(&mut self.is_from_scratch) {
            true => pending.replace(outcome),
            false => pending.add(outcome),
        }
        if std::mem::take(&mut self.is_complete) {
            pending.complete();
        }
    }

    /// Passes the data plane's answer on to statuses.
    fn take_answer(&mut self, answer: &Acknowledgement) {
        if self.state.borrow().refused != answer.refused {
            self.observe(Feedback::Unserved(answer.refused.clone()));
        }
    }

    fn take_provisioning(&mut self, provisioning: Provisioning) {
        let is_known = provisioning.is_some();
        self.observe(Feedback::Unprovisioned(provisioning.unwrap_or_default()));
        if is_known {
            self.reporter.pending().provisioned();
        }
    }

    /// After a panic, the next change of objects comes first: it may be the end of the cause.
    fn observe(&mut self, feedback: Feedback) {
        self.translator.observe(feedback);
        if self.is_from_scratch {
            return;
        }
        match guarded::translate(&mut self.translator, Vec::new()) {
            Some(outcome) => self.hand_out(outcome),
            None => self.is_from_scratch = true,
        }
    }

    /// Many changes concern statuses only: what is served as it should be is not disturbed.
    async fn serve(&mut self, snapshot: &Arc<Snapshot>) -> Acknowledgement {
        let is_served = {
            let state = self.state.borrow();
            Arc::ptr_eq(&state.snapshot, snapshot) && state.refused.is_empty()
        };
        if is_served { Acknowledgement::default() } else { self.data_plane.apply(snapshot.clone()).await }
    }

    async fn retry(&mut self) {
        let snapshot = self.state.borrow().snapshot.clone();
        let answer = self.data_plane.apply(snapshot).await;
        self.take_answer(&answer);
        self.state.send_modify(|state| state.refused = answer.refused);
    }

    fn note_unsaid(&self, changed: BTreeMap<ObjectKey, Vec<String>>) {
        if changed.is_empty() {
            return;
        }
        self.state.send_modify(|state| {
            let unsaid = Arc::make_mut(&mut state.unsaid);
            for (key, problems) in changed {
                problems.iter().for_each(|problem| tracing::warn!("{key}: {problem}"));
                unsaid.insert(key, problems);
            }
            unsaid.retain(|_, problems| !problems.is_empty());
        });
    }

    fn note_problems(&self, problems: Option<Vec<Problem>>) {
        if let Some(problems) = problems {
            self.state.send_modify(|state| state.problems = problems.into());
        }
    }

    fn publish(&self, snapshot: Arc<Snapshot>, answer: Acknowledgement, took: Duration) {
        report_frontends(&self.state.borrow(), &snapshot, &answer);
        self.state.send_modify(|state| {
            state.snapshot = snapshot;
            state.refused = answer.refused;
            state.applied += 1;
            state.apply_time += took;
            state.last_applied = Some(SystemTime::now());
        });
    }
}

/// The newest value, when it is another. Cancel-safe.
async fn changed(provisioning: &mut Option<watch::Receiver<Provisioning>>) -> Provisioning {
    if let Some(provisioning) = provisioning
        && provisioning.changed().await.is_ok()
    {
        return provisioning.borrow_and_update().clone();
    }
    std::future::pending().await
}

/// Each problem once, and once more when it is gone.
fn report(before: &[Problem], after: Option<&[Problem]>) {
    let Some(after) = after else { return };
    let (before, after) = (BTreeSet::from_iter(before), BTreeSet::from_iter(after));
    for problem in after.difference(&before) {
        tracing::warn!("{problem}");
    }
    for problem in before.difference(&after) {
        let place = problem.object.as_deref().unwrap_or("the file");
        tracing::info!(file = %problem.file, "{place}: solved: {}", problem.message);
    }
}

/// Logs the frontends at which Gateways are served now, and those at which they no longer are.
fn report_frontends(before: &State, snapshot: &Snapshot, answer: &Acknowledgement) {
    let served = |state: &State, key: &FrontendKey| {
        state.snapshot.frontends.contains_key(key) && !state.refused.contains_key(key)
    };
    for (frontend, port) in &snapshot.frontends {
        match answer.refused.get(frontend) {
            Some(why) if before.refused.get(frontend) != Some(why) => {
                tracing::error!("Gateway {} cannot be served on {frontend}: {why}", port.gateway.name);
            }
            None if !served(before, frontend) => {
                tracing::info!("Gateway {} is served on {frontend} ({})", port.gateway.name, port.listeners);
            }
            _ => {}
        }
    }
    for (frontend, port) in &before.snapshot.frontends {
        if !snapshot.frontends.contains_key(frontend) {
            tracing::info!("Gateway {} is no longer served on {frontend}", port.gateway.name);
        }
    }
}

#[cfg(test)]
#[path = "applier_tests.rs"]
mod tests;
