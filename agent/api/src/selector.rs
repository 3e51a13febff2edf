//! Label selectors: matching labels, and the text form that `kubectl` takes.

use crate::name::{is_label_value, is_qualified_name};
use crate::types::shared::{LabelSelector, LabelSelectorRequirement};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is no label selector: write requirements like `team=a`, `team!=a`, `team in (a, b)`, `team` or `!team`, \
     separated by commas"
)]
pub struct SelectorError(String);

/// The reason why a selector of an object selects nothing, with the field; in the API's terms
/// (`LabelSelectorAsSelector`).
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{field}: {what}")]
pub struct InvalidSelector {
    field: String,
    what: String,
}

// === impl SelectorError ===

impl SelectorError {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

// === impl LabelSelector ===

impl LabelSelector {
    /// Tells whether labels, given as a look-up, match. An empty selector matches everything.
    pub fn matches<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        let equal = |(key, value): (&String, &String)| label(key) == Some(value);
        self.match_labels.iter().flatten().all(equal)
            && self
                .match_expressions
                .iter()
                .flatten()
                .all(|requirement| requirement.holds(label(&requirement.key)))
    }

    /// The labels that it has requirements on.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let expressions = self.match_expressions.iter().flatten().map(|requirement| &requirement.key);
        self.match_labels.iter().flatten().map(|(key, _)| key).chain(expressions).map(String::as_str)
    }

    /// Checks names, values and operators as the API server does; one that is not valid selects
    /// nothing.
    ///
    /// # Errors
    /// The first requirement that is not valid.
    pub fn check(&self) -> Result<(), InvalidSelector> {
        for (key, value) in self.match_labels.iter().flatten() {
            let invalid = |what: String| InvalidSelector { field: format!("matchLabels[{key}]"), what };
            if !is_qualified_name(key) {
                return Err(invalid(not_a_key(key)));
            }
            if !is_label_value(value) {
                return Err(invalid(not_a_value(value)));
            }
        }
        for (at, requirement) in self.match_expressions.iter().flatten().enumerate() {
            requirement.check().map_err(|(field, what)| InvalidSelector {
                field: format!("matchExpressions[{at}].{field}"),
                what,
            })?;
        }
        Ok(())
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
        let values: Vec<_> = values.iter().map(|value| value.trim().to_owned()).collect();
        let requirement =
            Self { key: key.trim().to_owned(), operator: operator.to_owned(), values: Some(values) };
        requirement.check().is_ok().then_some(requirement)
    }

    /// # Errors
    /// The field that is not valid, and why.
    fn check(&self) -> Result<(), (String, String)> {
        let values = self.values.as_deref().unwrap_or_default();
        if !is_qualified_name(&self.key) {
            return Err(("key".to_owned(), not_a_key(&self.key)));
        }
        let needs_values = match self.operator.as_str() {
            "In" | "NotIn" => !values.is_empty(),
            "Exists" | "DoesNotExist" => values.is_empty(),
            other => {
                let what = format!("{other:?} is no operator: use In, NotIn, Exists or DoesNotExist");
                return Err(("operator".to_owned(), what));
            }
        };
        if !needs_values {
            let what = "In and NotIn need at least one value, Exists and DoesNotExist none".to_owned();
            return Err(("values".to_owned(), what));
        }
        match values.iter().enumerate().find(|(_, value)| !is_label_value(value)) {
            Some((at, value)) => Err((format!("values[{at}]"), not_a_value(value))),
            None => Ok(()),
        }
    }

    /// A requirement that is malformed holds for nothing.
    fn holds(&self, label: Option<&str>) -> bool {
        let listed = || label.is_some_and(|label| self.values.iter().flatten().any(|value| value == label));
        match (self.operator.as_str(), self.has_values()) {
            ("In", true) => listed(),
            ("NotIn", true) => !listed(),
            ("Exists", false) => label.is_some(),
            ("DoesNotExist", false) => label.is_none(),
            _ => false,
        }
    }

    fn has_values(&self) -> bool {
        self.values.as_ref().is_some_and(|values| !values.is_empty())
    }
}

fn not_a_key(key: &str) -> String {
    format!("{key:?} is no label name: write it like team or example.com/team")
}

fn not_a_value(value: &str) -> String {
    format!(
        "{value:?} is no label value: use at most 63 letters, digits, -, _ and ., a letter or digit at both ends"
    )
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
    fn selectors_of_objects_are_checked_by_the_apis_rules() {
        let check = |selector: serde_json::Value| {
            let selector: LabelSelector = serde_json::from_value(selector).unwrap();
            selector.check().err().map(|error| error.to_string()).unwrap_or_default()
        };
        let long = "a".repeat(64);
        let expression = |key: &str, operator: &str, values: serde_json::Value| serde_json::json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, told) in [
            (serde_json::json!({}), ""),
            (serde_json::json!({"matchLabels": {"example.com/team": "", "a": "b-_.c"}}), ""),
            (serde_json::json!({"matchLabels": {"a b": "c"}}), "matchLabels[a b]: \"a b\" is no label name"),
            (serde_json::json!({"matchLabels": {"a": long}}), "matchLabels[a]: "),
            (expression("a", "In", serde_json::json!(["b"])), ""),
            (expression("a", "In", serde_json::json!([])), "matchExpressions[0].values: "),
            (expression("a", "Exists", serde_json::json!(["b"])), "matchExpressions[0].values: "),
            (
                expression("a", "Gt", serde_json::json!(["1"])),
                "matchExpressions[0].operator: \"Gt\" is no operator",
            ),
            (expression("a", "NotIn", serde_json::json!(["b", "-"])), "matchExpressions[0].values[1]: "),
            (expression("", "Exists", serde_json::json!([])), "matchExpressions[0].key: "),
        ] {
            let actual = check(selector.clone());
            assert!(actual.starts_with(told) && actual.is_empty() == told.is_empty(), "{selector}: {actual}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "a in b", "a in (b", "a b", "=x", "a=b c", "a=-", "/a=b", "A_.b/a=b", "a=b/c"] {
            assert!(LabelSelector::parse(text).is_err(), "{text:?}");
        }
    }
}
