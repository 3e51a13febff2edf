//! GatewayClass status.

use super::Conditions;
use crate::api::gatewayclasses::GatewayClass;
use crate::api::shared::ClassStatus;
use crate::features::supported_features;
use crate::listener::Trouble;
use crate::{ConditionType, Reason, generation};

/// Whether the installed CRDs are of a version we know (`SupportedVersion`) is for those to say who see a cluster.
pub(crate) fn class_status(class: &GatewayClass, parameters: Option<&Trouble>) -> ClassStatus {
    let mut conditions = Conditions::new(generation(&class.metadata));
    conditions.check(ConditionType::Accepted, parameters, Reason::Accepted);
    ClassStatus { conditions: Some(conditions.list), supported_features: Some(supported_features()) }
}
