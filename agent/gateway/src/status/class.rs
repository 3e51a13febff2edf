//! GatewayClass status.

use portcullis_api::generation;
use portcullis_api::types::gatewayclasses::GatewayClass;
use portcullis_api::types::shared::ClassStatus;

use crate::conditions::Conditions;
use crate::features::{SUPPORTED_FEATURES, supported_features};
use crate::parent::InstalledRelease;
use crate::{ConditionType, Fault};

/// Of an unknown release as much is served as can be: "'best effort' support", `Accepted` all the
/// same.
pub(crate) fn class_status(
    class: &GatewayClass,
    parameters: Option<&Fault>,
    release: &InstalledRelease,
) -> ClassStatus {
    let mut conditions = Conditions::new(generation(&class.metadata));
    conditions.check(ConditionType::Accepted, parameters);
    match release {
        InstalledRelease::None => {}
        InstalledRelease::Supported => conditions.check(ConditionType::SupportedVersion, None),
        InstalledRelease::Unsupported(fault) => {
            conditions.check(ConditionType::SupportedVersion, Some(fault));
        }
    }
    ClassStatus {
        conditions: Some(conditions.list),
        supported_features: Some(supported_features(SUPPORTED_FEATURES)),
    }
}
