//! Destinations of requests: one [`Backend`] per Service port, with the addresses of its ready
//! endpoints.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::TrustAnchor;
use serde::{Serialize, Serializer};

use crate::{Balancing, Certificate, L4Protocol, Locality, PortKey, Resilience, RetryBudget};

const EXTERNAL: &str = "external";

/// `namespace/service:port`, with `/udp` for ports over UDP; `namespace/name/external` for a host
/// outside the cluster. Rules name their backends; the data plane looks endpoints and connection
/// pools up by name, so that an endpoint that comes or goes touches no route table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct BackendName(pub Arc<str>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum BackendProtocol {
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge (`appProtocol: kubernetes.io/h2c`). Inside TLS it is asked for
    /// by ALPN, too, and spoken to a backend that chooses nothing.
    H2c,
    /// HTTP/2 or HTTP/1.1, as the backend chooses by ALPN. Inside TLS only.
    Negotiated,
}

/// The header of PROXY protocol (HAProxy's `proxy-protocol.txt`) that begins each connection to a
/// backend, and names the client that the connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ProxyHeader {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// The way in which requests reach a backend, and connections whose TLS ended before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Encryption {
    #[default]
    None,
    Tls(Arc<BackendTls>),
    /// TLS is asked for, and cannot be spoken as it is asked for: nothing is sent, least of all in
    /// plaintext.
    Unavailable,
}

/// TLS as a BackendTLSPolicy asks for it, or an XBackend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendTls {
    /// The name that is asked for (SNI), in lower case.
    pub server_name: Box<str>,
    /// The names of which the certificate has to have one; never empty.
    pub identities: Box<[PeerIdentity]>,
    pub authorities: Authorities,
    #[serde(skip_serializing_if = "ClientIdentity::is_gateway")]
    pub client: ClientIdentity,
}

/// The certificate by which a backend is shown who speaks to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientIdentity {
    /// The Gateway's, if it has one.
    #[default]
    Gateway,
    /// None at all: a host that a tenant names is not shown the Gateway's.
    None,
    /// One that is for this backend.
    Own(Certificate),
}

/// A subject alternative name of a backend's certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum PeerIdentity {
    /// A DNS name in lower case. With `*.` in front any name that has one label more, which is what
    /// a certificate means by it.
    Dns(Box<str>),
    /// Compared octet by octet, as SPIFFE has it.
    Uri(Box<str>),
}

/// The authorities of which one has to have issued a backend's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authorities {
    /// Those of the system that the agent runs on.
    System,
    /// Never empty.
    Given(Arc<[TrustAnchor<'static>]>),
}

/// The life of connections to a backend. `None`: as the agent's settings have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionTerms {
    /// The time that one may take, with its TLS handshake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<Duration>,
    /// The time that one is kept without a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Duration>,
    /// The time without any sign of life of the endpoint after which it counts as broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vanished: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backend {
    pub name: BackendName,
    /// The protocol of requests. What is passed on as it is speaks for itself.
    pub protocol: BackendProtocol,
    pub encryption: Encryption,
    #[serde(skip_serializing_if = "Balancing::is_default")]
    pub balancing: Balancing,
    #[serde(skip_serializing_if = "ConnectionTerms::is_default")]
    pub connections: ConnectionTerms,
    /// Before all else, TLS included. A connection that has one is for one client connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_header: Option<ProxyHeader>,
    /// `None`: nothing is known of where endpoints are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Arc<Locality>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resilience: Option<Arc<Resilience>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_budget: Option<Arc<RetryBudget>>,
    /// Ready endpoints, the preferred ones first, then by address. Empty: requests are answered
    /// 503, connections refused.
    pub endpoints: Vec<SocketAddr>,
}

// === impl Backend ===

impl Backend {
    /// Plain HTTP/1.1 to these endpoints, and nothing asked for.
    pub fn new(name: BackendName, endpoints: Vec<SocketAddr>) -> Self {
        Self {
            name,
            protocol: BackendProtocol::default(),
            encryption: Encryption::default(),
            balancing: Balancing::default(),
            connections: ConnectionTerms::default(),
            proxy_header: None,
            locality: None,
            resilience: None,
            retry_budget: None,
            endpoints,
        }
    }

    /// The endpoints that are chosen from as long as one of them is available.
    pub fn preferred(&self) -> &[SocketAddr] {
        let first = self.locality.as_ref().and_then(|locality| locality.preferred.first());
        first.and_then(|first| self.endpoints.get(..*first)).unwrap_or(&self.endpoints)
    }
}

// === impl ConnectionTerms ===

impl ConnectionTerms {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

// === impl Encryption ===

impl Encryption {
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

// === impl Authorities ===

/// The number of those that are given: names of authorities are long, and keys are longer.
impl Serialize for Authorities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::System => serializer.serialize_str("System"),
            Self::Given(anchors) => serializer.collect_str(&format_args!("{} given", anchors.len())),
        }
    }
}

// === impl ClientIdentity ===

impl ClientIdentity {
    fn is_gateway(&self) -> bool {
        *self == Self::Gateway
    }
}

/// Without anything of a certificate but its names.
impl Serialize for ClientIdentity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Gateway => serializer.serialize_str("Gateway"),
            Self::None => serializer.serialize_str("None"),
            Self::Own(certificate) => serializer.collect_seq(certificate.names.iter()),
        }
    }
}

// === impl BackendTls ===

impl BackendTls {
    /// The certificate to show, where the Gateway has this one.
    pub fn shown<'c>(&'c self, gateways: Option<&'c Certificate>) -> Option<&'c Certificate> {
        match &self.client {
            ClientIdentity::Gateway => gateways,
            ClientIdentity::None => None,
            ClientIdentity::Own(certificate) => Some(certificate),
        }
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

    /// The namespace whose owner has declared it.
    pub fn namespace(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }

    /// A host outside the cluster.
    pub fn external(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}/{EXTERNAL}").into())
    }

    /// True of a host outside the cluster, however it is spoken to.
    pub fn is_external(&self) -> bool {
        self.0.split('/').nth(2) == Some(EXTERNAL)
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
