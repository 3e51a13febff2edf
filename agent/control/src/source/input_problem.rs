//! Problems of the input, for operators: place, object, what is wrong, and the effect on traffic.

use std::fmt::{self, Write};
use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_api::admission::{Refusal, is_plain_key};
use portcullis_api::schema::LEFT_OUT;
use portcullis_model::is_obeyed;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InputProblem {
    pub file: Arc<str>,
    pub line: Option<usize>,
    /// `HTTPRoute shop/web`; absent if the problem is the file's or document's.
    pub object: Option<String>,
    pub message: String,
    pub effect: Effect,
}

/// The effect of a problem on traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The input could not be read at all; `kept` objects of it are served as they were.
    Unreadable { kept: usize },
    /// The object is refused; an earlier version of it stays in force.
    LastGoodKept,
    /// The policy is refused, and there is no earlier version: what it is about is closed.
    Closed,
    /// The object is refused and there is no earlier version.
    NotServed,
    /// The object is of a kind that is never served as it is, and may be converted.
    ToConvert,
    /// Another definition of the object takes precedence.
    Shadowed,
    /// The object is served.
    Warning,
}

// === impl InputProblem ===

impl InputProblem {
    /// The namespace of its object; of a problem that is the file's, the file.
    pub(crate) fn namespace(&self) -> &str {
        let name = self.object.as_deref().and_then(|object| object.split_once(' '));
        let namespace = name.and_then(|(_, name)| name.split_once('/'));
        namespace.map_or(&self.file, |(namespace, _)| namespace)
    }

    /// The message and the effect, without place and object.
    pub fn text(&self) -> String {
        match (self.effect, self.line) {
            (Effect::Unreadable { kept: 0 }, Some(_)) => {
                format!("{}; this document is left out", self.message)
            }
            (effect, _) => format!("{}{effect}", self.message),
        }
    }
}

/// `shop/routes.yaml:12: HTTPRoute shop/web: <message>; <effect>`
impl fmt::Display for InputProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", OneLine(&self.file))?;
        self.line.iter().try_for_each(|line| write!(f, ":{line}"))?;
        self.object.iter().try_for_each(|object| write!(f, ": {}", OneLine(object)))?;
        write!(f, ": {}", OneLine(&self.text()))
    }
}

/// Messages about fields that an object has and its kind has not. Of a Secret they have their
/// number: where a blank behind a colon is missing, a value is part of a name.
pub(crate) fn of_unknown_fields(kind: Kind, fields: &[String]) -> Vec<String> {
    match (kind, fields.len()) {
        (_, 0) => Vec::new(),
        (Kind::Secret, count) => {
            vec![format!(
                "has unknown fields ({count}), ignored (a typing error, or no blank behind a colon?)"
            )]
        }
        (Kind::ConfigMap, _) => fields.iter().map(|field| of_unknown_field(without_entry(field))).collect(),
        _ => fields.iter().map(|field| of_unknown_field(field)).collect(),
    }
}

fn of_unknown_field(field: &str) -> String {
    format!("{field}: unknown field, ignored (a typing error?)")
}

/// An entry that is not indented has the place of a field.
fn without_entry(field: &str) -> &str {
    if field.split('.').all(is_plain_key) { field } else { LEFT_OUT }
}

/// The reasons for a refusal, of a Secret and of entries of a ConfigMap without what is written
/// there.
pub(crate) fn of_refusal(refusal: &Refusal) -> Vec<String> {
    let kind = refusal.key.as_ref().map_or(refusal.object.as_str(), |key| key.kind.as_str());
    let is_kept_back = |reason: &str| match kind {
        "Secret" => true,
        "ConfigMap" => reason.starts_with("data") || reason.starts_with("binaryData"),
        _ => false,
    };
    let told = |reason: &String| match is_kept_back(reason) {
        true => without_contents(reason),
        false => reason.clone(),
    };
    refusal.reasons.iter().map(told).collect()
}

fn without_contents(reason: &str) -> String {
    const QUOTES: [char; 2] = ['"', '`'];
    const VALUE: &str = "Invalid value: ";
    if reason.ends_with(": unknown field") {
        return "has an unknown field".to_owned();
    }
    let value = reason.find(VALUE).map(|at| at + VALUE.len()).or_else(|| reason.find(QUOTES));
    let Some(begin) = value else { return reason.to_owned() };
    let rule = reason.rfind(": must ").map(|at| &reason[at..]).filter(|rule| !rule.contains(QUOTES));
    format!("{}{LEFT_OUT}{}", &reason[..begin], rule.unwrap_or_default())
}

/// Text of tenants, in which what ends a line or has a terminal show another one is an escape, as
/// answers to operators have it: it could be taken for a line of the log's own.
pub(crate) struct OneLine<'a>(pub &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match is_obeyed(c) {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}

impl Effect {
    /// True if neither what the input says holds, nor what it said before.
    pub(crate) fn is_loss(self) -> bool {
        match self {
            Self::Unreadable { kept } => kept == 0,
            Self::Closed | Self::NotServed | Self::ToConvert => true,
            Self::LastGoodKept | Self::Shadowed | Self::Warning => false,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { kept: 0 } => f.write_str("; nothing of it is served"),
            Self::Unreadable { kept } => write!(f, "; its last good objects ({kept}) stay in force"),
            Self::LastGoodKept => f.write_str("; its last good version stays in force"),
            Self::Closed => f.write_str("; its targets are closed until that is right"),
            Self::NotServed | Self::ToConvert => f.write_str("; it is not served"),
            Self::Shadowed => f.write_str("; this definition is ignored"),
            Self::Warning => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line() {
        let problem = InputProblem {
            file: "a\n2026-01-01 ERROR forged\u{1b}[31m.yaml".into(),
            line: Some(1),
            object: Some("HTTPRoute shop/\rä".to_owned()),
            message: "\u{202e}field\n: unknown field".to_owned(),
            effect: Effect::NotServed,
        };
        let line = "a\\n2026-01-01 ERROR forged\\u{1b}[31m.yaml:1: HTTPRoute shop/\\rä: \
                    \\u{202e}field\\n: unknown field; it is not served";
        assert_eq!(problem.to_string(), line);
    }

    #[test]
    fn nothing_of_a_secret_is_told() {
        for (reason, told) in [
            (
                "data: Invalid value: \"password: s\\\"\": must be letters",
                "data: Invalid value: (left out): must be letters",
            ),
            ("data: invalid type: integer `1234`", "data: invalid type: integer (left out)"),
            ("metadata.name: Invalid value: 1234", "metadata.name: Invalid value: (left out)"),
            ("metadata.name: Invalid value: {\": must s\":1234}", "metadata.name: Invalid value: (left out)"),
            ("metadata.password: s: unknown field", "has an unknown field"),
            ("data[tls.key]: Required value", "data[tls.key]: Required value"),
        ] {
            assert_eq!(without_contents(reason), told);
        }
        let fields = ["stringdata".to_owned(), "password: s".to_owned()];
        let [message] = of_unknown_fields(Kind::Secret, &fields).try_into().unwrap();
        assert!(message.starts_with("has unknown fields (2), ignored"), "{message}");
        let of_map = of_unknown_fields(Kind::ConfigMap, &fields).join(" ");
        assert!(of_map.starts_with("stringdata: ") && of_map.contains(" (left out): "), "{of_map}");
    }
}
