//! Makes what was generated for Gateways be there, while it leads: server-side apply of what
//! [`infra::diff`] plans, and nothing else.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, Preconditions};
use portcullis_gateway::infra::{self, Agents, DesiredObjects, Generated, GeneratedKind, Operation};
use portcullis_gateway::{Fault, Reason};
use portcullis_log::LastLogged;
use portcullis_model::ObjectName;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::access::{Access, accounts, unavailable};
use super::agents;
use super::observe::{self, Existing};
use super::requests::{ANSWER, Requests};
use crate::applier::Provisioning;
use crate::kube::backoff::{jittered, sleep_until};
use crate::kube::delete::exactly;
use crate::kube::reverts::{self, NOTABLE, Reverts};
use crate::kube::{code, is_unanswered, problem, wording};
use crate::status::StatusQueue;

/// Interval at which it is tried again when another owner's object is in the way or the API server
/// refused one.
const RETRY: Duration = Duration::from_secs(5);
/// Time that a new leader has to learn of the agents before it says what Gateways lack: statuses,
/// which say where they are reached, too, wait for that.
const AGENTS: Duration = Duration::from_secs(5);

/// Gateways that could not get their objects, and why.
type UnprovisionedGateways = BTreeMap<ObjectName, Fault>;

pub struct Generator {
    client: Client,
    requests: Requests,
    queue: Arc<StatusQueue>,
    leading: watch::Receiver<bool>,
    access: Access,
    /// Known while this one leads.
    agents: watch::Sender<Option<Agents>>,
    agent_pods: Api<Pod>,
    /// Since it leads, if it does.
    silent_until: Option<Instant>,
    existing: Existing,
    reverts: BTreeMap<(GeneratedKind, ObjectName), Reverts>,
    /// Gateways whose objects could not be changed.
    failed: LastLogged<ObjectName>,
    hasher: RandomState,
    provisioning: watch::Sender<Provisioning>,
}

impl Generator {
    /// Writes only while `leading` is true. `namespace` is the agents', `binding` the
    /// ClusterRoleBinding by which pods of mode Dedicated may read.
    pub fn new(
        client: Client,
        queue: Arc<StatusQueue>,
        leading: watch::Receiver<bool>,
        namespace: &str,
        binding: Option<String>,
    ) -> Self {
        let access = Access::new(client.clone(), binding);
        Self {
            existing: Existing::new(kinds(&access)),
            access,
            agents: watch::Sender::default(),
            agent_pods: Api::namespaced(client.clone(), namespace),
            silent_until: None,
            requests: Requests::new(client.clone()),
            client,
            queue,
            leading,
            reverts: BTreeMap::new(),
            failed: LastLogged::default(),
            hasher: RandomState::new(),
            provisioning: watch::Sender::default(),
        }
    }

    /// Gateways that could not get their objects, and why; not known while another agent leads.
    pub fn provisioning(&self) -> watch::Receiver<Provisioning> {
        self.provisioning.subscribe()
    }

    /// The agents of the cluster; not known while another agent leads.
    pub fn agents(&self) -> watch::Receiver<Option<Agents>> {
        self.agents.subscribe()
    }

    /// Works until the future is dropped.
    pub async fn run(mut self) {
        let mut events = observe::events(&self.client, kinds(&self.access));
        let (mut wanted, mut current) = (self.queue.generated(), self.queue.current());
        let mut leading = self.leading.clone();
        let mut agents = self.agents.subscribe();
        let follow = agents::follow(self.agent_pods.clone(), leading.clone(), self.agents.clone());
        let mut follow = std::pin::pin!(follow);
        loop {
            let leads = *leading.borrow_and_update();
            if !leads {
                self.retract();
            }
            let may_write = leads && *current.borrow_and_update() && self.existing.is_known();
            wanted.mark_unchanged();
            agents.mark_unchanged();
            let again = if may_write { self.reconcile_while_leading().await } else { None };
            tokio::select! {
                received = self.existing.receive(&mut events) => if received.is_none() { return },
                () = &mut follow => return,
                changed = agents.changed() => if changed.is_err() { return },
                changed = wanted.changed() => if changed.is_err() { return },
                changed = leading.changed() => if changed.is_err() { return },
                changed = current.changed() => if changed.is_err() { return },
                () = sleep_until(again) => {}
            }
        }
    }

    /// By the time that another leads, what is left of a plan may be wrong.
    async fn reconcile_while_leading(&mut self) -> Option<Instant> {
        let wanted = self.queue.generated().borrow().values().cloned().collect();
        let wanted = self.with_endpoints(wanted);
        let mut leading = self.leading.clone();
        tokio::select! {
            biased;
            _ = leading.wait_for(|leads| !*leads) => None,
            again = self.reconcile(&wanted) => again,
        }
    }

    /// The slices of Services that are there. Nothing is wanted before it is known of what.
    fn with_endpoints(&self, wanted: Vec<DesiredObjects>) -> Vec<DesiredObjects> {
        let agents = self.agents.borrow();
        let Some(agents) = agents.as_ref().filter(|_| self.knows_endpoints()) else { return wanted };
        let with_endpoints = wanted.into_iter().map(|wanted| {
            let service = wanted.object(GeneratedKind::Service).map(Generated::name);
            let there = service.and_then(|name| self.existing.get(GeneratedKind::Service, &name));
            wanted.with_endpoints(there, agents)
        });
        with_endpoints.collect()
    }

    /// Of slices that may not be read it is not known what to write.
    fn knows_endpoints(&self) -> bool {
        self.existing.is_listed(GeneratedKind::EndpointSlice)
    }

    /// Those of which it is known whether they are wanted.
    fn judged(&self) -> impl Iterator<Item = &Generated> {
        let are_agents_known = self.agents.borrow().is_some();
        let objects = self.existing.objects();
        objects.filter(move |it| are_agents_known || it.kind != GeneratedKind::EndpointSlice)
    }

    /// Until when nothing is reported, because the agents are not known yet.
    fn silent_until(&mut self) -> Option<Instant> {
        let until = *self.silent_until.get_or_insert_with(|| Instant::now() + AGENTS);
        (self.agents.borrow().is_none() && Instant::now() < until).then_some(until)
    }

    /// Leaves it to the new leader to report what could not be had.
    fn retract(&mut self) {
        self.failed = LastLogged::default();
        self.silent_until = None;
        self.access.forget();
        self.queue.retract();
        self.provisioning.send_if_modified(|known| known.take().is_some());
    }

    /// Returns when to try again what could not be had.
    async fn reconcile(&mut self, wanted: &[DesiredObjects]) -> Option<Instant> {
        let (mut refused, mut failed, mut waiting) = (BTreeMap::new(), BTreeMap::new(), None);
        let mut in_the_way = Vec::new();
        for operation in infra::diff(wanted, self.judged(), self.queue.controller_name()) {
            if let Some(until) = self.waits(&operation) {
                waiting = [waiting, Some(until)].into_iter().flatten().min();
                continue;
            }
            let (gateway, kind) = (gateway_of(&operation), operation.kind());
            if in_the_way.iter().any(|(of, missing)| *of == gateway && operation.needs(*missing)) {
                continue;
            }
            let result = self.execute(operation, wanted).await;
            if !matches!(result, Ok(None)) {
                in_the_way.push((gateway.clone(), kind));
            }
            match result {
                Ok(None) => {}
                Ok(Some(refusal)) => drop(refused.entry(gateway).or_insert(refusal)),
                Err(error) => drop(failed.insert(gateway, error)),
            }
        }
        let all_done = refused.is_empty() && failed.is_empty();
        self.log(&failed);
        let silent = self.silent_until();
        if silent.is_none() {
            self.report(self.with_unavailable(refused, wanted));
        }
        let retry = (!all_done).then(|| Instant::now() + jittered(RETRY));
        // Last, because a ServiceAccount has to be there and ours.
        let review = self.grant(wanted).await;
        [waiting, retry, review, silent].into_iter().flatten().min()
    }

    /// Returns when to look after it again. As long as it is not known whose accounts there are,
    /// nothing changes.
    async fn grant(&mut self, wanted: &[DesiredObjects]) -> Option<Instant> {
        if !self.existing.is_listed(GeneratedKind::ServiceAccount) {
            return None;
        }
        let accounts = accounts(self.existing.objects(), wanted);
        let granted = timeout(ANSWER, self.access.grant(accounts)).await;
        granted.unwrap_or_else(|_| Some(Instant::now() + jittered(RETRY)))
    }

    /// Once of each Gateway, until something else is wrong.
    fn log(&mut self, failed: &BTreeMap<ObjectName, kube::Error>) {
        self.failed.keep_only(|gateway| failed.contains_key(gateway));
        for (gateway, error) in failed.iter().filter(|(_, error)| !is_unanswered(*error)) {
            let problem = problem(error);
            if self.failed.update(gateway.clone(), Some(wording(&problem))).is_some() {
                tracing::warn!(
                    "Gateway {gateway}: cannot change what is generated for it: {problem}; tried again every {} s",
                    RETRY.as_secs()
                );
            }
        }
    }

    /// For the Gateways' statuses, and for the log by them.
    fn report(&self, refused: UnprovisionedGateways) {
        let refused = Some(refused);
        self.provisioning.send_if_modified(|before| {
            let is_another = *before != refused;
            *before = refused;
            is_another
        });
    }

    fn with_unavailable(
        &self,
        mut refused: UnprovisionedGateways,
        wanted: &[DesiredObjects],
    ) -> UnprovisionedGateways {
        for wanted in wanted {
            let Some(deployment) = wanted.object(GeneratedKind::Deployment) else { continue };
            let there = self.existing.get(deployment.kind, &deployment.name());
            if let Some(fault) = unavailable(deployment, there) {
                refused.entry(wanted.gateway.clone()).or_insert(fault);
            }
        }
        refused
    }

    // --- one operation ---

    /// `Some`: why it cannot be.
    async fn execute(
        &mut self,
        operation: Operation,
        wanted: &[DesiredObjects],
    ) -> kube::Result<Option<Fault>> {
        match operation {
            Operation::Apply(object) => self.apply(&object, wanted).await,
            Operation::Replace { object, uid } => self.replace(&object, uid).await,
            Operation::Delete { kind, name, uid } => {
                if self.delete(kind, &name, uid).await? {
                    tracing::info!("{kind} {name}: deleted, no Gateway wants it any more");
                    self.existing.forget(kind, &name);
                }
                Ok(None)
            }
            Operation::Refuse { kind, message, .. } => Ok(Some(name_taken(kind, message))),
        }
    }

    /// An object that is not known to be generated may still be there: it is looked at before it is
    /// written.
    async fn apply(&mut self, object: &Generated, wanted: &[DesiredObjects]) -> kube::Result<Option<Fault>> {
        let gateway = wanted.iter().find(|it| Some(&it.gateway) == object.gateway().as_ref());
        let (kind, name) = (object.kind, object.name());
        let mut former = Vec::new();
        if self.existing.get(kind, &name).is_none() {
            former = gateway.map(|it| self.queue.published_addresses(&it.gateway)).unwrap_or_default();
            if let Some(there) = self.requests.get(kind, &name).await? {
                former.clear();
                if let Some(message) = self.refusal(&there, gateway) {
                    return Ok(Some(name_taken(kind, message)));
                }
            }
        }
        let others = self.others(object).await;
        match self.apply_with(object, &former).await {
            Ok(applied) => {
                match kind {
                    // As often as an agent becomes ready, for each Gateway.
                    GeneratedKind::EndpointSlice => tracing::debug!("{object}: applied"),
                    _ => tracing::info!("{object}: applied"),
                }
                self.note(object, &others);
                applied.into_iter().for_each(|applied| self.existing.see(applied));
                Ok(None)
            }
            Err(error) => refused(object, error),
        }
    }

    /// A Service that is made again, after the agents were uninstalled or its class was gone, asks
    /// for the address that its Gateway had. It has no right to it: another may have it by now.
    async fn apply_with(&self, object: &Generated, former: &[IpAddr]) -> kube::Result<Option<Generated>> {
        if let Some(asking) = object.asking_for(former) {
            match self.requests.apply(&asking).await {
                Err(error) if matches!(code(&error), Some(400 | 422)) => {
                    let address = former.first().map(ToString::to_string).unwrap_or_default();
                    tracing::info!("{object}: cannot have {address} again: {}", problem(&error));
                }
                applied => return applied,
            }
        }
        self.requests.apply(object).await
    }

    /// Applied as soon as the old one is seen to be gone. A trial comes first: what cannot be had
    /// must not cost what is.
    async fn replace(&self, object: &Generated, uid: String) -> kube::Result<Option<Fault>> {
        if let Err(error) = self.requests.try_out(object).await {
            return refused(object, error);
        }
        if self.delete(object.kind, &object.name(), uid).await? {
            tracing::info!("{object}: deleted, to be made again with another address");
        }
        Ok(None)
    }

    /// Only the very version that was looked at: a user who changed it since may want it. Returns
    /// whether it was deleted.
    async fn delete(&self, kind: GeneratedKind, name: &ObjectName, uid: String) -> kube::Result<bool> {
        let there = self.existing.get(kind, name);
        let version = there.and_then(|there| there.metadata.resource_version.clone());
        let seen = Preconditions { resource_version: version, ..exactly(uid) };
        self.requests.delete(kind, name, seen).await
    }

    /// The reason why an object may not be written over.
    fn refusal(&self, there: &Generated, gateway: Option<&DesiredObjects>) -> Option<String> {
        let wanted = gateway.map(std::slice::from_ref).unwrap_or_default();
        let operations = infra::diff(wanted, [there], self.queue.controller_name());
        operations.into_iter().find_map(|operation| match operation {
            Operation::Refuse { message, .. } => Some(message),
            Operation::Apply(_) | Operation::Replace { .. } | Operation::Delete { .. } => None,
        })
    }

    // --- what others undo ---

    /// The time until which an object has to wait, because another client keeps undoing what is
    /// applied.
    fn waits(&self, operation: &Operation) -> Option<Instant> {
        let Operation::Apply(object) = operation else { return None };
        let reverts = self.reverts.get(&(object.kind, object.name()))?;
        reverts.not_before(|| self.hash(object)).filter(|until| *until > Instant::now())
    }

    fn hash(&self, object: &Generated) -> u64 {
        self.hasher.hash_one(object.manifest.to_string())
    }

    /// Its other field managers, when these are about to be logged. Applying hides it.
    async fn others(&self, object: &Generated) -> BTreeSet<String> {
        let reverts = self.reverts.get(&(object.kind, object.name()));
        match reverts.is_some_and(Reverts::becomes_notable) {
            true => self.requests.others(object).await,
            false => BTreeSet::new(),
        }
    }

    fn note(&mut self, object: &Generated, others: &BTreeSet<String>) {
        let (key, plan) = ((object.kind, object.name()), self.hash(object));
        self.reverts.retain(|_, reverts| !reverts.is_over());
        if self.reverts.entry(key).or_default().written(plan) == NOTABLE {
            reverts::log(object, others);
        }
    }
}

/// Without mode Dedicated there are no rights on the others, either.
fn kinds(access: &Access) -> &'static [GeneratedKind] {
    const SERVED_BY_AGENTS: &[GeneratedKind] = &[GeneratedKind::Service, GeneratedKind::EndpointSlice];
    if access.is_possible() { &GeneratedKind::ALL } else { SERVED_BY_AGENTS }
}

/// Another owner's object has the name: without a Service there is no address.
fn name_taken(kind: GeneratedKind, message: String) -> Fault {
    let is_slice = kind == GeneratedKind::EndpointSlice;
    let reason = if is_slice { Reason::Invalid } else { Reason::AddressNotAssigned };
    Fault::not_programmed(reason, message)
}

/// Turns what the API server refuses into a fault of the Gateway; everything else is tried again.
/// Agents serve it without endpoints, so those are the log's business.
fn refused(object: &Generated, error: kube::Error) -> kube::Result<Option<Fault>> {
    match code(&error) {
        _ if object.kind == GeneratedKind::EndpointSlice => Err(error),
        Some(400 | 403 | 422) => {
            let message = format!("the API server refuses {object}: {}", problem(&error));
            let is_for_address = object.asks_for_address();
            let reason = if is_for_address { Reason::AddressNotUsable } else { Reason::Invalid };
            Ok(Some(Fault::not_programmed(reason, message)))
        }
        _ => Err(error),
    }
}

/// The Gateway that an operation is for, or else the object it concerns.
fn gateway_of(operation: &Operation) -> ObjectName {
    match operation {
        Operation::Apply(object) | Operation::Replace { object, .. } => {
            object.gateway().unwrap_or_else(|| object.name())
        }
        Operation::Delete { name, .. } => name.clone(),
        Operation::Refuse { gateway, .. } => gateway.clone(),
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
