//! The merged list of listeners of a Gateway: its own, then those of its children in order of
//! precedence. This is the one place that decides which of several listeners that cannot be told
//! apart is served; ListenerSets and attached Gateways are the same to it.
//!
//! Between objects "the first Listener in the precedence list MUST be accepted" (GEP-1713). Within
//! one object there is no first: "the implementation MUST NOT pick one conflicting Listener as the
//! winner" (`GatewaySpec.listeners`). A listener that is refused, for whatever reason, reserves
//! neither port nor hostname.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use portcullis_model::{HostPattern, PortKey};

use super::declare::{Listener, Protocol};
use crate::{ConditionType, Fault, Reason};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    /// Whatever the other listeners are.
    Refused(Fault),
    /// By `ProtocolConflict`, `HostnameConflict`, or `ListenerConflict` for both. `refusal` is the
    /// reason on `Accepted`.
    Conflicted {
        fault: Fault,
        refusal: Reason,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Conflict {
    reason: Reason,
    with: Rival,
}

/// As much about the other listener as the owner of the losing one may know.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rival {
    /// A listener of the same object.
    Own(Arc<str>),
    /// A listener of the Gateway that both belong to.
    Parent,
    /// A listener of another child of the same Gateway.
    Sibling,
}

/// The ports of a Gateway as far as they are taken.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    ports: BTreeMap<PortKey, Taken>,
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
    protocol: Protocol,
    owner: Owner,
    hostnames: HashSet<HostPattern, foldhash::quality::RandomState>,
    /// Hostnames that the Gateway's own listeners took.
    parents: HashSet<HostPattern, foldhash::quality::RandomState>,
}

// === impl Merge ===

impl Merge {
    /// Adds the listeners of one object, in order of precedence, the Gateway first. `refuse` tells
    /// what is wrong with a listener whatever the others are.
    pub(crate) fn add(
        &mut self,
        listeners: &[Listener],
        refuse: impl Fn(&Listener) -> Option<Fault>,
    ) -> Vec<Verdict> {
        let judge = |listener: &Listener| self.against_taken(listener, refuse(listener));
        let mut verdicts: Vec<_> = listeners.iter().map(judge).collect();
        for (at, conflict) in among_own(listeners, &verdicts) {
            verdicts[at] = conflict.verdict(&listeners[at]);
        }
        self.take(listeners, &verdicts);
        verdicts
    }

    /// A conflict is told before other reasons for refusal: the owner has to solve it in any case.
    fn against_taken(&self, listener: &Listener, refusal: Option<Fault>) -> Verdict {
        let conflict = self.ports.get(&listener.port).and_then(|taken| taken.conflict(listener));
        match (conflict, refusal) {
            (Some(conflict), _) => conflict.verdict(listener),
            (None, Some(fault)) => Verdict::Refused(fault),
            (None, None) => Verdict::Accepted,
        }
    }

    fn take(&mut self, listeners: &[Listener], verdicts: &[Verdict]) {
        let owner = if self.objects == 0 { Owner::Parent } else { Owner::Child };
        self.objects += 1;
        for (listener, _) in
            listeners.iter().zip(verdicts).filter(|(_, verdict)| **verdict == Verdict::Accepted)
        {
            let taken =
                self.ports.entry(listener.port).or_insert_with(|| Taken::new(listener.protocol, owner));
            taken.hostnames.insert(listener.hostname.clone());
            if owner == Owner::Parent {
                taken.parents.insert(listener.hostname.clone());
            }
        }
    }
}

/// The conflicts between listeners of one object that could be served if the others were not there.
fn among_own(listeners: &[Listener], verdicts: &[Verdict]) -> Vec<(usize, Conflict)> {
    let candidates: Vec<_> = (0..listeners.len()).filter(|at| verdicts[*at].is_accepted()).collect();
    let conflict = |at: usize| {
        candidates.iter().filter(|other| **other != at).find_map(|other| {
            let reason = collision(&listeners[at], &listeners[*other])?;
            Some((at, Conflict { reason, with: Rival::Own(listeners[*other].name.clone()) }))
        })
    };
    candidates.iter().filter_map(|at| conflict(*at)).collect()
}

impl Taken {
    fn new(protocol: Protocol, owner: Owner) -> Self {
        Self { protocol, owner, hostnames: HashSet::default(), parents: HashSet::default() }
    }

    fn conflict(&self, listener: &Listener) -> Option<Conflict> {
        let is_taken = self.hostnames.contains(&listener.hostname);
        let hostname = if is_taken { Hostname::Taken } else { Hostname::Free };
        let reason = reason(self.protocol, listener, hostname)?;
        let parents = match reason {
            Reason::HostnameConflict => self.parents.contains(&listener.hostname),
            _ => self.owner == Owner::Parent,
        };
        Some(Conflict { reason, with: if parents { Rival::Parent } else { Rival::Sibling } })
    }
}

fn collision(listener: &Listener, other: &Listener) -> Option<Reason> {
    let hostname = if listener.hostname == other.hostname { Hostname::Taken } else { Hostname::Free };
    (listener.port == other.port).then(|| reason(other.protocol, listener, hostname))?
}

/// The conflict of a listener on a port where `protocol` is spoken. "Implementations should
/// prioritize surfacing the most specific conflict reason": where the protocol differs and a
/// hostname that was asked for is taken, both.
fn reason(protocol: Protocol, listener: &Listener, hostname: Hostname) -> Option<Reason> {
    match (protocol == listener.protocol, hostname) {
        (true, Hostname::Free) => None,
        (true, Hostname::Taken) => Some(Reason::HostnameConflict),
        (false, Hostname::Taken) if listener.hostname != HostPattern::Any => Some(Reason::ListenerConflict),
        (false, _) => Some(Reason::ProtocolConflict),
    }
}

// === impl Verdict ===

impl Verdict {
    pub(crate) fn is_accepted(&self) -> bool {
        *self == Self::Accepted
    }

    pub(crate) fn conflict(&self) -> Option<&Fault> {
        match self {
            Self::Conflicted { fault, .. } => Some(fault),
            Self::Accepted | Self::Refused(_) => None,
        }
    }
}

// === impl Conflict ===

impl Conflict {
    /// The conformance tests want the conflict's reason on `Accepted` and `Programmed`, too, where
    /// the text of GEP-1713 has `PortUnavailable`; for conflicts within one object they want
    /// `Invalid`.
    fn verdict(self, listener: &Listener) -> Verdict {
        let refusal = match self.with {
            Rival::Own(_) => Reason::Invalid,
            Rival::Parent | Rival::Sibling => self.reason,
        };
        let fault = Fault::new(ConditionType::Conflicted, self.reason, self.message(listener));
        Verdict::Conflicted { fault, refusal }
    }

    /// Says what collides, but names nothing that the listener's owner cannot see anyway.
    fn message(&self, listener: &Listener) -> String {
        let (port, hostname) = (listener.port.number, &listener.hostname);
        let what = match self.reason {
            Reason::HostnameConflict => format!("hostname {hostname} on port {port} is taken"),
            Reason::ListenerConflict => {
                format!("port {port} is used for another protocol and hostname {hostname} is taken on it")
            }
            _ => format!("port {port} is used for another protocol"),
        };
        match &self.with {
            Rival::Own(name) => {
                format!("{what} by listener {name} of the same object; neither is served")
            }
            Rival::Parent => format!("{what} by a listener of the Gateway itself"),
            Rival::Sibling => format!("{what} by another listener attached to the same Gateway"),
        }
    }
}
