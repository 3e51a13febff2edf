//! Everything that is wrong and is known of, the worst first, each with what to do.

use std::collections::BTreeSet;

use portcullis_model::{Action, BackendTarget, L4Action, L4Target, Listener, Snapshot, Unserved};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::key_sets::FailingKeySet;
use crate::overview::CertificateRow;
use crate::paging::{Page, Query, QueryError};
use crate::remedies;
use crate::routes::ports;
use crate::statuses::{Fault, faults, name};

/// Days before the end of a certificate from which on it is a problem.
const SOON: i64 = 14;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    pub severity: Severity,
    /// `HTTPRoute shop/cart`, a file or an address.
    pub object: String,
    /// The part of it: `Gateway infra/web`, `listener https`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// `Accepted=False/NoMatchingParent`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    pub message: String,
    /// The thing to do about it.
    pub remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Traffic is not served as it should be.
    Error,
    /// It is, as yet.
    Warning,
    /// It is, but by another way than the best one.
    Notice,
}

/// All parts of an agent that know of problems, with what they know.
#[derive(Debug)]
pub struct ProblemSources<'a> {
    pub snapshot: &'a Snapshot,
    pub refused: &'a Unserved,
    /// `shop/routes.yaml:12: HTTPRoute shop/web: <message>; <effect>`
    pub input: Vec<String>,
    /// Problems that no status can say, by object.
    pub unreported: Vec<(String, String)>,
    /// Those of objects' statuses, by [`status_problems`]; an error if statuses cannot be read.
    pub statuses: Result<Vec<Problem>, String>,
    pub key_sets: Vec<FailingKeySet>,
    /// The reason for which some statuses are not as they are decided.
    pub unwritten: Option<String>,
    /// Those that end first come first.
    pub certificates: Vec<CertificateRow>,
    /// The reason for which the agent is not ready.
    pub not_ready: Option<String>,
    /// The reason for which no kernel programs are in use.
    pub without_programs: Option<String>,
    /// Interfaces that lack what they should have, and why.
    pub uncovered: Vec<(String, String)>,
}

/// # Errors
/// When the question makes no sense.
pub fn all_problems(sources: &ProblemSources<'_>, query: &Query) -> Result<Page<Problem>, QueryError> {
    let window = query.window()?;
    let words = query.words();
    let mut problems = sources.all();
    problems.retain(|it| {
        let (part, state) = (it.part.as_deref().unwrap_or_default(), it.state.as_deref().unwrap_or_default());
        words.are_in(&[&it.object, part, state, &it.message])
    });
    // Stable: each kind stays in its own order.
    problems.sort_by_key(|it| it.severity);
    Ok(window.of(problems))
}

fn problem(severity: Severity, object: impl Into<String>, message: &str, remedy: &str) -> Problem {
    let (part, state) = (None, None);
    Problem {
        severity,
        object: object.into(),
        part,
        state,
        message: message.to_owned(),
        remedy: remedy.to_owned(),
    }
}

// === impl ProblemSources ===

impl ProblemSources<'_> {
    fn all(&self) -> Vec<Problem> {
        let ready = self.not_ready.iter().map(|why| {
            let remedy = "wait, if the agent has just begun; else look at its log and at the problems below";
            problem(Severity::Error, "the agent", why, remedy)
        });
        let refused = self.refused.reasons().map(|(frontend, why)| {
            let remedy = "do as the message says; an address or port in use: stop what has it, or give the Gateway another one";
            problem(Severity::Error, frontend.to_string(), &format!("not served: {why}"), remedy)
        });
        let input = self.input.iter().map(|text| {
            let (place, message) = text.split_once(": ").unwrap_or((text, ""));
            let remedy = "correct the file, or have the agent's user allowed to read it; it is read again as soon as it changes";
            problem(Severity::Error, place, message, remedy)
        });
        let unreported = self.unreported.iter().map(|(object, message)| {
            problem(Severity::Warning, object, message, "correct the object as the message says")
        });
        let key_sets = self.key_sets.iter().map(|set| {
            let severity = if set.age.is_some() { Severity::Warning } else { Severity::Error };
            let remedy =
                "see that the issuer answers 200 with a JSON Web Key Set there; it is tried again by itself";
            problem(severity, set.object(), &set.message(), remedy)
        });
        let of_statuses = self.statuses.iter().flatten().cloned();
        let status_fault = self.statuses.as_ref().err().map(|why| {
            let remedy = "see that the directory of status files (--status-dir) is there and can be read";
            problem(Severity::Warning, "statuses", why, remedy)
        });
        let unwritten = self.unwritten.iter().map(|why| {
            let remedy = "see that there is room and a right to write for the agent's user; it is tried again by itself";
            problem(Severity::Warning, "statuses", why, remedy)
        });
        let programs = self.without_programs.iter().map(|why| {
            let message = format!("no kernel programs are in use, user space serves alone: {why}");
            let remedy = "nothing, if that is meant; else see docs/datapath.md for what they need";
            problem(Severity::Notice, "the node", &message, remedy)
        });
        let uncovered = self.uncovered.iter().map(|(interface, why)| {
            let remedy = "correct --interface or --name-interface, or see docs/datapath.md for what it needs";
            problem(Severity::Notice, format!("interface {interface}"), why, remedy)
        });
        ready
            .chain(refused)
            .chain(input)
            .chain(of_statuses)
            .chain(without_endpoints(self.snapshot))
            .chain(key_sets)
            .chain(self.certificates.iter().filter_map(ending))
            .chain(unreported)
            .chain(status_fault)
            .chain(unwritten)
            .chain(programs)
            .chain(uncovered)
            .collect()
    }
}

/// Those of an object with a status.
pub fn status_problems(object: &Value) -> Vec<Problem> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let named = format!("{kind} {}", name(object));
    let problem = |Fault { part, state, message }| {
        let remedy = remedies::of_state(&state);
        Problem {
            severity: severity(&state),
            object: named.clone(),
            part: (part != "-").then_some(part),
            remedy: remedy.unwrap_or_else(|| "as the message says".to_owned()),
            state: Some(state),
            message,
        }
    };
    faults(object).into_iter().map(problem).collect()
}

/// A condition that is not False says that all is served, though not as it might be meant.
fn severity(state: &str) -> Severity {
    let is_off = |condition: &str| condition.contains("=False/") || condition.starts_with("Conflicted=True");
    if state.split(',').any(is_off) { Severity::Error } else { Severity::Warning }
}

/// Backends that rules lead to, and that have no endpoint.
fn without_endpoints(snapshot: &Snapshot) -> Vec<Problem> {
    let mut names = BTreeSet::new();
    for listener in ports(snapshot).iter().flat_map(|it| it.port.listeners.iter()) {
        add_backends(listener, &mut names);
    }
    let empty = names
        .into_iter()
        .filter(|name| snapshot.backends.get(name).is_none_or(|backend| backend.endpoints.is_empty()));
    let problem = |name: &str| {
        let message =
            "it has no ready endpoint: requests that go there are answered 503, connections refused";
        let remedy =
            "see that pods are behind the Service and ready: their readiness probe, its selector and port";
        problem(Severity::Error, format!("backend {name}"), message, remedy)
    };
    empty.map(problem).collect()
}

fn add_backends<'l>(listener: &'l Listener, names: &mut BTreeSet<&'l str>) {
    for rule in listener.serves.routes().into_iter().flat_map(|routes| routes.rules()) {
        if let Action::Forward(split) = &rule.action {
            names.extend(split.backends().iter().filter_map(|backend| match &backend.target {
                BackendTarget::Known(name) => Some(name.as_str()),
                BackendTarget::Respond(_) | BackendTarget::Invalid(_) => None,
            }));
        }
    }
    let of_names = listener.serves.server_names().into_iter().flat_map(|names| names.values());
    for rule in of_names.chain(listener.serves.only_rule()) {
        if let L4Action::Forward(split) = &rule.action {
            names.extend(split.backends().iter().filter_map(|backend| match &backend.target {
                L4Target::Known(name) => Some(name.as_str()),
                L4Target::Refuse(_) => None,
            }));
        }
    }
}

fn ending(row: &CertificateRow) -> Option<Problem> {
    let (severity, message) = match row.days_left {
        ..0 => (Severity::Error, "has expired: clients refuse it".to_owned()),
        0 => (Severity::Warning, "expires in less than a day".to_owned()),
        days if days < SOON => (Severity::Warning, format!("expires in {days} days")),
        _ => return None,
    };
    let owner = row.listener.clone().unwrap_or_else(|| format!("Gateway {}", row.gateway));
    let message = format!("the certificate of {} {message}", row.names.join(", "));
    Some(problem(severity, owner, &message, "renew its Secret; the new one is served as soon as it is there"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_worst_come_first_and_each_says_what_to_do() {
        let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "as it is"});
        let object = json!({"kind": "Gateway", "metadata": {"namespace": "infra", "name": "web"}, "status": {
            "conditions": [condition("Accepted", "True", "ListenersNotValid")],
            "listeners": [{"name": "a", "conditions": [condition("ResolvedRefs", "False", "InvalidCertificateRef")]}]}});
        let row = |days_left| CertificateRow {
            gateway: "infra/web".to_owned(),
            listener: None,
            names: vec!["a.example".to_owned()],
            not_after: 0,
            days_left,
        };
        let failing = |name: &str, age| FailingKeySet {
            name: format!("auth/{name}:80/certs"),
            why: "it answers 503".to_owned(),
            age,
        };
        let snapshot = Snapshot::default();
        let sources = ProblemSources {
            snapshot: &snapshot,
            refused: &Unserved::default(),
            input: vec!["shop.yaml:3: HTTPRoute shop/a: no".to_owned()],
            unreported: Vec::new(),
            statuses: Ok(status_problems(&object)),
            key_sets: vec![failing("a", None), failing("b", Some(Duration::from_secs(90)))],
            unwritten: Some("cannot be written to /x: No space left on device".to_owned()),
            certificates: vec![row(-1), row(13), row(14)],
            not_ready: None,
            without_programs: Some("no right to load them".to_owned()),
            uncovered: Vec::new(),
        };
        let all = all_problems(&sources, &Query::default()).unwrap();
        let shown: Vec<_> = all.items.iter().map(|it| (it.severity, it.object.as_str())).collect();
        assert_eq!(
            shown,
            [
                (Severity::Error, "shop.yaml:3"),
                (Severity::Error, "Gateway infra/web"),
                (Severity::Error, "key set auth/a:80/certs"),
                (Severity::Error, "Gateway infra/web"),
                (Severity::Warning, "key set auth/b:80/certs"),
                (Severity::Warning, "Gateway infra/web"),
                (Severity::Warning, "statuses"),
                (Severity::Notice, "the node"),
            ]
        );
        assert!(all.items.iter().all(|it| !it.remedy.is_empty()));
        assert!(all.items[1].remedy.contains("create or correct the Secret"), "{:?}", all.items[1]);
        let query = Query::parse("q=shop", &["q"]).unwrap();
        assert_eq!(all_problems(&sources, &query).unwrap().total, 1);
    }
}
