//! The terms on which the endpoints of a backend take part, and how much the backend is asked.

use std::num::{NonZeroU8, NonZeroU32};
use std::time::Duration;

use http::StatusCode;
use serde::{Serialize, Serializer};

/// The whole of a backend's terms. Agents keep to them each by itself; the cores of an agent do so
/// together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resilience {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<EndpointCheck>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outliers: Option<OutlierDetection>,
    /// The time in which the share of an endpoint that is new, or is back, grows to a whole one.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "some_time")]
    pub slow_start: Option<Duration>,
    pub limits: BackendLimits,
}

/// The question that endpoints are asked, whatever clients ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCheck {
    pub probe: Probe,
    /// From the end of one check to the begin of the next.
    #[serde(serialize_with = "time")]
    pub interval: Duration,
    #[serde(serialize_with = "time")]
    pub timeout: Duration,
    /// Checks in a row that have to fail until an endpoint is out, and pass until it is back.
    pub unhealthy_after: NonZeroU32,
    pub healthy_after: NonZeroU32,
    pub all_unhealthy: AllUnhealthy,
}

/// The use of a backend that has no endpoint whose checks pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum AllUnhealthy {
    /// All are asked: checks that all fail say more of the checks than of the endpoints.
    #[default]
    UseAll,
    /// As one without endpoints.
    Refuse,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Probe {
    /// A connection is made, and closed.
    Tcp,
    /// `GET`.
    Http(HttpProbe),
    /// `grpc.health.v1.Health/Check`.
    Grpc {
        /// The service that is asked about; empty for the server.
        service: Box<str>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HttpProbe {
    /// Path and query.
    pub path: Box<str>,
    /// `Host`; without one it is the endpoint's address.
    pub host: Option<Box<str>>,
    /// The statuses that pass: ranges from the first to the last.
    pub statuses: Box<[(u16, u16)]>,
}

/// Endpoints are asked nothing for a while that fail time and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutlierDetection {
    /// Failures in a row.
    pub consecutive_failures: NonZeroU32,
    /// The time of the first ejection; it grows with each, up to the longest.
    #[serde(serialize_with = "time")]
    pub base_ejection: Duration,
    #[serde(serialize_with = "time")]
    pub max_ejection: Duration,
    /// Of a backend's endpoints no more are ejected at once; one is always left.
    pub max_ejected_percent: NonZeroU8,
}

/// Limits of a backend at one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendLimits {
    /// Connections whose bytes are forwarded as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<NonZeroU32>,
    /// Requests at once, tunnels and copies for mirrors included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<NonZeroU32>,
    /// Requests that wait for one of those to end.
    pub pending_requests: u32,
}

// === impl HttpProbe ===

impl HttpProbe {
    pub fn passes(&self, status: StatusCode) -> bool {
        self.statuses.iter().any(|(first, last)| (*first..=*last).contains(&status.as_u16()))
    }
}

/// As it is written in objects: `1.5s`.
fn time<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:?}"))
}

fn some_time<S: Serializer>(some: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match some {
        Some(some) => time(some, serializer),
        None => serializer.serialize_none(),
    }
}
