//! The status of one listener: the same for Gateways and ListenerSets.

use super::Conditions;
use crate::api::shared::{ListenerStatus, RouteGroupKind};
use crate::listener::{Listener, Trouble};
use crate::merge::{Conflict, Rival, Verdict};
use crate::{ConditionType, Kind, Reason};

/// A listener with what became of it.
pub(crate) struct ListenerView<'a> {
    pub(crate) listener: &'a Listener,
    pub(crate) verdict: &'a Verdict,
    pub(crate) attached_routes: usize,
    /// Why the listener is not served although it is accepted.
    pub(crate) hindrance: Option<Trouble>,
    pub(crate) overlap: Overlap,
}

/// Whether another listener of the port, of whoever, has names in common with the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    None,
    Some,
}

/// Why no listener of an object is served; `None` if one is.
pub(super) fn unserved(views: &[ListenerView<'_>]) -> Option<Trouble> {
    if views.iter().any(ListenerView::is_programmed) {
        return None;
    }
    let accepted = views.iter().filter(|view| view.verdict.is_accepted());
    let mut hindrances: Vec<_> = accepted.filter_map(|view| view.hindrance.clone()).collect();
    hindrances.dedup();
    Trouble::summary(&hindrances)
}

// === impl ListenerView ===

impl ListenerView<'_> {
    pub(crate) fn status(&self, generation: i64) -> ListenerStatus {
        ListenerStatus {
            name: self.listener.name.to_string(),
            attached_routes: i32::try_from(self.attached_routes).unwrap_or(i32::MAX),
            supported_kinds: Some(self.listener.kinds.iter().map(|kind| group_kind(*kind)).collect()),
            conditions: self.conditions(generation).list,
        }
    }

    fn is_programmed(&self) -> bool {
        self.verdict.is_accepted() && self.hindrance.is_none()
    }

    fn conditions(&self, generation: i64) -> Conditions {
        let mut conditions = Conditions::new(generation);
        let unresolved = Trouble::summary(&self.listener.unresolved);
        conditions.check(ConditionType::Accepted, self.refusal().as_ref(), Reason::Accepted);
        conditions.check(ConditionType::Programmed, self.unprogrammed().as_ref(), Reason::Programmed);
        match self.verdict {
            Verdict::Conflicted(conflict) => {
                let trouble = Trouble::new(conflict.reason, conflict.message(self.listener));
                conditions.push(ConditionType::Conflicted, true, &trouble);
            }
            _ => conditions.push(ConditionType::Conflicted, false, &Trouble::new(Reason::NoConflicts, "")),
        }
        conditions.check(ConditionType::ResolvedRefs, unresolved.as_ref(), Reason::ResolvedRefs);
        // "MUST NOT be set when it is False."
        if self.overlap == Overlap::Some {
            conditions.push(ConditionType::OverlappingTLSConfig, true, &overlapping(self.listener));
        }
        conditions
    }

    pub(super) fn refusal(&self) -> Option<Trouble> {
        match self.verdict {
            Verdict::Accepted => None,
            Verdict::Refused(trouble) => Some(trouble.clone()),
            Verdict::Conflicted(conflict) => {
                Some(Trouble::new(conflict.refusal_reason(), conflict.message(self.listener)))
            }
        }
    }

    fn unprogrammed(&self) -> Option<Trouble> {
        let refusal = self.refusal().map(|refusal| match self.verdict {
            Verdict::Conflicted(_) => refusal,
            _ => Trouble::new(Reason::Invalid, "the listener is not accepted"),
        });
        refusal.or_else(|| self.hindrance.clone())
    }
}

fn overlapping(listener: &Listener) -> Trouble {
    let (hostname, port) = (&listener.hostname, listener.port);
    let message = format!(
        "another listener on port {port} has hostnames in common with {hostname}: the more specific one serves them, \
         and requests that reuse a connection to the other are answered 421"
    );
    Trouble::new(Reason::OverlappingHostnames, message)
}

fn group_kind(kind: Kind) -> RouteGroupKind {
    RouteGroupKind { group: Some(kind.group().to_owned()), kind: kind.as_str().to_owned() }
}

// === impl Conflict ===

impl Conflict {
    /// The conformance tests want the conflict's reason on `Accepted` and `Programmed`, too, where the text of GEP-1713 has
    /// `PortUnavailable`; for conflicts within one object they want `Invalid`.
    fn refusal_reason(&self) -> Reason {
        match self.with {
            Rival::Own(_) => Reason::Invalid,
            Rival::Parent | Rival::Sibling => self.reason,
        }
    }

    /// Says what collides, but names nothing that the listener's owner cannot see anyway.
    fn message(&self, listener: &Listener) -> String {
        let (port, hostname) = (listener.port, &listener.hostname);
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
