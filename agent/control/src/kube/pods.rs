//! The needs of pods of mode Dedicated besides their objects: the right to read what is no secret,
//! and to be there before their Gateway counts as programmed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use portcullis_gateway::infra::{Generated, GeneratedKind, Wanted};
use portcullis_gateway::{Fault, Reason};
use portcullis_model::ObjectName;
use serde_json::json;
use tokio::time::Instant;

use super::backoff::jittered;
use super::log_once::LogOnce;
use super::{FIELD_MANAGER, code, problem};

/// Interval at which the binding is looked at: another client may have taken a subject out of it.
const REVIEW: Duration = Duration::from_secs(10);
/// When it could not be changed, it is tried again this often.
const RETRY: Duration = Duration::from_secs(5);

/// The ClusterRoleBinding that installation made without subjects, by which pods read what is no
/// secret. What it binds to is less than our own rights, so that Kubernetes lets us.
pub(super) struct Access {
    api: Api<ClusterRoleBinding>,
    binding: Option<String>,
    granted: Option<Granted>,
    problem: LogOnce,
}

/// The accounts it was granted to last, and the time until which that is taken to hold.
struct Granted {
    accounts: BTreeSet<ObjectName>,
    until: Instant,
}

impl Access {
    pub(super) fn new(client: Client, binding: Option<String>) -> Self {
        Self { api: Api::all(client), binding, granted: None, problem: LogOnce::default() }
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
            self.problem.solved(&());
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
        if self.problem.is_new((), problem) {
            tracing::warn!(
                "pods of mode Dedicated may not read their configuration: cannot change ClusterRoleBinding {binding}: {problem}; \
                 is it installed?"
            );
        }
    }

    /// Where it is not installed, nobody can have it; that matters once somebody wants it.
    async fn write(&self, binding: &str, accounts: &BTreeSet<ObjectName>) -> kube::Result<()> {
        let there = match self.api.get(binding).await {
            Err(error) if accounts.is_empty() && matches!(code(&error), Some(403 | 404)) => return Ok(()),
            there => there?,
        };
        if subjects_of(&there) == *accounts {
            return Ok(());
        }
        let subject = |account: &ObjectName| json!({"kind": "ServiceAccount", "name": &*account.name, "namespace": &*account.namespace});
        let subjects: Vec<_> = accounts.iter().map(subject).collect();
        let patch = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": binding}, "roleRef": there.role_ref, "subjects": subjects});
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        self.api.patch(binding, &parameters, &Patch::Apply(&patch)).await.map(drop)
    }
}

/// The ServiceAccounts that were seen to be generated for Gateways, and that these Gateways still
/// have: a name that somebody else took first gives him nothing. A Gateway of which it is not known
/// what it wants keeps its pods, and they their rights.
pub(super) fn accounts<'o>(
    there: impl IntoIterator<Item = &'o Generated>,
    wanted: &[Wanted],
) -> BTreeSet<ObjectName> {
    let gateways: BTreeMap<_, _> = wanted.iter().map(|wanted| (wanted.uid.as_str(), wanted)).collect();
    let accounts = there.into_iter().filter(|object| object.kind == GeneratedKind::ServiceAccount);
    let has_place = |account: &&Generated| {
        account.gateway_uid().and_then(|uid| gateways.get(uid)).is_some_and(|wanted| wanted.keeps(account))
    };
    accounts.filter(has_place).map(Generated::name).collect()
}

fn subjects_of(binding: &ClusterRoleBinding) -> BTreeSet<ObjectName> {
    let subjects = binding.subjects.iter().flatten();
    let name = |namespace: &Option<String>, name: &str| {
        ObjectName::new(namespace.as_deref().unwrap_or_default(), name)
    };
    subjects.map(|subject| name(&subject.namespace, &subject.name)).collect()
}

/// The fault of a Deployment none of whose pods serves.
pub(super) fn unavailable(wanted: &Generated, there: Option<&Generated>) -> Option<Fault> {
    let status = there.map(|there| &there.manifest["status"]["availableReplicas"]);
    let available = status.and_then(serde_json::Value::as_i64).unwrap_or_default();
    let message = || format!("{wanted} has no available pod: see its status and its pods' logs");
    (available == 0).then(|| Fault::not_programmed(Reason::Pending, message()))
}
