//! `lastTransitionTime`: when a condition became what it is. Translation has no clock; the writer
//! of a status compares it with the one written before.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// The time as the API server writes it, to the second.
pub(crate) fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}

/// Sets the time of every condition in `new`: that of the same condition in `old` if status and
/// reason are the same, else `now` (RFC 3339).
pub(crate) fn carry(new: &mut Value, old: Option<&Value>, now: &str) {
    if is_condition(new) {
        let time = old.filter(|old| is_same_state(old, new)).and_then(|old| old.get(TIME));
        new[TIME] = time.cloned().unwrap_or_else(|| now.into());
        return;
    }
    match new {
        Value::Object(fields) => {
            for (name, value) in fields {
                carry(value, old.and_then(|old| old.get(name)), now);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| {
            let before = counterpart(item, old).cloned();
            carry(item, before.as_ref(), now);
        }),
        _ => {}
    }
}

const TIME: &str = "lastTransitionTime";
/// The fields that identify an item: a condition, a listener, a route's parent, a policy's
/// ancestor, in this order.
const IDENTITIES: [&[&str]; 4] =
    [&["type"], &["name"], &["parentRef", "controllerName"], &["ancestorRef", "controllerName"]];

fn is_condition(value: &Value) -> bool {
    value.get(TIME).is_some()
}

fn is_same_state(a: &Value, b: &Value) -> bool {
    ["status", "reason"].iter().all(|field| a.get(field) == b.get(field))
}

fn counterpart<'o>(item: &Value, old: Option<&'o Value>) -> Option<&'o Value> {
    let identity = IDENTITIES.iter().find(|fields| fields.iter().all(|field| item.get(field).is_some()))?;
    let same = |before: &&Value| identity.iter().all(|field| before.get(field) == item.get(field));
    old?.as_array()?.iter().find(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(accepted: &str, reason: &str, time: &str) -> Value {
        let condition = json!({"type": "Accepted", "status": accepted, "reason": reason, TIME: time});
        json!({
            "conditions": [condition],
            "listeners": [{"name": "a", "conditions": [condition]}],
            "parents": [{"parentRef": {"name": "g"}, "controllerName": "c", "conditions": [condition]}],
        })
    }

    #[test]
    fn times_stay_while_the_state_does() {
        let old = status("True", "Accepted", "then");
        for (accepted, reason, time) in
            [("True", "Accepted", "then"), ("False", "Accepted", "now"), ("True", "Other", "now")]
        {
            let mut new = status(accepted, reason, "epoch");
            carry(&mut new, Some(&old), "now");
            assert_eq!(new, status(accepted, reason, time));
        }
    }

    #[test]
    fn items_are_compared_with_their_like_wherever_they_stand() {
        let listener =
            |name: &str, time: &str| json!({"name": name, "conditions": [{"type": "Accepted", TIME: time}]});
        let old = json!([listener("a", "then"), listener("b", "before")]);
        let mut new = json!([listener("b", ""), listener("c", "")]);
        carry(&mut new, Some(&old), "now");
        assert_eq!(new, json!([listener("b", "before"), listener("c", "now")]));
    }
}
