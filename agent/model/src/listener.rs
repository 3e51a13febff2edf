//! Listeners after merging: one [`ListenerGroup`] per (Gateway, port), holding the listeners that share the port.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::{Certificate, Gateway, HostMap, HostPattern, RouteTable};

/// `namespace/name` of a Kubernetes object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// The kind of object that holds a listener's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum ParentKind {
    Gateway,
    ListenerSet,
}

/// Names are unique only within the object that defines the listener, so all four parts are needed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId {
    /// The Gateway whose addresses the listener is served on: after merging, the parent.
    pub gateway: ObjectName,
    pub kind: ParentKind,
    /// The object that defines the listener: that Gateway itself, an attached Gateway, or a ListenerSet.
    pub parent: ObjectName,
    pub name: Arc<str>,
}

#[derive(Clone, Debug)]
pub struct Listener {
    pub id: ListenerId,
    pub hostname: HostPattern,
    pub protocol: ListenerProtocol,
    pub routes: Arc<RouteTable>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerProtocol {
    Http,
    Https(TlsTermination),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsTermination {
    /// In the order of `certificateRefs`; the longest matching name wins, then the first. Never empty.
    pub certificates: Arc<[Certificate]>,
}

/// The accepted listeners of a Gateway's port. A request belongs to the listener with the most specific hostname that
/// matches, and to no other (listener isolation).
#[derive(Clone, Debug)]
pub struct ListenerGroup {
    /// Shared by successive versions of the group as long as nothing of it changes.
    pub gateway: Arc<Gateway>,
    pub port: u16,
    /// All listeners of a group agree: the port speaks TLS or it does not.
    pub tls: bool,
    pub listeners: HostMap<Arc<Listener>>,
}

// === impl ObjectName ===

impl ObjectName {
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Serialize for ObjectName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
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

/// Equal if serving either makes no difference; shared parts are compared by identity first.
impl PartialEq for Listener {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.routes, &other.routes)
            && self.id == other.id
            && self.hostname == other.hostname
            && self.protocol == other.protocol
    }
}
