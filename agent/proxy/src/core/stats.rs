//! Counters. Each core counts in plain cells; a scrape asks every core for its numbers and adds
//! them up.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portcullis_model::{BackendName, BudgetOwner, Distance, ListenerId, ObjectName, RemoteKeySet};

use crate::core::counter::Counter;
use crate::core::durations::{ABORTED, CLASSES, DurationStats, status_class};
use crate::core::ending::Ending;
use crate::core::reason::Reason;

/// The reason why a TLS handshake did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HandshakeFailure {
    /// The client named a server that no listener of the port has.
    UnknownName,
    /// The listener that the client named has no certificate that can be used.
    NoCertificate,
    /// The client hello could not be read, or the client refused us.
    Protocol,
    /// The client showed no certificate, or one that the listener's authorities do not vouch for.
    ClientCertificate,
    Timeout,
    /// The listener's terms keep the client out; see [`NotAdmitted`].
    NotAdmitted,
    /// The connection was reset while its hello was awaited: by the client, or by a kernel program
    /// that refused the hello and has counted it.
    Reset,
}

/// The reason why a listener took in no connection, request or datagram of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotAdmitted {
    /// Its address is not one of those that may connect.
    Address,
    /// A budget of new connections is used up.
    Connections,
    /// Too many handshakes of the listener wait for their turn on a core.
    Handshakes,
    /// There was no header of PROXY protocol that says who the client is, where one has to be.
    ProxyHeader,
}

/// The outcome of a copy of a request for a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mirrored {
    /// The mirror answered, whatever it was.
    Answered,
    /// It was not sent: too many are under way, to all mirrors or to this one.
    Busy,
    /// Given up, because the mirror did not take the body as fast as the backend.
    Behind,
    /// The request that it is of broke off.
    Broken,
    /// The mirror has no endpoint, could not be connected to or broke.
    Failed,
    /// The mirror took too long.
    Timeout,
}

/// The outcome of a question to an external auth service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthOutcome {
    Allowed,
    Denied,
    /// There was no answer, or none that says anything.
    Failed,
}

/// The limit of its Gateway or of the agent that ended a connection, or kept it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExceededLimit {
    Connections,
    HeaderTimeout,
    /// Of HTTP/1: the client neither sent the rest of a request nor took its response.
    IdleTimeout,
    /// The client did not take its responses.
    Http2IdleTimeout,
    /// Of the agent, for all buffers: the client held the most.
    Buffers,
    /// Of the agent: the client sent or read too slowly.
    MinimumRate,
}

/// Totals since start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub gateways: BTreeMap<ObjectName, GatewayStats>,
    pub listeners: BTreeMap<ListenerId, ListenerStats>,
    /// Of the budgets that listeners have now.
    pub budgets: BTreeMap<BudgetOwner, BudgetStats>,
    /// Connections that were accepted, whatever became of them.
    pub accepted: u64,
    pub accept_errors: u64,
    /// Connections, tunnels and sessions of UDP that each core has now.
    pub cores: Vec<usize>,
    pub handshake_failures: BTreeMap<HandshakeFailure, u64>,
    /// Answers of ours because no listener or route took the request, or because it was refused at
    /// the edge.
    pub unrouted: u64,
    /// Answers of ours, by reason; those that never happened are missing.
    pub answers: BTreeMap<Reason, u64>,
    /// Questions to external auth services, by outcome; those that never happened are missing.
    pub auth: BTreeMap<AuthOutcome, u64>,
    /// Lines of access logs that were not read in time.
    pub access_log_lost: u64,
    /// Requests of HTTP/1 that the HTTP library read.
    pub http1_by_library: u64,
    pub upstream_connects: u64,
    pub upstream_connect_failures: u64,
    pub upstream_retries: u64,
    /// Those that never happened are missing.
    pub mirrored: BTreeMap<Mirrored, u64>,
    /// Choices of endpoints whose distance is known, by that.
    pub chosen: BTreeMap<Distance, u64>,
    /// Of backends whose policies are about health or limits.
    pub backends: BTreeMap<BackendName, BackendStats>,
    /// Endpoints that are being checked now.
    pub checked_endpoints: usize,
    /// Key sets that are fetched.
    pub key_sets: BTreeMap<RemoteKeySet, KeySetStats>,
    pub durations: DurationStats,
    pub traces: TraceStats,
    /// By the kind of what goes to a collector, if there is one.
    pub exports: BTreeMap<&'static str, ExportStats>,
}

/// Spans, or lines of the access log, on their way to a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportStats {
    pub sent: u64,
    /// The collector did not take them.
    pub lost: u64,
}

/// Spans of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceStats {
    /// Requests that were to be recorded, and were not: there were too many.
    pub over_budget: u64,
    /// Spans that were not taken for export in time.
    pub lost: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayStats {
    /// Client connections open now, tunnels included.
    pub open: u64,
    /// By the limit that ended them; those that never did are missing.
    pub refused: BTreeMap<ExceededLimit, u64>,
    /// Of clients that were kept out before it was known which of a port's listeners they meant, by
    /// reason; those that never happened are missing.
    pub not_admitted: BTreeMap<NotAdmitted, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerStats {
    /// TLS connections that end here; a plain connection of HTTP belongs to no listener before its
    /// first request.
    pub connections: u64,
    /// By status class: index 2 counts 200 to 299, [`ABORTED`] those whose clients did not wait for
    /// an answer.
    pub requests: [u64; CLASSES],
    pub forwarded: Forwarded,
    /// By reason; those that never happened are missing.
    pub not_admitted: BTreeMap<NotAdmitted, u64>,
}

/// The endpoints of a backend, as all cores see them, and what it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendStats {
    pub endpoints: u64,
    /// Endpoints that are asked only if there is no other, and why: `ejected` or `unhealthy`.
    pub out: Vec<(SocketAddr, &'static str)>,
    pub ejections: u64,
    pub passed_checks: u64,
    pub failed_checks: u64,
    /// Requests and connections that it has now, and requests that wait.
    pub requests: u64,
    pub pending: u64,
    pub connections: u64,
    /// Beyond its limits.
    pub refused_requests: u64,
    pub refused_connections: u64,
}

/// A key set that is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySetStats {
    /// The time since it was fetched; `None` if there is none that is good.
    pub age: Option<Duration>,
    /// The reason for which the last fetch failed, if it did.
    pub failure: Option<Arc<str>>,
    pub fetches: u64,
    pub failures: u64,
}

/// New connections that a budget was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetStats {
    pub taken: u64,
    pub refused: u64,
}

/// Connections and sessions of a listener whose bytes are forwarded as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    pub begun: u64,
    /// Open now.
    pub open: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes to clients.
    pub sent: u64,
    /// By the reason why they ended; those that never happened are missing.
    pub endings: BTreeMap<Ending, u64>,
}

/// One core's cells.
#[derive(Debug, Default)]
pub(crate) struct CoreCounters {
    pub accepted: Counter,
    pub accept_errors: Counter,
    pub http1_by_library: Counter,
    pub connects: Counter,
    pub connect_failures: Counter,
    pub retries: Counter,
    mirrored: [Counter; Mirrored::ALL.len()],
    chosen: [Counter; Distance::ALL.len()],
    handshake_failures: [Counter; HandshakeFailure::ALL.len()],
    answers: AnswerCounters,
    auth: [Counter; AuthOutcome::ALL.len()],
}

/// By reason.
#[derive(Debug)]
struct AnswerCounters([Counter; Reason::ALL.len()]);

#[derive(Debug, Default)]
pub(crate) struct GatewayCounters {
    pub open: Counter,
    refused: [Counter; ExceededLimit::ALL.len()],
    not_admitted: AdmissionCounters,
}

/// By reason.
#[derive(Debug, Default)]
struct AdmissionCounters([Counter; NotAdmitted::ALL.len()]);

#[derive(Debug, Default)]
pub(crate) struct ListenerCounters {
    pub connections: Counter,
    pub requests: [Counter; CLASSES],
    pub forwarded: ForwardedCounters,
    not_admitted: AdmissionCounters,
}

#[derive(Debug, Default)]
pub(crate) struct ForwardedCounters {
    pub begun: Counter,
    pub open: Counter,
    pub received: Counter,
    pub sent: Counter,
    endings: [Counter; Ending::ALL.len()],
}

// === impl Stats ===

impl Stats {
    pub(crate) fn add(&mut self, other: Self) {
        for (name, stats) in other.gateways {
            self.gateways.entry(name).or_default().add(&stats);
        }
        for (id, stats) in other.listeners {
            self.listeners.entry(id).or_default().add(&stats);
        }
        for (reason, count) in other.handshake_failures {
            *self.handshake_failures.entry(reason).or_default() += count;
        }
        for (reason, count) in other.answers {
            *self.answers.entry(reason).or_default() += count;
        }
        for (outcome, count) in other.auth {
            *self.auth.entry(outcome).or_default() += count;
        }
        self.accepted += other.accepted;
        self.accept_errors += other.accept_errors;
        self.unrouted += other.unrouted;
        self.access_log_lost += other.access_log_lost;
        self.http1_by_library += other.http1_by_library;
        self.upstream_connects += other.upstream_connects;
        self.upstream_connect_failures += other.upstream_connect_failures;
        self.upstream_retries += other.upstream_retries;
        for (outcome, count) in other.mirrored {
            *self.mirrored.entry(outcome).or_default() += count;
        }
        for (place, count) in other.chosen {
            *self.chosen.entry(place).or_default() += count;
        }
        self.durations.add(other.durations);
        self.traces.add(other.traces);
    }
}

// === impl TraceStats ===

impl TraceStats {
    fn add(&mut self, other: Self) {
        self.over_budget += other.over_budget;
        self.lost += other.lost;
    }
}

// === impl GatewayStats ===

impl GatewayStats {
    fn add(&mut self, other: &Self) {
        self.open += other.open;
        for (limit, count) in &other.refused {
            *self.refused.entry(*limit).or_default() += count;
        }
        add_not_admitted(&mut self.not_admitted, &other.not_admitted);
    }
}

// === impl HandshakeFailure ===

impl HandshakeFailure {
    const ALL: [Self; 7] = [
        Self::UnknownName,
        Self::NoCertificate,
        Self::Protocol,
        Self::ClientCertificate,
        Self::Timeout,
        Self::NotAdmitted,
        Self::Reset,
    ];

    /// The label of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownName => "unknown-name",
            Self::NoCertificate => "no-certificate",
            Self::Protocol => "protocol",
            Self::ClientCertificate => "client-certificate",
            Self::Timeout => "timeout",
            Self::NotAdmitted => "not-admitted",
            Self::Reset => "reset",
        }
    }
}

// === impl NotAdmitted ===

impl NotAdmitted {
    pub(crate) const ALL: [Self; 4] = [Self::Address, Self::Connections, Self::Handshakes, Self::ProxyHeader];

    /// The label of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Connections => "connections",
            Self::Handshakes => "handshakes",
            Self::ProxyHeader => "proxy-header",
        }
    }
}

// === impl AuthOutcome ===

impl AuthOutcome {
    const ALL: [Self; 3] = [Self::Allowed, Self::Denied, Self::Failed];

    /// The label of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

// === impl Mirrored ===

impl Mirrored {
    const ALL: [Self; 6] =
        [Self::Answered, Self::Busy, Self::Behind, Self::Broken, Self::Failed, Self::Timeout];

    /// The label of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Busy => "busy",
            Self::Behind => "behind",
            Self::Broken => "broken",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
        }
    }
}

// === impl ExceededLimit ===

impl ExceededLimit {
    const ALL: [Self; 6] = [
        Self::Connections,
        Self::HeaderTimeout,
        Self::IdleTimeout,
        Self::Http2IdleTimeout,
        Self::Buffers,
        Self::MinimumRate,
    ];

    /// The field of GatewayParameters' `limits`, or for limits of the agent that of its settings;
    /// the label of the metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::HeaderTimeout => "headerTimeout",
            Self::IdleTimeout => "idleTimeout",
            Self::Http2IdleTimeout => "http2IdleTimeout",
            Self::Buffers => "buffers",
            Self::MinimumRate => "minimumRate",
        }
    }
}

// === impl ListenerStats ===

impl ListenerStats {
    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.requests.iter_mut().zip(other.requests).for_each(|(sum, count)| *sum += count);
        self.forwarded.begun += other.forwarded.begun;
        self.forwarded.open += other.forwarded.open;
        self.forwarded.received += other.forwarded.received;
        self.forwarded.sent += other.forwarded.sent;
        for (ending, count) in &other.forwarded.endings {
            *self.forwarded.endings.entry(*ending).or_default() += count;
        }
        add_not_admitted(&mut self.not_admitted, &other.not_admitted);
    }
}

fn add_not_admitted(sum: &mut BTreeMap<NotAdmitted, u64>, other: &BTreeMap<NotAdmitted, u64>) {
    for (reason, count) in other {
        *sum.entry(*reason).or_default() += count;
    }
}

// === impl CoreCounters ===

impl CoreCounters {
    pub(crate) fn answered(&self, reason: Reason) {
        self.answers.0[reason as usize].increment();
    }

    pub(crate) fn asked(&self, outcome: AuthOutcome) {
        self.auth[outcome as usize].increment();
    }

    pub(crate) fn handshake_failed(&self, failure: HandshakeFailure) {
        self.handshake_failures[failure as usize].increment();
    }

    pub(crate) fn mirrored(&self, outcome: Mirrored) {
        self.mirrored[outcome as usize].increment();
    }

    pub(crate) fn chosen(&self, place: Distance) {
        self.chosen[place as usize].increment();
    }

    pub(crate) fn read(&self) -> Stats {
        let mirrored = Mirrored::ALL.iter().map(|outcome| (*outcome, self.mirrored[*outcome as usize].get()));
        let failures =
            HandshakeFailure::ALL.map(|failure| (failure, self.handshake_failures[failure as usize].get()));
        let answers = Reason::ALL.iter().map(|reason| (*reason, self.answers.0[*reason as usize].get()));
        let auth = AuthOutcome::ALL.iter().map(|outcome| (*outcome, self.auth[*outcome as usize].get()));
        let unrouted = answers.clone().filter(|(reason, _)| reason.is_unrouted()).map(|(_, count)| count);
        Stats {
            gateways: BTreeMap::new(),
            listeners: BTreeMap::new(),
            budgets: BTreeMap::new(),
            backends: BTreeMap::new(),
            checked_endpoints: 0,
            key_sets: BTreeMap::new(),
            durations: DurationStats::default(),
            traces: TraceStats::default(),
            exports: BTreeMap::new(),
            accepted: self.accepted.get(),
            accept_errors: self.accept_errors.get(),
            cores: Vec::new(),
            handshake_failures: failures.into(),
            unrouted: unrouted.sum(),
            answers: answers.filter(|(_, count)| *count > 0).collect(),
            auth: auth.filter(|(_, count)| *count > 0).collect(),
            access_log_lost: 0,
            http1_by_library: self.http1_by_library.get(),
            upstream_connects: self.connects.get(),
            upstream_connect_failures: self.connect_failures.get(),
            upstream_retries: self.retries.get(),
            mirrored: mirrored.filter(|(_, count)| *count > 0).collect(),
            chosen: Distance::ALL.map(|place| (place, self.chosen[place as usize].get())).into(),
        }
    }
}

// === impl AnswerCounters ===

/// The library has it for short arrays only.
impl Default for AnswerCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

// === impl GatewayCounters ===

impl GatewayCounters {
    pub(crate) fn refused(&self, limit: ExceededLimit) {
        self.refused[limit as usize].increment();
    }

    pub(crate) fn not_admitted(&self, reason: NotAdmitted) {
        self.not_admitted.increment(reason);
    }

    pub(crate) fn read(&self) -> GatewayStats {
        let refused = ExceededLimit::ALL.iter().map(|limit| (*limit, self.refused[*limit as usize].get()));
        GatewayStats {
            open: self.open.get(),
            refused: refused.filter(|(_, count)| *count > 0).collect(),
            not_admitted: self.not_admitted.read(),
        }
    }
}

// === impl ListenerCounters ===

impl ListenerCounters {
    pub(crate) fn answered(&self, status: http::StatusCode) {
        self.requests[status_class(status)].increment();
    }

    pub(crate) fn aborted(&self) {
        self.requests[ABORTED].increment();
    }

    pub(crate) fn not_admitted(&self, reason: NotAdmitted) {
        self.not_admitted.increment(reason);
    }

    pub(crate) fn read(&self) -> ListenerStats {
        ListenerStats {
            connections: self.connections.get(),
            requests: std::array::from_fn(|class| self.requests[class].get()),
            forwarded: self.forwarded.read(),
            not_admitted: self.not_admitted.read(),
        }
    }
}

// === impl AdmissionCounters ===

impl AdmissionCounters {
    fn increment(&self, reason: NotAdmitted) {
        self.0[reason as usize].increment();
    }

    fn read(&self) -> BTreeMap<NotAdmitted, u64> {
        let counts = NotAdmitted::ALL.iter().map(|reason| (*reason, self.0[*reason as usize].get()));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

// === impl ForwardedCounters ===

impl ForwardedCounters {
    pub(crate) fn ended(&self, ending: Ending) {
        self.endings[ending as usize].increment();
    }

    fn read(&self) -> Forwarded {
        let endings = Ending::ALL.iter().map(|ending| (*ending, self.endings[*ending as usize].get()));
        Forwarded {
            begun: self.begun.get(),
            open: self.open.get(),
            received: self.received.get(),
            sent: self.sent.get(),
            endings: endings.filter(|(_, count)| *count > 0).collect(),
        }
    }
}
