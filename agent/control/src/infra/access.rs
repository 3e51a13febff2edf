//! The needs of pods of mode Dedicated besides their objects: the right to read what is no secret,
//! and to be there before their Gateway counts as programmed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use portcullis_gateway::infra::{DesiredObjects, Generated, GeneratedKind};
use portcullis_gateway::{Fault, Reason};
use portcullis_log::LastLogged;
use portcullis_model::ObjectName;
use serde_json::json;
use tokio::time::Instant;

use crate::kube::backoff::jittered;
use crate::kube::{FIELD_MANAGER, code, problem, wording};

/// Interval at which the binding is looked at: another client may have taken a subject out of it.
const REVIEW: Duration = Duration::from_secs(10);
/// Pause before it is tried again when it could not be changed.
const RETRY: Duration = Duration::from_secs(5);

/// The ClusterRoleBinding that installation made without subjects, by which pods read what is no
/// secret. What it binds to is less than our own rights, so that Kubernetes lets us.
pub(super) struct Access {
    api: Api<ClusterRoleBinding>,
    binding: Option<String>,
    granted: Option<Granted>,
    problem: LastLogged,
}

/// The accounts it was granted to last, and the time until which that is taken to hold.
struct Granted {
    accounts: BTreeSet<ObjectName>,
    until: Instant,
}

impl Access {
    pub(super) fn new(client: Client, binding: Option<String>) -> Self {
        Self { api: Api::all(client), binding, granted: None, problem: LastLogged::default() }
    }

    /// Tells whether there can be any such pods.
    pub(super) fn is_possible(&self) -> bool {
        self.binding.is_some()
    }

    /// Another agent leads, and writes.
    pub(super) fn forget(&mut self) {
        self.granted = None;
    }

    /// Lets exactly these ServiceAccounts read. Returns when to look after it again.
    pub(super) async fn grant(&mut self, accounts: BTreeSet<ObjectName>) -> Option<Instant> {
        let binding = self.binding.clone()?;
        if !self.is_granted(&accounts) {
            if let Err(error) = self.write(&binding, &accounts).await {
                self.log(&binding, &problem(&error));
                self.granted = None;
                return Some(Instant::now() + jittered(RETRY));
            }
            self.problem.clear(&());
            self.granted = Some(Granted { accounts, until: Instant::now() + REVIEW });
        }
        self.granted.as_ref().filter(|granted| !granted.accounts.is_empty()).map(|granted| granted.until)
    }

    fn is_granted(&self, accounts: &BTreeSet<ObjectName>) -> bool {
        self.granted.as_ref().is_some_and(|granted| {
            granted.accounts == *accounts && (accounts.is_empty() || Instant::now() < granted.until)
        })
    }

    fn log(&mut self, binding: &str, problem: &str) {
        if self.problem.update((), Some(wording(problem))).is_some() {
            tracing::warn!(
                "pods of mode Dedicated may not read their configuration: cannot change ClusterRoleBinding {binding}: {problem}; \
                 is it installed?"
            );
        }
    }

    /// Without the installation, no account can have it; that matters once one wants it.
    async fn write(&self, binding: &str, accounts: &BTreeSet<ObjectName>) -> kube::Result<()> {
        let there = match self.api.get(binding).await {
            Err(error) if accounts.is_empty() && matches!(code(&error), Some(403 | 404)) => return Ok(()),
            there => there?,
        };
        let subjects =
            there.subjects.iter().flatten().map(|subject| {
                ObjectName::new(subject.namespace.as_deref().unwrap_or_default(), &*subject.name)
            });
        if subjects.collect::<BTreeSet<_>>() == *accounts {
            return Ok(());
        }
        let subjects: Vec<_> = accounts
            .iter()
            .map(|account| json!({"kind": "ServiceAccount", "name": &*account.name, "namespace": &*account.namespace}))
            .collect();
        let patch = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": binding}, "roleRef": there.role_ref, "subjects": subjects});
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        self.api.patch(binding, &parameters, &Patch::Apply(&patch)).await.map(drop)
    }
}

/// The ServiceAccounts that were seen to be generated for Gateways, and that these Gateways still
/// have: a name that another user took first gives them nothing. A Gateway of which it is not known
/// what it wants keeps its pods, and they their rights.
pub(super) fn accounts<'o>(
    there: impl IntoIterator<Item = &'o Generated>,
    wanted: &[DesiredObjects],
) -> BTreeSet<ObjectName> {
    let gateways: BTreeMap<_, _> = wanted.iter().map(|wanted| (wanted.uid.as_str(), wanted)).collect();
    let accounts = there.into_iter().filter(|object| object.kind == GeneratedKind::ServiceAccount);
    let kept = accounts.filter(|account| {
        account.gateway_uid().and_then(|uid| gateways.get(uid)).is_some_and(|wanted| wanted.keeps(account))
    });
    kept.map(Generated::name).collect()
}

/// The fault of a Deployment none of whose pods serves.
pub(super) fn unavailable(wanted: &Generated, there: Option<&Generated>) -> Option<Fault> {
    let status = there.map(|there| &there.manifest["status"]["availableReplicas"]);
    let available = status.and_then(serde_json::Value::as_i64).unwrap_or_default();
    (available == 0).then(|| {
        let message = format!("{wanted} has no available pod: see its status and its pods' logs");
        Fault::not_programmed(Reason::Pending, message)
    })
}
