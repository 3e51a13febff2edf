//! A planned status into the one that is there, pure. A route's status is a list that several controllers share: entries of
//! others are put back as they were found, in their places. Nothing is planned when only time would change.

use serde_json::{Map, Value, json};

use crate::status::times;

/// The part of a status to write, as a JSON merge patch of `status`; `None` if what is there says it all.
///
/// `planned` is `None` for an object that we have nothing to say about any more.
pub(super) fn patch(observed: &Value, planned: Option<&Value>, controller: &str, now: &str) -> Option<Value> {
    let merged = match planned {
        Some(planned) if planned.get(PARENTS).is_none() => Some(with_conditions(observed, planned)),
        planned => with_parents(observed, planned, controller),
    }?;
    let mut merged = merged;
    carry(&mut merged, observed, controller, now);
    difference(observed, merged)
}

/// Whether a status has entries of ours among its parents.
pub(super) fn has_parents_of(status: &Value, controller: &str) -> bool {
    parents(status).iter().any(|entry| is_ours(entry, controller))
}

const PARENTS: &str = "parents";
const CONDITIONS: &str = "conditions";

// === routes ===

/// Ours that are still planned stay in their places, new ones come last.
fn with_parents(observed: &Value, planned: Option<&Value>, controller: &str) -> Option<Map<String, Value>> {
    let mut new: Vec<Value> = planned.map(parents).unwrap_or_default().iter().map(completed).collect();
    let mut merged = Vec::new();
    for entry in parents(observed) {
        if !is_ours(entry, controller) {
            merged.push(entry.clone());
        } else if let Some(at) = new.iter().position(|planned| is_same_parent(planned, entry)) {
            merged.push(new.remove(at));
        }
    }
    merged.append(&mut new);
    let nothing_there = observed.get(PARENTS).is_none() && merged.is_empty();
    (!nothing_there).then(|| [(PARENTS.to_owned(), Value::Array(merged))].into_iter().collect())
}

fn parents(status: &Value) -> &[Value] {
    status.get(PARENTS).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn is_ours(entry: &Value, controller: &str) -> bool {
    entry.get("controllerName").and_then(Value::as_str) == Some(controller)
}

fn is_same_parent(a: &Value, b: &Value) -> bool {
    completed(a).get("parentRef") == completed(b).get("parentRef")
}

/// The API server fills in what a `parentRef` leaves out.
fn completed(entry: &Value) -> Value {
    let mut entry = entry.clone();
    if let Some(parent) = entry.get_mut("parentRef").and_then(Value::as_object_mut) {
        for (field, default) in [("group", portcullis_gateway::GATEWAY_GROUP), ("kind", "Gateway")] {
            parent.entry(field).or_insert_with(|| json!(default));
        }
    }
    entry
}

// === objects that are all ours ===

/// Condition types with a domain are not the Gateway API's, but somebody's who looks at the same object: they stay.
fn with_conditions(observed: &Value, planned: &Value) -> Map<String, Value> {
    let mut merged = planned.as_object().cloned().unwrap_or_default();
    let others = observed.get(CONDITIONS).and_then(Value::as_array).into_iter().flatten();
    let others = others.filter(|condition| condition["type"].as_str().is_some_and(|name| name.contains('/')));
    let others: Vec<Value> = others.cloned().collect();
    if let Some(conditions) = merged.get_mut(CONDITIONS).and_then(Value::as_array_mut) {
        conditions.extend(others);
    }
    merged
}

// === both ===

/// Entries of others keep their times, whatever they are.
fn carry(merged: &mut Map<String, Value>, observed: &Value, controller: &str, now: &str) {
    for (name, value) in merged {
        let old = observed.get(name);
        match value {
            Value::Array(entries) if name == PARENTS => {
                for entry in entries.iter_mut().filter(|entry| is_ours(entry, controller)) {
                    let before = parents(observed)
                        .iter()
                        .find(|old| is_ours(old, controller) && is_same_parent(entry, old));
                    times::carry(entry, before, now);
                }
            }
            value => times::carry(value, old, now),
        }
    }
}

/// The top-level fields that differ, and `null` for those that go. Only fields that the plan could have are ours to remove.
fn difference(observed: &Value, merged: Map<String, Value>) -> Option<Value> {
    let mut patch = Map::new();
    let gone = ["addresses", "attachedGateways", "attachedListenerSets", "listeners", "supportedFeatures"];
    if !merged.contains_key(PARENTS) {
        for field in
            gone.into_iter().filter(|field| observed.get(field).is_some() && !merged.contains_key(*field))
        {
            patch.insert(field.to_owned(), Value::Null);
        }
    }
    for (field, value) in merged {
        if observed.get(&field) != Some(&value) {
            patch.insert(field, value);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "portcullis.dev/gateway";

    fn condition(reason: &str, time: &str) -> Value {
        json!({"type": "Accepted", "status": "True", "reason": reason, "message": "", "lastTransitionTime": time})
    }

    fn entry(controller: &str, parent: &str, reason: &str, time: &str) -> Value {
        json!({"parentRef": {"name": parent}, "controllerName": controller, "conditions": [condition(reason, time)]})
    }

    /// As the API server returns it.
    fn stored(entry: &Value) -> Value {
        completed(entry)
    }

    #[test]
    fn entries_of_others_stay_as_they_are_and_where_they_are() {
        // not what the schema says: whatever it is, it is put back
        let mut foreign = entry("example.com/c", "web", "Odd", "yesterday");
        foreign["added-later"] = json!({"z": 1, "a": [2]});
        let observed =
            json!({"parents": [entry(OURS, "gone", "A", "t"), foreign, entry(OURS, "web", "A", "t")]});
        let planned = json!({"parents": [entry(OURS, "new", "A", ""), entry(OURS, "web", "B", "")]});
        let patch = patch(&observed, Some(&planned), OURS, "now").unwrap();
        let expected =
            [foreign, stored(&entry(OURS, "web", "B", "now")), stored(&entry(OURS, "new", "A", "now"))];
        assert_eq!(patch, json!({"parents": expected}));
        assert_eq!(patch["parents"][0].to_string(), observed["parents"][1].to_string(), "byte for byte");
    }

    #[test]
    fn nothing_is_written_when_only_time_would_change() {
        let observed = json!({"parents": [stored(&entry(OURS, "web", "A", "then"))]});
        let planned = json!({"parents": [entry(OURS, "web", "A", "epoch")]});
        assert_eq!(patch(&observed, Some(&planned), OURS, "now"), None);
        let observed = json!({"conditions": [condition("A", "then")], "listeners": []});
        let planned = json!({"conditions": [condition("A", "epoch")], "listeners": []});
        assert_eq!(patch(&observed, Some(&planned), OURS, "now"), None);
    }

    #[test]
    fn an_entry_that_others_removed_comes_back() {
        let planned = json!({"parents": [entry(OURS, "web", "A", "epoch")]});
        let expected = json!({"parents": [stored(&entry(OURS, "web", "A", "now"))]});
        for observed in [json!({}), Value::Null, json!({"parents": []})] {
            assert_eq!(patch(&observed, Some(&planned), OURS, "now"), Some(expected.clone()));
        }
    }

    #[test]
    fn our_entries_go_from_a_route_that_left_us() {
        let foreign = entry("example.com/c", "web", "A", "t");
        let observed = json!({"parents": [foreign, entry(OURS, "web", "A", "t")]});
        assert!(has_parents_of(&observed, OURS));
        assert_eq!(patch(&observed, None, OURS, "now"), Some(json!({"parents": [foreign]})));
        assert_eq!(patch(&json!({"parents": [foreign]}), None, OURS, "now"), None);
        assert_eq!(patch(&json!({}), None, OURS, "now"), None);
        assert_eq!(patch(&json!({"conditions": [condition("A", "t")]}), None, OURS, "now"), None);
    }

    #[test]
    fn conditions_with_a_domain_are_other_peoples() {
        let theirs = json!({"type": "example.com/Scanned", "status": "True", "lastTransitionTime": "t"});
        let pending = json!({"type": "Programmed", "status": "Unknown", "lastTransitionTime": "t"});
        let observed = json!({"conditions": [condition("Pending", "t"), pending, theirs], "addresses": [1]});
        let planned = json!({"conditions": [condition("A", "")]});
        assert_eq!(
            patch(&observed, Some(&planned), OURS, "now"),
            Some(json!({"conditions": [condition("A", "now"), theirs], "addresses": null}))
        );
    }
}
