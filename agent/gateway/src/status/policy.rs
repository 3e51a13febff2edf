//! Policy status: one entry per Gateway of ours for which the policy is in force.

use portcullis_api::GATEWAY_GROUP;
use portcullis_api::types::shared::{ParentReference, PolicyAncestorStatus, PolicyStatus};
use portcullis_model::ObjectName;

use crate::conditions::Conditions;
use crate::{ConditionType, Fault};

/// "A maximum of 16 ancestors will be represented in this list." The first by name are.
const MOST_ANCESTORS: usize = 16;

pub(crate) fn policy_status<'g>(
    generation: i64,
    fault: &Fault,
    gateways: impl IntoIterator<Item = &'g ObjectName>,
    controller_name: &str,
) -> PolicyStatus {
    let mut conditions = Conditions::new(generation);
    conditions.check(ConditionType::Accepted, Some(fault));
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
