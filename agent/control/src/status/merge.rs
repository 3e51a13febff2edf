//! A planned status into the one that is there, pure. Lists that several controllers share (a
//! route's parents, a policy's ancestors, conditions) keep what others put there, as it was found
//! and in its place. Nothing is planned when only time would change.

use portcullis_gateway::ConditionType;
use serde_json::{Map, Value, json};

use crate::status::times;

const LISTENERS: &str = "listeners";
const CONDITIONS: &str = "conditions";

/// A list of which each controller has entries of its own, and the reference by which they are told
/// apart.
#[derive(Clone, Copy)]
struct Shared {
    list: &'static str,
    reference: &'static str,
}

/// Of routes, and of policies.
const SHARED: [Shared; 2] = [
    Shared { list: "parents", reference: "parentRef" },
    Shared { list: "ancestors", reference: "ancestorRef" },
];

/// Fields that a plan may have, but for the shared ones; those that are there and not planned go.
const PLANNED: [&str; 5] =
    ["addresses", "attachedGateways", "attachedListenerSets", LISTENERS, "supportedFeatures"];

/// Types that the Gateway API has or had for objects that have one controller, and that we never
/// write.
const NEVER_WRITTEN: [&str; 5] =
    ["AttachedListenerSets", "Detached", "InsecureFrontendValidationMode", "Ready", "Scheduled"];

/// The part of a status to write, as a JSON merge patch of `status`; `None` if nothing is
/// missing from what is there.
///
/// `planned` is `None` for an object whose status has nothing of ours any more.
pub(super) fn patch(observed: &Value, planned: Option<&Value>, controller: &str, now: &str) -> Option<Value> {
    let shared = Shared::of(planned.unwrap_or(observed));
    let mut merged = match (shared, planned) {
        (Some(shared), planned) => shared.merged(observed, planned, controller)?,
        (None, Some(planned)) => whole(observed, planned),
        (None, None) => return None,
    };
    carry(&mut merged, observed, controller, now);
    difference(observed, merged)
}

/// Tells whether a status has entries of ours among those of several controllers.
pub(super) fn has_entries_of(status: &Value, controller: &str) -> bool {
    SHARED.iter().flat_map(|shared| list(status, shared.list)).any(|entry| is_ours(entry, controller))
}

fn list<'v>(holder: &'v Value, field: &str) -> &'v [Value] {
    holder.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Items that are planned, in the places where the same is there; new items come last. Of what is
/// there and not planned, what others put there stays. An order of our own would be undone by a
/// controller that has another one.
fn merge(
    observed: &[Value],
    mut planned: Vec<Value>,
    is_same: impl Fn(&Value, &Value) -> bool,
    is_others: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let mut merged = Vec::with_capacity(observed.len() + planned.len());
    for item in observed {
        if is_others(item) {
            merged.push(item.clone());
        } else if let Some(at) = planned.iter().position(|planned| is_same(planned, item)) {
            merged.push(planned.remove(at));
        }
    }
    merged.append(&mut planned);
    merged
}

// === routes and policies ===

impl Shared {
    fn of(status: &Value) -> Option<Self> {
        SHARED.into_iter().find(|shared| status.get(shared.list).is_some())
    }

    fn merged(
        self,
        observed: &Value,
        planned: Option<&Value>,
        controller: &str,
    ) -> Option<Map<String, Value>> {
        let there = list(observed, self.list);
        let planned = planned.map(|it| list(it, self.list)).unwrap_or_default();
        let mut planned: Vec<Value> = planned.iter().map(|entry| self.completed(entry)).collect();
        for entry in &mut planned {
            let before = there.iter().find(|old| is_ours(old, controller) && self.is_same(entry, old));
            share_conditions(entry, before);
        }
        let is_same = |a: &Value, b: &Value| self.is_same(a, b);
        let merged = merge(there, planned, is_same, |entry| !is_ours(entry, controller));
        let nothing_there = observed.get(self.list).is_none() && merged.is_empty();
        (!nothing_there).then(|| [(self.list.to_owned(), Value::Array(merged))].into_iter().collect())
    }

    fn is_same(self, a: &Value, b: &Value) -> bool {
        self.completed(a).get(self.reference) == self.completed(b).get(self.reference)
    }

    /// The API server fills in what a reference leaves out.
    fn completed(self, entry: &Value) -> Value {
        let mut entry = entry.clone();
        if let Some(parent) = entry.get_mut(self.reference).and_then(Value::as_object_mut) {
            for (field, default) in [("group", portcullis_api::GATEWAY_GROUP), ("kind", "Gateway")] {
                parent.entry(field).or_insert_with(|| json!(default));
            }
        }
        entry
    }
}

fn is_ours(entry: &Value, controller: &str) -> bool {
    entry.get("controllerName").and_then(Value::as_str) == Some(controller)
}

// === objects that are all ours ===

/// No other controller writes them, but for conditions of types of its own.
fn whole(observed: &Value, planned: &Value) -> Map<String, Value> {
    let mut merged = planned.clone();
    share_conditions(&mut merged, Some(observed));
    let listeners = merged.get_mut(LISTENERS).and_then(Value::as_array_mut);
    for listener in listeners.into_iter().flatten() {
        let before = list(observed, LISTENERS).iter().find(|old| old["name"] == listener["name"]);
        share_conditions(listener, before);
    }
    merged.as_object().cloned().unwrap_or_default()
}

// === all ===

fn share_conditions(planned: &mut Value, observed: Option<&Value>) {
    let there = observed.map(|observed| list(observed, CONDITIONS)).unwrap_or_default();
    if let Some(conditions) = planned.get_mut(CONDITIONS).and_then(Value::as_array_mut) {
        let ours = std::mem::take(conditions);
        *conditions = merge(there, ours, |a, b| a["type"] == b["type"], is_of_another_type);
    }
}

/// The Gateway API's own types are the controller's, also those that it does not write; a former
/// controller may have left them. "Implementations may add their own": others belong to a
/// controller that looks at the same object.
fn is_of_another_type(condition: &Value) -> bool {
    let r#type = condition["type"].as_str().unwrap_or_default();
    !ConditionType::ALL.iter().any(|ours| ours.as_str() == r#type) && !NEVER_WRITTEN.contains(&r#type)
}

/// Entries of others keep their times, whatever they are.
fn carry(merged: &mut Map<String, Value>, observed: &Value, controller: &str, now: &str) {
    for (name, value) in merged {
        match (SHARED.into_iter().find(|shared| shared.list == name), value) {
            (Some(shared), Value::Array(entries)) => {
                for entry in entries.iter_mut().filter(|entry| is_ours(entry, controller)) {
                    let mut there = list(observed, shared.list).iter();
                    let before = there.find(|old| is_ours(old, controller) && shared.is_same(entry, old));
                    times::carry(entry, before, now);
                }
            }
            (_, value) => times::carry(value, observed.get(name), now),
        }
    }
}

/// The top-level fields that differ, and `null` for those that go.
fn difference(observed: &Value, merged: Map<String, Value>) -> Option<Value> {
    let mut patch = Map::new();
    if !SHARED.iter().any(|shared| merged.contains_key(shared.list)) {
        let gone =
            PLANNED.into_iter().filter(|field| observed.get(field).is_some() && !merged.contains_key(*field));
        patch.extend(gone.map(|field| (field.to_owned(), Value::Null)));
    }
    patch.extend(merged.into_iter().filter(|(field, value)| observed.get(field) != Some(value)));
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
        SHARED[0].completed(entry)
    }

    #[test]
    fn entries_of_others_stay_as_they_are_and_where_they_are() {
        // not as the schema has it: whatever it is, it is put back
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
        assert!(has_entries_of(&observed, OURS));
        assert_eq!(patch(&observed, None, OURS, "now"), Some(json!({"parents": [foreign]})));
        assert_eq!(patch(&json!({"parents": [foreign]}), None, OURS, "now"), None);
        assert_eq!(patch(&json!({}), None, OURS, "now"), None);
        assert_eq!(patch(&json!({"conditions": [condition("A", "t")]}), None, OURS, "now"), None);
    }

    #[test]
    fn ancestors_of_policies_are_shared_like_parents_of_routes() {
        let of = |controller: &str, gateway: &str, reason: &str, time: &str| {
            json!({"ancestorRef": {"group": portcullis_api::GATEWAY_GROUP, "kind": "Gateway", "name": gateway},
                "controllerName": controller, "conditions": [condition(reason, time)]})
        };
        let foreign = of("example.com/c", "web", "A", "t");
        let observed = json!({"ancestors": [of(OURS, "gone", "A", "t"), foreign, of(OURS, "web", "A", "t")]});
        let planned = json!({"ancestors": [of(OURS, "web", "B", "")]});
        let expected = json!({"ancestors": [foreign, of(OURS, "web", "B", "now")]});
        assert_eq!(patch(&observed, Some(&planned), OURS, "now"), Some(expected.clone()));
        assert_eq!(patch(&expected, Some(&planned), OURS, "later"), None);
        assert!(has_entries_of(&observed, OURS));
        assert_eq!(patch(&observed, None, OURS, "now"), Some(json!({"ancestors": [foreign]})));
    }

    #[test]
    fn conditions_of_other_types_stay_where_they_are() {
        let of = |name: &str| json!({"type": name, "status": "True", "lastTransitionTime": "t"});
        let (theirs, bare) = (of("example.com/Scanned"), of("Scanned"));
        let observed = json!({"conditions": [theirs, of("Programmed"), of("Ready"), condition("Pending", "t"), bare], "addresses": [1]});
        let planned = json!({"conditions": [condition("A", "")]});
        assert_eq!(
            patch(&observed, Some(&planned), OURS, "now"),
            Some(json!({"conditions": [theirs, condition("A", "now"), bare], "addresses": null}))
        );
        let observed = json!({"conditions": [theirs, condition("A", "t")]});
        assert_eq!(patch(&observed, Some(&planned), OURS, "now"), None, "another order is no difference");
    }

    #[test]
    fn conditions_of_other_types_stay_in_listeners_and_entries_of_ours() {
        let theirs = json!({"type": "example.com/Scanned", "status": "True", "lastTransitionTime": "t"});
        let listener = |conditions: Value| json!({"listeners": [{"name": "http", "conditions": conditions}]});
        let planned = listener(json!([condition("A", "")]));
        let shared = listener(json!([theirs, condition("A", "t")]));
        assert_eq!(patch(&shared, Some(&planned), OURS, "now"), None);

        let mut shared = stored(&entry(OURS, "web", "A", "t"));
        shared["conditions"].as_array_mut().unwrap().insert(0, theirs);
        let planned = json!({"parents": [entry(OURS, "web", "A", "")]});
        assert_eq!(patch(&json!({"parents": [shared]}), Some(&planned), OURS, "now"), None);
    }
}
