//! Selection of nodes by what pods demand of their labels, as the DaemonSet controller decides
//! which pods may stay ("Assigning Pods to Nodes" in Kubernetes' documentation). Taints are not
//! looked at: they come and go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

type Labels = BTreeMap<String, String>;

pub(super) fn selects(pod: &PodSpec, node: &ObjectMeta) -> bool {
    let labels = node.labels.clone().unwrap_or_default();
    pod.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && required(pod).is_none_or(|terms| terms.iter().any(|term| holds(term, node, &labels)))
}

/// One of them has to hold. Preferences keep no pod away.
fn required(pod: &PodSpec) -> Option<&[NodeSelectorTerm]> {
    let affinity = pod.affinity.as_ref()?.node_affinity.as_ref()?;
    Some(&affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms)
}

/// "A null or empty node selector term matches no objects."
fn holds(term: &NodeSelectorTerm, node: &ObjectMeta, labels: &Labels) -> bool {
    let name = node.name.iter().map(|name| ("metadata.name".to_owned(), name.clone()));
    let fields = name.collect();
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let match_fields = term.match_fields.as_deref().unwrap_or_default();
    !(expressions.is_empty() && match_fields.is_empty())
        && expressions.iter().all(|requirement| is_met(requirement, labels))
        && match_fields.iter().all(|requirement| is_met(requirement, &fields))
}

/// An operator that is not known yet is taken for met: then everything stays in place.
fn is_met(requirement: &NodeSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&requirement.key);
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = |text: &String| text.parse::<i64>().ok();
    let numbers = || Some((number(value?)?, number(values.first()?)?));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Of a node `a` with labels `zone=east`, `cores=8`.
    fn is_selected(pod: &Value) -> bool {
        let node = json!({"name": "a", "labels": {"zone": "east", "cores": "8"}});
        let mut pod = pod.clone();
        pod["containers"] = json!([]);
        selects(&serde_json::from_value(pod).unwrap(), &serde_json::from_value(node).unwrap())
    }

    fn with_terms(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}})
    }

    #[test]
    fn a_node_selector_wants_all_its_labels() {
        assert!(is_selected(&json!({})));
        assert!(is_selected(&json!({"nodeSelector": {"zone": "east", "cores": "8"}})));
        assert!(!is_selected(&json!({"nodeSelector": {"zone": "east", "rack": "1"}})));
        assert!(!is_selected(&json!({"nodeSelector": {"zone": "west"}})));
    }

    #[test]
    fn one_term_of_a_required_affinity_has_to_hold() {
        let [east, west] = ["east", "west"]
            .map(|zone| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}));
        assert!(is_selected(&with_terms(json!([west, east]))));
        assert!(!is_selected(&with_terms(json!([west]))));
        assert!(!is_selected(&with_terms(json!([{}]))));
    }

    #[test]
    fn operators_are_those_of_kubernetes() {
        for (key, operator, values, met) in [
            ("zone", "NotIn", json!(["west"]), true),
            ("zone", "NotIn", json!(["east"]), false),
            ("rack", "NotIn", json!(["1"]), true),
            ("zone", "Exists", json!([]), true),
            ("rack", "Exists", json!([]), false),
            ("rack", "DoesNotExist", json!([]), true),
            ("zone", "DoesNotExist", json!([]), false),
            ("cores", "Gt", json!(["7"]), true),
            ("cores", "Gt", json!(["8"]), false),
            ("cores", "Lt", json!(["9"]), true),
            ("zone", "Lt", json!(["9"]), false),
        ] {
            let requirement = json!({"key": key, "operator": operator, "values": values});
            let pod = with_terms(json!([{"matchExpressions": [requirement]}]));
            assert_eq!(is_selected(&pod), met, "{key} {operator} {values}");
        }
    }

    #[test]
    fn the_name_is_a_field() {
        for (name, met) in [("a", true), ("b", false)] {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
            assert_eq!(is_selected(&with_terms(json!([{"matchFields": [field]}]))), met);
        }
    }
}
