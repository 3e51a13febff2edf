//! Tells what became of objects: as statuses to the sink, as complaints to the log. It works beside the loop, one batch at a
//! time, so that the statuses of a whole cluster never keep the next change from being served. What comes up meanwhile waits,
//! newest only.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_gateway::infra::Wanted;
use portcullis_gateway::{ObjectKey, Outcome, Status};
use portcullis_model::ObjectName;
use tokio::task::JoinHandle;

use super::to_json;
use crate::status::{Complaints, Refusals, StatusSink, Statuses};

/// A status takes a hundred times the room of what it is made of: so many are made at once.
const AT_ONCE: usize = 1024;

/// What is to be told.
#[derive(Debug, Default)]
pub(super) struct News {
    /// `None` for an object that is gone.
    statuses: BTreeMap<ObjectKey, Option<Status>>,
    generated: BTreeMap<ObjectName, Option<Wanted>>,
    /// What the data plane refuses now.
    refusals: Arc<Refusals>,
    /// These are the statuses of all objects there are, and what is to be there for all Gateways.
    is_everything: bool,
    /// What was told with these follows from everything that the source has.
    is_complete: bool,
}

pub(super) struct Teller<W> {
    news: News,
    work: Work<W>,
}

enum Work<W> {
    Idle(Box<Desk<W>>),
    Busy(JoinHandle<Box<Desk<W>>>),
    /// A batch ended in a panic; there is nobody to tell any more.
    Lost,
}

/// What telling needs; it goes to the batch that is told, and comes back.
struct Desk<W> {
    sink: W,
    complaints: Complaints,
}

// === impl News ===

impl News {
    /// An outcome that is all there is; whatever else was to be told is no longer so.
    pub(super) fn replace(&mut self, outcome: Outcome) {
        let (refusals, is_complete) = (self.refusals.clone(), self.is_complete);
        *self = Self { refusals, is_complete, is_everything: true, ..Self::default() };
        self.add(outcome);
    }

    /// These and what was told before follow from everything that the source has.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Adds what changed; newer words replace older ones.
    pub(super) fn add(&mut self, outcome: Outcome) {
        self.statuses.extend(outcome.forgotten.into_iter().map(|key| (key, None)));
        let statuses = outcome.statuses.into_iter().chain(outcome.orphaned);
        self.statuses.extend(statuses.map(|(key, status)| (key, Some(status))));
        self.generated.extend(outcome.generated);
    }

    /// Adds objects whose status is another because the data plane answered otherwise.
    pub(super) fn refuse(
        &mut self,
        refusals: Arc<Refusals>,
        turned: impl Iterator<Item = (ObjectKey, Status)>,
    ) {
        self.refusals = refusals;
        self.statuses.extend(turned.map(|(key, status)| (key, Some(status))));
    }

    fn is_nothing(&self) -> bool {
        self.statuses.is_empty() && self.generated.is_empty() && !self.is_everything && !self.is_complete
    }

    /// The next news start with what still holds.
    fn take(&mut self) -> Self {
        let refusals = self.refusals.clone();
        std::mem::replace(self, Self { refusals, ..Self::default() })
    }
}

// === impl Teller ===

impl<W: StatusSink + 'static> Teller<W> {
    pub(super) fn new(sink: W) -> Self {
        let desk = Desk { sink, complaints: Complaints::default() };
        Self { news: News::default(), work: Work::Idle(Box::new(desk)) }
    }

    pub(super) fn news(&mut self) -> &mut News {
        &mut self.news
    }

    /// Begins to tell what there is, unless it is at it.
    pub(super) fn start(&mut self) {
        if self.news.is_nothing() {
            return;
        }
        self.work = match std::mem::replace(&mut self.work, Work::Lost) {
            Work::Idle(desk) => {
                let news = self.news.take();
                Work::Busy(tokio::task::spawn_blocking(move || desk.tell(news)))
            }
            other => other,
        };
    }

    /// Completes when a batch was told. Cancel-safe.
    pub(super) async fn told(&mut self) {
        let Work::Busy(batch) = &mut self.work else { return std::future::pending().await };
        self.work = match batch.await {
            Ok(desk) => Work::Idle(desk),
            Err(error) => {
                tracing::error!(%error, "statuses are no longer written, which is a bug; traffic is served");
                Work::Lost
            }
        };
    }
}

impl<W: StatusSink> Desk<W> {
    fn tell(mut self: Box<Self>, news: News) -> Box<Self> {
        let News { statuses, generated, refusals, is_everything, is_complete } = news;
        match is_everything {
            true => self.sink.generate_only(wanted(generated)),
            false => self.sink.generate(generated),
        }
        let everything = is_everything.then(|| statuses.keys().cloned().collect());
        let mut statuses = statuses.into_iter().peekable();
        while statuses.peek().is_some() {
            let some = statuses.by_ref().take(AT_ONCE).map(|(key, status)| {
                let mut status = status.as_ref().map(to_json);
                status.iter_mut().for_each(|status| refusals.amend(&key, status));
                (key, status)
            });
            self.write(some.collect());
        }
        if let Some(everything) = everything {
            self.complaints.keep_only(&everything);
            self.sink.keep_only(&everything);
        }
        if is_complete {
            self.sink.complete();
        }
        self
    }

    fn write(&mut self, statuses: Statuses) {
        self.complaints.note(&statuses);
        self.sink.write(statuses);
    }
}

fn wanted(generated: BTreeMap<ObjectName, Option<Wanted>>) -> BTreeMap<ObjectName, Wanted> {
    generated.into_iter().filter_map(|(gateway, wanted)| Some((gateway, wanted?))).collect()
}
