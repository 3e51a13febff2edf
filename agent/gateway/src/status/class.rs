//! GatewayClass status.

use super::Conditions;
use crate::api::gatewayclasses::GatewayClass;
use crate::api::shared::ClassStatus;
use crate::features::supported_features;
use crate::listener::Trouble;
use crate::{ConditionType, Reason, generation};

/// Whether the installed CRDs are of a version we know (`SupportedVersion`) is for those to say who see a cluster.
pub(crate) fn class_status(class: &GatewayClass) -> ClassStatus {
    let mut conditions = Conditions::new(generation(&class.metadata));
    let parameters = class.spec.parameters_ref.as_ref().map(|reference| {
        let message = format!("parametersRef to kind {:?} is not supported: remove it", reference.kind);
        Trouble::new(Reason::InvalidParameters, message)
    });
    conditions.check(ConditionType::Accepted, parameters.as_ref(), Reason::Accepted);
    ClassStatus { conditions: Some(conditions.list), supported_features: Some(supported_features()) }
}
