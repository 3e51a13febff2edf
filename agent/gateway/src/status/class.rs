//! GatewayClass status.

use super::Conditions;
use crate::api::gatewayclasses::GatewayClass;
use crate::api::shared::ClassStatus;
use crate::features::{SUPPORTED_FEATURES, supported_features};
use crate::{ConditionType, Fault, generation};

/// Of an unknown release as much is served as can be: "'best effort' support", `Accepted` all the
/// same.
pub(crate) fn class_status(
    class: &GatewayClass,
    parameters: Option<&Fault>,
    version: Option<Result<(), Fault>>,
) -> ClassStatus {
    let mut conditions = Conditions::new(generation(&class.metadata));
    conditions.check(ConditionType::Accepted, parameters);
    if let Some(version) = version {
        conditions.check(ConditionType::SupportedVersion, version.as_ref().err());
    }
    ClassStatus {
        conditions: Some(conditions.list),
        supported_features: Some(supported_features(SUPPORTED_FEATURES)),
    }
}
