//! Route status: one entry per parentRef that is ours.

use super::Conditions;
use crate::api::shared::{RouteParentStatus, RouteStatus};
use crate::listener::Trouble;
use crate::route::{ParsedRoute, Problem};
use crate::{ConditionType, Reason};

/// How a route fares with one of its parents.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParentVerdict {
    /// The index of the parentRef.
    pub(crate) reference: usize,
    /// Why the route is not accepted.
    pub(crate) refusal: Option<Box<Trouble>>,
}

pub(crate) fn route_status(
    route: &ParsedRoute,
    unresolved: Option<&Problem>,
    parents: &[ParentVerdict],
    controller_name: &str,
) -> RouteStatus {
    let partly_invalid = route.partly_invalid();
    let entry = |verdict: &ParentVerdict| {
        let mut conditions = Conditions::new(route.generation);
        conditions.check(ConditionType::Accepted, verdict.refusal.as_deref(), Reason::Accepted);
        let unresolved = unresolved.map(trouble);
        conditions.check(ConditionType::ResolvedRefs, unresolved.as_ref(), Reason::ResolvedRefs);
        if let Some(problem) = &partly_invalid {
            conditions.push(ConditionType::PartiallyInvalid, true, &trouble(problem));
        }
        Some(RouteParentStatus {
            parent_ref: route.as_written(verdict.reference)?,
            controller_name: controller_name.to_owned(),
            conditions: conditions.list,
            grandparents: None,
        })
    };
    RouteStatus { parents: parents.iter().filter_map(entry).collect() }
}

fn trouble(problem: &Problem) -> Trouble {
    Trouble::new(problem.reason, problem.message.clone())
}
