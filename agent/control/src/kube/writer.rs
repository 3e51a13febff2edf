//! Writes statuses while it leads: one request per object and change, from what was observed; after a conflict, from a
//! fresh read. A write that can never succeed (the API server finds it invalid) is said once and blocks nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use portcullis_gateway::{Kind, ObjectKey};
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use super::backoff::jittered;
use super::board::{Board, Job, Observed};
use super::served::served;
use super::{FIELD_MANAGER, code, problem};

/// Requests in flight at once.
const CONCURRENCY: usize = 8;
/// Attempts in a row when others write the same object.
const ATTEMPTS: u32 = 5;
const RETRY: Duration = Duration::from_secs(1);

pub struct StatusWriter {
    client: Client,
    board: Arc<Board>,
    leading: watch::Receiver<bool>,
    resources: Mutex<BTreeMap<Kind, ApiResource>>,
}

/// What became of a job.
enum Written {
    /// What is there is what was planned, or as near as the API server lets it.
    Settled,
    Gone,
    Later,
}

impl StatusWriter {
    /// Writes only while `leading` is true.
    pub fn new(client: Client, board: Arc<Board>, leading: watch::Receiver<bool>) -> Self {
        Self { client, board, leading, resources: Mutex::default() }
    }

    /// Writes until the future is dropped.
    pub async fn run(self) {
        let mut leading = self.leading.clone();
        let mut current = self.board.current();
        let writer = Arc::new(self);
        loop {
            if leading.wait_for(|leads| *leads).await.is_err() || current.wait_for(|is| *is).await.is_err() {
                return;
            }
            writer.board.review();
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
                job = self.board.next() => job,
                Some(_) = writes.join_next() => continue,
            };
            let writer = self.clone();
            writes.spawn(async move { writer.finish(job).await });
        }
    }

    async fn finish(&self, mut job: Job) {
        match self.write(&mut job).await {
            Written::Settled => self.board.settle(&job, true),
            Written::Gone => {
                self.board.forget(&job.key);
                self.board.settle(&job, false);
            }
            Written::Later => self.board.postpone(&job.key, jittered(RETRY)),
        }
    }

    async fn write(&self, job: &mut Job) -> Written {
        for attempt in 0..ATTEMPTS {
            let Some(patch) = job.patch(self.board.controller_name(), &now()) else {
                return Written::Settled;
            };
            match self.send(job, patch).await {
                Ok(true) => return Written::Settled,
                Ok(false) => return Written::Later,
                Err(error) => match code(&error) {
                    Some(404) => return Written::Gone,
                    Some(409) => {
                        tokio::time::sleep(jittered(Duration::from_millis(20) * attempt)).await;
                        let Some(fresh) = self.read_again(&job.key).await else { return Written::Later };
                        *job = fresh;
                    }
                    Some(400 | 422) => {
                        let error = problem(&error);
                        tracing::warn!(
                            error,
                            "{}: the API server refuses its status; the object is served as it is",
                            job.key
                        );
                        return Written::Settled;
                    }
                    _ => {
                        let error = problem(&error);
                        tracing::warn!(error, "{}: cannot write its status; tried again shortly", job.key);
                        return Written::Later;
                    }
                },
            }
        }
        Written::Later
    }

    /// `Ok(false)`: the kind is not served now.
    async fn send(&self, job: &mut Job, status: Value) -> kube::Result<bool> {
        let Some(api) = self.api(&job.key).await? else { return Ok(false) };
        let patch = json!({"metadata": {"resourceVersion": job.observed.version}, "status": status});
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let written = api.patch_status(&job.key.name.name, &parameters, &Patch::Merge(patch)).await?;
        tracing::debug!("{}: status written", job.key);
        job.observed = observed(&written);
        self.board.observe(&job.key, job.observed.clone());
        Ok(true)
    }

    /// After a conflict: what is there now, and what is planned now.
    async fn read_again(&self, key: &ObjectKey) -> Option<Job> {
        let fresh = self.api(key).await.ok()??.get(&key.name.name).await.ok()?;
        self.board.observe(key, observed(&fresh));
        self.board.again(key)
    }

    async fn api(&self, key: &ObjectKey) -> kube::Result<Option<Api<DynamicObject>>> {
        let mut resources = self.resources.lock().await;
        if !resources.contains_key(&key.kind)
            && let Some(found) = served(&self.client, key.kind).await?
        {
            resources.insert(key.kind, found);
        }
        let client = self.client.clone();
        Ok(resources.get(&key.kind).map(|resource| match &*key.name.namespace {
            "" => Api::all_with(client, resource),
            namespace => Api::namespaced_with(client, namespace, resource),
        }))
    }
}

fn observed(object: &DynamicObject) -> Observed {
    let status = object.data.get("status").map(ToString::to_string).unwrap_or_default();
    Observed { version: object.metadata.resource_version.clone().unwrap_or_default(), status: status.into() }
}

/// Like the API server, to the second.
pub(super) fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}
