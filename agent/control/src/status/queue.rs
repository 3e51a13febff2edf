//! Planned and observed statuses, the newest of each object: the meeting place of the source (which
//! observes), the applier (which plans) and the writer (which makes the one the other). It is keyed
//! by object: a thousand changes of an object before it is its turn are one write. Namespaces take
//! turns: however many objects of one tenant change, those of another do not wait for all of them.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portcullis_api::{Kind, ObjectKey, Role};
use portcullis_gateway::infra::DesiredObjects;
use portcullis_model::ObjectName;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::merge;
use super::pace::Pace;
use super::schedule::Schedule;
use crate::kube::backoff::{jittered, sleep_until};
use crate::kube::manifest::is_older;
use crate::status::{StatusSink, Statuses};

/// Paces of more objects than this are not kept for nothing.
const MANY: usize = 1024;
/// Rest after a write without answer: the API server may be back at any time.
const UNANSWERED: Duration = Duration::from_secs(1);
/// Time for which a new writer waits for what Gateways could not get, before it writes that they
/// have everything.
const UNPROVISIONED: Duration = Duration::from_secs(10);

/// Shared by all who take part.
#[derive(Debug)]
pub struct StatusQueue {
    controller_name: String,
    work: Mutex<Work>,
    changed: Notify,
    /// True if plans are made from what the API server has now, rather than from what was kept on
    /// disk.
    current: watch::Sender<bool>,
    generated: watch::Sender<BTreeMap<ObjectName, DesiredObjects>>,
}

#[derive(Debug, Default)]
struct Work {
    observed: BTreeMap<ObjectKey, Observed>,
    /// JSON text: there may be tens of thousands, and few are ever looked at.
    planned: BTreeMap<ObjectKey, Box<str>>,
    /// Objects that may need a write.
    dirty: BTreeMap<ObjectKey, Changed>,
    /// Those of `dirty` that are not being written, by the time of their next write.
    schedule: Schedule,
    /// Being written (`None`), or written so recently that the next write waits.
    resting: BTreeMap<ObjectKey, Option<Instant>>,
    paces: BTreeMap<ObjectKey, Pace>,
    /// Number of paces from which on those that are over are thrown away.
    sweep_at: usize,
    /// Plans follow from what Gateways could not get.
    is_provisioned: bool,
    /// Until when Gateways and ListenerSets wait for that.
    unprovisioned_until: Option<Instant>,
    /// Hash of the plan and the observation when there was nothing (more) to do.
    settled: BTreeMap<ObjectKey, u64>,
    hasher: RandomState,
}

/// The times at which an object changed since it was last taken to be written.
#[derive(Clone, Copy, Debug)]
struct Changed {
    first: Instant,
    /// It is as it is since then.
    last: Instant,
}

/// The status of an object as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) version: String,
    /// JSON text; empty: none.
    pub(crate) status: Box<str>,
}

/// A write to make.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) key: ObjectKey,
    pub(super) observed: Observed,
    /// JSON text.
    planned: Option<Box<str>>,
    /// If others make this write necessary, as they did before, that is worth a line in the log.
    pub(super) becomes_notable: bool,
}

// === impl StatusQueue ===

impl StatusQueue {
    pub fn new(controller_name: &str) -> Arc<Self> {
        Arc::new(Self {
            controller_name: controller_name.to_owned(),
            work: Mutex::default(),
            changed: Notify::new(),
            current: watch::Sender::new(false),
            generated: watch::Sender::default(),
        })
    }

    /// Tells whether everything was read from the API server and applied, and what follows from it
    /// is planned: the agent is ready, and may write.
    pub fn current(&self) -> watch::Receiver<bool> {
        self.current.subscribe()
    }

    pub(crate) fn generated(&self) -> watch::Receiver<BTreeMap<ObjectName, DesiredObjects>> {
        self.generated.subscribe()
    }

    pub(crate) fn controller_name(&self) -> &str {
        &self.controller_name
    }

    /// Takes note of an object's status. Versions are ordered: a watch may bring the past.
    pub(crate) fn observe(&self, key: &ObjectKey, observed: Observed) {
        let mut work = self.work();
        if work.observed.get(key).is_some_and(|before| is_older(&observed.version, &before.version)) {
            return;
        }
        let same = work.observed.get(key).map(|before| &before.status) == Some(&observed.status);
        let concerns_us = work.planned.contains_key(key) || observed.status.contains(&self.controller_name);
        work.observed.insert(key.clone(), observed);
        if !same && concerns_us {
            work.touch(key.clone());
            self.changed.notify_one();
        }
    }

    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.work().forget(key);
    }

    /// Another agent generates now: what Gateways could not get is not known any more.
    pub(crate) fn retract(&self) {
        self.work().is_provisioned = false;
    }

    /// A new writer looks at everything.
    pub(super) fn review(&self) {
        let mut work = self.work();
        work.settled.clear();
        // The writes in flight when leadership was lost were dropped, and what kept others waiting
        // may be over.
        work.resting.clear();
        work.unprovisioned_until = (!work.is_provisioned).then(|| Instant::now() + UNPROVISIONED);
        let ours =
            work.observed.iter().filter(|(_, observed)| observed.status.contains(&self.controller_name));
        let all = ours.map(|(key, _)| key).chain(work.planned.keys()).chain(work.dirty.keys());
        let all: BTreeSet<ObjectKey> = all.cloned().collect();
        for key in all {
            work.touch(key);
        }
        self.changed.notify_one();
    }

    /// The next write, when there is one. Cancel-safe.
    pub(super) async fn next(&self) -> Job {
        loop {
            let rested = match self.work().take() {
                Ok(job) => return job,
                Err(rested) => rested,
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(rested) => {}
            }
        }
    }

    /// Of the same object as before, with what is known now.
    pub(super) fn again(&self, key: &ObjectKey) -> Option<Job> {
        self.work().job(key)
    }

    /// Takes note that the job, as it was seen and planned, needs no further write.
    pub(super) fn settle(&self, job: &Job) {
        let mut work = self.work();
        let mark = work.mark(Some(&job.observed), job.planned.as_deref());
        work.settled.insert(job.key.clone(), mark);
        let until = work.pace(&job.key).settled();
        work.resting.insert(job.key.clone(), Some(until));
        work.reschedule(&job.key);
        self.changed.notify_one();
    }

    /// The same after a write. Returns how often in a row others made it necessary.
    pub(super) fn wrote(&self, job: &Job) -> u32 {
        let mut work = self.work();
        let plan = work.hasher.hash_one(job.planned.as_deref());
        let restored = work.pace(&job.key).reverts.written(plan);
        drop(work);
        self.settle(job);
        restored
    }

    /// There was no such object any more when the job was done. It may have been made again since.
    pub(super) fn gone(&self, job: &Job) {
        let mut work = self.work();
        work.resting.remove(&job.key);
        let again =
            work.observed.get(&job.key).is_some_and(|it| is_older(&job.observed.version, &it.version));
        if again {
            work.touch(job.key.clone());
        } else {
            work.forget(&job.key);
        }
        self.changed.notify_one();
    }

    /// There was no answer: once more, soon.
    pub(super) fn unanswered(&self, key: &ObjectKey) {
        self.postpone(key, |_| UNANSWERED);
    }

    /// The API server would not take it: once more, later each time.
    pub(super) fn refused_write(&self, key: &ObjectKey) {
        self.postpone(key, Pace::refused);
    }

    fn postpone(&self, key: &ObjectKey, delay: impl FnOnce(&mut Pace) -> Duration) {
        let mut work = self.work();
        let delay = jittered(delay(work.pace(key)));
        work.resting.insert(key.clone(), Some(Instant::now() + delay));
        work.touch(key.clone());
        self.changed.notify_one();
    }

    /// Tells whether this version of an object, or a newer one, was seen, and nothing is left to be
    /// written of it. What others change of a status is dealt with then; what follows from other
    /// objects may still be on its way.
    pub fn rests_at(&self, key: &ObjectKey, version: &str) -> bool {
        let work = self.work();
        let seen = work.observed.get(key).is_some_and(|seen| !is_older(&seen.version, version));
        seen && !work.dirty.contains_key(key) && work.resting.get(key) != Some(&None)
    }

    /// The IP addresses that the status of a Gateway has.
    pub(crate) fn published_addresses(&self, gateway: &ObjectName) -> Vec<IpAddr> {
        let key = ObjectKey::new(Kind::Gateway, gateway.clone());
        let status = self.work().observed.get(&key).map(|observed| observed.status.clone());
        let status: Value = status.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let addresses = status["addresses"].as_array().into_iter().flatten();
        addresses.filter_map(|address| address["value"].as_str()?.parse().ok()).collect()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Work ===

impl Work {
    /// It is as it is since now. What is not there is not written; when it comes, it is looked at
    /// anyway.
    fn touch(&mut self, key: ObjectKey) {
        if self.observed.contains_key(&key) {
            let now = Instant::now();
            self.dirty.entry(key.clone()).or_insert(Changed { first: now, last: now }).last = now;
            self.reschedule(&key);
        }
    }

    /// Must follow each change of what [`Self::due`] is made of.
    fn reschedule(&mut self, key: &ObjectKey) {
        match self.due(key) {
            Some(due) => self.schedule.set(key, due),
            None => self.schedule.remove(key),
        }
    }

    /// `None`: nothing of its status is ours any more.
    fn plan(&mut self, key: &ObjectKey, planned: Option<Box<str>>) {
        match planned {
            Some(planned) => drop(self.planned.insert(key.clone(), planned)),
            None => drop(self.planned.remove(key)),
        }
        self.touch(key.clone());
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.observed.remove(key);
        self.settled.remove(key);
        self.dirty.remove(key);
        self.schedule.remove(key);
        self.paces.remove(key);
    }

    /// The next object whose time has come; else when that of one will have.
    fn take(&mut self) -> Result<Job, Option<Instant>> {
        loop {
            let key = self.schedule.take(Instant::now())?;
            self.dirty.remove(&key);
            self.resting.remove(&key);
            let as_it_is =
                self.mark(self.observed.get(&key), self.planned.get(&key).map(|planned| &**planned));
            if self.settled.get(&key) == Some(&as_it_is) {
                continue;
            }
            if let Some(job) = self.job(&key) {
                self.resting.insert(key, None);
                return Ok(job);
            }
        }
    }

    /// The time to write an object. `None`: it needs no write, or is being written.
    fn due(&self, key: &ObjectKey) -> Option<Instant> {
        let changed = self.dirty.get(key)?;
        let pace = self.paces.get(key);
        let due = match self.resting.get(key) {
            Some(resting) => resting.map(|until| pace.map_or(until, |pace| pace.due(until, changed.last)))?,
            // An object that changes once more while it waits stays where it is among the others.
            None => changed.first,
        };
        let plan = || self.hasher.hash_one(self.planned.get(key).map(|planned| &**planned));
        let not_before = pace.and_then(|pace| pace.reverts.not_before(plan));
        let unprovisioned = self.unprovisioned_until.filter(|_| key.kind.role() == Role::Parent);
        [Some(due), not_before, unprovisioned].into_iter().flatten().max()
    }

    /// Gateways and ListenerSets wait no more.
    fn provisioned(&mut self) {
        self.is_provisioned = true;
        if self.unprovisioned_until.take().is_some() {
            let parents = self.dirty.keys().filter(|key| key.kind.role() == Role::Parent);
            let parents: Vec<_> = parents.cloned().collect();
            parents.iter().for_each(|key| self.reschedule(key));
        }
    }

    fn pace(&mut self, key: &ObjectKey) -> &mut Pace {
        if self.paces.len() > self.sweep_at {
            self.paces.retain(|_, pace| !pace.is_over());
            let (paces, now) = (&self.paces, Instant::now());
            // A pace that is kept begins where a rest ended.
            self.resting.retain(|key, until| until.is_none_or(|it| it > now) || paces.contains_key(key));
            self.sweep_at = MANY.max(2 * self.paces.len());
        }
        self.paces.entry(key.clone()).or_default()
    }

    /// `None`: there is no such object (yet), or nothing of its status is ours.
    fn job(&self, key: &ObjectKey) -> Option<Job> {
        let observed = self.observed.get(key)?.clone();
        let planned = self.planned.get(key).cloned();
        let becomes_notable = self.paces.get(key).is_some_and(|pace| pace.reverts.becomes_notable());
        (planned.is_some() || key.kind.shares_status()).then(|| Job {
            key: key.clone(),
            observed,
            planned,
            becomes_notable,
        })
    }

    fn mark(&self, observed: Option<&Observed>, planned: Option<&str>) -> u64 {
        self.hasher.hash_one((observed.map(|observed| &observed.status), planned))
    }
}

// === impl Observed ===

impl Observed {
    /// `object` has at least its status.
    pub(crate) fn new(version: String, object: &Value) -> Self {
        let status = object.get("status").map(ToString::to_string).unwrap_or_default();
        Self { version, status: status.into() }
    }
}

// === impl Job ===

impl Job {
    /// The patch to write, if there is anything to write.
    pub(super) fn patch(&self, controller_name: &str, now: &str) -> Option<Value> {
        let observed = serde_json::from_str(&self.observed.status).unwrap_or(Value::Null);
        let planned = self.planned();
        if planned.is_none() && !merge::has_entries_of(&observed, controller_name) {
            return None;
        }
        merge::patch(&observed, planned.as_ref(), controller_name, now)
    }

    fn planned(&self) -> Option<Value> {
        self.planned.as_deref().and_then(|text| serde_json::from_str(text).ok())
    }
}

impl StatusSink for Arc<StatusQueue> {
    fn keep_only(&mut self, objects: &BTreeSet<ObjectKey>) {
        let mut work = self.work();
        let others: Vec<_> = work.planned.keys().filter(|key| !objects.contains(key)).cloned().collect();
        others.iter().for_each(|key| work.plan(key, None));
        drop(work);
        self.review();
    }

    fn write(&mut self, statuses: &Statuses) {
        if statuses.is_empty() {
            return;
        }
        // Before the lock is taken: a cluster's statuses take a while to serialise.
        let planned = statuses
            .iter()
            .map(|(key, status)| (key, status.as_ref().map(|status| status.to_json().to_string().into())));
        let planned: Vec<_> = planned.collect();
        let mut work = self.work();
        for (key, planned) in planned {
            work.plan(key, planned);
        }
        drop(work);
        self.changed.notify_one();
    }

    fn provisioned(&mut self) {
        self.work().provisioned();
        self.changed.notify_one();
    }

    fn generate(&mut self, wanted: BTreeMap<ObjectName, Option<DesiredObjects>>) {
        if wanted.is_empty() {
            return;
        }
        self.generated.send_modify(|all| {
            for (gateway, wanted) in wanted {
                match wanted {
                    Some(wanted) => drop(all.insert(gateway, wanted)),
                    None => drop(all.remove(&gateway)),
                }
            }
        });
    }

    fn generate_only(&mut self, wanted: BTreeMap<ObjectName, DesiredObjects>) {
        self.generated.send_replace(wanted);
    }

    fn complete(&mut self) {
        self.current.send_if_modified(|current| !std::mem::replace(current, true));
        self.changed.notify_one();
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
