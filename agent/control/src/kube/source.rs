//! An API server as a [`Source`]: what the watches hear, coalesced into changes. Nothing is said before everything was
//! read, so that nobody translates half a configuration; if the API server is away at the start, the last good
//! configuration is said instead, and what became of it once the API server is back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use portcullis_gateway::{Change, Kind, Object, ObjectKey, Objects, infra};
use portcullis_model::ObjectName;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::backoff::sleep_until;
use super::board::{Board, Observed};
use super::fetch::{Fetched, Fetcher};
use super::last_good::LastGood;
use super::references::{is_referrer, referred};
use super::watch::{Delta, watch};
use crate::source::{Source, Update};

/// What the watches may be ahead of the translation.
const QUEUE: usize = 1024;

#[derive(Debug)]
pub struct SourceOptions {
    pub controller_name: String,
    /// Whose Secrets are read, if not every Gateway's.
    pub only: Option<ObjectName>,
    pub last_good: Option<LastGood>,
    /// How long to wait for the API server at the start before the last good configuration is used.
    pub patience: Duration,
}

/// Must be made, and polled, within a tokio runtime.
pub struct KubeSource {
    controller_name: String,
    only: Option<ObjectName>,
    board: Arc<Board>,
    deltas: mpsc::Receiver<Delta>,
    received: Vec<Delta>,
    listings: BTreeMap<Kind, Listing>,
    /// What was said, or is about to be.
    objects: Objects,
    pending: Vec<Change>,
    /// Gateways as the API server has them, without the addresses that were assigned.
    gateways: BTreeMap<ObjectName, Object>,
    referred: BTreeSet<ObjectKey>,
    fetcher: Fetcher,
    fetches: FuturesUnordered<JoinHandle<Fetched>>,
    last_good: Option<LastGood>,
    writing: FuturesUnordered<JoinHandle<(io::Result<()>, Duration)>>,
    phase: Phase,
    /// Ends the watches with the source.
    _watches: JoinSet<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing was said; at this time, patience ends.
    Reading(Instant),
    /// The last good configuration was said.
    Remembering,
    /// Everything was read, and said.
    Said,
}

/// How far the list of a kind is.
#[derive(Debug, Default)]
struct Listing {
    complete: bool,
    /// While a list is being read: what it held so far.
    seen: Option<BTreeSet<ObjectName>>,
}

// === impl KubeSource ===

impl KubeSource {
    pub fn new(client: Client, board: Arc<Board>, options: SourceOptions) -> Self {
        let (to, deltas) = mpsc::channel(QUEUE);
        let mut watches = JoinSet::new();
        for kind in Kind::ALL {
            watches.spawn(watch(client.clone(), *kind, to.clone()));
        }
        Self {
            controller_name: options.controller_name,
            only: options.only,
            board,
            deltas,
            received: Vec::new(),
            listings: Kind::ALL.iter().map(|kind| (*kind, Listing::default())).collect(),
            objects: Objects::default(),
            pending: Vec::new(),
            gateways: BTreeMap::new(),
            referred: BTreeSet::new(),
            fetcher: Fetcher::new(client),
            fetches: FuturesUnordered::new(),
            last_good: options.last_good,
            writing: FuturesUnordered::new(),
            phase: Phase::Reading(Instant::now() + options.patience),
            _watches: watches,
        }
    }

    // --- saying ---

    /// What there is to say now, if anything.
    fn update(&mut self) -> Option<Update> {
        let is_complete = self.fetches.is_empty() && self.listings.values().all(|listing| listing.complete);
        match self.phase {
            Phase::Reading(_) | Phase::Remembering if is_complete => {
                self.forget_unreferred();
                self.phase = Phase::Said;
            }
            Phase::Reading(until) if Instant::now() >= until => return self.remember(),
            Phase::Said if !self.pending.is_empty() => {}
            _ => return None,
        }
        if let Some(last_good) = &mut self.last_good {
            last_good.changed();
        }
        Some(Update { changes: std::mem::take(&mut self.pending), problems: None, is_complete: true })
    }

    /// Patience is for an API server that is slow, not for one that is away.
    fn give_up_waiting(&mut self) {
        if let Phase::Reading(until) = &mut self.phase {
            *until = Instant::now();
        }
    }

    /// The last good configuration; what was heard meanwhile follows when all was.
    fn remember(&mut self) -> Option<Update> {
        self.phase = Phase::Remembering;
        let kept = self.last_good.as_ref().map(LastGood::read).filter(|kept| !kept.is_empty())?;
        tracing::warn!(
            objects = kept.len(),
            "the API server does not answer: serving the last good configuration"
        );
        let heard = std::mem::take(&mut self.objects);
        for change in &kept {
            self.objects.apply(change.clone());
        }
        self.pending =
            heard.iter().map(Change::Set).filter(|change| self.objects.apply(change.clone())).collect();
        // Lists that come to an end later remove what is not in them by themselves.
        let complete = self.listings.iter().filter(|(_, listing)| listing.complete);
        for kind in complete.map(|(kind, _)| *kind).collect::<Vec<_>>() {
            self.retain(kind, &names(&heard, kind));
        }
        Some(Update { changes: kept, ..Update::default() })
    }

    async fn hear(&mut self) {
        let patience = match self.phase {
            Phase::Reading(until) => Some(until),
            _ => None,
        };
        let keep = self.last_good.as_ref().and_then(LastGood::due);
        tokio::select! {
            count = self.deltas.recv_many(&mut self.received, QUEUE) => {
                if count == 0 {
                    // Every watch ended, which they never do.
                    std::future::pending::<()>().await;
                }
            }
            Some(fetched) = self.fetches.next() => return self.fetched(fetched.ok()),
            Some(written) = self.writing.next() => return self.kept(written.ok()),
            () = sleep_until(keep), if self.writing.is_empty() => return self.keep(),
            () = sleep_until(patience) => return,
        }
        let mut refer = false;
        for delta in std::mem::take(&mut self.received) {
            refer |= self.take(delta);
        }
        if refer {
            self.follow_references();
        }
    }

    // --- hearing ---

    /// Returns whether it may change what is referred to.
    fn take(&mut self, delta: Delta) -> bool {
        match delta {
            Delta::Set(kind, manifest) if matches!(kind, Kind::Secret | Kind::ConfigMap) => {
                self.touch(kind, &manifest)
            }
            Delta::Set(kind, manifest) => return self.set(kind, *manifest) && is_referrer(kind),
            Delta::Deleted(key) => {
                self.delete(&key);
                return is_referrer(key.kind);
            }
            Delta::Begin(kind) => self.listing(kind).seen = Some(BTreeSet::new()),
            Delta::Unreachable => self.give_up_waiting(),
            Delta::Done(kind) => {
                self.listing(kind).complete = true;
                if let Some(seen) = self.listing(kind).seen.take() {
                    self.retain(kind, &seen);
                }
                return is_referrer(kind);
            }
        }
        false
    }

    fn set(&mut self, kind: Kind, mut manifest: Value) -> bool {
        self.note(kind, &manifest);
        strip(kind, &mut manifest);
        match Object::from_json(manifest) {
            Ok(Some(object)) => self.put(object),
            Ok(None) => false,
            Err(error) => {
                tracing::warn!("{error}; its last good version stays in force");
                false
            }
        }
    }

    /// Returns whether anything but bookkeeping changed.
    fn put(&mut self, object: Object) -> bool {
        let key = object.key();
        let object = match key.kind {
            Kind::Gateway => {
                self.gateways.insert(key.name.clone(), object);
                return self.put_gateway(&key.name);
            }
            _ => object,
        };
        if !self.say(Change::Set(object.clone())) {
            return false;
        }
        self.readdress(&object);
        true
    }

    /// The addresses that the cluster assigned to a Gateway's Service are the Gateway's.
    fn put_gateway(&mut self, name: &ObjectName) -> bool {
        let Some(Object::Gateway(gateway)) = self.gateways.get(name) else { return false };
        let service = infra::generated_name(&name.name, &gateway.spec.gateway_class_name);
        let service = self.objects.services.get(&ObjectName::new(&*name.namespace, service));
        let addressed = infra::with_assigned_addresses(gateway, service.map(Arc::as_ref));
        self.say(Change::Set(Object::Gateway(addressed)))
    }

    fn readdress(&mut self, object: &Object) {
        if let Object::Service(service) = object
            && let Some(gateway) = infra::generated_for(service)
        {
            self.put_gateway(&gateway);
        }
    }

    fn delete(&mut self, key: &ObjectKey) {
        self.board.forget(key);
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
            self.pending.push(change);
        }
        changes
    }

    fn listing(&mut self, kind: Kind) -> &mut Listing {
        self.listings.entry(kind).or_default()
    }

    fn retain(&mut self, kind: Kind, listed: &BTreeSet<ObjectName>) {
        for name in names(&self.objects, kind).difference(listed) {
            self.delete(&ObjectKey::new(kind, name.clone()));
        }
    }

    /// Versions and statuses are for the writer of statuses.
    fn note(&mut self, kind: Kind, manifest: &Value) {
        let Some(key) = key_of(kind, manifest) else { return };
        if has_status(kind) {
            let status = manifest.get("status").map(ToString::to_string).unwrap_or_default();
            self.board.observe(&key, Observed { version: version_of(manifest), status: status.into() });
        }
        if let Some(seen) = &mut self.listing(kind).seen {
            seen.insert(key.name);
        }
    }

    // --- what is read on demand ---

    fn touch(&mut self, kind: Kind, metadata: &Value) {
        self.note(kind, metadata);
        if let Some(key) = key_of(kind, metadata)
            && self.referred.contains(&key)
        {
            self.fetch(key, &version_of(metadata));
        }
    }

    fn follow_references(&mut self) {
        let referred = referred(&self.objects, &self.controller_name, self.only.as_ref());
        for key in referred.difference(&self.referred.clone()) {
            self.fetch(key.clone(), "");
        }
        for key in self.referred.difference(&referred).cloned().collect::<Vec<_>>() {
            self.fetcher.forget(&key);
            self.say(Change::Delete(key));
        }
        self.referred = referred;
    }

    /// What was kept on disk may be referred to no longer.
    fn forget_unreferred(&mut self) {
        for kind in [Kind::Secret, Kind::ConfigMap] {
            let referred = self.referred.iter().filter(|key| key.kind == kind);
            let referred = referred.map(|key| key.name.clone()).collect();
            self.retain(kind, &referred);
        }
    }

    fn fetch(&mut self, key: ObjectKey, version: &str) {
        if let Some(fetch) = self.fetcher.fetch(key, version) {
            self.fetches.push(tokio::spawn(fetch));
        }
    }

    fn fetched(&mut self, fetched: Option<Fetched>) {
        let Some(Fetched { key, manifest }) = fetched else { return };
        if !self.referred.contains(&key) {
            return;
        }
        match manifest {
            Some(mut manifest) => {
                self.fetcher.read(&key, &version_of(&manifest));
                strip(key.kind, &mut manifest);
                if let Ok(Some(object)) = Object::from_json(manifest) {
                    self.say(Change::Set(object));
                }
            }
            None => drop(self.say(Change::Delete(key))),
        }
    }

    // --- what is kept on disk ---

    fn keep(&mut self) {
        if let Some(last_good) = &mut self.last_good {
            self.writing.push(last_good.write(&self.objects));
        }
    }

    fn kept(&mut self, written: Option<(io::Result<()>, Duration)>) {
        if let (Some(last_good), Some((result, took))) = (&mut self.last_good, written) {
            last_good.written(&result, took);
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
}

fn names(objects: &Objects, kind: Kind) -> BTreeSet<ObjectName> {
    objects.iter().map(|object| object.key()).filter(|key| key.kind == kind).map(|key| key.name).collect()
}

fn key_of(kind: Kind, manifest: &Value) -> Option<ObjectKey> {
    let metadata = manifest.get("metadata")?;
    let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    Some(ObjectKey::new(kind, ObjectName::new(namespace, metadata.get("name")?.as_str()?)))
}

fn version_of(manifest: &Value) -> String {
    manifest["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

fn has_status(kind: Kind) -> bool {
    use Kind::{
        ConfigMap, EndpointSlice, GatewayParameters, Namespace, Node, ReferenceGrant, Secret, Service,
    };
    !matches!(
        kind,
        ConfigMap | EndpointSlice | GatewayParameters | Namespace | Node | ReferenceGrant | Secret | Service
    )
}

/// Bookkeeping that would make every write of a status a change of configuration.
fn strip(kind: Kind, manifest: &mut Value) {
    if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
        if kind == Kind::Node {
            metadata.retain(|field, _| field == "name");
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    if !matches!(kind, Kind::Service | Kind::Node)
        && let Some(manifest) = manifest.as_object_mut()
    {
        manifest.remove("status");
    }
}
