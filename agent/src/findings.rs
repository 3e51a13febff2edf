//! Faults of manifests: each object that is refused, ignored or not served as its author
//! wants it, with its place in a file. Values only; `check` prints them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use portcullis_control::offline::Translated;
use portcullis_control::source::{Effect, InputProblem};
use portcullis_inspect::Cell;
use serde_json::Value;

/// A fault, and where to look for it.
pub(crate) struct Finding {
    pub severity: Severity,
    pub place: Option<Position>,
    /// `HTTPRoute shop/cart`; `None` if it is a file's.
    pub object: Option<String>,
    /// `Gateway infra/web`, `listener https`, or `-` for the object itself.
    pub part: String,
    /// `Accepted=False/NoMatchingParent`, or `Refused` and the like.
    pub state: String,
    pub message: String,
}

/// The severity of an annotation on GitHub.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// The object is not what its author wrote it for.
    Error,
    /// It is for another program, and is not served here.
    Unserved,
}

#[derive(Clone)]
pub(crate) struct Position {
    pub file: Arc<str>,
    pub line: Option<usize>,
}

/// All of them. Objects that cannot be read or are refused come first: they may be the cause of
/// others.
pub(crate) fn findings(translated: &Translated, with_statuses: &[Value]) -> Vec<Finding> {
    let input = translated.batch.problems.iter().map(of_input);
    let manifests = || translated.batch.manifests.iter();
    let place = |file: &Arc<str>, line| Some(Position { file: file.clone(), line: Some(line) });
    let of_statuses = manifests().zip(with_statuses).flat_map(|(manifest, object)| {
        portcullis_inspect::faults(object).into_iter().map(move |fault| Finding {
            severity: Severity::Error,
            place: place(&manifest.file, manifest.line),
            object: manifest.object.as_ref().map(|object| object.key().to_string()),
            part: fault.part,
            state: fault.state,
            message: fault.message,
        })
    });
    let places: HashMap<_, _> = manifests()
        .filter_map(|manifest| Some((manifest.object.as_ref()?.key(), place(&manifest.file, manifest.line))))
        .collect();
    let without_status = translated.problems().into_iter().map(|(object, message)| Finding {
        severity: Severity::Error,
        place: places.get(&object).cloned().flatten(),
        object: Some(object.to_string()),
        part: "-".to_owned(),
        state: "Problem".to_owned(),
        message,
    });
    input.chain(of_statuses).chain(without_status).collect()
}

fn of_input(problem: &InputProblem) -> Finding {
    let state = match problem.effect {
        Effect::Unreadable { .. } => "Unreadable",
        Effect::LastGoodKept | Effect::Closed | Effect::NotServed => "Refused",
        Effect::ToConvert => "NotServed",
        Effect::Shadowed => "DefinedTwice",
        Effect::Warning => "Warning",
    };
    let is_unserved = problem.effect == Effect::ToConvert;
    let severity = if is_unserved { Severity::Unserved } else { Severity::Error };
    Finding {
        severity,
        place: Some(Position { file: problem.file.clone(), line: problem.line }),
        object: problem.object.clone(),
        part: "-".to_owned(),
        state: state.to_owned(),
        message: problem.text(),
    }
}

/// The summary of an input without objects, of which nothing can be said.
pub(crate) const NOTHING: &str = "no objects: nothing was found to check";

/// `5 objects (Gateway 1, HTTPRoute 4): 2 problems`
pub(crate) fn summary(objects: &[Value], findings: &[Finding]) -> String {
    let mut kinds = BTreeMap::<_, usize>::new();
    for object in objects {
        *kinds.entry(object["kind"].as_str().unwrap_or("without kind")).or_default() += 1;
    }
    let kinds: Vec<_> = kinds.into_iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let objects = match objects.len() {
        0 => "no objects".to_owned(),
        count => format!("{} ({})", counted(count, "object"), kinds.join(", ")),
    };
    let unserved = findings.iter().filter(|finding| finding.severity == Severity::Unserved).count();
    let problems = counted(findings.len(), "problem");
    match (findings.len(), unserved) {
        (0, _) if kinds.is_empty() => NOTHING.to_owned(),
        (0, _) => format!("{objects}: all is well"),
        (_, 0) => format!("{objects}: {problems}"),
        (_, unserved) => format!("{objects}: {problems}; Ingress ({unserved}) is not served"),
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

// === impl Finding ===

impl Finding {
    pub(crate) const HEADER: [&'static str; 5] = ["AT", "OBJECT", "FOR", "STATE", "MESSAGE"];

    pub(crate) fn row(&self) -> Vec<Cell> {
        let place = self.place.as_ref().map_or("-".to_owned(), ToString::to_string);
        let object = self.object.clone().unwrap_or_else(|| "-".to_owned());
        vec![
            place.into(),
            object.into(),
            self.part.clone().into(),
            Cell::bad(self.state.clone()),
            self.message.clone().into(),
        ]
    }

    /// A command to GitHub's runner, which shows the message beside the line of the file.
    pub(crate) fn workflow_command(&self) -> String {
        let place = self.place.iter().flat_map(|place| {
            let line = place.line.map(|line| ("line", line.to_string()));
            std::iter::once(("file", place.file.to_string())).chain(line)
        });
        let title = self.object.iter().map(|object| match self.part.as_str() {
            "-" => ("title", object.clone()),
            part => ("title", format!("{object} ({part})")),
        });
        let properties = place.chain(title).map(|(name, value)| format!("{name}={}", property(&value)));
        let properties = properties.collect::<Vec<_>>().join(",");
        let command = match self.severity {
            Severity::Error => "error",
            Severity::Unserved => "warning",
        };
        format!("::{command} {properties}::{}", data(&format!("{}: {}", self.state, self.message)))
    }
}

/// As the runner reads it back (`escapeData` of `actions/toolkit`).
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// The same of `escapeProperty`.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// `shop/routes.yaml:12`
impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.file)?;
        self.line.iter().try_for_each(|line| write!(f, ":{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_say_nothing_else_than_the_text() {
        let finding = Finding {
            severity: Severity::Error,
            place: Some(Position { file: "a,b:c%.yaml".into(), line: Some(3) }),
            object: Some("HTTPRoute shop/cart".to_owned()),
            part: "Gateway infra/web".to_owned(),
            state: "Accepted=False/NotAllowed".to_owned(),
            message: "100 %\r\n::error::, none".to_owned(),
        };
        assert_eq!(
            finding.workflow_command(),
            "::error file=a%2Cb%3Ac%25.yaml,line=3,title=HTTPRoute shop/cart (Gateway infra/web)\
             ::Accepted=False/NotAllowed: 100 %25%0D%0A::error::, none"
        );
        let file = Finding { object: None, part: "-".to_owned(), place: None, ..finding };
        assert!(file.workflow_command().starts_with("::error ::Accepted="));
    }
}
