//! The next requests of a kind, each step by step as it went; and what would be said of such a
//! request where none came.

use portcullis_model::{PortListeners, Snapshot};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::explain::request::{Question, Reading};
use crate::explain::{Line, explain};
use crate::plain::escaped;
use crate::served::ServedListener;
use crate::table::{Look, subject_line};

/// Ports of which it is said what they would do with a request that did not come.
const MOST_PORTS: usize = 4;
/// Characters of a step's time and subject.
const INDENT: usize = 24;

/// The answer to an operator who has waited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchReport {
    pub requests: Vec<RequestSteps>,
    /// Requests that were waited for, and did not come.
    pub missing: usize,
    /// The reason for which some are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The lines of an explanation of such a request, if none came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub explained: Vec<Line>,
}

/// A request, step by step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestSteps {
    /// In seconds since 1970.
    pub begun: f64,
    /// To the end of the response, or of the watch.
    pub seconds: f64,
    pub ended: Ended,
    /// The reason for which it was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    pub steps: Vec<Step>,
    /// Those of its span, by OpenTelemetry's names.
    pub attributes: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ended {
    Complete,
    /// Without a response, or without its end.
    Cut,
    /// The watch was over first.
    GoingOn,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// In seconds since the request's head.
    pub at: f64,
    /// `listener`, `rule`, `attempt`, …
    pub subject: String,
    pub text: String,
}

// === impl WatchReport ===

impl WatchReport {
    pub fn text(&self, look: Look) -> String {
        let mut text = String::new();
        for request in &self.requests {
            text += &request.text(look);
            text.push('\n');
        }
        if let Some(why) = &self.why {
            text += &subject_line("nothing", why, 10, look);
        }
        for line in &self.explained {
            text += &subject_line(&line.subject, &line.text, 10, look);
        }
        text
    }
}

// === impl RequestSteps ===

impl RequestSteps {
    fn text(&self, look: Look) -> String {
        let mut text = String::new();
        for step in &self.steps {
            let subject = format!("{:>9.3} ms {}", step.at * 1000.0, step.subject);
            text += &subject_line(&subject, &step.text, INDENT, look);
        }
        let took = self.seconds * 1000.0;
        let ended = match (self.ended, &self.cut) {
            (Ended::Complete, _) => "all of it took".to_owned(),
            (Ended::Cut, Some(why)) => format!("it was cut ({why}) after"),
            (Ended::Cut, None) => "it was cut after".to_owned(),
            (Ended::GoingOn, _) => "it goes on after".to_owned(),
        };
        text += &format!("{ended} {took:.3} ms");
        if let Some(id) = self.attributes.get("portcullis.request_id").and_then(Value::as_str) {
            text += &format!(", request id {}", escaped(id));
        }
        if let Some(id) = &self.trace_id {
            text += &format!(", trace id {id}");
        }
        text.push('\n');
        text
    }
}

/// The answers that ports which have the host would give to such a request. `path` may be empty.
pub fn foretold(
    snapshot: &Snapshot,
    (method, host, path): (&str, &str, &str),
    headers: &[String],
    reading: Reading,
    served: &[ServedListener],
) -> Vec<Line> {
    let mut urls = Vec::new();
    for port in snapshot.frontends.values() {
        let scheme = match &port.listeners {
            PortListeners::Http(_) => "http",
            PortListeners::Tls(_) => "https",
            PortListeners::Tcp(_) | PortListeners::Udp(_) => continue,
        };
        let has_host =
            port.listeners.iter().any(|it| it.serves.routes().is_some() && it.hostname.matches(host));
        let path = if path.is_empty() { "/" } else { path };
        let url = format!("{scheme}://{host}:{}{path}", port.key.number);
        if has_host && !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls.truncate(MOST_PORTS);
    let questions = urls.into_iter().map(|url| Question {
        url,
        method: method.to_owned(),
        headers: headers.to_vec(),
        all: false,
    });
    let explanations = questions.filter_map(|question| explain(snapshot, &question, reading, served).ok());
    let lines = explanations.flat_map(|explanation| explanation.lines);
    lines
        .filter(|line| {
            matches!(line.subject.as_str(), "gateway" | "listener" | "rule" | "backend" | "answer")
        })
        .collect()
}
