//! The namespaces that may attach: None, Same, Selector or All. One type for all places that ask:
//! routes to listeners, ListenerSets to Gateways (`allowedListeners`), Gateways to Gateways
//! (`allowedChildren`), routes to route rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use portcullis_api::Objects;
use portcullis_api::types::shared::{AllowedNamespaces, LabelSelector};
use portcullis_model::ObjectName;

/// The label that the API server puts on every namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

#[derive(Clone, Debug, PartialEq)]
pub enum NamespaceRule {
    None,
    Same,
    All,
    Selector(LabelSelector),
}

/// The labels of all namespaces. Of a namespace without an object (there need not be one in a
/// directory of files, and in a cluster it may not be readable) only the name is known, and
/// requirements on other labels are not met, be it that they are not there.
#[derive(Clone, Copy, Debug)]
pub struct Namespaces<'o> {
    by_name: &'o BTreeMap<ObjectName, Arc<Namespace>>,
}

// === impl NamespaceRule ===

impl NamespaceRule {
    /// Unknown values of `from` admit no namespace.
    pub fn new(allowed: Option<&AllowedNamespaces>, default: Self) -> Self {
        let Some(allowed) = allowed else { return default };
        match allowed.from.as_deref() {
            None => default,
            Some("All") => Self::All,
            Some("Same") => Self::Same,
            Some("Selector") => allowed.selector.clone().map_or(Self::None, Self::Selector),
            Some(_) => Self::None,
        }
    }

    /// The reason why what is written admits no namespace though it looks as if it did.
    pub fn malformation(allowed: &AllowedNamespaces) -> Option<String> {
        match (allowed.from.as_deref(), &allowed.selector) {
            (Some("Selector"), None) => {
                Some("from is Selector, and there is no selector: add one".to_owned())
            }
            (Some("Selector"), Some(selector)) => {
                selector.check().err().map(|error| format!("the selector is malformed ({error})"))
            }
            (None | Some("All" | "Same" | "None"), _) => None,
            (Some(unknown), _) => Some(format!("from {unknown:?} is unknown")),
        }
    }

    /// True if objects of namespace `from` may attach to an object of namespace `to`.
    pub fn admits(&self, to: &str, from: &str, namespaces: Namespaces<'_>) -> bool {
        match self {
            Self::None => false,
            Self::Same => to == from,
            Self::All => true,
            Self::Selector(selector) => selector.check().is_ok() && namespaces.match_labels(from, selector),
        }
    }
}

// === impl Namespaces ===

impl<'o> Namespaces<'o> {
    pub fn new(objects: &'o Objects) -> Self {
        Self { by_name: &objects.namespaces }
    }

    fn match_labels(&self, namespace: &str, selector: &LabelSelector) -> bool {
        let object = self.by_name.get(&ObjectName::new("", namespace));
        let labels = object.and_then(|object| object.metadata.labels.as_ref());
        if object.is_none() && selector.keys().any(|key| key != NAME_LABEL) {
            return false;
        }
        selector.matches(|key| {
            let written = labels.and_then(|labels| labels.get(key)).map(String::as_str);
            written.or_else(|| (key == NAME_LABEL).then_some(namespace))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_without_object_is_known_by_its_name() {
        let objects = Objects::default();
        let rule = NamespaceRule::Selector(LabelSelector::parse("kubernetes.io/metadata.name=shop").unwrap());
        assert!(rule.admits("infra", "shop", Namespaces::new(&objects)));
        assert!(!rule.admits("infra", "blog", Namespaces::new(&objects)));
        for (selector, admits) in [
            ("", true),
            ("kubernetes.io/metadata.name!=blog", true),
            ("team!=a", false),
            ("!team", false),
            ("team", false),
        ] {
            let rule = NamespaceRule::Selector(LabelSelector::parse(selector).unwrap_or_default());
            assert_eq!(rule.admits("infra", "shop", Namespaces::new(&objects)), admits, "{selector}");
        }
    }

    #[test]
    fn a_selector_that_is_missing_or_malformed_is_told() {
        let rule = |from: &str, selector: serde_json::Value| {
            let allowed = serde_json::json!({"from": from, "selector": selector});
            NamespaceRule::malformation(&serde_json::from_value(allowed).unwrap())
        };
        assert_eq!(rule("All", serde_json::json!(null)), None);
        assert_eq!(rule("Selector", serde_json::json!({"matchLabels": {"team": "a"}})), None);
        assert!(rule("Selector", serde_json::json!(null)).unwrap().contains("there is no selector"));
        let wrong = serde_json::json!({"matchExpressions": [{"key": "team", "operator": "Is"}]});
        assert!(rule("Selector", wrong).unwrap().contains("matchExpressions[0].operator: \"Is\""));
    }

    #[test]
    fn unknown_values_of_from_admit_no_route() {
        let allowed = AllowedNamespaces { from: Some("Friends".to_owned()), selector: None };
        assert_eq!(NamespaceRule::new(Some(&allowed), NamespaceRule::Same), NamespaceRule::None);
    }
}
