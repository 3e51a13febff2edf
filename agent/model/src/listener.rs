//! Listeners after merging, with the service that each gives. Those that share a port are a
//! [`Port`](crate::Port).

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::TrustAnchor;
use serde::Serialize;

use crate::{
    Admission, Certificate, ExternalAuth, Failure, HostPattern, L4Rule, ObjectName, ParentKind, RouteTable,
    ServerNames, TlsOptions, TrafficPolicy,
};

/// Names are unique only within the object that defines the listener, so all four parts are needed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId {
    /// The Gateway whose addresses the listener is served on: after merging, the parent.
    pub gateway: ObjectName,
    pub kind: ParentKind,
    /// The object that defines the listener: that Gateway itself, an attached Gateway, or a
    /// ListenerSet.
    pub parent: ObjectName,
    pub name: Arc<str>,
}

#[derive(Clone, Debug)]
pub struct Listener {
    pub id: ListenerId,
    pub hostname: HostPattern,
    pub serves: Serves,
    pub admission: Arc<Admission>,
    /// Requests pass these, in order, before a route is looked for.
    pub filters: Arc<[ListenerFilter]>,
    /// Requests have to meet it before they pass the filters.
    pub policy: Option<Arc<TrafficPolicy>>,
}

/// The service that a listener gives to the traffic it takes.
#[derive(Clone, Debug)]
pub enum Serves {
    Http(Arc<RouteTable>),
    Https {
        tls: TlsTermination,
        routes: Arc<RouteTable>,
    },
    /// TLS ends here; the bytes inside go to a backend as they are.
    TlsTerminated {
        tls: TlsTermination,
        rules: Arc<ServerNames>,
    },
    /// Connections go to a backend as they are, by the server name of their ClientHello.
    TlsPassthrough(Arc<ServerNames>),
    Tcp(Arc<L4Rule>),
    Udp(Arc<L4Rule>),
    /// TLS would end here, but there is no certificate to do so: the listener keeps its name, and
    /// handshakes for it are refused.
    NoCertificate,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsTermination {
    /// In the order of `certificateRefs`; the longest matching name wins, then the first. Never
    /// empty.
    pub certificates: Arc<[Certificate]>,
    pub clients: ClientCertificates,
    pub options: Arc<TlsOptions>,
}

/// The certificates that clients are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    #[default]
    NotAsked,
    /// Clients may show one that no authority vouches for, or none (`AllowInsecureFallback`).
    Any,
    /// Clients need one that an authority of each of these sets vouches for: a Gateway's, and those
    /// of the Gateway that it is attached to. No set, and none of them, is empty.
    Required(Box<[Arc<[TrustAnchor<'static>]>]>),
}

/// A filter of a listener, through which requests pass before a route is looked for (GEP-5224).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum ListenerFilter {
    ExternalAuth(ExternalAuth),
    /// One that cannot be applied: no request passes.
    #[serde(serialize_with = "failure")]
    Fail(Failure),
}

// === impl ListenerId ===

/// `Gateway infra/web listener https`, as messages and logs name it.
impl fmt::Display for ListenerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} listener {}", self.kind, self.parent, self.name)
    }
}

impl Serialize for ListenerId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl Listener ===

/// Equal if serving either makes no difference.
impl PartialEq for Listener {
    fn eq(&self, other: &Self) -> bool {
        self.serves == other.serves
            && self.id == other.id
            && self.hostname == other.hostname
            && self.admission == other.admission
            && self.filters == other.filters
            && self.policy == other.policy
    }
}

// === impl Serves ===

impl Serves {
    /// The `protocol` of a listener that serves this.
    pub const fn protocol(&self) -> &'static str {
        match self {
            Self::Http(_) => "HTTP",
            Self::Https { .. } | Self::NoCertificate => "HTTPS",
            Self::TlsTerminated { .. } | Self::TlsPassthrough(_) => "TLS",
            Self::Tcp(_) => "TCP",
            Self::Udp(_) => "UDP",
        }
    }

    /// Of a listener that serves HTTP, with TLS or without.
    pub const fn routes(&self) -> Option<&Arc<RouteTable>> {
        match self {
            Self::Http(routes) | Self::Https { routes, .. } => Some(routes),
            Self::TlsTerminated { .. }
            | Self::TlsPassthrough(_)
            | Self::Tcp(_)
            | Self::Udp(_)
            | Self::NoCertificate => None,
        }
    }

    /// Of a listener that passes connections on by server name, with TLS ended before or not.
    pub const fn server_names(&self) -> Option<&Arc<ServerNames>> {
        match self {
            Self::TlsTerminated { rules, .. } | Self::TlsPassthrough(rules) => Some(rules),
            Self::Http(_) | Self::Https { .. } | Self::Tcp(_) | Self::Udp(_) | Self::NoCertificate => None,
        }
    }

    /// Of a listener that passes on all that comes to its port.
    pub const fn only_rule(&self) -> Option<&Arc<L4Rule>> {
        match self {
            Self::Tcp(rule) | Self::Udp(rule) => Some(rule),
            Self::Http(_)
            | Self::Https { .. }
            | Self::TlsTerminated { .. }
            | Self::TlsPassthrough(_)
            | Self::NoCertificate => None,
        }
    }

    /// Of a listener where TLS ends.
    pub const fn tls(&self) -> Option<&TlsTermination> {
        match self {
            Self::Https { tls, .. } | Self::TlsTerminated { tls, .. } => Some(tls),
            Self::Http(_) | Self::TlsPassthrough(_) | Self::Tcp(_) | Self::Udp(_) | Self::NoCertificate => {
                None
            }
        }
    }
}

/// Tables are compared by identity: a table that is built again is taken for another one. A
/// rule for connections is small, and compared by value.
impl PartialEq for Serves {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Http(a), Self::Http(b)) => Arc::ptr_eq(a, b),
            (Self::Https { tls, routes }, Self::Https { tls: other, routes: others }) => {
                Arc::ptr_eq(routes, others) && tls == other
            }
            (Self::TlsTerminated { tls, rules }, Self::TlsTerminated { tls: other, rules: others }) => {
                Arc::ptr_eq(rules, others) && tls == other
            }
            (Self::TlsPassthrough(a), Self::TlsPassthrough(b)) => Arc::ptr_eq(a, b),
            (Self::Tcp(a), Self::Tcp(b)) | (Self::Udp(a), Self::Udp(b)) => a == b,
            (Self::NoCertificate, Self::NoCertificate) => true,
            _ => false,
        }
    }
}

fn failure<S: serde::Serializer>(failure: &Failure, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(failure)
}
