//! Reports what became of objects: as statuses to the sink, as faults to the log. It works beside
//! the loop, one batch at a time, so that the statuses of a whole cluster never keep the next
//! change from being served. What comes up meanwhile waits, newest only.

use std::collections::BTreeMap;

use portcullis_api::ObjectKey;
use portcullis_gateway::infra::DesiredObjects;
use portcullis_gateway::{Outcome, Status};
use portcullis_model::ObjectName;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::kube::backoff::sleep_until;
use crate::status::{FaultLog, StatusSink};

/// Statuses and generated objects that are to be reported.
#[derive(Debug, Default)]
pub(super) struct PendingReport {
    /// `None` for an object that is gone.
    statuses: BTreeMap<ObjectKey, Option<Status>>,
    generated: BTreeMap<ObjectName, Option<DesiredObjects>>,
    /// Faults that no status can report.
    unreported: BTreeMap<ObjectKey, Vec<String>>,
    /// These are the statuses of all objects there are, and what is to be there for all Gateways.
    is_everything: bool,
    /// All statuses reported so far follow from everything that the source has.
    is_complete: bool,
    /// It follows from what the cluster gave to Gateways, too.
    is_provisioned: bool,
}

pub(super) struct StatusReporter<W> {
    pending: PendingReport,
    work: Work<W>,
    /// Tells whether faults of objects concern the operators of this agent; `None`: always.
    speaks: Option<watch::Receiver<bool>>,
}

enum Work<W> {
    Idle(Box<Writer<W>>),
    Busy(JoinHandle<Box<Writer<W>>>),
    /// A batch ended in a panic, and the sink with it.
    Lost,
}

/// Goes to the batch that is reported, and comes back.
struct Writer<W> {
    sink: W,
    faults: FaultLog,
}

// === impl PendingReport ===

impl PendingReport {
    /// An outcome that is all there is; whatever else was to be reported is no longer so.
    pub(super) fn replace(&mut self, outcome: Outcome) {
        let Self { unreported, is_complete, is_provisioned, .. } = std::mem::take(self);
        *self = Self { unreported, is_complete, is_provisioned, is_everything: true, ..Self::default() };
        self.add(outcome);
    }

    /// Adds what changed; newer statuses replace older ones.
    pub(super) fn add(&mut self, outcome: Outcome) {
        self.statuses.extend(outcome.forgotten.into_iter().map(|key| (key, None)));
        let statuses = outcome.statuses.into_iter().chain(outcome.orphaned);
        self.statuses.extend(statuses.map(|(key, status)| (key, Some(status))));
        self.generated.extend(outcome.generated);
    }

    /// The faults of these objects that no status can report.
    pub(super) fn unreported(&mut self, problems: BTreeMap<ObjectKey, Vec<String>>) {
        self.unreported.extend(problems);
    }

    /// These and what was reported before follow from everything that the source has.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    /// They follow from what the cluster gave, too.
    pub(super) fn provisioned(&mut self) {
        self.is_provisioned = true;
    }

    fn is_nothing(&self) -> bool {
        let Self { statuses, generated, unreported, is_everything, is_complete, is_provisioned } = self;
        let is_empty = statuses.is_empty() && generated.is_empty() && unreported.is_empty();
        is_empty && !(*is_everything || *is_complete || *is_provisioned)
    }
}

// === impl StatusReporter ===

impl<W: StatusSink + 'static> StatusReporter<W> {
    pub(super) fn new(sink: W) -> Self {
        let writer = Writer { sink, faults: FaultLog::default() };
        Self { pending: PendingReport::default(), work: Work::Idle(Box::new(writer)), speaks: None }
    }

    /// Logs faults of objects only while this is true.
    pub(super) fn speak_while(&mut self, speaks: watch::Receiver<bool>) {
        self.speaks = Some(speaks);
    }

    pub(super) fn pending(&mut self) -> &mut PendingReport {
        &mut self.pending
    }

    /// Begins to report what is pending, unless it is still at the batch before.
    pub(super) fn start(&mut self) {
        if self.pending.is_nothing() {
            return;
        }
        self.work = match std::mem::replace(&mut self.work, Work::Lost) {
            Work::Idle(writer) => {
                let report = std::mem::take(&mut self.pending);
                Work::Busy(tokio::task::spawn_blocking(move || writer.report(report)))
            }
            other => other,
        };
    }

    /// Completes when a batch was reported, or faults were logged. Cancel-safe.
    pub(super) async fn reported(&mut self) {
        let batch = match &mut self.work {
            Work::Idle(writer) => return log_faults(&mut writer.faults, &mut self.speaks).await,
            Work::Busy(batch) => batch,
            Work::Lost => return std::future::pending().await,
        };
        self.work = match batch.await {
            Ok(writer) => Work::Idle(writer),
            Err(error) => {
                tracing::error!(%error, "statuses are no longer written, which is a bug; traffic is served");
                Work::Lost
            }
        };
    }
}

/// Logs faults that have settled. Of all agents of a cluster one does: they all translate the same.
async fn log_faults(faults: &mut FaultLog, speaks: &mut Option<watch::Receiver<bool>>) {
    if let Some(speaks) = speaks
        && speaks.wait_for(|speaks| *speaks).await.is_err()
    {
        return std::future::pending().await;
    }
    sleep_until(faults.due()).await;
    faults.write();
}

impl<W: StatusSink> Writer<W> {
    fn report(mut self: Box<Self>, report: PendingReport) -> Box<Self> {
        let PendingReport { statuses, generated, unreported, is_everything, is_complete, is_provisioned } =
            report;
        self.faults.note_unreported(unreported);
        if is_everything {
            let all = generated.into_iter().filter_map(|(gateway, wanted)| Some((gateway, wanted?)));
            self.sink.generate_only(all.collect());
        } else {
            self.sink.generate(generated);
        }
        if !statuses.is_empty() {
            self.faults.note(&statuses);
            self.sink.write(&statuses);
        }
        if is_everything {
            let everything = statuses.into_keys().collect();
            self.faults.keep_only(&everything);
            self.sink.keep_only(&everything);
        }
        if is_provisioned {
            self.sink.provisioned();
        }
        if is_complete {
            self.sink.complete();
        }
        self
    }
}
