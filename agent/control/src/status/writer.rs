//! Writes statuses while it leads: one request per object and change, from what was observed; after
//! a conflict, from a fresh read. A write that can never succeed (the API server finds it invalid)
//! is logged once and blocks nothing; one that others undo is put back, but not in a race.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use portcullis_api::{Kind, ObjectKey};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::queue::{Job, Observed, StatusQueue};
use super::times;
use super::write_log::WriteLog;
use crate::kube::backoff::jittered;
use crate::kube::discovery::served;
use crate::kube::reverts;
use crate::kube::{FIELD_MANAGER, code, is_unanswered, problem};

/// Requests in flight at once.
const CONCURRENCY: usize = 8;
/// Attempts in a row when others write the same object.
const ATTEMPTS: u32 = 5;
const CONFLICT_PAUSE: Duration = Duration::from_millis(20);

pub struct StatusWriter {
    client: Client,
    queue: Arc<StatusQueue>,
    leading: watch::Receiver<bool>,
    /// As they were served when last looked at.
    resources: Mutex<BTreeMap<Kind, ApiResource>>,
    log: WriteLog,
}

/// The result of a job.
enum Written {
    Yes,
    /// The status is as planned, or as near to it as the API server lets it be.
    NotNeeded,
    /// There is no such object any more.
    Gone,
    Unanswered,
    /// The API server answered, but did not write; another time it may.
    Refused,
}

impl StatusWriter {
    /// Writes only while `leading` is true.
    pub fn new(client: Client, queue: Arc<StatusQueue>, leading: watch::Receiver<bool>) -> Self {
        Self { client, queue, leading, resources: Mutex::default(), log: WriteLog::default() }
    }

    /// Writes until the future is dropped.
    pub async fn run(self) {
        let mut leading = self.leading.clone();
        let mut current = self.queue.current();
        let writer = Arc::new(self);
        loop {
            if leading.wait_for(|leads| *leads).await.is_err() || current.wait_for(|is| *is).await.is_err() {
                return;
            }
            writer.queue.review();
            tokio::select! {
                () = writer.clone().write_on() => {}
                _ = leading.wait_for(|leads| !*leads) => {}
            }
        }
    }

    /// Dropping it drops the requests in flight: a follower writes nothing.
    async fn write_on(self: Arc<Self>) {
        let mut writes = JoinSet::new();
        loop {
            while writes.len() >= CONCURRENCY {
                writes.join_next().await;
            }
            let job = tokio::select! {
                job = self.queue.next() => job,
                Some(_) = writes.join_next() => continue,
            };
            let writer = self.clone();
            writes.spawn(async move { writer.finish(job).await });
        }
    }

    async fn finish(&self, mut job: Job) {
        // A write hides who wrote before.
        let others = if job.becomes_notable { self.others(&job.key).await } else { BTreeSet::new() };
        match self.write(&mut job).await {
            Written::Yes => self.log.wrote(&job.key, self.queue.wrote(&job), &others),
            Written::NotNeeded => self.queue.settle(&job),
            Written::Gone => self.queue.gone(&job),
            Written::Unanswered => self.queue.unanswered(&job.key),
            Written::Refused => self.queue.refused_write(&job.key),
        }
    }

    /// Other field managers of its status, as the API server keeps account of it.
    async fn others(&self, key: &ObjectKey) -> BTreeSet<String> {
        let object = self.read(key).await;
        let entries = object.as_ref().and_then(|object| object.metadata.managed_fields.as_deref());
        reverts::others(entries, Some("status"))
    }

    async fn write(&self, job: &mut Job) -> Written {
        for attempt in 0..ATTEMPTS {
            let Some(patch) = job.patch(self.queue.controller_name(), &times::now()) else {
                return Written::NotNeeded;
            };
            match self.send(job, patch).await {
                Ok(written) => return written,
                Err(error) if code(&error) == Some(409) => {
                    tokio::time::sleep(jittered(CONFLICT_PAUSE * attempt)).await;
                    let Some(fresh) = self.read_again(&job.key).await else { return Written::Unanswered };
                    *job = fresh;
                }
                Err(error) => return self.failed(&job.key, &error),
            }
        }
        Written::Refused
    }

    fn failed(&self, key: &ObjectKey, error: &kube::Error) -> Written {
        match code(error) {
            Some(404) if names_an_object(error) => Written::Gone,
            // The kind is not served in this version any more.
            Some(404) => {
                self.resources().remove(&key.kind);
                Written::Refused
            }
            Some(400 | 422) => {
                self.log.invalid(key, problem(error));
                Written::NotNeeded
            }
            code => {
                if !is_unanswered(error) {
                    self.log.cannot_write(key, code, &problem(error));
                }
                code.map_or(Written::Unanswered, |_| Written::Refused)
            }
        }
    }

    async fn send(&self, job: &mut Job, status: Value) -> kube::Result<Written> {
        // A kind that is not served now may be a moment later.
        let Some(api) = self.api(&job.key).await? else { return Ok(Written::Refused) };
        let patch = json!({"metadata": {"resourceVersion": job.observed.version}, "status": status});
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let written = api.patch_status(&job.key.name.name, &parameters, &Patch::Merge(patch)).await?;
        let before = std::mem::replace(&mut job.observed, observed(&written));
        self.queue.observe(&job.key, job.observed.clone());
        if before.version == job.observed.version {
            // The API server left out what the CRD does not have, and nothing was left.
            return Ok(Written::NotNeeded);
        }
        tracing::debug!("{}: status written", job.key);
        Ok(Written::Yes)
    }

    /// After a conflict: what is there now, and what is planned now.
    async fn read_again(&self, key: &ObjectKey) -> Option<Job> {
        let fresh = self.read(key).await?;
        self.queue.observe(key, observed(&fresh));
        self.queue.again(key)
    }

    async fn read(&self, key: &ObjectKey) -> Option<DynamicObject> {
        self.api(key).await.ok()??.get(&key.name.name).await.ok()
    }

    async fn api(&self, key: &ObjectKey) -> kube::Result<Option<Api<DynamicObject>>> {
        let Some(resource) = self.resource(key.kind).await? else { return Ok(None) };
        let client = self.client.clone();
        Ok(Some(match &*key.name.namespace {
            "" => Api::all_with(client, &resource),
            namespace => Api::namespaced_with(client, namespace, &resource),
        }))
    }

    /// Several may ask at once: none waits for another kind's answer.
    async fn resource(&self, kind: Kind) -> kube::Result<Option<ApiResource>> {
        if let Some(known) = self.resources().get(&kind) {
            return Ok(Some(known.clone()));
        }
        let found = served(&self.client, kind).await?;
        self.resources().extend(found.clone().map(|found| (kind, found)));
        Ok(found)
    }

    fn resources(&self) -> MutexGuard<'_, BTreeMap<Kind, ApiResource>> {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells whether the API server knows the kind and has no such object, rather than no such kind.
fn names_an_object(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

fn observed(object: &DynamicObject) -> Observed {
    Observed::new(object.metadata.resource_version.clone().unwrap_or_default(), &object.data)
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
