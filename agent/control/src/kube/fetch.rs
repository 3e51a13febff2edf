//! Reads Secrets and ConfigMaps one by one: those that something refers to, when a watch tells that
//! their version moved. Of each, one request at most is under way, and an answer that is older than
//! what was heard meanwhile does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use portcullis_api::{Kind, ObjectKey};
use portcullis_model::ObjectName;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, Id, JoinSet};

use super::backoff::{Backoff, jittered};
use super::manifest::{is_older, version_of};
use super::read_log::ReadLog;

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
    /// The API server will not say; what is known stays.
    Refused,
}

/// An object that is wanted.
struct Reading {
    /// The version that was read last.
    read: Option<String>,
    /// The version that was heard of while a request was under way.
    heard: Option<String>,
    request: Option<Request>,
    backoff: Backoff,
    /// There was an answer: nobody needs to wait for another.
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
            read_log: ReadLog::with_reading("Secrets and ConfigMaps"),
        }
    }

    /// These objects are wanted, and no others. Returns those that no longer are.
    pub(super) fn want(&mut self, keys: BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        let readings = std::mem::take(&mut self.readings).into_iter();
        let (wanted, unwanted): (BTreeMap<_, _>, BTreeMap<_, _>) =
            readings.partition(|(key, _)| keys.contains(key));
        self.readings = wanted;
        for key in unwanted.keys() {
            self.succeeded(key);
        }
        for key in keys {
            if !self.readings.contains_key(&key) {
                self.readings.insert(key.clone(), Reading::default());
                self.request(&key, Duration::ZERO);
            }
        }
        unwanted.into_keys().collect()
    }

    /// Objects of a kind that are wanted.
    pub(super) fn wanted(&self, kind: Kind) -> BTreeSet<ObjectName> {
        self.readings.keys().filter(|key| key.kind == kind).map(|key| key.name.clone()).collect()
    }

    /// A watch told of this version.
    pub(super) fn heard(&mut self, key: &ObjectKey, version: String) {
        let Some(reading) = self.readings.get_mut(key) else { return };
        if reading.request.is_some() {
            reading.heard = Some(version);
        } else if reading.read.as_ref() != Some(&version) {
            self.request(key, Duration::ZERO);
        }
    }

    /// No watch tells: everything that is wanted may be another by now.
    pub(super) fn ask_again(&mut self) {
        let idle = self.readings.iter().filter(|(_, reading)| reading.request.is_none());
        for key in idle.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.request(&key, Duration::ZERO);
        }
    }

    /// A watch told that it is gone.
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
        let heard = reading.heard.take();
        let object = match answer {
            Ok(object) => object,
            Err(error) => return self.failed(key, &error),
        };
        let version = object.as_ref().map(version_of);
        if heard.is_some_and(|heard| is_outdated(version.as_deref(), &heard)) {
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
        Self { read: None, heard: None, request: None, backoff, is_settled: false }
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

/// No object is older than any.
fn is_outdated(version: Option<&str>, heard: &str) -> bool {
    version.is_none_or(|version| is_older(version, heard))
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
    let api: Api<DynamicObject> = Api::namespaced_with(client, &key.name.namespace, &resource(key.kind));
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

/// Kinds that are read one by one are of the core group, which every API server serves.
fn resource(kind: Kind) -> ApiResource {
    let kind_of_version = GroupVersionKind::gvk(kind.group(), "v1", kind.as_str());
    ApiResource::from_gvk_with_plural(&kind_of_version, kind.resource())
}

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
