//! The state of one endpoint: the failures of requests and connections, for which it is ejected for
//! a while; the outcome of its checks; and since when it takes part again.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use portcullis_model::OutlierDetection;

use crate::upstream::health::{BackendHealth, milliseconds, now};

/// The share that a new endpoint begins with.
const FIRST_SHARE: f64 = 0.1;

#[derive(Debug)]
pub(crate) struct EndpointHealth {
    pub address: SocketAddr,
    pub backend: Arc<BackendHealth>,
    /// In a row.
    failures: AtomicU32,
    /// The time until which it is ejected; 0: it is not. After that time one request shows whether
    /// it is back.
    ejected_until: AtomicU64,
    /// A request for that is on its way: meanwhile the time is a later one.
    is_tried: AtomicBool,
    /// Ejections, less those that a time without any has made up for.
    ejections: AtomicU32,
    fails_checks: AtomicBool,
    /// The time since which it takes part, if it began or came back while others did.
    since: AtomicU64,
}

/// A reason for not choosing an endpoint; the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    None,
    /// It could not be connected to a moment ago.
    FailedLately,
    /// It has failed too often. From here on, it is asked only if there is no other.
    Ejected,
    /// Its checks fail.
    Unhealthy,
}

/// A failure of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    Status(StatusCode),
    /// By the code of the call's `grpc-status`.
    Call(u8),
    Connect,
    Broken,
    Timeout,
}

// === impl EndpointHealth ===

impl EndpointHealth {
    pub(super) fn new(address: SocketAddr, backend: Arc<BackendHealth>) -> Self {
        Self {
            address,
            backend,
            failures: AtomicU32::default(),
            ejected_until: AtomicU64::default(),
            is_tried: AtomicBool::default(),
            ejections: AtomicU32::default(),
            fails_checks: AtomicBool::default(),
            since: AtomicU64::default(),
        }
    }

    pub(crate) fn doubt(&self) -> Doubt {
        if self.fails_checks.load(Relaxed) {
            Doubt::Unhealthy
        } else if self.is_ejected_for_now() {
            Doubt::Ejected
        } else {
            Doubt::None
        }
    }

    /// It is to be asked something. The first request after an ejection keeps others away until its
    /// outcome is known, or for as long as the shortest ejection.
    pub(crate) fn enter(&self) {
        let until = self.ejected_until.load(Relaxed);
        if until == 0 || until > now() {
            return;
        }
        let pause = self.backend.shortest_ejection();
        let later = now() + milliseconds(pause);
        if self.ejected_until.compare_exchange(until, later, Relaxed, Relaxed).is_ok() {
            self.is_tried.store(true, Relaxed);
        }
    }

    /// Answers of the server's side are failures, but for those that speak of the request.
    pub(crate) fn answered(&self, status: StatusCode) {
        match status {
            StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => self.undecided(),
            status if status.is_server_error() => self.failed(Failure::Status(status)),
            _ => self.passed(),
        }
    }

    /// A gRPC call has ended with this `grpc-status`. Of the server's side are UNKNOWN, INTERNAL,
    /// UNAVAILABLE and DATA_LOSS; CANCELLED, DEADLINE_EXCEEDED and UNIMPLEMENTED are the client's
    /// doing, or speak of the request.
    pub(crate) fn called(&self, status: &HeaderValue) {
        match std::str::from_utf8(status.as_bytes()).map(str::parse::<u8>) {
            Ok(Ok(code @ (2 | 13 | 14 | 15))) => self.failed(Failure::Call(code)),
            Ok(Ok(1 | 4 | 12)) => self.undecided(),
            _ => self.passed(),
        }
    }

    pub(crate) fn passed(&self) {
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
        if self.ejected_until.load(Relaxed) != 0 && self.is_tried.swap(false, Relaxed) {
            self.ejected_until.store(0, Relaxed);
            self.begin_slowly();
            let (address, backend) = (self.address, &self.backend.name);
            self.backend.tell(|| tracing::info!("endpoint {address} of backend {backend} is back"));
        }
    }

    /// The outcome says nothing of the endpoint, or there is none. If the request was to show
    /// whether it is back, the next one does: else clients could keep it out.
    pub(crate) fn undecided(&self) {
        let until = self.ejected_until.load(Relaxed);
        if until != 0 && self.is_tried.swap(false, Relaxed) {
            // Unless it was pardoned, or ejected again, in between.
            let _ = self.ejected_until.compare_exchange(until, now(), Relaxed, Relaxed);
        }
    }

    pub(crate) fn failed(&self, why: Failure) {
        let limit = self.backend.failures.load(Relaxed);
        if limit == 0 {
            return;
        }
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        let is_due = if self.is_ejected() { self.is_tried() } else { failures >= limit };
        if is_due {
            self.backend.eject(self, why);
        }
    }

    pub(super) fn is_ejected(&self) -> bool {
        self.ejected_until.load(Relaxed) != 0
    }

    pub(super) fn is_tried(&self) -> bool {
        self.is_tried.load(Relaxed)
    }

    /// False when the time is over, and nothing has been tried since.
    pub(super) fn is_ejected_for_now(&self) -> bool {
        let until = self.ejected_until.load(Relaxed);
        until != 0 && now() < until
    }

    /// Returns for how long. Each ejection lasts longer than the one before, less what the time
    /// since then has made up for.
    pub(super) fn eject(&self, terms: &OutlierDetection) -> Duration {
        let mut before = self.ejections.load(Relaxed);
        let base = milliseconds(terms.base_ejection).max(1);
        if !self.is_ejected() {
            let good = now().saturating_sub(self.since.load(Relaxed)) / base;
            before = before.saturating_sub(u32::try_from(good).unwrap_or(u32::MAX));
        }
        self.ejections.store(before + 1, Relaxed);
        let time = (terms.base_ejection * (before + 1)).min(terms.max_ejection.max(terms.base_ejection));
        self.is_tried.store(false, Relaxed);
        self.failures.store(0, Relaxed);
        self.ejected_until.store(now() + milliseconds(time), Relaxed);
        time
    }

    /// Ends an ejection.
    pub(super) fn pardon(&self) {
        self.failures.store(0, Relaxed);
        self.is_tried.store(false, Relaxed);
        self.ejected_until.store(0, Relaxed);
    }

    /// Its checks have failed as often as they have to.
    pub(super) fn set_unhealthy(&self, why: &dyn fmt::Display) {
        if !self.fails_checks.swap(true, Relaxed) {
            let (address, backend) = (self.address, &self.backend.name);
            self.backend.tell(|| {
                tracing::warn!(
                    "endpoint {address} of backend {backend} is unhealthy: its checks fail: {why}"
                );
            });
        }
    }

    pub(super) fn set_healthy(&self) {
        if self.fails_checks.swap(false, Relaxed) {
            self.begin_slowly();
            let (address, backend) = (self.address, &self.backend.name);
            self.backend.tell(|| tracing::info!("endpoint {address} of backend {backend} is healthy again"));
        }
    }

    pub(super) fn forget_checks(&self) {
        self.fails_checks.store(false, Relaxed);
    }

    pub(super) fn begin_slowly(&self) {
        self.since.store(now(), Relaxed);
    }

    /// The part of its requests that is an endpoint's already that has just begun; `None`: all.
    pub(crate) fn slow_share(&self) -> Option<f64> {
        let window = self.backend.slow_start.load(Relaxed);
        let since = self.since.load(Relaxed);
        if window == 0 || since == 0 {
            return None;
        }
        let share = now().saturating_sub(since) as f64 / window as f64;
        (share < 1.0).then(|| share.max(FIRST_SHARE))
    }
}

// === impl Doubt ===

impl Doubt {
    /// True for an endpoint that is asked only if there is no other.
    pub(crate) fn is_out(self) -> bool {
        self >= Self::Ejected
    }

    /// The label of the metric, if it is out.
    pub(super) fn reason(self) -> Option<&'static str> {
        match self {
            Self::None | Self::FailedLately => None,
            Self::Ejected => Some("ejected"),
            Self::Unhealthy => Some("unhealthy"),
        }
    }
}

// === impl Failure ===

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "it answered {}", status.as_u16()),
            Self::Call(code) => write!(f, "a gRPC call had status {code}"),
            Self::Connect => f.write_str("it could not be connected to"),
            Self::Broken => f.write_str("it gave no valid response"),
            Self::Timeout => f.write_str("it did not answer in time"),
        }
    }
}
