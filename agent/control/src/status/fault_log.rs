//! Faults that statuses tell, in the log, with the object that has them: each once, and once more
//! when it is gone.

use std::collections::BTreeSet;

use portcullis_api::ObjectKey;
use portcullis_api::types::backendtlspolicies::PolicyStatus;
use portcullis_gateway::{ConditionSummary, Status, parent_name};
use portcullis_log::{CurrentProblems, Difference};
use serde_json::json;

use super::Statuses;

/// More lines at once are of no help: a parent that went takes all its children with it.
const MOST_LINES: usize = 50;

/// The faults of each object that has some.
#[derive(Debug, Default)]
pub struct FaultLog(CurrentProblems<ObjectKey>);

impl FaultLog {
    pub fn note(&mut self, statuses: &Statuses) {
        let mut lines = Vec::new();
        for (key, status) in statuses {
            lines.extend(self.replace(key, status.as_ref().map(faults)));
        }
        for line in lines.iter().take(MOST_LINES) {
            line.write();
        }
        if let Some(more) = lines.len().checked_sub(MOST_LINES).filter(|more| *more > 0) {
            tracing::warn!(
                "{more} more statuses changed for the worse or the better: `portcullis status` lists them"
            );
        }
    }

    /// There are no others any more.
    pub fn keep_only(&mut self, objects: &BTreeSet<ObjectKey>) {
        self.0.keep_only(|key| objects.contains(key));
    }

    /// Replaces the faults of an object, `None` if it is gone; returns the lines to log.
    fn replace(&mut self, key: &ObjectKey, now: Option<Vec<String>>) -> Vec<Line> {
        let has_none = now.as_ref().is_some_and(Vec::is_empty);
        let Difference { new, solved } = self.0.replace(key.clone(), now.unwrap_or_default());
        let mut lines: Vec<_> = new.iter().map(|fault| Line::Wrong(format!("{key}: {fault}"))).collect();
        if has_none && !solved.is_empty() {
            lines.push(Line::Right(format!("{key}: all is well again")));
        }
        lines
    }
}

enum Line {
    Wrong(String),
    Right(String),
}

impl Line {
    fn write(&self) {
        match self {
            Self::Wrong(line) => tracing::warn!("{line}"),
            Self::Right(line) => tracing::info!("{line}"),
        }
    }
}

/// Of the object itself, of its listeners, and of its parents or ancestors.
fn faults(status: &Status) -> Vec<String> {
    let (own, listeners, parents) = match status {
        Status::GatewayClass(status) => (&status.conditions, &None, &[][..]),
        Status::Gateway(status) => (&status.conditions, &status.listeners, &[][..]),
        Status::ListenerSet(status) => (&status.conditions, &status.listeners, &[][..]),
        Status::Route(status) => (&None, &None, &status.parents[..]),
        Status::Policy(status) => return for_ancestors(status),
    };
    let own = ConditionSummary::of(own.as_deref().unwrap_or_default());
    let of_listeners = listeners.iter().flatten().filter_map(|listener| {
        let summary = ConditionSummary::of(&listener.conditions)?;
        Some(format!("listener {}: {summary}", listener.name))
    });
    let of_parents = parents.iter().filter_map(|parent| {
        let summary = ConditionSummary::of(&parent.conditions)?;
        Some(format!("for {}: {summary}", parent_name(&json!(parent.parent_ref))))
    });
    own.map(|summary| summary.to_string()).into_iter().chain(of_listeners).chain(of_parents).collect()
}

fn for_ancestors(status: &PolicyStatus) -> Vec<String> {
    let entries = status.ancestors.iter().filter_map(|ancestor| {
        let summary = ConditionSummary::of(&ancestor.conditions)?;
        Some(format!("for {}: {summary}", parent_name(&json!(ancestor.ancestor_ref))))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;
    use portcullis_model::ObjectName;

    use super::*;

    fn route() -> ObjectKey {
        ObjectKey::new(Kind::HttpRoute, ObjectName::new("shop", "cart"))
    }

    fn status(good: bool) -> Status {
        let (status, reason, message) =
            if good { ("True", "ResolvedRefs", "") } else { ("False", "BackendNotFound", "no Service") };
        let at = "2026-01-01T00:00:00Z";
        let status = json!({"parents": [{"controllerName": "c",
            "parentRef": {"kind": "Gateway", "name": "web", "sectionName": "http"}, "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": at},
            {"type": "ResolvedRefs", "status": status, "reason": reason, "message": message, "lastTransitionTime": at}]}]});
        Status::Route(serde_json::from_value(status).unwrap())
    }

    fn logged(log: &mut FaultLog, status: Option<Status>) -> Vec<String> {
        let lines = log.replace(&route(), status.as_ref().map(super::faults));
        let text = |line| match line {
            Line::Wrong(text) | Line::Right(text) => text,
        };
        lines.into_iter().map(text).collect()
    }

    #[test]
    fn a_fault_is_logged_once_and_when_it_is_gone() {
        let mut log = FaultLog::default();
        let line =
            "HTTPRoute shop/cart: for Gateway web/http: ResolvedRefs=False/BackendNotFound: no Service";
        assert_eq!(logged(&mut log, Some(status(false))), [line]);
        assert!(logged(&mut log, Some(status(false))).is_empty());
        assert_eq!(logged(&mut log, Some(status(true))), ["HTTPRoute shop/cart: all is well again"]);
        assert!(logged(&mut log, Some(status(true))).is_empty());
    }

    #[test]
    fn nothing_is_logged_of_what_was_deleted() {
        let mut log = FaultLog::default();
        logged(&mut log, Some(status(false)));
        assert!(logged(&mut log, None).is_empty());
        assert!(log.0.is_empty());
    }
}
