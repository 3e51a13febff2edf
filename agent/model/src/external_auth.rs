//! `ExternalAuth`: a service that is asked whether a request may go on (GEP-1494). Without its
//! consent none does.

use std::fmt;
use std::num::NonZeroU32;

use http::HeaderName;
use serde::{Serialize, Serializer};

use crate::BackendName;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExternalAuth {
    pub backend: BackendName,
    #[serde(flatten)]
    pub protocol: AuthProtocol,
    /// Bytes of the body that the service gets to see. A request with more of them is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<NonZeroU32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthProtocol {
    Http(HttpAuth),
    /// Envoy's `envoy.service.auth.v3.Authorization`.
    Grpc {
        /// Of the request, those that the service gets.
        request: FieldNames,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HttpAuth {
    /// In front of the path of the request; without a slash at its end.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub prefix: Box<str>,
    /// Fields of the request that the service gets, beside those that it always gets.
    #[serde(serialize_with = "names", skip_serializing_if = "Vec::is_empty")]
    pub request: Vec<HeaderName>,
    /// Fields of its answer that the backend gets.
    pub response: FieldNames,
}

/// Names of header fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldNames {
    All,
    Only(Vec<HeaderName>),
}

// === impl FieldNames ===

impl FieldNames {
    pub fn contains(&self, name: &HeaderName) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(name),
        }
    }

    /// The names that are listed.
    pub fn listed(&self) -> &[HeaderName] {
        match self {
            Self::All => &[],
            Self::Only(names) => names,
        }
    }
}

/// `external auth infra/auth:80 over HTTP, with bodies up to 1024 bytes`
impl fmt::Display for ExternalAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match &self.protocol {
            AuthProtocol::Http(_) => "HTTP",
            AuthProtocol::Grpc { .. } => "gRPC",
        };
        write!(f, "external auth {} over {protocol}", self.backend)?;
        match self.body {
            Some(most) => write!(f, ", with bodies up to {most} bytes"),
            None => Ok(()),
        }
    }
}

impl Serialize for FieldNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Only(list) => names(list, serializer),
        }
    }
}

fn names<S: Serializer>(names: &[HeaderName], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(HeaderName::as_str))
}
