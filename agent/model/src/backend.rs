//! Destinations of requests: one [`Backend`] per Service port, with the addresses of its ready
//! endpoints.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::Serialize;

use crate::{L4Protocol, PortKey};

/// `namespace/service:port`, with `/udp` for ports over UDP. Rules name their backends; the data
/// plane looks endpoints and connection pools up by name, so that an endpoint that comes or goes
/// touches no route table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct BackendName(pub Arc<str>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum BackendProtocol {
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge (`appProtocol: kubernetes.io/h2c`).
    H2c,
}

/// Clients whose requests, connections or datagrams the same endpoint has, as long as it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum Affinity {
    /// Each is given an endpoint by itself.
    #[default]
    None,
    /// All of one address.
    ClientAddress,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backend {
    pub name: BackendName,
    /// The protocol of requests. What is passed on as it is speaks for itself.
    pub protocol: BackendProtocol,
    #[serde(skip_serializing_if = "Affinity::is_none")]
    pub affinity: Affinity,
    /// Ready endpoints, ordered. Empty: requests are answered 503, connections refused.
    pub endpoints: Vec<SocketAddr>,
}

// === impl Affinity ===

impl Affinity {
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

// === impl BackendName ===

impl BackendName {
    pub fn new(namespace: &str, service: &str, port: PortKey) -> Self {
        let number = port.number;
        Self(match port.protocol {
            L4Protocol::Tcp => format!("{namespace}/{service}:{number}").into(),
            L4Protocol::Udp => format!("{namespace}/{service}:{number}/udp").into(),
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
