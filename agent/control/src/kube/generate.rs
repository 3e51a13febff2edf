//! Makes what was generated for Gateways be there, while it leads: server-side apply of what [`infra::diff`] says, and
//! nothing it does not say.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use portcullis_gateway::infra::{self, Generated, GeneratedKind, Operation, Wanted};
use portcullis_model::ObjectName;
use tokio::sync::watch;
use tokio::time::Instant;

use super::backoff::{jittered, sleep_until};
use super::board::Board;
use super::dispute::{self, Dispute, NOTABLE};
use super::pods::{Access, unavailable};
use super::refusal::Refusal;
use super::trouble::Trouble;
use super::{FIELD_MANAGER, code, problem};

/// When somebody else's object is in the way, or the API server refused one, it is tried again this often.
const RETRY: Duration = Duration::from_secs(5);

/// Gateways that could not get their objects, and why.
type Refused = BTreeMap<ObjectName, Refusal>;

type Events = BoxStream<'static, (GeneratedKind, watcher::Result<Event<DynamicObject>>)>;

pub struct Generator {
    client: Client,
    board: Arc<Board>,
    leading: watch::Receiver<bool>,
    access: Access,
    /// Generated objects as they are.
    observed: BTreeMap<(GeneratedKind, ObjectName), Generated>,
    listed: BTreeSet<GeneratedKind>,
    troubles: BTreeMap<GeneratedKind, Trouble>,
    disputes: BTreeMap<(GeneratedKind, ObjectName), Dispute>,
    /// Gateways whose objects could not be changed, and why.
    failed: BTreeMap<ObjectName, String>,
    hasher: RandomState,
    refused: watch::Sender<Refused>,
}

impl Generator {
    /// Writes only while `leading` is true. `binding` is the ClusterRoleBinding by which pods of mode Dedicated may read.
    pub fn new(
        client: Client,
        board: Arc<Board>,
        leading: watch::Receiver<bool>,
        binding: Option<String>,
    ) -> Self {
        Self {
            access: Access::new(client.clone(), binding),
            client,
            board,
            leading,
            observed: BTreeMap::new(),
            listed: BTreeSet::new(),
            troubles: BTreeMap::new(),
            disputes: BTreeMap::new(),
            failed: BTreeMap::new(),
            hasher: RandomState::new(),
            refused: watch::Sender::default(),
        }
    }

    /// Gateways that could not get their objects, and why.
    pub fn refused(&self) -> watch::Receiver<BTreeMap<ObjectName, Refusal>> {
        self.refused.subscribe()
    }

    /// Works until the future is dropped.
    pub async fn run(mut self) {
        let mut events = futures::stream::select_all(self.kinds().iter().map(|kind| self.events(*kind)));
        let (mut wanted, mut current) = (self.board.generated(), self.board.current());
        let mut leading = self.leading.clone();
        loop {
            // Whatever becomes of pods, Gateways are served by the agents.
            let listed = self.listed.contains(&GeneratedKind::Service);
            let may_write = *leading.borrow_and_update() && *current.borrow_and_update() && listed;
            let all: Vec<Wanted> = wanted.borrow_and_update().values().cloned().collect();
            let again = if may_write { self.reconcile(&all).await } else { None };
            tokio::select! {
                event = events.next() => match event {
                    Some((kind, event)) => self.hear(kind, event),
                    None => return,
                },
                changed = wanted.changed() => if changed.is_err() { return },
                changed = leading.changed() => if changed.is_err() { return },
                changed = current.changed() => if changed.is_err() { return },
                () = sleep_until(again) => {}
            }
        }
    }

    /// Without mode Dedicated there are no rights on the others, either.
    fn kinds(&self) -> &'static [GeneratedKind] {
        if self.access.is_possible() { &GeneratedKind::ALL } else { &[GeneratedKind::Service] }
    }

    fn events(&self, kind: GeneratedKind) -> Events {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource(kind));
        let selector = format!("{}={}", infra::MANAGED_BY_LABEL, infra::MANAGER);
        let events = watcher::watcher(api, watcher::Config::default().labels(&selector)).default_backoff();
        tagged(kind, events).boxed()
    }

    fn hear(&mut self, kind: GeneratedKind, event: watcher::Result<Event<DynamicObject>>) {
        let trouble = self.troubles.entry(kind).or_insert_with(|| Trouble::new(watched(kind)));
        match event {
            Ok(event) => {
                trouble.over();
                self.observe(kind, event);
            }
            Err(error) => trouble.failed(&error),
        }
    }

    fn observe(&mut self, kind: GeneratedKind, event: Event<DynamicObject>) {
        match event {
            Event::Init => {
                self.observed.retain(|(other, _), _| *other != kind);
                self.listed.remove(&kind);
            }
            Event::InitDone => drop(self.listed.insert(kind)),
            Event::Apply(object) | Event::InitApply(object) => self.see(kind, &object),
            Event::Delete(object) => {
                let gone = read(kind, &object).map(|object| object.name());
                gone.and_then(|name| self.observed.remove(&(kind, name)));
            }
        }
    }

    fn see(&mut self, kind: GeneratedKind, object: &DynamicObject) {
        if let Some(object) = read(kind, object) {
            self.observed.insert((kind, object.name()), object);
        }
    }

    /// Returns when to try again what could not be had.
    async fn reconcile(&mut self, wanted: &[Wanted]) -> Option<Instant> {
        let (mut refused, mut failed, mut waiting) = (BTreeMap::new(), BTreeMap::new(), None);
        let mut all_done = self.access.grant(wanted).await;
        for operation in infra::diff(wanted, self.observed.values(), self.board.controller_name()) {
            if let Some(until) = self.waits(&operation) {
                waiting = [waiting, Some(until)].into_iter().flatten().min();
                continue;
            }
            let gateway = gateway_of(&operation);
            match self.execute(operation, wanted).await {
                Ok(None) => {}
                Ok(Some(refusal)) => drop(refused.insert(gateway, refusal)),
                Err(error) => drop(failed.insert(gateway, problem(&error))),
            }
        }
        all_done &= refused.is_empty() && failed.is_empty();
        self.complain(failed);
        self.report(self.with_unavailable(refused, wanted));
        let retry = (!all_done).then(|| Instant::now() + jittered(RETRY));
        [waiting, retry].into_iter().flatten().min()
    }

    /// Once of each Gateway, until something else is wrong.
    fn complain(&mut self, failed: BTreeMap<ObjectName, String>) {
        for (gateway, problem) in
            failed.iter().filter(|(gateway, problem)| self.failed.get(*gateway) != Some(*problem))
        {
            tracing::warn!(
                "Gateway {gateway}: cannot change what is generated for it: {problem}; tried again every {} s",
                RETRY.as_secs()
            );
        }
        self.failed = failed;
    }

    /// Until when an object has to wait, because somebody else keeps undoing what is applied.
    fn waits(&self, operation: &Operation) -> Option<Instant> {
        let Operation::Apply(object) = operation else { return None };
        let dispute = self.disputes.get(&(object.kind, object.name()))?;
        dispute.not_before(|| self.hash(object)).filter(|until| *until > Instant::now())
    }

    fn hash(&self, object: &Generated) -> u64 {
        self.hasher.hash_one(object.manifest.to_string())
    }

    fn with_unavailable(&self, mut refused: Refused, wanted: &[Wanted]) -> Refused {
        for wanted in wanted {
            if let Some(refusal) = self.unavailable(wanted) {
                refused.entry(wanted.gateway.clone()).or_insert(refusal);
            }
        }
        refused
    }

    fn unavailable(&self, wanted: &Wanted) -> Option<Refusal> {
        let deployment = wanted.object(GeneratedKind::Deployment)?;
        unavailable(deployment, self.observed.get(&(deployment.kind, deployment.name())))
    }

    fn report(&self, refused: Refused) {
        for (gateway, refusal) in &refused {
            if self.refused.borrow().get(gateway) != Some(refusal) {
                tracing::warn!("Gateway {gateway}: {}", refusal.message);
            }
        }
        self.board.refuse(refused.clone());
        self.refused.send_if_modified(|before| std::mem::replace(before, refused.clone()) != refused);
    }

    /// `Some`: why it cannot be.
    async fn execute(&mut self, operation: Operation, wanted: &[Wanted]) -> kube::Result<Option<Refusal>> {
        match operation {
            Operation::Apply(object) => self.apply(&object, wanted).await,
            Operation::Replace { object, uid } => self.replace(&object, uid).await,
            Operation::Delete { kind, name, uid } => {
                self.delete(kind, &name, uid).await?;
                tracing::info!("{kind} {name}: deleted, no Gateway wants it any more");
                self.observed.remove(&(kind, name));
                Ok(None)
            }
            Operation::Refuse { message, .. } => Ok(Some(Refusal::name_taken(message))),
        }
    }

    /// An object that is not known to be generated may still be there: it is looked at before it is written.
    async fn apply(&mut self, object: &Generated, wanted: &[Wanted]) -> kube::Result<Option<Refusal>> {
        let name = object.name();
        let api = api(&self.client, object.kind, &name);
        if !self.observed.contains_key(&(object.kind, name.clone()))
            && let Some(there) = api.get_opt(&name.name).await?
            && let Some(there) = read(object.kind, &there)
            && let Some(message) = self.refusal(&there, wanted)
        {
            return Ok(Some(Refusal::name_taken(message)));
        }
        let others = self.others(object, &api).await;
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match api.patch(&name.name, &parameters, &Patch::Apply(&object.manifest)).await {
            Ok(applied) => {
                tracing::info!("{object}: applied");
                self.note(object, &others);
                self.see(object.kind, &applied);
                Ok(None)
            }
            Err(error) => refused(object, error),
        }
    }

    /// Who else writes it, when that is about to be said. Applying hides it.
    async fn others(&self, object: &Generated, api: &Api<DynamicObject>) -> BTreeSet<String> {
        let name = object.name();
        let dispute = self.disputes.get(&(object.kind, name.clone()));
        if !dispute.is_some_and(Dispute::becomes_notable) {
            return BTreeSet::new();
        }
        let there = api.get_metadata(&name.name).await.ok();
        dispute::others(there.and_then(|there| there.metadata.managed_fields).as_deref(), None)
    }

    fn note(&mut self, object: &Generated, others: &BTreeSet<String>) {
        let (key, plan) = ((object.kind, object.name()), self.hash(object));
        self.disputes.retain(|_, dispute| !dispute.is_over());
        if self.disputes.entry(key).or_default().written(plan) == NOTABLE {
            dispute::complain(object, others);
        }
    }

    /// Applied as soon as the old one is seen to be gone. A trial comes first: what cannot be had must not cost what is.
    async fn replace(&self, object: &Generated, uid: String) -> kube::Result<Option<Refusal>> {
        let name = object.name();
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        match api(&self.client, object.kind, &name).create(&parameters, &trial(object)?).await {
            Ok(_) => {}
            Err(error) => return refused(object, error),
        }
        self.delete(object.kind, &name, uid).await?;
        tracing::info!("{object}: deleted, to be made again with another address");
        Ok(None)
    }

    /// Why an object may not be written over.
    fn refusal(&self, there: &Generated, wanted: &[Wanted]) -> Option<String> {
        let operations = infra::diff(wanted, [there], self.board.controller_name());
        operations.into_iter().find_map(|operation| match operation {
            Operation::Refuse { message, .. } => Some(message),
            Operation::Apply(_) | Operation::Replace { .. } | Operation::Delete { .. } => None,
        })
    }

    /// Only the very object that was looked at.
    async fn delete(&self, kind: GeneratedKind, name: &ObjectName, uid: String) -> kube::Result<()> {
        let preconditions = Preconditions { uid: Some(uid), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match api(&self.client, kind, name).delete(&name.name, &parameters).await {
            Err(error) if !matches!(code(&error), Some(404 | 409)) => Err(error),
            _ => Ok(()),
        }
    }
}

/// What the API server will not have is the Gateway's problem; everything else is tried again.
fn refused(object: &Generated, error: kube::Error) -> kube::Result<Option<Refusal>> {
    match code(&error) {
        Some(400 | 403 | 422) => {
            let message = format!("the API server refuses {object}: {}", problem(&error));
            Ok(Some(if object.asks_for_address() {
                Refusal::not_usable(message)
            } else {
                Refusal::invalid(message)
            }))
        }
        _ => Err(error),
    }
}

/// The same under a name that nobody has.
fn trial(object: &Generated) -> kube::Result<DynamicObject> {
    let mut trial: DynamicObject =
        serde_json::from_value(object.manifest.clone()).map_err(kube::Error::SerdeError)?;
    trial.metadata.name = None;
    trial.metadata.generate_name = Some("trial-".to_owned());
    Ok(trial)
}

fn watched(kind: GeneratedKind) -> &'static str {
    match kind {
        GeneratedKind::ServiceAccount => "generated ServiceAccounts",
        GeneratedKind::Deployment => "generated Deployments",
        GeneratedKind::Service => "generated Services",
    }
}

/// All three are Kubernetes' own and served by every API server.
pub(super) fn resource(kind: GeneratedKind) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group(), "v1", kind.as_str()))
}

fn api(client: &Client, kind: GeneratedKind, name: &ObjectName) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &name.namespace, &resource(kind))
}

pub(super) fn read(kind: GeneratedKind, object: &DynamicObject) -> Option<Generated> {
    Generated::read(kind, serde_json::to_value(object).ok()?)
}

fn tagged<T>(kind: GeneratedKind, events: impl Stream<Item = T>) -> impl Stream<Item = (GeneratedKind, T)> {
    events.map(move |event| (kind, event))
}

/// Whom an operation is for, or else what it concerns.
fn gateway_of(operation: &Operation) -> ObjectName {
    match operation {
        Operation::Apply(object) | Operation::Replace { object, .. } => {
            object.gateway().unwrap_or_else(|| object.name())
        }
        Operation::Delete { name, .. } => name.clone(),
        Operation::Refuse { gateway, .. } => gateway.clone(),
    }
}
