//! An API server as a [`Source`]: what the watches hear, coalesced into changes. Nothing is said
//! before everything was read, so that no half configuration is translated; if not all of it can be
//! read at the start, the last good configuration is said instead, and what became of it once the
//! rest is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use portcullis_api::{Change, Kind, Object, ObjectError, ObjectKey, Objects, Readers, Reading, StatusUse};
use portcullis_gateway::infra;
use portcullis_model::ObjectName;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::backoff::sleep_until;
use super::fetch::{Answer, Fetched, Fetcher};
use super::last_good::{LastGood, Written};
use super::listings::Listings;
use super::manifest::{key_of, strip, version_of};
use super::status_queue::{Observed, StatusQueue};
use super::watch::{Delta, watch};
use crate::source::{Source, Update};

/// The number of events by which watches may be ahead of translation.
const QUEUE: usize = 1024;
/// Interval at which a pod of one Gateway asks for what it may not watch.
const POLL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct SourceOptions {
    /// The Gateway that this pod serves, if it serves one: it has less to read, and may watch none
    /// of what may be secret.
    pub only: Option<ObjectName>,
    pub last_good: Option<LastGood>,
    /// Wait for the API server at the start before the last good configuration is used.
    pub patience: Duration,
}

/// Must be made, and polled, within a tokio runtime.
pub struct KubeSource {
    /// Time to ask again for what no watch tells of.
    poll: Option<Instant>,
    queue: Arc<StatusQueue>,
    deltas: mpsc::Receiver<Delta>,
    received: Vec<Delta>,
    listings: Listings,
    /// The objects that updates told of, or are about to.
    objects: Objects,
    /// The newest change of each object that no update told of yet.
    pending: BTreeMap<ObjectKey, Change>,
    /// Gateways as the API server has them, without the addresses that were assigned.
    gateways: BTreeMap<ObjectName, Object>,
    fetcher: Fetcher,
    last_good: Option<LastGood>,
    reading: FuturesUnordered<JoinHandle<Vec<Change>>>,
    /// The last good configuration, when it is to be said next.
    remembered: Option<Vec<Change>>,
    writing: FuturesUnordered<JoinHandle<Written>>,
    phase: Phase,
    /// It was said that everything was said.
    is_complete: bool,
    /// Ends the watches with the source.
    _watches: JoinSet<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing was said; at this time, patience ends.
    Reading(Instant),
    /// The last good configuration was said, if there is any.
    Remembering,
    /// A draft was said, and what it refers to is being read. At this time, patience ends, unless
    /// it has before.
    Following(Option<Instant>),
    /// Everything that we may read was read, and said.
    Current,
}

// === impl KubeSource ===

impl KubeSource {
    pub fn new(client: Client, queue: Arc<StatusQueue>, options: SourceOptions) -> Self {
        let (to, deltas) = mpsc::channel(QUEUE);
        let mut watches = JoinSet::new();
        let kinds: Vec<_> = watched(options.only.as_ref()).collect();
        for kind in &kinds {
            watches.spawn(watch(client.clone(), *kind, to.clone()));
        }
        Self {
            poll: options.only.is_some().then(|| Instant::now() + POLL),
            queue,
            deltas,
            received: Vec::new(),
            listings: Listings::new(&kinds),
            objects: Objects::default(),
            pending: BTreeMap::new(),
            gateways: BTreeMap::new(),
            fetcher: Fetcher::new(client),
            last_good: options.last_good,
            reading: FuturesUnordered::new(),
            remembered: None,
            writing: FuturesUnordered::new(),
            phase: Phase::Reading(Instant::now() + options.patience),
            is_complete: false,
            _watches: watches,
        }
    }

    // --- saying ---

    /// The next update, if there is anything to tell.
    fn update(&mut self) -> Option<Update> {
        if let Some(changes) = self.remembered.take() {
            return Some(Update { changes, ..Update::default() });
        }
        if !self.is_due() {
            return None;
        }
        match self.phase {
            Phase::Reading(until) => return Some(self.draft(Some(until))),
            Phase::Remembering => return Some(self.draft(None)),
            Phase::Following(_) => {
                self.phase = Phase::Current;
                self.forget_unreferred();
            }
            Phase::Current => {}
        }
        if let Some(last_good) = &mut self.last_good {
            last_good.changed();
        }
        let is_complete = self.becomes_complete();
        self.is_complete |= is_complete;
        Some(Update { changes: self.take_pending(), is_complete, ..Update::default() })
    }

    /// Only translation knows what has to be read besides.
    fn draft(&mut self, patience: Option<Instant>) -> Update {
        self.phase = Phase::Following(patience);
        Update { changes: self.take_pending(), is_draft: true, ..Update::default() }
    }

    fn take_pending(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.pending).into_values().collect()
    }

    fn becomes_complete(&self) -> bool {
        !self.is_complete && self.listings.tell_our_gateways()
    }

    fn is_due(&self) -> bool {
        match self.phase {
            Phase::Reading(_) => self.listings.are_read(),
            // What may not be read is as it was.
            Phase::Remembering => {
                self.listings.are_read() || (self.listings.are_settled() && self.reading.is_empty())
            }
            Phase::Following(_) => self.fetcher.is_settled(),
            Phase::Current => !self.pending.is_empty() || self.becomes_complete(),
        }
    }

    // --- hearing ---

    async fn hear(&mut self) {
        let patience = match self.phase {
            Phase::Reading(until) => Some(until),
            Phase::Following(until) => until,
            Phase::Remembering | Phase::Current => None,
        };
        let keep = self.last_good.as_ref().and_then(LastGood::due);
        tokio::select! {
            count = self.deltas.recv_many(&mut self.received, QUEUE) => {
                if count == 0 {
                    // Every watch ended, which they never do.
                    std::future::pending::<()>().await;
                }
            }
            fetched = self.fetcher.next() => return self.fetched(fetched),
            Some(kept) = self.reading.next() => return self.remember(kept.unwrap_or_default()),
            Some(written) = self.writing.next() => return self.kept(written.ok()),
            () = sleep_until(keep), if self.writing.is_empty() => return self.keep(),
            () = sleep_until(self.poll) => return self.ask_again(),
            () = sleep_until(patience) => return self.stop_waiting(),
        }
        self.take_received();
    }

    fn take_received(&mut self) {
        for delta in std::mem::take(&mut self.received) {
            self.take(delta);
        }
    }

    fn take(&mut self, delta: Delta) {
        match delta {
            Delta::Set(kind, manifest) if kind.reading() == Reading::OnDemand => self.touch(kind, &manifest),
            Delta::Set(kind, manifest) => self.set(kind, *manifest),
            Delta::Deleted(key) => self.delete(&key),
            Delta::Begin(kind) => self.listings.begin(kind),
            Delta::Done(kind) => {
                if let Some(listed) = self.listings.done(kind) {
                    self.retain(kind, &listed);
                }
            }
            Delta::Denied(kind) => {
                self.listings.give_up(kind);
                self.stop_waiting();
            }
            Delta::Unreachable => self.stop_waiting(),
        }
    }

    fn set(&mut self, kind: Kind, mut manifest: Value) {
        let Some(key) = key_of(kind, &manifest) else { return };
        self.note(&key, &manifest);
        strip(kind, &mut manifest);
        if let Some(object) = self.parse(&key, manifest) {
            self.put(object);
        }
    }

    fn parse(&self, key: &ObjectKey, manifest: Value) -> Option<Object> {
        let complain = |error: &ObjectError| match self.objects.get(key) {
            Some(_) => tracing::warn!("{error}; its last good version stays in force"),
            None => tracing::warn!("{error}; it is as if it were not there until that is corrected"),
        };
        Object::from_json(manifest).inspect_err(complain).ok().flatten()
    }

    fn put(&mut self, object: Object) {
        let key = object.key();
        if key.kind == Kind::Gateway {
            self.gateways.insert(key.name.clone(), object);
            self.put_gateway(&key.name);
        } else if self.say(Change::Set(object.clone())) {
            self.readdress(&object);
        }
    }

    /// The addresses that the cluster assigned to a Gateway's Service are the Gateway's.
    fn put_gateway(&mut self, name: &ObjectName) {
        let Some(Object::Gateway(gateway)) = self.gateways.get(name) else { return };
        let service = infra::generated_name(&name.name, &gateway.spec.gateway_class_name);
        let service = self.objects.services.get(&ObjectName::new(&*name.namespace, service));
        let addressed = infra::with_assigned_addresses(gateway, service.map(Arc::as_ref));
        self.say(Change::Set(Object::Gateway(addressed)));
    }

    fn readdress(&mut self, object: &Object) {
        if let Object::Service(service) = object
            && let Some(gateway) = infra::generated_for(service)
        {
            self.put_gateway(&gateway);
        }
    }

    fn delete(&mut self, key: &ObjectKey) {
        self.queue.forget(key);
        self.fetcher.gone(key);
        if key.kind == Kind::Gateway {
            self.gateways.remove(&key.name);
        }
        let before = self.objects.get(key);
        if self.say(Change::Delete(key.clone()))
            && let Some(before) = before
        {
            self.readdress(&before);
        }
    }

    fn say(&mut self, change: Change) -> bool {
        let changes = self.objects.apply(change.clone());
        if changes {
            self.pending.insert(change.key(), change);
        }
        changes
    }

    fn retain(&mut self, kind: Kind, listed: &BTreeSet<ObjectName>) {
        for name in self.objects.names(kind).difference(listed) {
            self.delete(&ObjectKey::new(kind, name.clone()));
        }
    }

    /// Versions and statuses are for the writer of statuses.
    fn note(&mut self, key: &ObjectKey, manifest: &Value) {
        self.listings.see(key);
        if key.kind.status() == StatusUse::Written {
            self.queue.observe(key, Observed::new(version_of(manifest), manifest));
        }
    }

    // --- what is read on demand ---

    fn touch(&mut self, kind: Kind, metadata: &Value) {
        if let Some(key) = key_of(kind, metadata) {
            self.note(&key, metadata);
            self.fetcher.heard(&key, version_of(metadata));
        }
    }

    fn ask_again(&mut self) {
        self.fetcher.ask_again();
        self.poll = Some(Instant::now() + POLL);
    }

    /// Forgets objects kept on disk that nothing refers to any more.
    fn forget_unreferred(&mut self) {
        for kind in Kind::ALL.iter().filter(|kind| kind.reading() == Reading::OnDemand) {
            self.retain(*kind, &self.fetcher.wanted(*kind));
        }
    }

    fn fetched(&mut self, Fetched { key, answer }: Fetched) {
        match answer {
            Answer::Found(mut manifest) => {
                strip(key.kind, &mut manifest);
                if let Some(object) = self.parse(&key, manifest) {
                    self.say(Change::Set(object));
                }
            }
            Answer::Absent => drop(self.say(Change::Delete(key))),
            Answer::Refused => {}
        }
    }

    // --- what is kept on disk ---

    /// Turns to the last good configuration until everything is known.
    fn stop_waiting(&mut self) {
        self.phase = match self.phase {
            Phase::Reading(_) => Phase::Remembering,
            Phase::Following(Some(_)) => Phase::Following(None),
            Phase::Remembering | Phase::Following(None) | Phase::Current => return,
        };
        self.reading.extend(self.last_good.as_ref().map(LastGood::read));
    }

    /// Serves what was kept. Objects heard of meanwhile follow when everything is known.
    fn remember(&mut self, mut kept: Vec<Change>) {
        if kept.is_empty() || self.phase == Phase::Current {
            return;
        }
        tracing::warn!(
            objects = kept.len(),
            "not everything could be read from the API server so far: serving the last good configuration"
        );
        if let Phase::Following(_) = self.phase {
            // The rest of the configuration is known; what it refers to is as it was.
            let is_missing =
                |key: &ObjectKey| self.fetcher.is_awaited(key) && self.objects.get(key).is_none();
            kept.retain(|change| is_missing(&change.key()));
            for change in &kept {
                self.objects.apply(change.clone());
            }
            self.remembered = Some(kept);
            return;
        }
        let heard = std::mem::take(&mut self.objects);
        for change in &kept {
            self.objects.apply(change.clone());
        }
        self.pending.clear();
        for object in heard.iter() {
            self.say(Change::Set(object));
        }
        // Of Services that were remembered.
        for gateway in self.gateways.keys().cloned().collect::<Vec<_>>() {
            self.put_gateway(&gateway);
        }
        self.forget_absent(&kept, &heard);
        self.remembered = Some(kept);
    }

    /// Lists that come to an end later remove what is not in them by themselves.
    fn forget_absent(&mut self, kept: &[Change], heard: &Objects) {
        let read = self.listings.read().filter(|kind| kind.reading() != Reading::OnDemand);
        for kind in read.collect::<Vec<_>>() {
            self.retain(kind, &heard.names(kind));
        }
        for key in kept.iter().map(Change::key).filter(|key| self.fetcher.is_absent(key)).collect::<Vec<_>>()
        {
            self.delete(&key);
        }
    }

    fn keep(&mut self) {
        if let Some(last_good) = &mut self.last_good {
            self.writing.push(last_good.write(&self.objects));
        }
    }

    fn kept(&mut self, written: Option<Written>) {
        if let (Some(last_good), Some(written)) = (&mut self.last_good, written) {
            last_good.written(written);
        }
    }
}

impl Source for KubeSource {
    async fn next(&mut self) -> Update {
        loop {
            if let Some(update) = self.update() {
                return update;
            }
            self.hear().await;
        }
    }

    fn need(&mut self, needs: BTreeSet<ObjectKey>) {
        for key in self.fetcher.want(needs) {
            self.say(Change::Delete(key));
        }
    }
}

fn watched(only: Option<&ObjectName>) -> impl Iterator<Item = Kind> {
    let on_node = only.is_none();
    Kind::ALL.iter().copied().filter(move |kind| on_node || kind.readers() == Readers::All)
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
