//! Requests to the API server about generated objects, each with a deadline.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use portcullis_gateway::infra::{Generated, GeneratedKind};
use portcullis_model::ObjectName;
use tokio::time::timeout;

use crate::kube::delete::delete;
use crate::kube::{FIELD_MANAGER, reverts};

/// Admission webhooks have 10 s by default.
pub(super) const ANSWER: Duration = Duration::from_secs(15);

pub(super) struct Requests {
    client: Client,
}

impl Requests {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(super) async fn get(
        &self,
        kind: GeneratedKind,
        name: &ObjectName,
    ) -> kube::Result<Option<Generated>> {
        let there = answered(self.api(kind, name).get_opt(&name.name)).await?;
        Ok(there.and_then(|there| read(kind, &there)))
    }

    /// Returns what is there then.
    pub(super) async fn apply(&self, object: &Generated) -> kube::Result<Option<Generated>> {
        let (name, patch) = (object.name(), Patch::Apply(&object.manifest));
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let api = self.api(object.kind, &name);
        let applied = answered(api.patch(&name.name, &parameters, &patch)).await?;
        Ok(read(object.kind, &applied))
    }

    /// Tells whether the API server would make it: asked for under a name that no object has, and
    /// not made.
    pub(super) async fn try_out(&self, object: &Generated) -> kube::Result<()> {
        let mut trial: DynamicObject =
            serde_json::from_value(object.manifest.clone()).map_err(kube::Error::SerdeError)?;
        trial.metadata.name = None;
        trial.metadata.generate_name = Some("trial-".to_owned());
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        answered(self.api(object.kind, &object.name()).create(&parameters, &trial)).await.map(drop)
    }

    /// Returns whether it was deleted.
    pub(super) async fn delete(
        &self,
        kind: GeneratedKind,
        name: &ObjectName,
        seen: Preconditions,
    ) -> kube::Result<bool> {
        answered(delete(&self.api(kind, name), &name.name, seen)).await
    }

    /// Other field managers of an object.
    pub(super) async fn others(&self, object: &Generated) -> BTreeSet<String> {
        let name = object.name();
        let there = answered(self.api(object.kind, &name).get_metadata(&name.name)).await.ok();
        reverts::others(there.and_then(|there| there.metadata.managed_fields).as_deref(), None)
    }

    fn api(&self, kind: GeneratedKind, name: &ObjectName) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &name.namespace, &resource(kind))
    }
}

async fn answered<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    timeout(ANSWER, request).await.unwrap_or_else(|_| {
        let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in time");
        Err(kube::Error::Service(Box::new(late)))
    })
}

/// All are Kubernetes' own and served by every API server.
pub(crate) fn resource(kind: GeneratedKind) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group(), "v1", kind.as_str()))
}

pub(crate) fn read(kind: GeneratedKind, object: &DynamicObject) -> Option<Generated> {
    Generated::read(kind, serde_json::to_value(object).ok()?)
}
