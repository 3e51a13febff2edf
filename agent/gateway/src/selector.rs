//! Which namespaces may attach: None, Same, Selector or All. One type for all places that ask: routes to listeners,
//! ListenerSets to Gateways (`allowedListeners`), Gateways to Gateways (`allowedChildren`), routes to route rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use portcullis_model::ObjectName;

use crate::Objects;
use crate::api::shared::{AllowedNamespaces, LabelSelector, LabelSelectorRequirement};

/// The label that the API server puts on every namespace.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

#[derive(Clone, Debug, PartialEq)]
pub enum NamespaceRule {
    None,
    Same,
    All,
    Selector(LabelSelector),
}

/// The labels of all namespaces. A namespace without an object (there need not be one in a directory of files) has its
/// name as its only label.
#[derive(Clone, Copy, Debug)]
pub struct Namespaces<'o> {
    by_name: &'o BTreeMap<ObjectName, Arc<Namespace>>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is no label selector: write requirements like `team=a`, `team!=a`, `team in (a, b)`, `team` or `!team`, \
     separated by commas"
)]
pub struct SelectorError(String);

// === impl NamespaceRule ===

impl NamespaceRule {
    /// Values of `from` that we do not know admit nobody.
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

    /// Whether objects of namespace `from` may attach to an object of namespace `to`.
    pub fn admits(&self, to: &str, from: &str, namespaces: Namespaces<'_>) -> bool {
        match self {
            Self::None => false,
            Self::Same => to == from,
            Self::All => true,
            Self::Selector(selector) => namespaces.match_labels(from, selector),
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
        let label = |key: &str| {
            let written = labels.and_then(|labels| labels.get(key)).map(String::as_str);
            written.or_else(|| (key == NAME_LABEL).then_some(namespace))
        };
        selector.matches(label)
    }
}

// === impl SelectorError ===

impl SelectorError {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

// === impl LabelSelector ===

impl LabelSelector {
    /// Whether labels, given as a look-up, match. An empty selector matches everything.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        let equal = |(key, value): (&String, &String)| label(key) == Some(value);
        self.match_labels.iter().flatten().all(equal)
            && self
                .match_expressions
                .iter()
                .flatten()
                .all(|requirement| requirement.holds(label(&requirement.key)))
    }

    /// Reads the text form that `kubectl --selector` takes.
    ///
    /// # Errors
    /// When a requirement has none of the known forms.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let requirements = split_outside_parentheses(text)
            .map(|part| requirement(part.trim()).ok_or_else(|| SelectorError(text.to_owned())));
        Ok(Self { match_expressions: Some(requirements.collect::<Result<_, _>>()?), match_labels: None })
    }
}

impl LabelSelectorRequirement {
    fn new(key: &str, operator: &str, values: &[&str]) -> Option<Self> {
        let well_formed = |text: &str| {
            text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/'))
        };
        let key = key.trim();
        let valid =
            !key.is_empty() && well_formed(key) && values.iter().all(|value| well_formed(value.trim()));
        valid.then(|| Self {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: Some(values.iter().map(|value| value.trim().to_owned()).collect()),
        })
    }

    /// Operators that we do not know match nothing.
    fn holds(&self, label: Option<&str>) -> bool {
        let listed = || label.is_some_and(|label| self.values.iter().flatten().any(|value| value == label));
        match self.operator.as_str() {
            "In" => listed(),
            "NotIn" => !listed(),
            "Exists" => label.is_some(),
            "DoesNotExist" => label.is_none(),
            _ => false,
        }
    }
}

fn requirement(text: &str) -> Option<LabelSelectorRequirement> {
    let new = LabelSelectorRequirement::new;
    if let Some((key, values)) = text.split_once('(') {
        let values: Vec<_> = values.strip_suffix(')')?.split(',').collect();
        return match key.trim().rsplit_once(char::is_whitespace)? {
            (key, "in") => new(key, "In", &values),
            (key, "notin") => new(key, "NotIn", &values),
            _ => None,
        };
    }
    if let Some((key, value)) = text.split_once("!=") {
        return new(key, "NotIn", &[value]);
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return new(key, "In", &[value]);
    }
    match text.strip_prefix('!') {
        Some(key) => new(key, "DoesNotExist", &[]),
        None => new(text, "Exists", &[]),
    }
}

fn split_outside_parentheses(text: &str) -> impl Iterator<Item = &str> {
    let mut open = false;
    text.split(move |c| {
        open = (open || c == '(') && c != ')';
        c == ',' && !open
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let look_up = |key: &str| labels.iter().find(|label| label.0 == key).map(|label| label.1);
        LabelSelector::parse(selector).unwrap().matches(look_up)
    }

    #[test]
    fn selectors_read_like_those_of_kubectl() {
        let labels = [("team", "a"), ("env", "prod")];
        for (selector, expected) in [
            ("team=a", true),
            ("team==b", false),
            ("team!=b,env=prod", true),
            ("team in (a, b), env notin (dev,test)", true),
            ("team in (b)", false),
            ("team", true),
            ("!team", false),
            ("!gone", true),
            ("gone!=x", true),
        ] {
            assert_eq!(matches(selector, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "a in b", "a in (b", "a b", "=x", "a=b c"] {
            assert!(LabelSelector::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_namespace_without_object_is_known_by_its_name() {
        let objects = Objects::default();
        let rule = NamespaceRule::Selector(LabelSelector::parse("kubernetes.io/metadata.name=shop").unwrap());
        assert!(rule.admits("infra", "shop", Namespaces::new(&objects)));
        assert!(!rule.admits("infra", "blog", Namespaces::new(&objects)));
    }

    #[test]
    fn unknown_values_of_from_admit_nobody() {
        let allowed = AllowedNamespaces { from: Some("Friends".to_owned()), selector: None };
        assert_eq!(NamespaceRule::new(Some(&allowed), NamespaceRule::Same), NamespaceRule::None);
    }
}
