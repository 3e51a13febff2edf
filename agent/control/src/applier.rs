//! The loop: a source's changes are translated, the data plane takes the snapshot and answers what
//! it could not take, and statuses follow from both. Generic over all ends, so that a directory and
//! an API server differ only there.

mod guarded;
mod reporter;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use portcullis_api::{Change, ObjectKey};
use portcullis_gateway::infra::Agents;
use portcullis_gateway::{Fault, Feedback, NameAnswer, Outcome};
use portcullis_log::{CurrentProblems, Difference};
use portcullis_model::{FrontendKey, ObjectName, Port, Snapshot, Unserved};
use tokio::sync::watch;

use crate::names::Names;
use crate::source::{InputProblem, KeptCertificates, OneLine, Source, Update};
use crate::status::{Budget, StatusSink};
use reporter::StatusReporter;

pub use guarded::{Translate, is_translating};

/// Interval after which the data plane is asked again for what it refused: the port may have been
/// another process's for a moment.
const RETRY: Duration = Duration::from_secs(5);

/// Time that the first snapshot waits for the addresses of names.
const FIRST_NAMES: Duration = Duration::from_secs(2);

/// The data plane: it serves snapshots.
pub trait DataPlane: Send {
    /// Returns once the snapshot is served, except for what the answer lists.
    fn apply(&mut self, snapshot: Arc<Snapshot>) -> impl Future<Output = Acknowledgement> + Send;

    /// Returns when more or less of the same snapshot may be served than at the last `apply`.
    /// Cancel-safe.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// The data plane's answer to a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Everything else of the snapshot is served.
    pub refused: Unserved,
}

/// Gateways that could not get what is generated for them, and why; `None` as long as that is not
/// known.
pub type Provisioning = Option<BTreeMap<ObjectName, Fault>>;

/// The state in force, for the admin endpoints. Published after every step.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Acknowledged by the data plane.
    pub snapshot: Arc<Snapshot>,
    pub refused: Unserved,
    pub problems: Arc<[InputProblem]>,
    /// Problems that translation found and no status can report.
    pub unreported: Arc<CurrentProblems<ObjectKey>>,
    /// Number of updates applied, and the time they took from the source to the data plane's
    /// answer.
    pub applied: u64,
    pub apply_time: Duration,
    pub last_applied: Option<SystemTime>,
}

pub struct Applier<S, T, D, W> {
    source: KeptCertificates<S>,
    translator: T,
    data_plane: D,
    reporter: StatusReporter<W>,
    state: watch::Sender<State>,
    /// Lines about the input: a tenant's thousand mistakes are no flood.
    input_lines: Budget,
    /// Lines about frontends, which tenants may add and remove as they like.
    frontend_lines: Budget,
    /// Of a cluster; without one, nothing is generated.
    provisioning: Option<watch::Receiver<Provisioning>>,
    /// Without a cluster, the addresses at which clients reach the node.
    node_addresses: Option<watch::Receiver<Vec<IpAddr>>>,
    /// In a cluster, all agents; `None` as long as they are not known.
    agents: Option<watch::Receiver<Option<Agents>>>,
    /// In a cluster, the number of agents that are ready.
    ready_agents: Option<watch::Receiver<Option<NonZeroU32>>>,
    /// In a cluster, the addresses of the network that the agent forwards from.
    own_addresses: Option<watch::Receiver<Vec<IpAddr>>>,
    /// The names of hosts outside the cluster, and what is known of their addresses.
    names: Option<Names>,
    answers: Option<watch::Receiver<BTreeMap<Arc<str>, NameAnswer>>>,
    /// The next outcome is all there is.
    is_from_scratch: bool,
    /// The source has handed on everything; the sink learns of it with the next outcome.
    is_complete: bool,
    /// The same of what the cluster gave to Gateways.
    is_provisioned: bool,
    /// Problems of outcomes since the last draft began, not yet in the state.
    unreported: BTreeMap<ObjectKey, Vec<String>>,
    /// The last translation is to be neither served nor reported.
    is_draft: bool,
}

impl<S: Source, T: Translate, D: DataPlane, W: StatusSink + 'static> Applier<S, T, D, W> {
    pub fn new(source: S, translator: T, data_plane: D, sink: W) -> Self {
        Self {
            source: KeptCertificates::of(source),
            translator,
            data_plane,
            reporter: StatusReporter::new(sink),
            state: watch::Sender::default(),
            input_lines: Budget::default(),
            frontend_lines: Budget::default(),
            provisioning: None,
            node_addresses: None,
            agents: None,
            ready_agents: None,
            own_addresses: None,
            names: None,
            answers: None,
            is_from_scratch: true,
            is_complete: false,
            is_provisioned: false,
            unreported: BTreeMap::new(),
            is_draft: false,
        }
    }

    /// Has statuses report what the cluster could not give to Gateways.
    #[must_use]
    pub fn observing(self, provisioning: watch::Receiver<Provisioning>) -> Self {
        Self { provisioning: Some(provisioning), ..self }
    }

    /// Logs the faults of objects only while this is true: of all agents that read the same
    /// objects, one speaks of them.
    #[must_use]
    pub fn speaking_while(mut self, speaks: watch::Receiver<bool>) -> Self {
        self.reporter.speak_while(speaks);
        self
    }

    /// Has statuses publish these addresses of Gateways that are served on all of the node's.
    #[must_use]
    pub fn reached_at(mut self, mut addresses: watch::Receiver<Vec<IpAddr>>) -> Self {
        self.translator.observe(Feedback::NodeAddresses(addresses.borrow_and_update().clone()));
        Self { node_addresses: Some(addresses), ..self }
    }

    /// Has statuses publish the addresses of nodes with a ready agent, of Gateways that are served
    /// on all of a node's.
    #[must_use]
    pub fn among(self, agents: watch::Receiver<Option<Agents>>) -> Self {
        Self { agents: Some(agents), ..self }
    }

    /// Divides what is limited for all agents together by their number.
    #[must_use]
    pub fn sharing_among(mut self, mut ready_agents: watch::Receiver<Option<NonZeroU32>>) -> Self {
        self.translator.observe(Feedback::Agents(*ready_agents.borrow_and_update()));
        Self { ready_agents: Some(ready_agents), ..self }
    }

    /// Keeps these addresses of the agent's own network from the backends.
    #[must_use]
    pub fn forwarding_from(mut self, mut addresses: watch::Receiver<Vec<IpAddr>>) -> Self {
        let own = addresses.borrow_and_update().iter().copied().collect();
        self.translator.observe(Feedback::OwnAddresses(own));
        Self { own_addresses: Some(addresses), ..self }
    }

    /// Looks up the names that translation asks for.
    #[must_use]
    pub fn looking_up(mut self, names: Names) -> Self {
        self.translator.observe(Feedback::Names(BTreeMap::new()));
        Self { answers: Some(names.answers.clone()), names: Some(names), ..self }
    }

    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Applies the source's updates until the future is dropped; nothing is left half done then.
    pub async fn run(&mut self) {
        let update = self.source.next().await;
        self.step(update).await;
        loop {
            if !self.is_draft {
                self.reporter.start();
            }
            // A listener is refused for what it is, until it changes; a port may be free later.
            let refused = !self.state.borrow().refused.frontends.is_empty();
            let told = self.input_lines.due();
            let frontends_told = self.frontend_lines.due();
            tokio::select! {
                update = self.source.next() => self.step(update).await,
                () = tokio::time::sleep(RETRY), if refused => self.retry().await,
                () = self.data_plane.disturbed() => self.retry().await,
                provisioning = changed(&mut self.provisioning) => self.take_provisioning(provisioning),
                addresses = changed(&mut self.node_addresses) => self.observe(Feedback::NodeAddresses(addresses)),
                agents = changed(&mut self.agents) => self.take_agents(agents),
                own = changed(&mut self.own_addresses), if !self.is_draft => {
                    let own = Feedback::OwnAddresses(own.into_iter().collect());
                    self.step(Update { observed: vec![own], ..Update::default() }).await;
                }
                ready = changed(&mut self.ready_agents), if !self.is_draft => {
                    let update = Update { observed: vec![Feedback::Agents(ready)], ..Update::default() };
                    self.step(update).await;
                }
                answers = changed(&mut self.answers), if !self.is_draft => {
                    let update = Update { observed: vec![Feedback::Names(answers)], ..Update::default() };
                    self.step(update).await;
                }
                () = at(told) => log_within(&mut self.input_lines, Vec::new()),
                () = at(frontends_told) => log_frontends(&mut self.frontend_lines, Vec::new()),
                () = self.reporter.reported() => {}
            }
        }
    }

    async fn step(&mut self, update: Update) {
        let started = Instant::now();
        if let Some(problems) = &update.problems {
            let lines = difference(&self.state.borrow().problems, problems);
            log_within(&mut self.input_lines, lines);
        }
        self.is_complete |= update.is_complete;
        for observed in update.observed {
            self.translator.observe(observed);
        }
        self.take_names();
        let Some(mut outcome) = self.translate(update.changes) else {
            return self.note_problems(update.problems);
        };
        self.is_draft = update.is_draft;
        if self.is_draft {
            self.note_problems(update.problems);
            return self.hand_out(outcome);
        }
        if self.state.borrow().applied == 0 && self.first_names().await {
            self.hand_out(outcome);
            outcome = match self.translate(Vec::new()) {
                Some(outcome) => outcome,
                None => return self.note_problems(update.problems),
            };
        }
        let translated = started.elapsed();
        let snapshot = outcome.snapshot.clone();
        let answer = self.serve(&snapshot).await;
        let took = started.elapsed();
        tracing::debug!(?translated, ?took, generation = snapshot.generation, "applied");
        self.hand_out(outcome);
        self.take_answer(&answer);
        self.note_problems(update.problems);
        self.publish(snapshot, answer, took);
    }

    fn hand_out(&mut self, mut outcome: Outcome) {
        let is_everything = std::mem::take(&mut self.is_from_scratch);
        if is_everything {
            // Objects that it does not mention have no problems any more.
            let known = self.state.borrow().unreported.clone();
            self.unreported = known.iter().map(|(key, _)| (key.clone(), Vec::new())).collect();
        }
        self.unreported.append(&mut outcome.problems);
        if !self.is_draft {
            self.note_unreported();
        }
        let pending = self.reporter.pending();
        match is_everything {
            true => pending.replace(outcome),
            false => pending.add(outcome),
        }
        if std::mem::take(&mut self.is_complete) {
            pending.complete();
        }
        if std::mem::take(&mut self.is_provisioned) {
            pending.provisioned();
        }
    }

    /// Takes what was found out about names since the last look.
    fn take_names(&mut self) {
        if let Some(answers) = self.answers.as_mut().filter(|it| it.has_changed().unwrap_or(false)) {
            let answers = answers.borrow_and_update().clone();
            self.translator.observe(Feedback::Names(answers));
        }
    }

    /// Waits a moment for the addresses of names before the first snapshot: the agent before this
    /// one, whose connections it takes over, knows them. Returns whether there is anything new.
    async fn first_names(&mut self) -> bool {
        let Some(names) = &mut self.names else { return false };
        let are_known = names.found(FIRST_NAMES).await;
        self.take_names();
        are_known
    }

    /// Passes the data plane's answer on to statuses.
    fn take_answer(&mut self, answer: &Acknowledgement) {
        if self.state.borrow().refused != answer.refused {
            self.observe(Feedback::Unserved(answer.refused.clone()));
        }
    }

    fn take_agents(&mut self, agents: Option<Agents>) {
        if let Some(agents) = agents {
            self.observe(Feedback::NodeAddresses(agents.ready_addresses()));
        }
    }

    /// The agents come first, if others are known: statuses may have waited for both.
    fn take_provisioning(&mut self, provisioning: Provisioning) {
        if let Some(known) = self.agents.as_mut().filter(|known| known.has_changed().unwrap_or(false)) {
            let agents = known.borrow_and_update().clone();
            self.take_agents(agents);
        }
        self.is_provisioned |= provisioning.is_some();
        self.observe(Feedback::Unprovisioned(provisioning.unwrap_or_default()));
    }

    /// After a panic, the next change of objects comes first: it may be the end of the cause.
    fn observe(&mut self, feedback: Feedback) {
        self.translator.observe(feedback);
        if self.is_from_scratch {
            return;
        }
        if let Some(outcome) = self.translate(Vec::new()) {
            self.hand_out(outcome);
        }
    }

    /// `None` if that panicked: the next outcome is then all there is, and the source may not have
    /// been told what the last one needs.
    fn translate(&mut self, changes: Vec<Change>) -> Option<Outcome> {
        let Some(mut outcome) = guarded::translate(&mut self.translator, changes) else {
            self.is_from_scratch = true;
            return None;
        };
        let names = outcome.names.take().or_else(|| self.is_from_scratch.then(Default::default));
        if let Some((all, names)) = self.names.as_ref().zip(names) {
            all.want(names);
        }
        let needs = std::mem::take(&mut outcome.needs);
        if self.is_from_scratch {
            self.source.need_only(needs.added);
        } else if !needs.is_empty() {
            self.source.need(needs);
        }
        Some(outcome)
    }

    /// Many changes concern statuses only: what is served as it should be is not disturbed.
    async fn serve(&mut self, snapshot: &Arc<Snapshot>) -> Acknowledgement {
        let is_served = {
            let state = self.state.borrow();
            Arc::ptr_eq(&state.snapshot, snapshot) && state.refused.is_empty()
        };
        if is_served { Acknowledgement::default() } else { self.data_plane.apply(snapshot.clone()).await }
    }

    async fn retry(&mut self) {
        let snapshot = self.state.borrow().snapshot.clone();
        let answer = self.data_plane.apply(snapshot.clone()).await;
        self.take_answer(&answer);
        self.report_frontends(&snapshot, &answer);
        self.state.send_modify(|state| state.refused = answer.refused);
    }

    fn note_unreported(&mut self) {
        let changed = std::mem::take(&mut self.unreported);
        if changed.is_empty() {
            return;
        }
        self.reporter.pending().unreported(changed.clone());
        self.state.send_modify(|state| {
            let unreported = Arc::make_mut(&mut state.unreported);
            for (key, problems) in changed {
                unreported.replace(key, problems);
            }
        });
    }

    fn note_problems(&self, problems: Option<Vec<InputProblem>>) {
        if let Some(problems) = problems {
            self.state.send_modify(|state| state.problems = problems.into());
        }
    }

    fn report_frontends(&mut self, snapshot: &Snapshot, answer: &Acknowledgement) {
        let lines = frontend_lines(&self.state.borrow(), snapshot, answer);
        log_frontends(&mut self.frontend_lines, lines);
    }

    fn publish(&mut self, snapshot: Arc<Snapshot>, answer: Acknowledgement, took: Duration) {
        self.report_frontends(&snapshot, &answer);
        self.state.send_modify(|state| {
            state.snapshot = snapshot;
            state.refused = answer.refused;
            state.applied += 1;
            state.apply_time += took;
            state.last_applied = Some(SystemTime::now());
        });
    }
}

/// The newest value, when it is another. Cancel-safe.
async fn changed<T: Clone>(observed: &mut Option<watch::Receiver<T>>) -> T {
    if let Some(observed) = observed
        && observed.changed().await.is_ok()
    {
        return observed.borrow_and_update().clone();
    }
    std::future::pending().await
}

/// Never without a time. Cancel-safe.
async fn at(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A line of the log about the input.
enum InputLine {
    New(InputProblem),
    Solved(InputProblem),
}

/// Each problem once, and once more when it is gone, with its namespace. What lacks an effect comes
/// first: of the others, there may be too many.
fn difference(before: &[InputProblem], now: &[InputProblem]) -> Vec<(String, InputLine)> {
    let Difference { mut new, solved } = Difference::between(before, now);
    new.sort_by_key(|problem| !problem.effect.is_loss());
    let of = |problem: &InputProblem| problem.namespace().to_owned();
    let new = new.into_iter().map(|problem| (of(&problem), InputLine::New(problem)));
    new.chain(solved.into_iter().map(|problem| (of(&problem), InputLine::Solved(problem)))).collect()
}

/// As many lines as there may be now. Errors are about what lacks an effect.
fn log_within(budget: &mut Budget, lines: Vec<(String, InputLine)>) {
    let (lines, more) = budget.cut(lines);
    for line in lines {
        match line {
            InputLine::New(problem) if problem.effect.is_loss() => tracing::error!("{problem}"),
            InputLine::New(problem) => tracing::warn!("{problem}"),
            InputLine::Solved(problem) => {
                let place = OneLine(problem.object.as_deref().unwrap_or("the file"));
                let (file, message) = (OneLine(&problem.file), OneLine(&problem.message));
                tracing::info!(%file, "{place}: solved: {message}");
            }
        }
    }
    if let Some(more) = more {
        tracing::warn!(
            "{more} more problems came or went: `portcullis status --problems` lists those there are"
        );
    }
}

/// A line of the log about a frontend.
enum FrontendLine {
    Refused(String),
    /// Served from now on, or no longer.
    Changed(String),
}

/// The frontends at which Gateways are served now, and those at which they no longer are, with the
/// namespaces of their listeners. What cannot be served comes first, and of that, and of all else,
/// the Gateways' own listeners.
fn frontend_lines(
    before: &State,
    snapshot: &Snapshot,
    answer: &Acknowledgement,
) -> Vec<(String, FrontendLine)> {
    let served = |state: &State, key: &FrontendKey| {
        state.snapshot.frontends.contains_key(key) && !state.refused.frontends.contains_key(key)
    };
    let (mut refused, mut changed) = (Vec::new(), Vec::new());
    for (frontend, port) in &snapshot.frontends {
        let gateway = &port.gateway.name;
        match answer.refused.frontends.get(frontend) {
            Some(why) if before.refused.frontends.get(frontend) != Some(why) => {
                refused.push((port, format!("Gateway {gateway} cannot be served on {frontend}: {why}")));
            }
            None if !served(before, frontend) => {
                let line = format!("Gateway {gateway} is served on {frontend} ({})", port.listeners);
                changed.push((port, line));
            }
            _ => {}
        }
    }
    for (listener @ (frontend, _), why) in &answer.refused.listeners {
        let port = snapshot.frontends.get(frontend);
        if let Some(port) = port.filter(|_| before.refused.listeners.get(listener) != Some(why)) {
            refused.push((port, format!("not served on {frontend}: {why}")));
        }
    }
    for (frontend, port) in &before.snapshot.frontends {
        if !snapshot.frontends.contains_key(frontend) {
            let gateway = &port.gateway.name;
            changed.push((port, format!("Gateway {gateway} is no longer served on {frontend}")));
        }
    }
    for lines in [&mut refused, &mut changed] {
        lines.sort_by_key(|(port, _)| owner(port) != &*port.gateway.name.namespace);
    }
    let of = |port: &Port| owner(port).to_owned();
    let refused = refused.into_iter().map(|(port, line)| (of(port), FrontendLine::Refused(line)));
    refused.chain(changed.into_iter().map(|(port, line)| (of(port), FrontendLine::Changed(line)))).collect()
}

/// The namespace of the Gateway if a listener of the port is its own, else of one of those that
/// have listeners there.
fn owner(port: &Port) -> &str {
    let gateway = &*port.gateway.name.namespace;
    let all = port.listeners.iter().map(|listener| &*listener.id.parent.namespace);
    all.min_by_key(|namespace| (*namespace != gateway, *namespace)).unwrap_or(gateway)
}

/// As many lines as there may be now.
fn log_frontends(budget: &mut Budget, lines: Vec<(String, FrontendLine)>) {
    let (lines, more) = budget.cut(lines);
    for line in lines {
        match line {
            FrontendLine::Refused(line) => tracing::error!("{line}"),
            FrontendLine::Changed(line) => tracing::info!("{line}"),
        }
    }
    if let Some(more) = more {
        tracing::warn!("{more} more frontends came or went: `portcullis status` lists those there are");
    }
}

#[cfg(test)]
#[path = "applier_tests.rs"]
mod tests;
