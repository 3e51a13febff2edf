//! Route status: one entry per parentRef that is ours.

use portcullis_api::types::shared::{RouteParentStatus, RouteStatus};

use crate::conditions::Conditions;
use crate::route::ParsedRoute;
use crate::{ConditionType, Fault};

/// The verdict of one of its parents on a route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParentVerdict {
    /// The index of the parentRef.
    pub(crate) reference: usize,
    /// The fault for which the route is not accepted.
    pub(crate) refusal: Option<Box<Fault>>,
}

pub(crate) fn route_status(
    route: &ParsedRoute,
    unresolved: Option<&Fault>,
    parents: &[ParentVerdict],
    controller_name: &str,
) -> RouteStatus {
    let partly_invalid = route.partly_invalid();
    let ignored = Fault::ignored(&route.ignored);
    let mut entries = Vec::with_capacity(parents.len());
    for verdict in parents {
        let Some(parent_ref) = route.as_written(verdict.reference) else { continue };
        let mut conditions = Conditions::new(route.generation);
        match (&verdict.refusal, &ignored) {
            (None, Some(ignored)) => conditions.partial(ConditionType::Accepted, ignored),
            (refusal, _) => conditions.check(ConditionType::Accepted, refusal.as_deref()),
        }
        conditions.check(ConditionType::ResolvedRefs, unresolved);
        if let Some(fault) = &partly_invalid {
            conditions.bad(ConditionType::PartiallyInvalid, fault);
        }
        entries.push(RouteParentStatus {
            parent_ref,
            controller_name: controller_name.to_owned(),
            conditions: conditions.list,
            grandparents: None,
        });
    }
    RouteStatus { parents: entries }
}
