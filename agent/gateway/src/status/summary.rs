//! The faults that conditions report, in short: for the log, for `portcullis status` and for
//! `portcullis check`. Which status of a condition is a fault is a property of its type.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;

use crate::ConditionType;

/// The conditions of an object, a listener or a parent that are not as they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionSummary {
    /// `Accepted=False/NoMatchingParent,…`
    pub state: String,
    pub message: String,
}

/// A condition, as far as a summary goes.
#[derive(Clone, Copy)]
struct Stated<'c> {
    r#type: &'c str,
    status: &'c str,
    reason: &'c str,
    message: &'c str,
}

/// `Gateway infra/web/https:443`, as much of it as the reference says.
pub fn parent_name(reference: &Value) -> String {
    let section = reference["sectionName"].as_str().map(|section| format!("/{section}")).unwrap_or_default();
    let port = reference["port"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
    let namespace = reference["namespace"].as_str().map(|it| format!("{it}/")).unwrap_or_default();
    format!("{} {namespace}{}{section}{port}", text(&reference["kind"]), text(&reference["name"]))
}

pub(super) fn is_fault(condition: &Condition) -> bool {
    Stated::from(condition).is_fault()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

// === impl ConditionSummary ===

impl ConditionSummary {
    /// `None` if all conditions are as they should be.
    pub fn of(conditions: &[Condition]) -> Option<Self> {
        Self::of_stated(conditions.iter().map(Stated::from))
    }

    /// The same, of conditions as they stand in an object.
    pub fn of_json(conditions: &Value) -> Option<Self> {
        Self::of_stated(conditions.as_array().into_iter().flatten().map(Stated::from))
    }

    fn of_stated<'c>(conditions: impl Iterator<Item = Stated<'c>>) -> Option<Self> {
        let bad: Vec<_> = conditions.filter(|condition| condition.is_fault()).collect();
        let state = bad.iter().map(|c| format!("{}={}/{}", c.r#type, c.status, c.reason));
        let state = state.collect::<Vec<_>>().join(",");
        // One fault has several conditions, some of which say more of it.
        let mut messages: Vec<&str> = Vec::new();
        for Stated { message, .. } in &bad {
            if !messages.iter().any(|known| known.starts_with(message)) {
                messages.retain(|known| !message.starts_with(known));
                messages.push(message);
            }
        }
        (!bad.is_empty()).then(|| Self { state, message: messages.join("; ") })
    }
}

impl std::fmt::Display for ConditionSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { state, message } = self;
        if message.is_empty() { f.write_str(state) } else { write!(f, "{state}: {message}") }
    }
}

// === impl Stated ===

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_is_said_once() {
        let said = |messages: &[&str]| {
            let conditions = messages.iter().map(
                |message| json!({"type": "Accepted", "status": "False", "reason": "Invalid", "message": message}),
            );
            ConditionSummary::of_json(&conditions.collect()).unwrap().message
        };
        assert_eq!(said(&["no name; until then, 404", "no name", "no name"]), "no name; until then, 404");
        assert_eq!(
            said(&["no name", "", "no port", "no name; until then, 404"]),
            "no port; no name; until then, 404"
        );
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
            assert_eq!(Stated::from(&condition).is_fault(), complains, "{condition}");
        }
    }
}
