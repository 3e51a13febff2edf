//! Makes what was generated for Gateways be there, while it leads: server-side apply of what [`infra::diff`] says, and
//! nothing it does not say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use portcullis_gateway::infra::{self, Operation, Wanted};
use portcullis_model::ObjectName;
use tokio::sync::watch;

use super::backoff::{Backoff, jittered};
use super::board::Board;
use super::refusal::Refusal;
use super::watch::Trouble;
use super::{FIELD_MANAGER, code};

/// When somebody else's object is in the way, or the API server refused one, it is tried again this often.
const RETRY: Duration = Duration::from_secs(5);

/// Gateways that could not get their objects, and why.
type Refused = BTreeMap<ObjectName, Refusal>;

pub struct Generator {
    client: Client,
    board: Arc<Board>,
    leading: watch::Receiver<bool>,
    /// Generated Services as they are.
    observed: BTreeMap<ObjectName, Service>,
    listed: bool,
    refused: watch::Sender<Refused>,
}

impl Generator {
    /// Writes only while `leading` is true.
    pub fn new(client: Client, board: Arc<Board>, leading: watch::Receiver<bool>) -> Self {
        Self {
            client,
            board,
            leading,
            observed: BTreeMap::new(),
            listed: false,
            refused: watch::Sender::default(),
        }
    }

    /// Gateways that could not get their objects, and why.
    pub fn refused(&self) -> watch::Receiver<BTreeMap<ObjectName, Refusal>> {
        self.refused.subscribe()
    }

    /// Works until the future is dropped.
    pub async fn run(mut self) {
        let services: Api<Service> = Api::all(self.client.clone());
        let selector = format!("{}={}", infra::MANAGED_BY_LABEL, infra::MANAGER);
        let mut events =
            std::pin::pin!(watcher::watcher(services, watcher::Config::default().labels(&selector)));
        let (mut wanted, mut current) = (self.board.generated(), self.board.current());
        let mut leading = self.leading.clone();
        let (mut backoff, mut trouble) = (Backoff::for_watches(), Trouble::new("generated Services"));
        loop {
            let may_write = *leading.borrow_and_update() && *current.borrow_and_update() && self.listed;
            let all: Vec<Wanted> = wanted.borrow_and_update().values().cloned().collect();
            let again = may_write && !self.reconcile(&all).await;
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => {
                        trouble.over();
                        backoff.reset();
                        self.observe(event);
                    }
                    Some(Err(error)) => {
                        trouble.failed(&error);
                        backoff.wait().await;
                    }
                    None => return,
                },
                changed = wanted.changed() => if changed.is_err() { return },
                changed = leading.changed() => if changed.is_err() { return },
                changed = current.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(jittered(RETRY)), if again => {}
            }
        }
    }

    fn observe(&mut self, event: Event<Service>) {
        match event {
            Event::Init => {
                self.observed.clear();
                self.listed = false;
            }
            Event::InitDone => self.listed = true,
            Event::Apply(service) | Event::InitApply(service) => self.see(service),
            Event::Delete(service) => drop(self.observed.remove(&name_of(&service))),
        }
    }

    fn see(&mut self, service: Service) {
        self.observed.insert(name_of(&service), service);
    }

    /// Returns whether everything is as wanted now.
    async fn reconcile(&mut self, wanted: &[Wanted]) -> bool {
        let mut refused = BTreeMap::new();
        let mut all_done = true;
        for operation in infra::diff(wanted, self.observed.values(), self.board.controller_name()) {
            let gateway = gateway_of(&operation);
            match self.execute(operation, wanted).await {
                Ok(None) => {}
                Ok(Some(refusal)) => drop(refused.insert(gateway, refusal)),
                Err(error) => {
                    tracing::warn!(%error, "Gateway {gateway}: cannot change what is generated for it; tried again shortly");
                    all_done = false;
                }
            }
        }
        all_done &= refused.is_empty();
        self.report(refused);
        all_done
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
            Operation::Apply(service) => self.apply(*service, wanted).await,
            Operation::Delete { name, uid } => {
                self.delete(&name, uid).await?;
                Ok(None)
            }
            Operation::Refuse { message, .. } => Ok(Some(Refusal::name_taken(message))),
        }
    }

    /// An object that is not known to be generated may still be there: it is looked at before it is written.
    async fn apply(&mut self, service: Service, wanted: &[Wanted]) -> kube::Result<Option<Refusal>> {
        let name = name_of(&service);
        let api: Api<Service> = Api::namespaced(self.client.clone(), &name.namespace);
        if !self.observed.contains_key(&name)
            && let Some(there) = api.get_opt(&name.name).await?
        {
            let of_name = wanted.iter().filter(|wanted| is_for(wanted, &name)).cloned().collect::<Vec<_>>();
            if let Some(Operation::Refuse { message, .. }) =
                infra::diff(&of_name, [&there], self.board.controller_name()).into_iter().next()
            {
                return Ok(Some(Refusal::name_taken(message)));
            }
        }
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match api.patch(&name.name, &parameters, &Patch::Apply(&service)).await {
            Ok(applied) => {
                tracing::info!("Service {name}: applied");
                self.see(applied);
                Ok(None)
            }
            Err(error) if matches!(code(&error), Some(400 | 403 | 422)) => {
                let message = format!("the API server refuses Service {name}: {error}");
                Ok(Some(Refusal::not_usable(message)))
            }
            Err(error) => Err(error),
        }
    }

    /// Only the very object that was looked at.
    async fn delete(&mut self, name: &ObjectName, uid: String) -> kube::Result<()> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &name.namespace);
        let preconditions = Preconditions { uid: Some(uid), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api.delete(&name.name, &parameters).await {
            Err(error) if !matches!(code(&error), Some(404 | 409)) => Err(error),
            _ => {
                tracing::info!("Service {name}: deleted, no Gateway wants it any more");
                self.observed.remove(name);
                Ok(())
            }
        }
    }
}

fn is_for(wanted: &Wanted, name: &ObjectName) -> bool {
    wanted.service.as_deref().is_some_and(|service| name_of(service) == *name)
}

fn gateway_of(operation: &Operation) -> ObjectName {
    match operation {
        Operation::Apply(service) => infra::generated_for(service).unwrap_or_else(|| name_of(service)),
        Operation::Delete { name, .. } => name.clone(),
        Operation::Refuse { gateway, .. } => gateway.clone(),
    }
}

fn name_of(service: &Service) -> ObjectName {
    let metadata = &service.metadata;
    ObjectName::new(
        metadata.namespace.as_deref().unwrap_or("default"),
        metadata.name.as_deref().unwrap_or_default(),
    )
}
