//! Reads objects of some kinds one by one (Secrets, say): those that something refers to, when a
//! watch brings another version. Of each, one request at most is under way, and an answer that is
//! older than what a watch brought meanwhile does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use portcullis_api::{Kind, ObjectKey, Scope};
use portcullis_model::ObjectName;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, Id, JoinSet};

use crate::kube::backoff::{Backoff, jittered};
use crate::kube::manifest::{is_older, version_of};
use crate::kube::read_log::ReadLog;

/// Requests in flight at once.
const CONCURRENCY: usize = 16;
/// Wait before another attempt to read what the API server refuses.
const LATER: Duration = Duration::from_secs(10);

pub(super) struct Fetcher {
    client: Client,
    permits: Arc<Semaphore>,
    /// Objects that are wanted, and no others.
    readings: BTreeMap<ObjectKey, Reading>,
    requests: JoinSet<(ObjectKey, kube::Result<Option<Value>>)>,
    /// Objects that could not be read when it was last tried.
    failed: BTreeSet<ObjectKey>,
    read_log: ReadLog,
}

#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) key: ObjectKey,
    pub(super) answer: Answer,
}

#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    Found(Value),
    /// There is no such object.
    Absent,
    /// The API server will not give it; what is known stays.
    Refused,
}

/// An object that is wanted.
struct Reading {
    /// The version that was read last.
    read: Option<String>,
    /// The version that a watch brought while a request was under way.
    observed: Option<String>,
    request: Option<Request>,
    backoff: Backoff,
    /// There was an answer: no task has to wait for another.
    is_settled: bool,
}

/// Under way, or about to be. Cancelled when it is dropped; its answer may be there already.
struct Request(AbortHandle);

// === impl Fetcher ===

impl Fetcher {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            permits: Arc::new(Semaphore::new(CONCURRENCY)),
            readings: BTreeMap::new(),
            requests: JoinSet::new(),
            failed: BTreeSet::new(),
            read_log: ReadLog::with_reading(kinds()),
        }
    }

    /// These objects are wanted, too.
    pub(super) fn want(&mut self, keys: BTreeSet<ObjectKey>) {
        for key in keys {
            if !self.readings.contains_key(&key) {
                self.readings.insert(key.clone(), Reading::default());
                self.request(&key, Duration::ZERO);
            }
        }
    }

    /// The object is no longer wanted.
    pub(super) fn unwant(&mut self, key: &ObjectKey) {
        self.readings.remove(key);
        self.succeeded(key);
    }

    /// Objects that are wanted and are none of these.
    pub(super) fn others_than(&self, keys: &BTreeSet<ObjectKey>) -> BTreeSet<ObjectKey> {
        self.readings.keys().filter(|key| !keys.contains(key)).cloned().collect()
    }

    /// Objects of a kind that are wanted.
    pub(super) fn wanted(&self, kind: Kind) -> BTreeSet<ObjectName> {
        self.readings.keys().filter(|key| key.kind == kind).map(|key| key.name.clone()).collect()
    }

    /// A watch brought this version.
    pub(super) fn observe(&mut self, key: &ObjectKey, version: String) {
        let Some(reading) = self.readings.get_mut(key) else { return };
        if reading.request.is_some() {
            reading.observed = Some(version);
        } else if reading.read.as_ref() != Some(&version) {
            self.request(key, Duration::ZERO);
        }
    }

    /// Without a watch, everything that is wanted may be another by now.
    pub(super) fn ask_again(&mut self, is_unwatched: impl Fn(Kind) -> bool) {
        let unwatched = self.readings.iter().filter(|(key, _)| is_unwatched(key.kind));
        let idle = unwatched.filter(|(_, reading)| reading.request.is_none());
        for key in idle.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.request(&key, Duration::ZERO);
        }
    }

    /// It was seen to be gone by a watch.
    pub(super) fn gone(&mut self, key: &ObjectKey) {
        if let Some(reading) = self.readings.get_mut(key) {
            *reading = Reading { is_settled: true, ..Reading::default() };
            self.succeeded(key);
        }
    }

    /// Tells whether it is wanted, and known not to be there.
    pub(super) fn is_absent(&self, key: &ObjectKey) -> bool {
        let reading = self.readings.get(key);
        reading.is_some_and(|reading| reading.is_settled && reading.read.is_none())
            && !self.failed.contains(key)
    }

    /// Tells whether it is wanted, and there was no answer yet.
    pub(super) fn is_awaited(&self, key: &ObjectKey) -> bool {
        self.readings.get(key).is_some_and(|reading| !reading.is_settled)
    }

    /// Tells whether there was an answer for everything that is wanted.
    pub(super) fn is_settled(&self) -> bool {
        self.readings.values().all(|reading| reading.is_settled)
    }

    /// The next answer that counts. Cancel-safe.
    pub(super) async fn next(&mut self) -> Fetched {
        loop {
            match self.requests.join_next_with_id().await {
                Some(Ok((id, (key, answer)))) => {
                    if let Some(fetched) = self.accept(id, key, answer) {
                        return fetched;
                    }
                }
                Some(Err(_)) => {} // Cancelled.
                None => std::future::pending().await,
            }
        }
    }

    fn accept(&mut self, id: Id, key: ObjectKey, answer: kube::Result<Option<Value>>) -> Option<Fetched> {
        let reading = self.readings.get_mut(&key).filter(|reading| reading.waits_for(id))?;
        reading.request = None;
        let observed = reading.observed.take();
        let object = match answer {
            Ok(object) => object,
            Err(error) => return self.failed(key, &error),
        };
        let version = object.as_ref().map(version_of);
        if observed.is_some_and(|observed| is_outdated(version.as_deref(), &observed)) {
            self.request(&key, Duration::ZERO);
            return None;
        }
        *reading = Reading { read: version, is_settled: true, ..Reading::default() };
        self.succeeded(&key);
        Some(Fetched { key, answer: object.map_or(Answer::Absent, Answer::Found) })
    }

    /// A failed request is answered if the API server will not give the object; one that is away is
    /// waited for.
    fn failed(&mut self, key: ObjectKey, error: &kube::Error) -> Option<Fetched> {
        self.read_log.failed_at(&key, error);
        self.failed.insert(key.clone());
        let (reading, is_final) = (self.readings.get_mut(&key)?, is_final(error));
        let delay = if is_final { jittered(LATER) } else { reading.backoff.delay() };
        reading.is_settled |= is_final;
        self.request(&key, delay);
        is_final.then_some(Fetched { key, answer: Answer::Refused })
    }

    fn succeeded(&mut self, key: &ObjectKey) {
        if self.failed.remove(key) && self.failed.is_empty() {
            self.read_log.over();
        }
    }

    fn request(&mut self, key: &ObjectKey, delay: Duration) {
        if let Some(reading) = self.readings.get_mut(key) {
            let request = request(self.client.clone(), self.permits.clone(), key.clone(), delay);
            reading.request = Some(Request(self.requests.spawn(request)));
        }
    }
}

impl Default for Reading {
    fn default() -> Self {
        let backoff = Backoff::for_watches();
        Self { read: None, observed: None, request: None, backoff, is_settled: false }
    }
}

impl Reading {
    fn waits_for(&self, id: Id) -> bool {
        self.request.as_ref().is_some_and(|request| request.0.id() == id)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The kinds that are read one by one, for the log.
fn kinds() -> String {
    let kinds = Kind::ALL.iter().filter(|kind| kind.reading().is_one_by_one());
    kinds.map(|kind| kind.resource()).collect::<Vec<_>>().join(" and ")
}

/// No object is older than any.
fn is_outdated(version: Option<&str>, observed: &str) -> bool {
    version.is_none_or(|version| is_older(version, observed))
}

/// Tells whether the same request would most likely come to the same again.
fn is_final(error: &kube::Error) -> bool {
    use kube::Error::{Api, BuildRequest, FromUtf8, HttpError, SerdeError};
    match error {
        Api(status) => matches!(status.code, 400..500) && !matches!(status.code, 401 | 408 | 429),
        BuildRequest(_) | FromUtf8(_) | HttpError(_) | SerdeError(_) => true,
        _ => false,
    }
}

async fn request(
    client: Client,
    permits: Arc<Semaphore>,
    key: ObjectKey,
    delay: Duration,
) -> (ObjectKey, kube::Result<Option<Value>>) {
    tokio::time::sleep(delay).await;
    let _permit = permits.acquire().await;
    let resource = resource(key.kind);
    let api: Api<DynamicObject> = match key.kind.scope() {
        Scope::Namespaced => Api::namespaced_with(client, &key.name.namespace, &resource),
        Scope::Cluster => Api::all_with(client, &resource),
    };
    let answer = api.get_opt(&key.name.name).await;
    let manifest = answer.and_then(|object| object.map(|object| manifest(&object, key.kind)).transpose());
    (key, manifest)
}

fn manifest(object: &DynamicObject, kind: Kind) -> kube::Result<Value> {
    let mut manifest = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    manifest["apiVersion"] = kind.api_version().into();
    manifest["kind"] = kind.as_str().into();
    Ok(manifest)
}

/// In the preferred version: kinds that are read one by one are of the core group, which every API
/// server serves.
fn resource(kind: Kind) -> ApiResource {
    let version = kind.versions().first().copied().unwrap_or_default();
    let kind_of_version = GroupVersionKind::gvk(kind.group(), version, kind.as_str());
    ApiResource::from_gvk_with_plural(&kind_of_version, kind.resource())
}

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
