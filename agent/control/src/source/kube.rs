//! An API server as a [`Source`]: what the watches receive, coalesced into changes. Nothing is
//! handed on before everything was read, so that no half configuration is translated; if not all of
//! it can be read at the start, the last good configuration is handed on instead, and what became
//! of it once the rest is known.

mod fetch;
mod last_good;
mod listings;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use portcullis_api::{Change, Kind, Object, ObjectKey, Objects, Readers, Reading, Role, StatusUse};
use portcullis_gateway::infra::{self, AssignedAddresses};
use portcullis_gateway::{ChangedNeeds, Feedback};
use portcullis_model::ObjectName;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::sync::watch::Receiver;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::kube::backoff::sleep_until;
use crate::kube::manifest::{key_of, strip, version_of};
use crate::source::{Effect, InputProblem, Source, Update};
use crate::status::{Observed, StatusQueue};
use fetch::{Answer, Fetched, Fetcher};
use last_good::Written;
use listings::Listings;
use watch::{Delta, watch};

pub use last_good::LastGood;

/// The number of events by which watches may be ahead of translation.
const QUEUE: usize = 1024;
/// Interval at which a pod of one Gateway asks for what it may not watch.
const POLL: Duration = Duration::from_secs(10);
/// Interval at which an agent on a node asks for what is not watched: it is what endpoints are
/// proved by, and these are told to be gone by their EndpointSlices.
const PROOF: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct SourceOptions {
    /// The Gateway that this pod serves, if it serves one: it has less to read, and may watch none
    /// of what may be secret.
    pub only: Option<ObjectName>,
    pub last_good: Option<LastGood>,
    /// Wait for the API server at the start before the last good configuration is used.
    pub wait: Duration,
    /// While this is true, another agent serves, and knows more than was kept: nothing is served
    /// before everything was read.
    pub another_serves: Receiver<bool>,
}

impl SourceOptions {
    /// For [`SourceOptions::another_serves`] of an agent that takes over from none.
    pub fn no_other() -> Receiver<bool> {
        tokio::sync::watch::Sender::new(false).subscribe()
    }
}

/// Must be made, and polled, within a tokio runtime.
pub struct KubeSource {
    /// Time to ask again for what is not watched.
    poll: Instant,
    /// Between two such times.
    interval: Duration,
    queue: Arc<StatusQueue>,
    deltas: mpsc::Receiver<Delta>,
    received: Vec<Delta>,
    listings: Listings,
    /// The objects that updates brought, or are about to.
    objects: Objects,
    /// The newest change of each object that no update has brought yet.
    pending: BTreeMap<ObjectKey, Change>,
    /// Gateways whose Service may have other addresses than in the last update.
    readdressed: BTreeSet<ObjectName>,
    fetcher: Fetcher,
    last_good: Option<LastGood>,
    reading: FuturesUnordered<JoinHandle<Vec<Change>>>,
    /// The last good configuration, when it is the next update.
    remembered: Option<Update>,
    writing: FuturesUnordered<JoinHandle<Written>>,
    phase: Phase,
    another_serves: Receiver<bool>,
    /// Of the updates so far there was one that would have been served without another agent.
    is_withheld: bool,
    /// Translation told what it needs. It does not if it panics.
    are_needs_known: bool,
    /// There was an update that was complete.
    is_complete: bool,
    /// The last good configuration was used: it has what may not be read as it was.
    is_remembered: bool,
    /// The kinds that may not be read, as of the last update.
    denied: BTreeSet<Kind>,
    /// Ends the watches with the source.
    _watches: JoinSet<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There was no update; at this time, the last good configuration is used.
    Reading(Instant),
    /// The last good configuration was handed on, if there is any.
    Remembering,
    /// A draft was handed on, and what it refers to is being read. At this time, the last good
    /// configuration is used, unless it has been before.
    Following(Option<Instant>),
    /// Everything that we may read was read, and handed on.
    Current,
}

// === impl KubeSource ===

impl KubeSource {
    pub fn new(client: Client, queue: Arc<StatusQueue>, options: SourceOptions) -> Self {
        let (to, deltas) = mpsc::channel(QUEUE);
        let mut watches = JoinSet::new();
        let kinds: Vec<_> = watched(options.only.as_ref()).collect();
        let interval = if options.only.is_some() { POLL } else { PROOF };
        for kind in &kinds {
            watches.spawn(watch(client.clone(), *kind, to.clone()));
        }
        Self {
            poll: Instant::now() + interval,
            interval,
            queue,
            deltas,
            received: Vec::new(),
            listings: Listings::new(&kinds),
            objects: Objects::default(),
            pending: BTreeMap::new(),
            readdressed: BTreeSet::new(),
            fetcher: Fetcher::new(client),
            last_good: options.last_good,
            reading: FuturesUnordered::new(),
            remembered: None,
            writing: FuturesUnordered::new(),
            phase: Phase::Reading(Instant::now() + options.wait),
            another_serves: options.another_serves,
            is_withheld: false,
            are_needs_known: false,
            is_complete: false,
            is_remembered: false,
            denied: BTreeSet::new(),
            _watches: watches,
        }
    }

    // --- updates ---

    /// The next update, if anything changed.
    fn update(&mut self) -> Option<Update> {
        if let Some(remembered) = self.remembered.take() {
            return Some(remembered);
        }
        if !self.is_due() {
            return None;
        }
        match self.phase {
            Phase::Reading(until) => return Some(self.draft(Some(until))),
            Phase::Remembering => return Some(self.draft(None)),
            Phase::Following(until) if self.may_change_needs() => return Some(self.draft(until)),
            Phase::Following(_) => {
                self.phase = Phase::Current;
                self.forget_unreferred();
            }
            Phase::Current => {}
        }
        let is_complete = self.becomes_complete();
        self.is_complete |= is_complete;
        let update = Update { is_complete, ..self.take_pending() };
        // A later agent is not to serve a configuration that lacks the policies there may be, or
        // the nodes whose addresses are no backends.
        let is_whole = self.unread().all(|kind| kind.role() != Role::Policy && kind != Kind::Node);
        if let Some(last_good) = self.last_good.as_mut().filter(|_| is_whole) {
            last_good.changed();
        }
        Some(update)
    }

    /// Has the last good configuration only translated as long as another agent serves.
    fn withhold(&mut self, update: Update) -> Update {
        let is_withheld = !update.is_draft && self.phase != Phase::Current && *self.another_serves.borrow();
        // A later one has what is in it.
        self.is_withheld = is_withheld || self.is_withheld && update.is_draft;
        Update { is_draft: update.is_draft || is_withheld, ..update }
    }

    /// Only translation knows what has to be read besides.
    fn draft(&mut self, until: Option<Instant>) -> Update {
        self.phase = Phase::Following(until);
        Update { is_draft: true, ..self.take_pending() }
    }

    /// Objects changed that may refer to others than those that were read for the last draft.
    fn may_change_needs(&self) -> bool {
        self.pending.keys().any(|key| !key.kind.reading().is_one_by_one())
    }

    fn take_pending(&mut self) -> Update {
        let changes = std::mem::take(&mut self.pending).into_values().collect();
        let mut observed = vec![self.assigned()];
        let mut problems = None;
        if self.are_others_denied() {
            self.denied = self.listings.denied().collect();
            problems = Some(self.denied.iter().map(|kind| self.not_read(*kind)).collect());
            observed.push(Feedback::Unread(self.unread().collect()));
        }
        Update { changes, observed, problems, ..Update::default() }
    }

    fn are_others_denied(&self) -> bool {
        !self.listings.denied().eq(self.denied.iter().copied())
    }

    /// The kinds of which nothing is known, not even how it was.
    fn unread(&self) -> impl Iterator<Item = Kind> {
        self.denied.iter().copied().filter(|_| !self.is_remembered)
    }

    fn not_read(&self, kind: Kind) -> InputProblem {
        let effect = match (kind, kind.role()) {
            _ if self.is_remembered => "what was kept of it is served",
            (Kind::ListenerPolicy, _) => "no listener lets clients in, because one may be about any",
            (Kind::TrafficPolicy, _) => "no request passes, because one may be about any",
            (Kind::BackendPolicy, _) => "Services are spoken to as if there were none",
            (Kind::XBackendTrafficPolicy, _) => "requests are sent again as if there were none",
            (_, Role::Policy) => "requests for Services that one may be about are answered with an error",
            (Kind::RouteFilter, _) => "requests of rules that refer to one are answered with an error",
            (Kind::Namespace, _) => "selectors select namespaces by their names only",
            (Kind::Node, _) => {
                "no endpoint is used, because any may be a node's, but in namespaces of --endpoint-namespaces"
            }
            _ => "what there is of it is not served",
        };
        let rights = "give the agents the rights of the chart's ClusterRole";
        let message = match kind.role() {
            Role::Policy => format!(
                "it may not be listed, or is in none of the versions {}; {effect}: {rights}, or install the CRDs of a \
                 supported release",
                kind.versions().join(", ")
            ),
            _ => format!("it may not be listed; {effect}: {rights}"),
        };
        let file = "API server".into();
        InputProblem { file, line: None, object: Some(kind.to_string()), message, effect: Effect::Warning }
    }

    /// The addresses that the cluster assigned to Gateways' Services are the Gateways'.
    fn assigned(&mut self) -> Feedback {
        let readdressed = std::mem::take(&mut self.readdressed).into_iter();
        let assigned = readdressed.map(|gateway| {
            let addresses = AssignedAddresses::of(&gateway, &self.objects);
            (gateway, addresses)
        });
        Feedback::Assigned(assigned.collect())
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
            Phase::Following(_) => {
                self.fetcher.is_settled() && (self.are_needs_known || self.may_change_needs())
            }
            Phase::Current => !self.pending.is_empty() || self.becomes_complete() || self.are_others_denied(),
        }
    }

    // --- events ---

    async fn receive(&mut self) {
        let deadline = match self.phase {
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
            () = sleep_until(Some(self.poll)) => return self.ask_again(),
            () = sleep_until(deadline) => return self.stop_waiting(),
            Ok(()) = self.another_serves.changed() => return,
        }
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
            self.record(Change::Set(object));
        }
    }

    fn parse(&self, key: &ObjectKey, manifest: Value) -> Option<Object> {
        let parsed = Object::from_json(manifest).inspect_err(|error| match self.objects.get(key) {
            Some(_) => tracing::warn!("{error}; its last good version stays in force"),
            None => tracing::warn!("{error}; it is as if it were not there until that is corrected"),
        });
        parsed.ok().flatten()
    }

    fn delete(&mut self, key: &ObjectKey) {
        self.queue.forget(key);
        self.fetcher.gone(key);
        self.record(Change::Delete(key.clone()));
    }

    fn record(&mut self, change: Change) {
        let key = change.key();
        let served = self.served_by(&key);
        if self.objects.apply(change.clone()) {
            self.readdressed.extend(served.into_iter().chain(self.served_by(&key)));
            self.pending.insert(key, change);
        }
    }

    /// The Gateway whose addresses an object decides about.
    fn served_by(&self, key: &ObjectKey) -> Option<ObjectName> {
        match key.kind {
            Kind::Gateway => Some(key.name.clone()),
            Kind::Service => infra::generated_for(self.objects.services.get(&key.name)?),
            _ => None,
        }
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
            self.fetcher.observe(&key, version_of(metadata));
        }
    }

    fn ask_again(&mut self) {
        let listings = &self.listings;
        self.fetcher.ask_again(|kind| !listings.are_of(kind));
        self.poll = Instant::now() + self.interval;
    }

    /// Forgets objects kept on disk that nothing refers to any more.
    fn forget_unreferred(&mut self) {
        for kind in Kind::ALL.iter().filter(|kind| kind.reading().is_one_by_one()) {
            self.retain(*kind, &self.fetcher.wanted(*kind));
        }
    }

    fn fetched(&mut self, Fetched { key, answer }: Fetched) {
        match answer {
            Answer::Found(mut manifest) => {
                strip(key.kind, &mut manifest);
                if let Some(object) = self.parse(&key, manifest) {
                    self.record(Change::Set(object));
                }
            }
            Answer::Absent => self.record(Change::Delete(key)),
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

    /// Serves what was kept. Objects received meanwhile follow when everything is known.
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
            self.remembered = Some(Update { changes: kept, ..Update::default() });
            return;
        }
        self.is_remembered = true;
        let known = std::mem::take(&mut self.objects);
        for change in &kept {
            self.objects.apply(change.clone());
        }
        self.readdressed = self.objects.names(Kind::Gateway);
        let observed = vec![self.assigned()];
        self.pending.clear();
        for object in known.iter() {
            self.record(Change::Set(object));
        }
        self.forget_absent(&kept, &known);
        self.remembered = Some(Update { changes: kept, observed, ..Update::default() });
    }

    /// Lists that come to an end later remove what is not in them by themselves.
    fn forget_absent(&mut self, kept: &[Change], known: &Objects) {
        let read = self.listings.read().filter(|kind| !kind.reading().is_one_by_one());
        for kind in read.collect::<Vec<_>>() {
            self.retain(kind, &known.names(kind));
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
                return self.withhold(update);
            }
            if self.is_withheld && !*self.another_serves.borrow() {
                self.is_withheld = false;
                return Update::default();
            }
            self.receive().await;
        }
    }

    fn need(&mut self, changed: ChangedNeeds) {
        self.are_needs_known = true;
        self.fetcher.want(changed.added);
        for key in changed.removed {
            self.fetcher.unwant(&key);
            self.record(Change::Delete(key));
        }
    }

    fn need_only(&mut self, needs: BTreeSet<ObjectKey>) {
        let removed = self.fetcher.others_than(&needs);
        self.need(ChangedNeeds { added: needs, removed });
    }
}

fn watched(only: Option<&ObjectName>) -> impl Iterator<Item = Kind> {
    let on_node = only.is_none();
    let kinds = Kind::ALL.iter().copied().filter(|kind| kind.reading().is_by_watch());
    kinds.filter(move |kind| on_node || kind.readers() == Readers::All)
}

#[cfg(test)]
#[path = "kube_tests.rs"]
mod tests;
