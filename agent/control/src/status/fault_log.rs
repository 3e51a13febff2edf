//! Faults of objects, in the log, with the object that has them: each once, when it has settled,
//! and once more when it is gone. What is applied together is seen one after the other, and a
//! Service that does not exist may be there a moment later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portcullis_api::ObjectKey;
use portcullis_api::types::backendtlspolicies::PolicyStatus;
use portcullis_gateway::{ConditionSummary, Status, parent_name};
use portcullis_log::{CurrentProblems, Difference};
use serde_json::json;
use tokio::time::Instant;

use super::Statuses;

/// More lines at once are of no help: a parent that went takes all its children with it.
const MOST_LINES: usize = 50;
/// Time after which a change for the worse or the better is logged, if it has not been undone.
const SETTLING: Duration = Duration::from_secs(2);

/// The faults of each object that has some.
#[derive(Debug, Default)]
pub struct FaultLog {
    logged: CurrentProblems<Subject>,
    /// Objects with other faults than those that are logged, and since when they have others.
    unsettled: BTreeMap<Subject, (Instant, Vec<String>)>,
}

/// An object, and where its faults come from.
type Subject = (ObjectKey, Origin);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Status,
    /// No status can report them.
    Translation,
}

impl FaultLog {
    pub fn note(&mut self, statuses: &Statuses) {
        for (key, status) in statuses {
            let subject = (key.clone(), Origin::Status);
            match status {
                Some(status) => self.change(subject, faults(status)),
                // Nothing is logged of what is gone.
                None => self.forget(&subject),
            }
        }
    }

    /// The same of faults that no status can report.
    pub fn note_unreported(&mut self, problems: BTreeMap<ObjectKey, Vec<String>>) {
        for (key, problems) in problems {
            self.change((key, Origin::Translation), problems);
        }
    }

    /// There are no others any more.
    pub fn keep_only(&mut self, objects: &BTreeSet<ObjectKey>) {
        let is_there = |(key, origin): &Subject| *origin != Origin::Status || objects.contains(key);
        self.logged.keep_only(is_there);
        self.unsettled.retain(|subject, _| is_there(subject));
    }

    /// The time at which there is something to log, if nothing changes until then.
    pub fn due(&self) -> Option<Instant> {
        self.unsettled.values().map(|(since, _)| *since + SETTLING).min()
    }

    /// Logs what has settled.
    pub fn write(&mut self) {
        let lines = self.settled();
        for line in lines.iter().take(MOST_LINES) {
            line.write();
        }
        if let Some(more) = lines.len().checked_sub(MOST_LINES).filter(|more| *more > 0) {
            tracing::warn!(
                "{more} more statuses changed for the worse or the better: `portcullis status` lists them"
            );
        }
    }

    fn change(&mut self, subject: Subject, now: Vec<String>) {
        if self.logged.of(&subject) == now {
            self.unsettled.remove(&subject);
            return;
        }
        // An object that changes all the time has its turn, too.
        let since = self.unsettled.get(&subject).map_or_else(Instant::now, |(since, _)| *since);
        self.unsettled.insert(subject, (since, now));
    }

    fn forget(&mut self, subject: &Subject) {
        self.unsettled.remove(subject);
        self.logged.replace(subject.clone(), Vec::new());
    }

    /// The lines to log.
    fn settled(&mut self) -> Vec<Line> {
        let settled = self.unsettled.extract_if(.., |_, (since, _)| since.elapsed() >= SETTLING);
        let mut lines = Vec::new();
        for (subject, (_, now)) in settled {
            let (key, has_none) = (subject.0.clone(), now.is_empty());
            let Difference { new, solved } = self.logged.replace(subject, now);
            lines.extend(new.iter().map(|fault| Line::Wrong(format!("{key}: {fault}"))));
            if has_none && !solved.is_empty() {
                lines.push(Line::Right(format!("{key}: all is well again")));
            }
        }
        lines
    }
}

enum Line {
    Wrong(String),
    Right(String),
}

impl Line {
    fn write(&self) {
        match self {
            Self::Wrong(line) => tracing::warn!("{line}"),
            Self::Right(line) => tracing::info!("{line}"),
        }
    }
}

/// Of the object itself, of its listeners, and of its parents or ancestors.
fn faults(status: &Status) -> Vec<String> {
    let (own, listeners, parents) = match status {
        Status::GatewayClass(status) => (&status.conditions, &None, &[][..]),
        Status::Gateway(status) => (&status.conditions, &status.listeners, &[][..]),
        Status::ListenerSet(status) => (&status.conditions, &status.listeners, &[][..]),
        Status::Route(status) => (&None, &None, &status.parents[..]),
        Status::Policy(status) => return for_ancestors(status),
    };
    let own = ConditionSummary::of(own.as_deref().unwrap_or_default());
    let of_listeners = listeners.iter().flatten().filter_map(|listener| {
        let summary = ConditionSummary::of(&listener.conditions)?;
        Some(format!("listener {}: {summary}", listener.name))
    });
    let of_parents = parents.iter().filter_map(|parent| {
        let summary = ConditionSummary::of(&parent.conditions)?;
        Some(format!("for {}: {summary}", parent_name(&json!(parent.parent_ref))))
    });
    own.map(|summary| summary.to_string()).into_iter().chain(of_listeners).chain(of_parents).collect()
}

fn for_ancestors(status: &PolicyStatus) -> Vec<String> {
    let entries = status.ancestors.iter().filter_map(|ancestor| {
        let summary = ConditionSummary::of(&ancestor.conditions)?;
        Some(format!("for {}: {summary}", parent_name(&json!(ancestor.ancestor_ref))))
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;
    use portcullis_model::ObjectName;

    use super::*;

    fn route() -> ObjectKey {
        ObjectKey::new(Kind::HttpRoute, ObjectName::new("shop", "cart"))
    }

    fn status(good: bool) -> Status {
        let (status, reason, message) =
            if good { ("True", "ResolvedRefs", "") } else { ("False", "BackendNotFound", "no Service") };
        let at = "2026-01-01T00:00:00Z";
        let status = json!({"parents": [{"controllerName": "c",
            "parentRef": {"kind": "Gateway", "name": "web", "sectionName": "http"}, "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": at},
            {"type": "ResolvedRefs", "status": status, "reason": reason, "message": message, "lastTransitionTime": at}]}]});
        Status::Route(serde_json::from_value(status).unwrap())
    }

    /// The lines that are due after a status, when it has settled.
    async fn logged(log: &mut FaultLog, status: Option<Status>) -> Vec<String> {
        log.note(&[(route(), status)].into());
        if let Some(due) = log.due() {
            assert!(log.settled().is_empty(), "it may be over at once");
            tokio::time::sleep_until(due).await;
        }
        let text = |line| match line {
            Line::Wrong(text) | Line::Right(text) => text,
        };
        log.settled().into_iter().map(text).collect()
    }

    const LINE: &str =
        "HTTPRoute shop/cart: for Gateway web/http: ResolvedRefs=False/BackendNotFound: no Service";

    #[tokio::test(start_paused = true)]
    async fn a_fault_is_logged_once_and_when_it_is_gone() {
        let mut log = FaultLog::default();
        assert_eq!(logged(&mut log, Some(status(false))).await, [LINE]);
        assert!(logged(&mut log, Some(status(false))).await.is_empty());
        assert_eq!(logged(&mut log, Some(status(true))).await, ["HTTPRoute shop/cart: all is well again"]);
        assert!(logged(&mut log, Some(status(true))).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_logged_of_what_was_deleted() {
        let mut log = FaultLog::default();
        logged(&mut log, Some(status(false))).await;
        assert!(logged(&mut log, None).await.is_empty());
        assert!(log.logged.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_that_is_over_at_once_is_not_logged_and_one_that_comes_and_goes_is() {
        let mut log = FaultLog::default();
        log.note(&[(route(), Some(status(false)))].into());
        log.note(&[(route(), Some(status(true)))].into());
        assert_eq!(log.due(), None);
        log.note(&[(route(), Some(status(false)))].into());
        tokio::time::advance(SETTLING / 2).await;
        log.note_unreported([(route(), vec!["no parent".to_owned()])].into());
        tokio::time::advance(SETTLING / 2).await;
        log.note(&[(route(), Some(status(false)))].into());
        assert_eq!(log.settled().len(), 1);
        tokio::time::sleep_until(log.due().unwrap()).await;
        let [Line::Wrong(line)] = &log.settled()[..] else { panic!("one line is due") };
        assert_eq!(line, "HTTPRoute shop/cart: no parent");
    }
}
