//! Faults of objects, in the log, with the object that has them: each once, when it has settled,
//! and once more when it is gone. What is applied together is seen one after the other, and a
//! Service that does not exist may be there a moment later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portcullis_api::ObjectKey;
use portcullis_api::types::shared::PolicyStatus;
use portcullis_gateway::{ConditionSummary, Status, parent_name};
use portcullis_log::{CurrentProblems, Difference};
use serde_json::json;
use tokio::time::Instant;

use super::Statuses;

/// More lines at once are of no help: a parent that went takes all its children with it.
const MOST_LINES: usize = 50;
/// Lines about a namespace's objects in a period: what a tenant edits to and fro all the time is no
/// flood in the operator's log.
const LINES_OF_A_NAMESPACE: usize = 20;
const PERIOD: Duration = Duration::from_secs(60);
/// Time after which a change for the worse or the better is logged, if it has not been undone.
const SETTLING: Duration = Duration::from_secs(2);

/// The faults of each object that has some.
#[derive(Debug, Default)]
pub struct FaultLog {
    logged: CurrentProblems<Subject>,
    /// Objects with other faults than those that are logged, and since when they have others.
    unsettled: BTreeMap<Subject, (Instant, Vec<String>)>,
    budget: Budget,
}

/// The lines of the present period, about objects or about what is wrong with the input.
#[derive(Debug)]
pub(crate) struct Budget {
    ends: Instant,
    by_namespace: BTreeMap<String, usize>,
    /// Lines that are counted instead of written, and not told of yet.
    left_out: usize,
    /// The time from which on their number may be told.
    telling: Instant,
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
        let settled = self.unsettled.values().map(|(since, _)| *since + SETTLING).min();
        settled.into_iter().chain(self.budget.due()).min()
    }

    /// Logs what has settled.
    pub fn write(&mut self) {
        for line in self.lines() {
            line.write();
        }
    }

    /// The lines to log now, within bounds.
    fn lines(&mut self) -> Vec<Line> {
        let settled = self.settled();
        let (mut lines, more) = self.budget.cut(settled);
        lines.extend(more.map(Line::More));
        lines
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

    /// A line for each change that has settled, with the namespace that it is about.
    fn settled(&mut self) -> Vec<(String, Line)> {
        let settled = self.unsettled.extract_if(.., |_, (since, _)| since.elapsed() >= SETTLING);
        let mut lines = Vec::new();
        for (subject, (_, now)) in settled {
            let (key, has_none) = (subject.0.clone(), now.is_empty());
            let Difference { new, solved } = self.logged.replace(subject, now);
            let wrong = new.iter().map(|fault| Line::Wrong(format!("{key}: {fault}")));
            let is_right = has_none && !solved.is_empty();
            let right = is_right.then(|| Line::Right(format!("{key}: all is well again")));
            lines.extend(wrong.chain(right).map(|line| (key.name.namespace.to_string(), line)));
        }
        lines
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Wrong(String),
    Right(String),
    /// A number of lines in place of these.
    More(usize),
}

impl Budget {
    /// The lines that are to be written now, of those with their namespaces; and if it is time to
    /// tell of it, the number of others.
    pub(crate) fn cut<L>(&mut self, lines: Vec<(String, L)>) -> (Vec<L>, Option<usize>) {
        let now = Instant::now();
        if self.ends <= now {
            (self.ends, self.by_namespace) = (now + PERIOD, BTreeMap::new());
        }
        let mut kept = Vec::new();
        for (namespace, line) in lines {
            let written = self.by_namespace.entry(namespace).or_default();
            if kept.len() == MOST_LINES || *written == LINES_OF_A_NAMESPACE {
                self.left_out += 1;
            } else {
                *written += 1;
                kept.push(line);
            }
        }
        if self.left_out == 0 || self.telling > now {
            return (kept, None);
        }
        self.telling = now + PERIOD;
        (kept, Some(std::mem::take(&mut self.left_out)))
    }

    /// The time at which there is a number to tell, if there is one.
    pub(crate) fn due(&self) -> Option<Instant> {
        (self.left_out > 0).then_some(self.telling)
    }
}

impl Default for Budget {
    fn default() -> Self {
        let now = Instant::now();
        Self { ends: now, by_namespace: BTreeMap::new(), left_out: 0, telling: now }
    }
}

impl Line {
    fn write(&self) {
        match self {
            Self::Wrong(line) => tracing::warn!("{line}"),
            Self::Right(line) => tracing::info!("{line}"),
            Self::More(more) => tracing::warn!(
                "{more} more statuses changed for the worse or the better: `portcullis status` lists them"
            ),
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
        Status::RouteFilter(status) => (&status.conditions, &None, &[][..]),
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
            assert!(log.lines().is_empty(), "it may be over at once");
            tokio::time::sleep_until(due).await;
        }
        texts(log.lines())
    }

    fn texts(lines: Vec<Line>) -> Vec<String> {
        let text = |line| match line {
            Line::Wrong(text) | Line::Right(text) => text,
            Line::More(more) => format!("{more} more"),
        };
        lines.into_iter().map(text).collect()
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
        assert_eq!(log.lines().len(), 1);
        tokio::time::sleep_until(log.due().unwrap()).await;
        assert_eq!(texts(log.lines()), ["HTTPRoute shop/cart: no parent"]);
    }

    /// One tenant edits all day long, the other has a fault.
    #[tokio::test(start_paused = true)]
    async fn a_tenant_cannot_flood_the_log() {
        let mut log = FaultLog::default();
        let mut lines = Vec::new();
        for turn in 0..200 {
            let flapping = ObjectKey::new(Kind::HttpRoute, ObjectName::new("evil", format!("r{turn}")));
            log.note(&[(flapping, Some(status(false)))].into());
            if turn == 150 {
                log.note(&[(route(), Some(status(false)))].into());
            }
            tokio::time::advance(Duration::from_millis(500)).await;
            lines.extend(texts(log.lines()));
        }
        while let Some(due) = log.due() {
            tokio::time::sleep_until(due).await;
            lines.extend(texts(log.lines()));
        }
        let of = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
        assert_eq!((of("evil/"), of("shop/cart")), (2 * LINES_OF_A_NAMESPACE, 1));
        let told: usize = lines.iter().filter_map(|it| it.strip_suffix(" more")?.parse::<usize>().ok()).sum();
        assert_eq!(told, 200 - 2 * LINES_OF_A_NAMESPACE, "every line is written or counted");
        assert!(of(" more") <= 3, "{lines:?}");
    }
}
