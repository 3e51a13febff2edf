//! Faults that statuses tell, in the log, with the object that has them: each once, and once more
//! when it is gone.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use portcullis_api::ObjectKey;
use portcullis_api::types::shared::{ListenerStatus, RouteParentStatus};
use portcullis_gateway::{ConditionType, Status};
use serde_json::{Value, json};

use super::Statuses;

/// More lines at once help nobody: a parent that went takes all its children with it.
const MOST_LINES: usize = 50;

/// The faults of each object that has some.
#[derive(Debug, Default)]
pub struct FaultLog(BTreeMap<ObjectKey, Vec<String>>);

impl FaultLog {
    pub fn note(&mut self, statuses: &Statuses) {
        let mut lines = Vec::new();
        for (key, status) in statuses {
            let now = status.as_ref().map(faults).unwrap_or_default();
            lines.extend(self.replace(key, now, status.is_some()));
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
        self.0.retain(|key, _| objects.contains(key));
    }

    /// Replaces the faults of an object; returns the lines to log.
    fn replace(&mut self, key: &ObjectKey, now: Vec<String>, exists: bool) -> Vec<Line> {
        let before = self.0.remove(key).unwrap_or_default();
        let is_solved = exists && now.is_empty() && !before.is_empty();
        let new = now.iter().filter(|fault| !before.contains(fault));
        let mut lines: Vec<_> = new.map(|fault| Line::Wrong(format!("{key}: {fault}"))).collect();
        lines.extend(is_solved.then(|| Line::Right(format!("{key}: all is well again"))));
        if !now.is_empty() {
            self.0.insert(key.clone(), now);
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

/// Of the object itself, of its listeners, and of its parents.
fn faults(status: &Status) -> Vec<String> {
    let own = |conditions: &Option<Vec<Condition>>| typed(conditions.as_deref()).map(|it| it.to_string());
    let of_listeners = |listeners: &Option<Vec<ListenerStatus>>| -> Vec<String> {
        let listeners = listeners.iter().flatten();
        let line = |listener: &ListenerStatus| {
            let summary = typed(Some(&listener.conditions))?;
            Some(format!("listener {}: {summary}", listener.name))
        };
        listeners.filter_map(line).collect()
    };
    match status {
        Status::GatewayClass(status) => own(&status.conditions).into_iter().collect(),
        Status::Gateway(status) => {
            own(&status.conditions).into_iter().chain(of_listeners(&status.listeners)).collect()
        }
        Status::ListenerSet(status) => {
            own(&status.conditions).into_iter().chain(of_listeners(&status.listeners)).collect()
        }
        Status::Route(status) => {
            let line = |parent: &RouteParentStatus| {
                let summary = typed(Some(&parent.conditions))?;
                Some(format!("for {}: {summary}", parent_name(&json!(parent.parent_ref))))
            };
            status.parents.iter().filter_map(line).collect()
        }
    }
}

/// The faults that conditions tell, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The conditions that are not as they should be: `Accepted=False/NoMatchingParent,…`.
    pub state: String,
    pub message: String,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { state, message } = self;
        if message.is_empty() { f.write_str(state) } else { write!(f, "{state}: {message}") }
    }
}

/// A condition, as far as a summary goes.
#[derive(Clone, Copy)]
struct Stated<'c> {
    r#type: &'c str,
    status: &'c str,
    reason: &'c str,
    message: &'c str,
}

/// `None` if all conditions are as they should be.
pub fn summary(conditions: &Value) -> Option<Summary> {
    summarise(list(conditions).map(Stated::from))
}

fn typed(conditions: Option<&[Condition]>) -> Option<Summary> {
    summarise(conditions.into_iter().flatten().map(Stated::from))
}

fn summarise<'c>(conditions: impl Iterator<Item = Stated<'c>>) -> Option<Summary> {
    let bad: Vec<_> = conditions.filter(|condition| condition.is_fault()).collect();
    let state = bad.iter().map(|c| format!("{}={}/{}", c.r#type, c.status, c.reason));
    let state = state.collect::<Vec<_>>().join(",");
    let mut messages: Vec<_> = bad.iter().map(|c| c.message).filter(|message| !message.is_empty()).collect();
    messages.dedup();
    (!bad.is_empty()).then(|| Summary { state, message: messages.join("; ") })
}

/// Does any condition in a status, of the object, a listener or a parent, report a problem?
pub fn has_problem(status: &Value) -> bool {
    match status {
        Value::Object(fields) => fields.iter().any(|(name, value)| match (name.as_str(), value) {
            ("conditions", Value::Array(conditions)) => conditions.iter().any(is_problem),
            (_, value) => has_problem(value),
        }),
        Value::Array(items) => items.iter().any(has_problem),
        _ => false,
    }
}

/// Tells whether a condition says that something is wrong.
fn is_problem(condition: &Value) -> bool {
    Stated::from(condition).is_fault()
}

impl Stated<'_> {
    /// Of conditions that are not the Gateway API's, nothing is known.
    fn is_fault(&self) -> bool {
        ConditionType::of(self.r#type).is_some_and(|known| known.is_fault(self.status, self.reason))
    }
}

impl<'c> From<&'c Value> for Stated<'c> {
    fn from(condition: &'c Value) -> Self {
        Self {
            r#type: text(&condition["type"]),
            status: text(&condition["status"]),
            reason: text(&condition["reason"]),
            message: text(&condition["message"]),
        }
    }
}

impl<'c> From<&'c Condition> for Stated<'c> {
    fn from(condition: &'c Condition) -> Self {
        let Condition { type_, status, reason, message, .. } = condition;
        Self { r#type: type_, status, reason, message }
    }
}

/// `Gateway infra/web/https:443`, as much of it as the reference says.
pub fn parent_name(reference: &Value) -> String {
    let section = reference["sectionName"].as_str().map(|section| format!("/{section}")).unwrap_or_default();
    let port = reference["port"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
    let namespace = reference["namespace"].as_str().map(|it| format!("{it}/")).unwrap_or_default();
    format!("{} {namespace}{}{section}{port}", text(&reference["kind"]), text(&reference["name"]))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
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
        let now = status.as_ref().map(super::faults).unwrap_or_default();
        let lines = log.replace(&route(), now, status.is_some());
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
    fn a_family_that_is_attached_in_part_complains() {
        for (r#type, status, reason, complains) in [
            ("Attached", "True", "Attached", false),
            ("Attached", "True", "PartiallyAttached", true),
            ("Attached", "False", "NotAttached", true),
            ("Accepted", "True", "GrandparentConfigError", true),
            ("NotSupported", "True", "NotSupported", true),
            ("NotSupported", "False", "Supported", false),
        ] {
            let condition = json!({"type": r#type, "status": status, "reason": reason});
            assert_eq!(is_problem(&condition), complains, "{condition}");
        }
    }

    #[test]
    fn nothing_is_logged_of_what_was_deleted() {
        let mut log = FaultLog::default();
        logged(&mut log, Some(status(false)));
        assert!(logged(&mut log, None).is_empty());
        assert!(log.0.is_empty());
    }
}
