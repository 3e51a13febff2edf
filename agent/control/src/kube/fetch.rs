//! Reads Secrets and ConfigMaps one by one, when something refers to them and when their version moves.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use kube::Client;
use kube::api::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use portcullis_gateway::{Kind, ObjectKey};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::backoff::Backoff;
use super::watch::Trouble;

/// Requests in flight at once.
const CONCURRENCY: usize = 16;

pub(super) struct Fetcher {
    client: Client,
    permits: Arc<Semaphore>,
    /// The version that was read last.
    read: BTreeMap<ObjectKey, String>,
}

#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) key: ObjectKey,
    /// `None`: there is no such object.
    pub(super) manifest: Option<Value>,
}

impl Fetcher {
    pub(super) fn new(client: Client) -> Self {
        Self { client, permits: Arc::new(Semaphore::new(CONCURRENCY)), read: BTreeMap::new() }
    }

    /// The request for an object, unless this version of it was read already. It does not end before it has an answer.
    pub(super) fn fetch(
        &self,
        key: ObjectKey,
        version: &str,
    ) -> Option<impl Future<Output = Fetched> + Send + 'static> {
        if self.read.get(&key).is_some_and(|read| !version.is_empty() && read == version) {
            return None;
        }
        Some(fetch(self.client.clone(), self.permits.clone(), key))
    }

    pub(super) fn read(&mut self, key: &ObjectKey, version: &str) {
        self.read.insert(key.clone(), version.to_owned());
    }

    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.read.remove(key);
    }
}

async fn fetch(client: Client, permits: Arc<Semaphore>, key: ObjectKey) -> Fetched {
    let resource = resource(key.kind);
    let api: Api<DynamicObject> = Api::namespaced_with(client, &key.name.namespace, &resource);
    let (mut backoff, mut trouble) = (Backoff::for_watches(), Trouble::new(key.kind.as_str()));
    loop {
        let permit = permits.acquire().await;
        let answer = api.get_opt(&key.name.name).await;
        drop(permit);
        match answer {
            Ok(object) => {
                let manifest = object.and_then(|object| serde_json::to_value(object).ok());
                let manifest = manifest.map(|manifest| complete(manifest, key.kind));
                return Fetched { key, manifest };
            }
            Err(error) => {
                trouble.failed(&error);
                backoff.wait().await;
            }
        }
    }
}

fn complete(mut manifest: Value, kind: Kind) -> Value {
    manifest["apiVersion"] = kind.api_version().into();
    manifest["kind"] = kind.as_str().into();
    manifest
}

/// Both kinds are the core group's, which every API server serves.
fn resource(kind: Kind) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group(), "v1", kind.as_str()))
}
