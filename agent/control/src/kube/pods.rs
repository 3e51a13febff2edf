//! What pods of mode Dedicated need besides their objects: the right to read, and to be there before their Gateway counts as
//! programmed.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use portcullis_gateway::infra::{Generated, GeneratedKind, Wanted};
use portcullis_model::ObjectName;
use serde_json::json;

use super::refusal::Refusal;
use super::said::Once;
use super::{FIELD_MANAGER, problem};

/// The ClusterRoleBinding that installation made without subjects: all that we may change about anybody's rights. What it
/// binds to is less than our own rights, so that Kubernetes lets us.
pub(super) struct Access {
    api: Api<ClusterRoleBinding>,
    binding: Option<String>,
    /// Who was granted it last. `None`: not known.
    granted: Option<BTreeSet<ObjectName>>,
    complaint: Once,
}

impl Access {
    pub(super) fn new(client: Client, binding: Option<String>) -> Self {
        Self { api: Api::all(client), binding, granted: None, complaint: Once::default() }
    }

    /// Whether there can be any such pods.
    pub(super) fn is_possible(&self) -> bool {
        self.binding.is_some()
    }

    /// Lets exactly the wanted ServiceAccounts read. Returns whether they may.
    pub(super) async fn grant(&mut self, wanted: &[Wanted]) -> bool {
        let accounts = wanted.iter().filter_map(|wanted| wanted.object(GeneratedKind::ServiceAccount));
        let accounts: BTreeSet<_> = accounts.map(Generated::name).collect();
        let Some(binding) = self.binding.clone() else { return accounts.is_empty() };
        if self.granted.as_ref() == Some(&accounts) {
            return true;
        }
        match self.write(&binding, &accounts).await {
            Ok(()) => {
                self.granted = Some(accounts);
                self.complaint.over();
                true
            }
            Err(error) => {
                self.complain(&binding, &problem(&error));
                false
            }
        }
    }

    /// Whoever leads meanwhile may change it.
    pub(super) fn forget(&mut self) {
        self.granted = None;
    }

    fn complain(&mut self, binding: &str, problem: &str) {
        if self.complaint.is_news(problem) {
            tracing::warn!(
                "pods of mode Dedicated may not read their configuration: cannot change ClusterRoleBinding {binding}: {problem}; \
                 is it installed?"
            );
        }
    }

    /// Where it is not installed, nobody can have it; that matters once somebody wants it.
    async fn write(&self, binding: &str, accounts: &BTreeSet<ObjectName>) -> kube::Result<()> {
        let there = match self.api.get(binding).await {
            Err(_) if accounts.is_empty() => return Ok(()),
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

fn subjects_of(binding: &ClusterRoleBinding) -> BTreeSet<ObjectName> {
    let subjects = binding.subjects.iter().flatten();
    let name = |namespace: &Option<String>, name: &str| {
        ObjectName::new(namespace.as_deref().unwrap_or_default(), name)
    };
    subjects.map(|subject| name(&subject.namespace, &subject.name)).collect()
}

/// Why the pods of a Deployment do not serve, if none does.
pub(super) fn unavailable(wanted: &Generated, there: Option<&Generated>) -> Option<Refusal> {
    let status = there.map(|there| &there.manifest["status"]["availableReplicas"]);
    let available = status.and_then(serde_json::Value::as_i64).unwrap_or_default();
    let message = || format!("{wanted} has no available pod: see its status and its pods' logs");
    (available == 0).then(|| Refusal::not_ready(message()))
}
