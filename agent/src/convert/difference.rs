//! The outcome of each annotation, for people and as values.

use std::fmt;

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Became,
    Differs,
    NotNeeded,
    Lost,
    /// It kept something out that is let in now, and closing its paths would help less.
    Unprotected,
    /// The paths that it protects are closed.
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Difference {
    /// `shop/cart`
    pub ingress: String,
    /// An annotation without its prefix, or a field.
    pub subject: String,
    pub outcome: Outcome,
    pub text: String,
}

impl Difference {
    pub(super) fn new(ingress: &str, subject: &str, outcome: Outcome, text: impl Into<String>) -> Self {
        Self { ingress: ingress.to_owned(), subject: subject.to_owned(), outcome, text: text.into() }
    }

    /// With the names of the table's columns.
    pub(super) fn value(&self) -> Value {
        json!({
            "ingress": self.ingress,
            "annotation": self.subject,
            "outcome": self.outcome.to_string(),
            "now": self.text,
        })
    }
}

impl Outcome {
    /// Returns `true` if something has to be done before this is served.
    pub(super) fn is_alarming(self) -> bool {
        self >= Self::Unprotected
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Became => "became",
            Self::Differs => "differs",
            Self::NotNeeded => "not needed",
            Self::Lost => "lost",
            Self::Unprotected => "UNPROTECTED",
            Self::Closed => "CLOSED",
        })
    }
}
