//! Carries out the plan for the Mesh resource (GEP-3949), and asks for the next whenever the
//! resource, its parameters, the number of agents or the leader changes. Without the CRD, or with a
//! resource that is another's, it does nothing but warn.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt};
use portcullis_api::types::shared::ClassStatus;
use portcullis_api::types::xmeshes::XMesh;
use portcullis_gateway::mesh::{self, Instance, MeshParameters, MeshSettings, MeshStep};
use portcullis_log::LastLogged;
use portcullis_model::ObjectName;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::kube::backoff::{Backoff, jittered, sleep_until, spaced};
use crate::kube::discovery::resource;
use crate::kube::listing::Listed;
use crate::kube::read_log::ReadLog;
use crate::kube::reverts::{self, NOTABLE, Reverts};
use crate::kube::{FIELD_MANAGER, code, problem, watch_code, wording};
use crate::status::times;

const GROUP: &str = "gateway.networking.x-k8s.io";
const VERSION: &str = "v1alpha1";
/// Interval at which to count the agents, to ask whether the CRD is there by now, and to try again
/// what failed.
const RECHECK: Duration = Duration::from_secs(5);

pub struct Mesh {
    client: Client,
    settings: MeshSettings,
    instance: Instance,
    /// The label selector of the agents' pods in the instance's namespace; empty: they are not
    /// counted.
    agents: String,
    leading: watch::Receiver<bool>,
    state: watch::Sender<MeshState>,
    /// Of resources of other names, the versions that a status was written to.
    answered: BTreeMap<String, Option<String>>,
    /// The reason why one could not be written.
    unanswered: LastLogged,
    reverts: BTreeMap<String, Reverts>,
    hasher: RandomState,
}

/// For metrics and the admin endpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeshState {
    pub parameters: MeshParameters,
    /// The reason why there is no Mesh resource of ours.
    pub warning: Option<String>,
}

/// The resources, and the parameters of the one of the expected name.
struct Observed {
    expected: String,
    meshes: Listed<String, XMesh>,
    parameters: Option<Parameters>,
    read_log: ReadLog,
}

/// The ConfigMap that the resource refers to.
struct Parameters {
    name: ObjectName,
    config_maps: Listed<String, ConfigMap>,
}

impl Mesh {
    /// Writes only while `leading` is true. `instance.agents` is counted by label selector if
    /// `agents` is not empty.
    pub fn new(
        client: Client,
        settings: MeshSettings,
        instance: Instance,
        agents: &str,
        leading: watch::Receiver<bool>,
    ) -> Self {
        let state = watch::Sender::default();
        Self {
            client,
            settings,
            instance,
            agents: agents.to_owned(),
            leading,
            state,
            answered: BTreeMap::new(),
            unanswered: LastLogged::default(),
            reverts: BTreeMap::new(),
            hasher: RandomState::new(),
        }
    }

    pub fn state(&self) -> watch::Receiver<MeshState> {
        self.state.subscribe()
    }

    /// Works until the future is dropped.
    pub async fn run(mut self) {
        let mut backoff = Backoff::for_watches();
        loop {
            match resource(&self.client, GROUP, VERSION, "XMesh").await {
                Ok(Some(_)) => {
                    backoff.reset();
                    self.follow().await;
                }
                Ok(None) => {
                    self.warn("the API server does not serve XMesh (gateway.networking.x-k8s.io): features are not published".to_owned());
                    tokio::time::sleep(jittered(RECHECK)).await;
                }
                Err(_) => backoff.wait().await,
            }
        }
    }

    /// Until the kind is not served any more.
    async fn follow(&mut self) {
        let mut meshes = events(Api::all(self.client.clone()), watcher::Config::default());
        let mut parameters: BoxStream<'_, _> = futures::stream::pending().boxed();
        let mut observed = Observed::new(&self.settings.name);
        let mut leading = self.leading.clone();
        // First, because a status that lacks the number would soon be replaced by one that has it.
        self.count_agents().await;
        loop {
            if let Some(name) = observed.follow_parameters() {
                let api = Api::namespaced(self.client.clone(), &name.namespace);
                parameters =
                    events(api, watcher::Config::default().fields(&format!("metadata.name={}", name.name)));
            }
            let again = self.step(&observed).await;
            tokio::select! {
                event = meshes.next() => match event {
                    Some(Err(error)) if watch_code(&error) == Some(404) => return,
                    Some(event) => observed.receive(event),
                    None => return,
                },
                event = parameters.next() => match event {
                    Some(Ok(event)) => observed.take_parameters(event),
                    Some(Err(error)) => if let Some(Parameters { name, .. }) = &observed.parameters {
                        let (mesh, problem) = (&self.settings.name, problem(&error));
                        self.warn(format!("cannot read ConfigMap {name}, which XMesh {mesh} refers to: {problem}"));
                    }
                    None => return,
                },
                changed = leading.changed() => match changed {
                    Ok(()) => self.count_agents().await,
                    Err(_) => return,
                },
                () = sleep_until(again) => {}
                () = tokio::time::sleep(jittered(RECHECK)) => self.count_agents().await,
            }
        }
    }

    /// Returns when to look again, if nothing else happens until then.
    async fn step(&mut self, observed: &Observed) -> Option<Instant> {
        if !observed.is_complete() {
            return None;
        }
        self.reverts.retain(|name, _| observed.meshes.objects().contains_key(name));
        let again = self.answer_unexpected(observed).await;
        let plan =
            mesh::plan(observed.mesh(), |name| observed.config_map(name), &self.instance, &self.settings);
        self.state.send_if_modified(|state| {
            std::mem::replace(&mut state.parameters, plan.parameters.clone()) != plan.parameters
        });
        let leads = *self.leading.borrow();
        match plan.step {
            MeshStep::Warn(message) => self.warn(message),
            MeshStep::Create(mesh) if leads => self.create(&mesh).await,
            MeshStep::WriteStatus(status) if leads => {
                return [again, self.claim(observed, &status).await].into_iter().flatten().min();
            }
            MeshStep::Nothing => self.well(),
            MeshStep::Create(_) | MeshStep::WriteStatus(_) => {}
        }
        again
    }

    async fn create(&self, mesh: &XMesh) {
        let api: Api<XMesh> = Api::all(self.client.clone());
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        match api.create(&parameters, mesh).await {
            Ok(_) => tracing::info!("XMesh {}: created", self.settings.name),
            // Another client was faster; the watch brings what it made.
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => {
                self.warn(format!("cannot create XMesh {}: {}", self.settings.name, problem(&error)))
            }
        }
    }

    /// Returns when it may be done, if that is not now.
    async fn claim(&mut self, observed: &Observed, status: &ClassStatus) -> Option<Instant> {
        let (mesh, name) = (observed.mesh()?, self.settings.name.clone());
        let waits = self.waits(&name, status);
        if waits.is_none() {
            match self.write(&name, mesh, status).await {
                Ok(()) => self.well(),
                Err(problem) => self.warn(problem),
            }
        }
        waits
    }

    /// The time until which this status has to wait, because another client keeps undoing it.
    fn waits(&self, name: &str, status: &ClassStatus) -> Option<Instant> {
        let not_before = self.reverts.get(name)?.not_before(|| self.hash(status));
        not_before.filter(|until| *until > Instant::now())
    }

    fn hash(&self, status: &ClassStatus) -> u64 {
        self.hasher.hash_one(serde_json::to_string(status).unwrap_or_default())
    }

    /// Once for each version of a resource: another that finds the name to be its own may answer,
    /// too. Returns when to come back to one that has to wait, or could not be answered.
    async fn answer_unexpected(&mut self, observed: &Observed) -> Option<Instant> {
        self.answered.retain(|name, _| observed.meshes.objects().contains_key(name));
        if !*self.leading.borrow() {
            return None;
        }
        let mut again = None;
        for (name, mesh) in observed.unexpected() {
            let Some(status) = mesh::plan_unexpected(mesh, &self.instance, &self.settings) else { continue };
            let version = &mesh.metadata.resource_version;
            if self.answered.get(name) == Some(version) {
                continue;
            }
            let until = match self.waits(name, &status) {
                None => self.answer(name, mesh, &status).await,
                waits => waits,
            };
            again = [again, until].into_iter().flatten().min();
        }
        again
    }

    /// Returns when to try again.
    async fn answer(&mut self, name: &str, mesh: &XMesh, status: &ClassStatus) -> Option<Instant> {
        match self.write(name, mesh, status).await {
            Ok(()) => {
                tracing::info!("mesh: XMesh {name} is not used: XMesh {} is", self.settings.name);
                self.unanswered.clear(&());
                self.answered.insert(name.to_owned(), mesh.metadata.resource_version.clone());
                None
            }
            Err(problem) => {
                if self.unanswered.update((), Some(wording(&problem))).is_some() {
                    tracing::warn!("mesh: {problem}");
                }
                Some(Instant::now() + jittered(RECHECK))
            }
        }
    }

    async fn write(&mut self, name: &str, mesh: &XMesh, status: &ClassStatus) -> Result<(), String> {
        let plan = self.hash(status);
        let before = mesh.status.as_ref().and_then(|status| serde_json::to_value(status).ok());
        let mut status = serde_json::to_value(status).unwrap_or_default();
        times::carry(&mut status, before.as_ref(), &times::now());
        let api: Api<XMesh> = Api::all(self.client.clone());
        let version = mesh.metadata.resource_version.clone();
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch_status(name, &parameters, &Patch::Merge(patch)).await {
            Ok(_) => {
                self.note(name, mesh, plan);
                Ok(())
            }
            // Something newer is on its way, or the resource is gone: the watch brings it.
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(format!("cannot write the status of XMesh {name}: {}", problem(&error))),
        }
    }

    fn note(&mut self, name: &str, before: &XMesh, plan: u64) {
        if self.reverts.entry(name.to_owned()).or_default().written(plan) == NOTABLE {
            let others = reverts::others(before.metadata.managed_fields.as_deref(), Some("status"));
            reverts::log(&format_args!("XMesh {name}"), &others);
        }
    }

    async fn count_agents(&mut self) {
        if self.agents.is_empty() || !*self.leading.borrow() {
            return;
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.instance.namespace);
        let running = ListParams::default().labels(&self.agents).fields("status.phase=Running");
        if let Ok(pods) = pods.list_metadata(&running).await {
            self.instance.agents = Some(pods.items.len());
        }
    }

    fn warn(&self, message: String) {
        self.state.send_if_modified(|state| {
            let is_new = state.warning.as_ref() != Some(&message);
            if is_new {
                tracing::warn!("mesh: {message}");
                state.warning = Some(message);
            }
            is_new
        });
    }

    fn well(&self) {
        self.state.send_if_modified(|state| state.warning.take().is_some());
    }
}

// === impl Observed ===

impl Observed {
    fn new(expected: &str) -> Self {
        Self {
            expected: expected.to_owned(),
            meshes: Listed::default(),
            parameters: None,
            read_log: ReadLog::new("XMesh"),
        }
    }

    fn receive(&mut self, event: watcher::Result<Event<XMesh>>) {
        match event {
            Ok(event) => self.take(event),
            Err(error) => self.read_log.failed(&error),
        }
    }

    fn take(&mut self, event: Event<XMesh>) {
        if matches!(event, Event::InitDone) {
            self.read_log.over();
        }
        self.meshes.receive(event, |mesh| Some((mesh.name_any(), mesh)));
    }

    /// The one of the expected name.
    fn mesh(&self) -> Option<&XMesh> {
        self.meshes.objects().get(&self.expected)
    }

    fn unexpected(&self) -> impl Iterator<Item = (&String, &XMesh)> {
        self.meshes.objects().iter().filter(|(name, _)| **name != self.expected)
    }

    fn take_parameters(&mut self, event: Event<ConfigMap>) {
        if let Some(parameters) = &mut self.parameters {
            parameters.config_maps.receive(event, |config_map| Some((config_map.name_any(), config_map)));
        }
    }

    /// The ConfigMap to watch, if it is another than before.
    fn follow_parameters(&mut self) -> Option<ObjectName> {
        let name = self.mesh().and_then(mesh::parameters_of);
        if name.as_ref() == self.parameters.as_ref().map(|parameters| &parameters.name) {
            return None;
        }
        self.parameters = name.clone().map(|name| Parameters { name, config_maps: Listed::default() });
        name
    }

    /// Nothing is planned from half of it.
    fn is_complete(&self) -> bool {
        self.meshes.is_read()
            && self.parameters.as_ref().is_none_or(|parameters| parameters.config_maps.is_read())
    }

    fn config_map(&self, name: &ObjectName) -> Option<&ConfigMap> {
        let parameters = self.parameters.as_ref().filter(|parameters| parameters.name == *name)?;
        parameters.config_maps.objects().get(&*name.name)
    }
}

fn events<K>(api: Api<K>, config: watcher::Config) -> BoxStream<'static, watcher::Result<Event<K>>>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    spaced(watcher::watcher(api, config)).boxed()
}

#[cfg(test)]
#[path = "mesh_tests.rs"]
mod tests;
