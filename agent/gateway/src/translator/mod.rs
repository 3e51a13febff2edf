//! From objects to what the data plane runs, incrementally: a change is followed through the stages below, and each stage
//! hands on only what came out different. Nothing is kept that could not be computed from the objects alone; a test changes
//! random objects and compares with a translation from scratch.
//!
//! Stages, each fed by [`dirty::Dirty`]: declare (an object's listeners, on their own) → place (parent or child of whom) →
//! merge (a Gateway's listeners, all together) → route (parse, resolve, attach) → contest (kinds of routes) → tables → serve (listeners, ports,
//! addresses) → backends → statuses.

mod backends;
mod changes;
mod contest;
mod declare;
mod dirty;
mod family;
mod frontends;
mod generated;
mod hosts;
mod index;
mod merging;
mod place;
mod plan;
mod routes;
mod serve;
mod tables;
mod told;
mod unit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_model::{ObjectName, Snapshot};

use crate::delegate::Family;
use crate::feedback::{Feedback, Observations};
use crate::infra::Wanted;
use crate::listener::ParentKey;
use crate::route::ParsedRoute;
use crate::status::Status;
use crate::{Change, ObjectKey, Objects, Settings};
use backends::Backends;
use declare::CertificateCache;
use dirty::Dirty;
use index::Index;
use serve::Serving;
use told::Told;
use unit::{Root, RouteUnit, Unit};

/// What a translation, or a change to one, comes to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub snapshot: Arc<Snapshot>,
    /// The statuses that are different from before; from scratch, all.
    pub statuses: BTreeMap<ObjectKey, Status>,
    /// Objects that had a status of ours and have none any more: gone, or another controller's now.
    pub forgotten: BTreeSet<ObjectKey>,
    /// ListenerSets that had a status of ours and whose Gateway does not exist any more, with the last word on them. Of those
    /// that never had one nothing is said: they may be another controller's.
    pub orphaned: BTreeMap<ObjectKey, Status>,
    /// Routes that delegation computed, if different from before, by the parent route they stand for. `None`: no longer.
    pub ephemeral: BTreeMap<ObjectKey, Option<Arc<Family>>>,
    /// What is to be generated in a cluster for a Gateway, if different from before. `None`: nothing any more.
    pub generated: BTreeMap<ObjectName, Option<Wanted>>,
    /// What no status can say, if different from before; an empty list: all is well now.
    pub problems: BTreeMap<ObjectKey, Vec<String>>,
}

/// Translates objects, and keeps what is needed to translate the next change at a cost that is proportional to it.
#[derive(Debug, Default)]
pub struct Translator {
    settings: Settings,
    objects: Objects,
    index: Index,
    certificates: CertificateCache,
    units: BTreeMap<ParentKey, Unit>,
    roots: BTreeMap<ObjectName, Root>,
    parsed: BTreeMap<ObjectKey, Arc<ParsedRoute>>,
    /// Counts by namespace the changes of what parents and children there may need to agree: its grants and labels.
    consent: BTreeMap<Arc<str>, u64>,
    /// Counts changes of what backendRefs lead to: Services and grants.
    references: u64,
    routes: BTreeMap<ObjectKey, RouteUnit>,
    serving: Serving,
    backends: Backends,
    snapshot: Arc<Snapshot>,
    observations: Observations,
    told: Told,
    problems: BTreeMap<ObjectKey, Vec<String>>,
    generated: BTreeMap<ObjectName, Wanted>,
    dirty: Dirty,
    /// To be applied before the next changes.
    backlog: Vec<Change>,
}

/// Translates objects from scratch.
pub fn translate(objects: &Objects, settings: &Settings) -> Outcome {
    Translator::new(settings.clone()).apply(objects.iter().map(Change::Set).collect())
}

// === impl Translator ===

impl Translator {
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    pub fn apply(&mut self, changes: Vec<Change>) -> Outcome {
        for change in std::mem::take(&mut self.backlog).into_iter().chain(changes) {
            self.note(change);
        }
        self.declare();
        self.place();
        self.merge();
        self.route();
        self.contest();
        self.build_tables();
        let mut next = None;
        self.serve(&mut next);
        self.update_backends(&mut next);
        if let Some(mut snapshot) = next {
            snapshot.generation += 1;
            self.snapshot = Arc::new(snapshot);
        }
        for gateway in self.observations.assign(&self.snapshot) {
            self.dirty_member_statuses(&gateway);
        }
        self.plan()
    }

    /// Takes note of what became of an outcome; the next `apply` follows it to the statuses.
    pub fn observe(&mut self, feedback: Feedback) {
        self.observations.observe(feedback);
    }

    /// After a panic in `apply`, which leaves what was computed in an unknown state: forgets everything but the objects. The next
    /// `apply` takes these changes first, and translates from scratch.
    pub fn begin_again(&mut self, changes: Vec<Change>) {
        let mut backlog: Vec<_> = self.objects.iter().map(Change::Set).collect();
        backlog.extend(changes);
        let observations = std::mem::take(&mut self.observations).restart();
        let settings = std::mem::take(&mut self.settings);
        *self = Self { settings, backlog, observations, ..Self::default() };
    }

    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// All statuses as they should be now.
    pub fn statuses(&self) -> BTreeMap<ObjectKey, Status> {
        self.told.keys().filter_map(|key| Some((key.clone(), self.status_of(key)?))).collect()
    }

    /// Everything that is to be told and that no status can say.
    pub fn problems(&self) -> &BTreeMap<ObjectKey, Vec<String>> {
        &self.problems
    }

    /// The snapshot under construction, copied from the last one when first needed.
    fn next<'s>(&self, next: &'s mut Option<Snapshot>) -> &'s mut Snapshot {
        next.get_or_insert_with(|| (*self.snapshot).clone())
    }
}
