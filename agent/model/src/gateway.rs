//! A Gateway as a whole, as far as it matters to traffic: the settings that hold on each of its
//! ports.

use std::time::Duration;

use http::StatusCode;
use serde::Serialize;

use crate::{ObjectName, OmittedFields};

/// The Gateway whose addresses are served: after merging, the parent. Listeners attached to it are
/// held to its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    pub name: ObjectName,
    pub limits: Limits,
    pub access_log: Option<AccessLog>,
}

/// The requests of a Gateway that are logged, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccessLog {
    pub format: LogFormat,
    /// Answers with a lower status are not logged.
    #[serde(serialize_with = "crate::filter::status")]
    pub minimum_status: StatusCode,
    /// Fields that lines are written without.
    #[serde(skip_serializing_if = "OmittedFields::is_empty")]
    pub omit: OmittedFields,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LogFormat {
    /// An object in a line.
    #[serde(rename = "JSON")]
    Json,
    /// The Combined Log Format, and more behind it.
    Text,
}

/// Limits that a Gateway sets its clients. The defaults are safe at the edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at a time, on all cores of the agent together.
    pub connections: Option<u32>,
    /// Time for the TLS handshake.
    pub tls_handshake_timeout: Duration,
    /// Time for the request head, from the connection or from the head's first byte.
    pub header_timeout: Duration,
    /// Time between requests on an HTTP/1 connection, and for the client to go on with one or with
    /// its response.
    pub idle_timeout: Duration,
    /// Time without streams on an HTTP/2 connection, and for the client to go on with its
    /// responses.
    pub http2_idle_timeout: Duration,
    /// Streams at a time on an HTTP/2 connection.
    pub http2_streams: u32,
    /// Bytes of the request target.
    pub target_bytes: u32,
    /// Bytes of all header fields.
    pub header_bytes: u32,
    pub header_fields: u32,
    /// Bytes of a request's body.
    pub body_bytes: Option<u64>,
}

// === impl Gateway ===

impl Gateway {
    /// With the default limits, and without access log.
    pub fn new(name: ObjectName) -> Self {
        Self { name, limits: Limits::default(), access_log: None }
    }
}

// === impl AccessLog ===

impl Default for AccessLog {
    /// Everything, as JSON.
    fn default() -> Self {
        Self { format: LogFormat::Json, minimum_status: StatusCode::CONTINUE, omit: OmittedFields::default() }
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: None,
            tls_handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            http2_idle_timeout: Duration::from_secs(300),
            http2_streams: 100,
            target_bytes: 8 << 10,
            header_bytes: 32 << 10,
            header_fields: 100,
            body_bytes: None,
        }
    }
}
