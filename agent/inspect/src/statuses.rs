//! Objects and their conditions as a table, and the choice of objects by kind and name.

use portcullis_api::Kind;
use portcullis_gateway::{ConditionSummary, parent_name};
use serde_json::Value;

use crate::table::table;

/// The objects that are asked for; each part that is missing excludes none.
#[derive(Debug, Default)]
pub struct Selection {
    /// `httproute`, `HTTPRoute` or `httproutes`, as kubectl takes them.
    pub kind: Option<String>,
    /// `NAME` or `NAMESPACE/NAME`.
    pub name: Option<String>,
}

impl Selection {
    pub fn contains(&self, object: &Value) -> bool {
        let kind = text(&object["kind"]);
        let full = name(object);
        self.kind.as_ref().is_none_or(|wanted| is_kind(wanted, kind))
            && self
                .name
                .as_ref()
                .is_none_or(|wanted| full == *wanted || full.ends_with(&format!("/{wanted}")))
    }
}

fn is_kind(wanted: &str, kind: &str) -> bool {
    let known = Kind::ALL.iter().find(|known| known.as_str() == kind);
    wanted.eq_ignore_ascii_case(kind)
        || known.is_some_and(|known| wanted.eq_ignore_ascii_case(known.resource()))
}

/// A table of objects with statuses.
pub fn statuses(objects: &[Value]) -> String {
    let rows: Vec<_> = objects.iter().flat_map(rows).collect();
    table(&["KIND", "NAME", "FOR", "STATE", "MESSAGE"], &rows)
}

/// One row for the object, one for each parent or ancestor, and one for each listener with a fault.
fn rows(object: &Value) -> Vec<Vec<String>> {
    let status = &object["status"];
    let row = |part: String, summary: Option<ConditionSummary>| {
        let (state, message) = match summary {
            Some(summary) => (summary.state, summary.message),
            None => ("ok".to_owned(), String::new()),
        };
        vec![text(&object["kind"]).to_owned(), name(object), part, state, message]
    };
    let own = status.get("conditions").map(|own| row("-".to_owned(), ConditionSummary::of_json(own)));
    let parents = list(&status["parents"]).map(|parent| (&parent["parentRef"], parent));
    let ancestors = list(&status["ancestors"]).map(|ancestor| (&ancestor["ancestorRef"], ancestor));
    let parents = parents.chain(ancestors).map(|(reference, entry)| {
        row(parent_name(reference), ConditionSummary::of_json(&entry["conditions"]))
    });
    let listeners = list(&status["listeners"]).filter_map(|listener| {
        let summary = ConditionSummary::of_json(&listener["conditions"])?;
        Some(row(format!("listener {}", text(&listener["name"])), Some(summary)))
    });
    own.into_iter().chain(parents).chain(listeners).collect()
}

fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().map(|namespace| format!("{namespace}/"));
    format!("{}{}", namespace.unwrap_or_default(), text(&metadata["name"]))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objects() -> [Value; 2] {
        let accepted = json!([{"type": "Accepted", "status": "True", "reason": "Accepted", "message": ""}]);
        let conflict = json!([{"type": "Conflicted", "status": "True", "reason": "HostnameConflict", "message": "taken"}]);
        [
            json!({"kind": "Gateway", "metadata": {"namespace": "infra", "name": "web"}, "status": {
                "conditions": accepted,
                "listeners": [{"name": "a", "conditions": accepted}, {"name": "b", "conditions": conflict}]}}),
            json!({"kind": "HTTPRoute", "metadata": {"namespace": "shop", "name": "cart"}, "status": {
                "parents": [{"parentRef": {"kind": "Gateway", "namespace": "infra", "name": "web"},
                    "conditions": accepted}]}}),
        ]
    }

    #[test]
    fn rows_are_of_objects_their_parents_and_listeners_with_faults() {
        let expected = "\
KIND       NAME       FOR                STATE                             MESSAGE
Gateway    infra/web  -                  ok
Gateway    infra/web  listener b         Conflicted=True/HostnameConflict  taken
HTTPRoute  shop/cart  Gateway infra/web  ok
";
        assert_eq!(statuses(&objects()), expected);
    }

    #[test]
    fn kinds_and_names_are_taken_as_kubectl_takes_them() {
        let [gateway, route] = objects();
        let selection = |kind: Option<&str>, name: Option<&str>| Selection {
            kind: kind.map(str::to_owned),
            name: name.map(str::to_owned),
        };
        for kind in ["httproute", "HTTPRoute", "httproutes"] {
            let selection = selection(Some(kind), None);
            assert!(selection.contains(&route) && !selection.contains(&gateway), "{kind}");
        }
        for name in ["web", "infra/web"] {
            let selection = selection(None, Some(name));
            assert!(selection.contains(&gateway) && !selection.contains(&route), "{name}");
        }
        assert!(!selection(None, Some("eb")).contains(&gateway));
        assert!(Selection::default().contains(&gateway));
    }
}
