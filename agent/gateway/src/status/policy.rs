//! Status of BackendTLSPolicies: one entry per Gateway of ours at which the policy is heeded.

use portcullis_api::GATEWAY_GROUP;
use portcullis_api::types::shared::{ParentReference, PolicyAncestorStatus, PolicyStatus};
use portcullis_model::ObjectName;

use crate::conditions::Conditions;
use crate::{ConditionType, Fault};

/// "A maximum of 16 ancestors will be represented in this list." The first by name are.
const MOST_ANCESTORS: usize = 16;

/// The fate of a policy, which is the same at every Gateway.
pub(crate) struct PolicyVerdict<'p> {
    pub(crate) generation: i64,
    /// The fault for which it is not accepted.
    pub(crate) refusal: Option<&'p Fault>,
    pub(crate) unresolved: Option<&'p Fault>,
    /// Fields that are read and without effect.
    pub(crate) ignored: &'p [String],
}

pub(crate) fn policy_status<'g>(
    verdict: &PolicyVerdict<'_>,
    gateways: impl IntoIterator<Item = &'g ObjectName>,
    controller_name: &str,
) -> PolicyStatus {
    let conditions = verdict.conditions();
    let ancestors = gateways.into_iter().take(MOST_ANCESTORS).map(|gateway| PolicyAncestorStatus {
        ancestor_ref: ParentReference {
            group: Some(GATEWAY_GROUP.to_owned()),
            kind: Some("Gateway".to_owned()),
            namespace: Some(gateway.namespace.to_string()),
            name: gateway.name.to_string(),
            ..ParentReference::default()
        },
        controller_name: controller_name.to_owned(),
        conditions: conditions.list.clone(),
    });
    PolicyStatus { ancestors: ancestors.collect() }
}

// === impl PolicyVerdict ===

impl PolicyVerdict<'_> {
    fn conditions(&self) -> Conditions {
        let mut conditions = Conditions::new(self.generation);
        match (self.refusal, Fault::ignored(self.ignored)) {
            (None, Some(ignored)) => conditions.partial(ConditionType::Accepted, &ignored),
            (refusal, _) => conditions.check(ConditionType::Accepted, refusal),
        }
        conditions.check(ConditionType::ResolvedRefs, self.unresolved);
        conditions
    }
}
