//! What statuses complain about, in the log: who reads it at night should not have to look for the object first. Each
//! complaint once, and once more when it is gone.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_gateway::ObjectKey;
use serde_json::Value;

use super::Statuses;

/// More lines at once help nobody: a parent that went takes all its children with it.
const MOST_LINES: usize = 50;

/// The open complaints of each object that has some.
#[derive(Debug, Default)]
pub struct Complaints(BTreeMap<ObjectKey, Vec<String>>);

impl Complaints {
    pub fn note(&mut self, statuses: &Statuses) {
        let mut lines = Vec::new();
        for (key, status) in statuses {
            let now = status.as_ref().map(complaints).unwrap_or_default();
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

    /// What there is to say.
    fn replace(&mut self, key: &ObjectKey, now: Vec<String>, exists: bool) -> Vec<Line> {
        let before = self.0.remove(key).unwrap_or_default();
        let is_solved = exists && now.is_empty() && !before.is_empty();
        let new = now.iter().filter(|complaint| !before.contains(complaint));
        let mut lines: Vec<_> = new.map(|complaint| Line::Wrong(format!("{key}: {complaint}"))).collect();
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
fn complaints(status: &Value) -> Vec<String> {
    let own = summary(&status["conditions"]).map(|summary| summary.to_string());
    let listeners = list(&status["listeners"]).filter_map(|listener| {
        let summary = summary(&listener["conditions"])?;
        Some(format!("listener {}: {summary}", text(&listener["name"])))
    });
    let parents = list(&status["parents"]).filter_map(|parent| {
        let summary = summary(&parent["conditions"])?;
        Some(format!("for {}: {summary}", parent_name(&parent["parentRef"])))
    });
    own.into_iter().chain(listeners).chain(parents).collect()
}

/// What is wrong, in short.
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

/// `None` if all conditions are as they should be.
pub fn summary(conditions: &Value) -> Option<Summary> {
    let bad: Vec<_> = list(conditions).filter(|condition| is_problem(condition)).collect();
    let state =
        bad.iter().map(|c| format!("{}={}/{}", text(&c["type"]), text(&c["status"]), text(&c["reason"])));
    let state = state.collect::<Vec<_>>().join(",");
    let mut messages: Vec<_> = bad.iter().map(|c| text(&c["message"])).filter(|m| !m.is_empty()).collect();
    messages.dedup();
    (!bad.is_empty()).then(|| Summary { state, message: messages.join("; ") })
}

/// Whether a condition says that something is wrong.
pub fn is_problem(condition: &Value) -> bool {
    let holds = condition["status"] == "True";
    // GEP-1058 has two that are true and complain nevertheless.
    if matches!(text(&condition["reason"]), "GrandparentConfigError" | "PartiallyAttached") {
        return true;
    }
    match condition["type"].as_str() {
        Some("Conflicted" | "NotSupported" | "PartiallyInvalid") => holds,
        Some("Accepted" | "Attached" | "Programmed" | "ResolvedRefs" | "SupportedVersion") => !holds,
        _ => false,
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
    use portcullis_gateway::Kind;
    use portcullis_model::ObjectName;
    use serde_json::json;

    use super::*;

    fn route() -> ObjectKey {
        ObjectKey::new(Kind::HttpRoute, ObjectName::new("shop", "cart"))
    }

    fn status(good: bool) -> Value {
        let (status, reason, message) =
            if good { ("True", "ResolvedRefs", "") } else { ("False", "BackendNotFound", "no Service") };
        json!({"parents": [{"parentRef": {"kind": "Gateway", "name": "web", "sectionName": "http"}, "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": ""},
            {"type": "ResolvedRefs", "status": status, "reason": reason, "message": message}]}]})
    }

    fn said(complaints: &mut Complaints, status: Option<Value>) -> Vec<String> {
        let now = status.as_ref().map(super::complaints).unwrap_or_default();
        let lines = complaints.replace(&route(), now, status.is_some());
        let text = |line| match line {
            Line::Wrong(text) | Line::Right(text) => text,
        };
        lines.into_iter().map(text).collect()
    }

    #[test]
    fn a_complaint_is_said_once_and_when_it_is_gone() {
        let mut complaints = Complaints::default();
        let line =
            "HTTPRoute shop/cart: for Gateway web/http: ResolvedRefs=False/BackendNotFound: no Service";
        assert_eq!(said(&mut complaints, Some(status(false))), [line]);
        assert!(said(&mut complaints, Some(status(false))).is_empty());
        assert_eq!(said(&mut complaints, Some(status(true))), ["HTTPRoute shop/cart: all is well again"]);
        assert!(said(&mut complaints, Some(status(true))).is_empty());
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
    fn nothing_is_said_of_what_was_deleted() {
        let mut complaints = Complaints::default();
        said(&mut complaints, Some(status(false)));
        assert!(said(&mut complaints, None).is_empty());
        assert!(complaints.0.is_empty());
    }
}
