//! Status of RouteFilters: whether rules can have them. Routes say so for their own part, too.

use portcullis_api::types::routefilters::RouteFilterStatus;

use crate::conditions::Conditions;
use crate::{ConditionType, Fault};

pub(crate) fn route_filter_status(generation: i64, fault: Option<&Fault>) -> RouteFilterStatus {
    let mut conditions = Conditions::new(generation);
    conditions.check(ConditionType::Accepted, fault);
    RouteFilterStatus { conditions: Some(conditions.list) }
}
