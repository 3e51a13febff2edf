//! The merged list of listeners of a Gateway: its own, then those of its children in order of
//! precedence. This is the one place that decides which of several listeners that cannot be told
//! apart is served; ListenerSets and attached Gateways are the same to it.
//!
//! Between objects "the first Listener in the precedence list MUST be accepted" (GEP-1713). Within
//! one object there is no first: "the implementation MUST NOT pick one conflicting Listener as the
//! winner" (`GatewaySpec.listeners`), and all of them keep what they ask for from later objects:
//! "validation of this list of listeners MUST behave the same as if the list were part of a single
//! Gateway". Certificates are looked at last: one that breaks hands nothing to others. What is not
//! allowed, or not supported, reserves neither port nor hostname.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use portcullis_model::{HostPattern, PortKey};

use super::declare::Listener;
use crate::protocol::Protocol;
use crate::{ConditionType, Fault, Reason};

/// Outcome of the merge for one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acceptance {
    Accepted,
    /// Whatever the other listeners are. It reserves nothing.
    Refused(Fault),
    /// Nothing but a certificate is missing, its own or that of an authority of its clients'. It
    /// keeps its port and hostname from all others.
    NoCertificate(Fault),
    /// By `ProtocolConflict`, `HostnameConflict`, or `ListenerConflict` for both. `refusal` is the
    /// same fault as `Accepted` reports it.
    Conflicted {
        conflict: Fault,
        refusal: Fault,
    },
}

/// The fault that a listener has whatever the others are.
pub(crate) enum Refusal {
    /// It is not supported, or not allowed.
    OfListener(Fault),
    /// Its clients cannot be verified.
    OfClients(Fault),
}

/// Ports that the children of one namespace may open at a Gateway: as many as a Gateway itself may
/// have. Each is an entry in the kernel's maps for every address.
const MOST_PORTS_OF_A_NAMESPACE: usize = 64;
/// Ports that a Gateway may have in all. Its Service has them, too, in an object of limited size.
const MOST_PORTS: usize = 1024;

/// The ports of a Gateway as far as they are taken.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    ports: BTreeMap<PortKey, Taken>,
    /// By namespace, those that its objects were the first to ask for; but for the Gateway's own.
    opened: BTreeMap<String, BTreeSet<PortKey>>,
    objects: usize,
}

/// The hostname a listener asks for: still free on the port, or another listener's.
#[derive(Clone, Copy)]
enum Hostname {
    Free,
    Taken,
}

/// The owner of listeners in the merged list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Parent,
    Child,
}

#[derive(Debug)]
struct Taken {
    /// Several only if one object asks for several: then none is served.
    protocols: Vec<Protocol>,
    owner: Owner,
    hostnames: HashSet<HostPattern, foldhash::quality::RandomState>,
    /// Hostnames that the Gateway's own listeners took.
    parents: HashSet<HostPattern, foldhash::quality::RandomState>,
}

// === impl Merge ===

impl Merge {
    /// Adds the listeners of one object of a namespace, in order of precedence, the Gateway first.
    /// `refuse` returns the fault that a listener has whatever the others are.
    pub(crate) fn add(
        &mut self,
        namespace: &str,
        listeners: &[Listener],
        refuse: impl Fn(&Listener) -> Option<Refusal>,
    ) -> Vec<Acceptance> {
        let mut opened = self.opened.get(namespace).cloned().unwrap_or_default();
        let judge = |listener| {
            let refusal = refuse(listener)
                .or_else(|| self.port_too_many(namespace, listener, &mut opened).map(Refusal::OfListener));
            self.against_taken(listener, refusal)
        };
        let mut acceptances: Vec<_> = listeners.iter().map(judge).collect();
        let distinct: Vec<_> = (0..listeners.len()).filter(|at| acceptances[*at].is_distinct()).collect();
        for at in &distinct {
            let others = distinct.iter().filter(|other| *other != at).map(|other| &listeners[*other]);
            if let Some(conflicted) = conflict_within(&listeners[*at], others) {
                acceptances[*at] = conflicted;
            }
        }
        self.take(namespace, distinct.iter().map(|at| &listeners[*at]));
        acceptances
    }

    /// The fault of a child's listener on one port more than its namespace may open.
    fn port_too_many(
        &self,
        namespace: &str,
        listener: &Listener,
        opened: &mut BTreeSet<PortKey>,
    ) -> Option<Fault> {
        let is_open = self.objects == 0 || self.ports.contains_key(&listener.port);
        if is_open || opened.contains(&listener.port) {
            return None;
        }
        let before = self.opened.get(namespace).map_or(0, BTreeSet::len);
        let too_many = if opened.len() == MOST_PORTS_OF_A_NAMESPACE {
            format!(
                "objects of namespace {namespace} have opened {MOST_PORTS_OF_A_NAMESPACE} ports at the Gateway"
            )
        } else if self.ports.len() + opened.len() - before == MOST_PORTS {
            format!("the Gateway has {MOST_PORTS} ports")
        } else {
            opened.insert(listener.port);
            return None;
        };
        let port = listener.port.number;
        let message =
            format!("port {port} is one too many: {too_many}, which is the most; use one that is open");
        Some(Fault::not_accepted(Reason::PortUnavailable, message))
    }

    /// A conflict is reported before other reasons for refusal: the owner has to solve it in any
    /// case.
    fn against_taken(&self, listener: &Listener, refusal: Option<Refusal>) -> Acceptance {
        let conflict = self.ports.get(&listener.port).and_then(|taken| taken.conflict(listener));
        match (conflict, refusal, &listener.no_certificate) {
            (Some(conflicted), _, _) => conflicted,
            (None, Some(Refusal::OfListener(fault)), _) => Acceptance::Refused(fault),
            (None, _, Some(fault)) => Acceptance::NoCertificate(fault.clone()),
            (None, Some(Refusal::OfClients(fault)), None) => Acceptance::NoCertificate(fault),
            (None, None, None) => Acceptance::Accepted,
        }
    }

    fn take<'l>(&mut self, namespace: &str, listeners: impl Iterator<Item = &'l Listener>) {
        let owner = if self.objects == 0 { Owner::Parent } else { Owner::Child };
        self.objects += 1;
        for listener in listeners {
            if owner == Owner::Child && !self.ports.contains_key(&listener.port) {
                self.opened.entry(namespace.to_owned()).or_default().insert(listener.port);
            }
            let taken = self.ports.entry(listener.port).or_insert_with(|| Taken::new(owner));
            if !taken.protocols.contains(&listener.protocol) {
                taken.protocols.push(listener.protocol);
            }
            taken.hostnames.insert(listener.hostname.clone());
            if owner == Owner::Parent {
                taken.parents.insert(listener.hostname.clone());
            }
        }
    }
}

/// The conflict of a listener with `others` of the same object, none of which another object keeps
/// from being served.
fn conflict_within<'l>(
    listener: &Listener,
    mut others: impl Iterator<Item = &'l Listener>,
) -> Option<Acceptance> {
    others.find_map(|other| {
        let reason = collision(listener, other)?;
        let by = format!("listener {} of the same object; neither is served", other.name);
        Some(conflicted(listener, other.protocol, (reason, Reason::Invalid), &by))
    })
}

impl Taken {
    fn new(owner: Owner) -> Self {
        Self { protocols: Vec::new(), owner, hostnames: HashSet::default(), parents: HashSet::default() }
    }

    fn conflict(&self, listener: &Listener) -> Option<Acceptance> {
        let is_taken = self.hostnames.contains(&listener.hostname);
        let hostname = if is_taken { Hostname::Taken } else { Hostname::Free };
        let another = self.protocols.iter().find(|protocol| !protocol.shares_port_with(listener.protocol));
        let protocol = *another.unwrap_or(&listener.protocol);
        let reason = reason(protocol, listener, hostname)?;
        let is_parents = match reason {
            Reason::HostnameConflict => self.parents.contains(&listener.hostname),
            _ => self.owner == Owner::Parent,
        };
        let by = if is_parents {
            "a listener of the Gateway itself"
        } else {
            "another listener attached to the same Gateway"
        };
        Some(conflicted(listener, protocol, (reason, reason), by))
    }
}

fn collision(listener: &Listener, other: &Listener) -> Option<Reason> {
    let hostname = if listener.hostname == other.hostname { Hostname::Taken } else { Hostname::Free };
    (listener.port == other.port).then(|| reason(other.protocol, listener, hostname))?
}

/// The conflict of a listener on a port where `protocol` is spoken. "Implementations should
/// prioritize surfacing the most specific conflict reason": where the protocols cannot share it and
/// a hostname that was asked for is taken, both.
fn reason(protocol: Protocol, listener: &Listener, hostname: Hostname) -> Option<Reason> {
    match (protocol.shares_port_with(listener.protocol), hostname) {
        (true, Hostname::Free) => None,
        (true, Hostname::Taken) => Some(Reason::HostnameConflict),
        (false, Hostname::Taken) if listener.hostname != HostPattern::Any => Some(Reason::ListenerConflict),
        (false, _) => Some(Reason::ProtocolConflict),
    }
}

/// A listener that loses what it asks for to another of `protocol`; `by` names nothing of it that
/// the owner of this one cannot see anyway.
///
/// The conformance tests want the conflict's reason on `Accepted` and `Programmed`, too, where the
/// text of GEP-1713 has `PortUnavailable`; for conflicts within one object they want `Invalid`.
fn conflicted(
    listener: &Listener,
    protocol: Protocol,
    (reason, refusal): (Reason, Reason),
    by: &str,
) -> Acceptance {
    let (port, hostname) = (listener.port.number, &listener.hostname);
    let taken = match reason {
        Reason::HostnameConflict => format!("hostname {hostname} on port {port} is taken"),
        Reason::ListenerConflict => {
            format!("port {port} is used for another protocol and hostname {hostname} is taken on it")
        }
        _ if protocol == listener.protocol => format!("port {port} is taken"),
        _ => format!("port {port} is used for another protocol"),
    };
    let message = format!("{taken} by {by}");
    Acceptance::Conflicted {
        refusal: Fault::not_accepted(refusal, message.as_str()),
        conflict: Fault::new(ConditionType::Conflicted, reason, message),
    }
}

// === impl Acceptance ===

impl Acceptance {
    pub(crate) fn is_accepted(&self) -> bool {
        *self == Self::Accepted
    }

    /// True if the listener has its port and hostname for itself, be it served or not.
    pub(crate) fn is_distinct(&self) -> bool {
        matches!(self, Self::Accepted | Self::NoCertificate(_))
    }

    /// The fault for which the listener is not accepted.
    pub(crate) fn refusal(&self) -> Option<&Fault> {
        match self {
            Self::Accepted => None,
            Self::Refused(refusal) | Self::NoCertificate(refusal) | Self::Conflicted { refusal, .. } => {
                Some(refusal)
            }
        }
    }

    pub(crate) fn conflict(&self) -> Option<&Fault> {
        match self {
            Self::Conflicted { conflict, .. } => Some(conflict),
            Self::Accepted | Self::Refused(_) | Self::NoCertificate(_) => None,
        }
    }
}
