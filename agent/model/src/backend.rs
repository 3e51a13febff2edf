//! Destinations of requests: one [`Backend`] per Service port, with the addresses of its ready
//! endpoints.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::TrustAnchor;
use serde::{Serialize, Serializer};

use crate::{Certificate, L4Protocol, PortKey};

/// `namespace/service:port`, with `/udp` for ports over UDP; `namespace/name/external` for a host
/// outside the cluster. Rules name their backends; the data
/// plane looks endpoints and connection pools up by name, so that an endpoint that comes or goes
/// touches no route table.
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
    /// None at all: the backend is not the Gateway's owner's to introduce it to.
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
    pub encryption: Encryption,
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

    /// A host outside the cluster.
    pub fn external(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}/external").into())
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
