//! The merged list of listeners of a Gateway: its own, then those of its children in order of precedence. This is the one
//! place that decides which of several listeners that cannot be told apart is served; ListenerSets and attached Gateways
//! are the same to it.
//!
//! Between objects "the first Listener in the precedence list MUST be accepted" (GEP-1713). Within one object there is no
//! first: "the implementation MUST NOT pick one conflicting Listener as the winner" (`GatewaySpec.listeners`). A listener
//! that is refused, for whatever reason, reserves neither port nor hostname.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use portcullis_model::HostPattern;

use crate::Reason;
use crate::listener::{Listener, Protocol, Trouble};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Accepted,
    /// Whatever the other listeners are.
    Refused(Trouble),
    Conflicted(Conflict),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// What collides: `ProtocolConflict`, `HostnameConflict`, or `ListenerConflict` for both.
    pub(crate) reason: Reason,
    pub(crate) with: Rival,
}

/// As much about the other listener as the owner of the losing one may know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rival {
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
    /// By port, and whether it is a UDP port.
    ports: BTreeMap<(u16, bool), Taken>,
    objects: usize,
}

#[derive(Debug)]
struct Taken {
    protocol: Protocol,
    by_parent: bool,
    hostnames: HashSet<HostPattern, foldhash::quality::RandomState>,
    /// Hostnames that the Gateway's own listeners took.
    parents: HashSet<HostPattern, foldhash::quality::RandomState>,
}

// === impl Merge ===

impl Merge {
    /// Adds the listeners of one object, in order of precedence, the Gateway first. `refuse` tells what is wrong with a
    /// listener whatever the others are.
    pub(crate) fn add(
        &mut self,
        listeners: &[Listener],
        refuse: impl Fn(&Listener) -> Option<Trouble>,
    ) -> Vec<Verdict> {
        let judge = |listener: &Listener| self.against_taken(listener, refuse(listener));
        let mut verdicts: Vec<_> = listeners.iter().map(judge).collect();
        for (at, conflict) in among_own(listeners, &verdicts) {
            verdicts[at] = Verdict::Conflicted(conflict);
        }
        self.take(listeners, &verdicts);
        verdicts
    }

    /// A conflict is told before other reasons for refusal: the owner has to solve it in any case.
    fn against_taken(&self, listener: &Listener, refusal: Option<Trouble>) -> Verdict {
        let conflict = self.ports.get(&slot(listener)).and_then(|taken| taken.conflict(listener));
        match (conflict, refusal) {
            (Some(conflict), _) => Verdict::Conflicted(conflict),
            (None, Some(trouble)) => Verdict::Refused(trouble),
            (None, None) => Verdict::Accepted,
        }
    }

    fn take(&mut self, listeners: &[Listener], verdicts: &[Verdict]) {
        let by_parent = self.objects == 0;
        self.objects += 1;
        for (listener, _) in
            listeners.iter().zip(verdicts).filter(|(_, verdict)| **verdict == Verdict::Accepted)
        {
            let taken =
                self.ports.entry(slot(listener)).or_insert_with(|| Taken::new(listener.protocol, by_parent));
            taken.hostnames.insert(listener.hostname.clone());
            if by_parent {
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

fn slot(listener: &Listener) -> (u16, bool) {
    (listener.port, listener.protocol == Protocol::Udp)
}

impl Taken {
    fn new(protocol: Protocol, by_parent: bool) -> Self {
        Self { protocol, by_parent, hostnames: HashSet::default(), parents: HashSet::default() }
    }

    fn conflict(&self, listener: &Listener) -> Option<Conflict> {
        let same_hostname = self.hostnames.contains(&listener.hostname);
        let reason = reason(self.protocol, listener, same_hostname)?;
        let parents = match reason {
            Reason::HostnameConflict => self.parents.contains(&listener.hostname),
            _ => self.by_parent,
        };
        Some(Conflict { reason, with: if parents { Rival::Parent } else { Rival::Sibling } })
    }
}

fn collision(listener: &Listener, other: &Listener) -> Option<Reason> {
    let same_port = listener.port == other.port && listener.protocol.shares_ports_with(other.protocol);
    let same_hostname = listener.hostname == other.hostname;
    same_port.then(|| reason(other.protocol, listener, same_hostname))?
}

/// What is wrong with a listener on a port where `protocol` is spoken. "Implementations should prioritize surfacing the
/// most specific conflict reason": where the protocol differs and a hostname that was asked for is taken, both.
fn reason(protocol: Protocol, listener: &Listener, same_hostname: bool) -> Option<Reason> {
    match (protocol == listener.protocol, same_hostname) {
        (true, false) => None,
        (true, true) => Some(Reason::HostnameConflict),
        (false, true) if listener.hostname != HostPattern::Any => Some(Reason::ListenerConflict),
        (false, _) => Some(Reason::ProtocolConflict),
    }
}

// === impl Verdict ===

impl Verdict {
    pub(crate) fn is_accepted(&self) -> bool {
        *self == Self::Accepted
    }
}
