//! Label selectors: matching labels, and the text form that `kubectl` takes.

use crate::types::shared::{LabelSelector, LabelSelectorRequirement};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is no label selector: write requirements like `team=a`, `team!=a`, `team in (a, b)`, `team` or `!team`, \
     separated by commas"
)]
pub struct SelectorError(String);

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

    /// The part of it for which it matches nothing, whatever the labels are.
    pub fn malformation(&self) -> Option<String> {
        self.match_expressions.iter().flatten().find_map(LabelSelectorRequirement::malformation)
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

    fn malformation(&self) -> Option<String> {
        let Self { key, operator, .. } = self;
        match (operator.as_str(), self.has_values()) {
            ("In" | "NotIn", true) | ("Exists" | "DoesNotExist", false) => None,
            ("In" | "NotIn", false) => Some(format!("{key} {operator}: values are missing")),
            ("Exists" | "DoesNotExist", true) => Some(format!("{key} {operator}: it takes no values")),
            _ => Some(format!("{key}: operator {operator:?} is none of In, NotIn, Exists, DoesNotExist")),
        }
    }

    fn has_values(&self) -> bool {
        self.values.as_ref().is_some_and(|values| !values.is_empty())
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
}
