//! Stage: routes of different kinds on one listener. "Merging MUST not be done between GRPCRoutes
//! and HTTPRoutes": where the hostnames of two overlap, one of them is not accepted. "The oldest
//! Route based on creation timestamp" stays, then "the Route appearing first in alphabetical order
//! by {namespace}/{name}" (GRPCRouteSpec.hostnames).

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::{Kind, ObjectKey};

use super::attachments::{ListenerHostnames, Parents};
use super::routes::{RouteState, Routes};
use crate::listener::{Hosts, ListenerKey};
use crate::status::ParentVerdict;
use crate::{Fault, Reason};

/// By listener, the routes that are not served there because one of another kind has their names.
#[derive(Debug, Default)]
pub(super) struct KindConflicts {
    conflicted: BTreeMap<ListenerKey, Conflicted>,
    none: Conflicted,
}

/// Routes, each with the kind of the one that has their names.
pub(super) type Conflicted = BTreeMap<ObjectKey, Kind>;

/// Routes that came into conflict or out of it.
#[derive(Debug, Default)]
pub(super) struct ChangedConflicts {
    pub(super) routes: BTreeSet<ObjectKey>,
    /// The listeners where that is so, and the host patterns that they are attached to there.
    pub(super) listeners: ListenerHostnames,
}

// === impl KindConflicts ===

impl KindConflicts {
    /// The routes of a listener that are in conflict.
    pub(super) fn at(&self, listener: &ListenerKey) -> &Conflicted {
        self.conflicted.get(listener).unwrap_or(&self.none)
    }

    pub(super) fn update(&mut self, reattached: &ListenerHostnames, routes: &Routes) -> ChangedConflicts {
        let mut now_changed = ChangedConflicts::default();
        for listener in reattached.keys() {
            let now = conflicted(listener, routes);
            let turned = different(self.at(listener), &now);
            if turned.is_empty() {
                continue;
            }
            if now.is_empty() {
                self.conflicted.remove(listener);
            } else {
                self.conflicted.insert(listener.clone(), now);
            }
            let hostnames = now_changed.listeners.entry(listener.clone()).or_default();
            for route in turned {
                let attached = routes.get(&route).and_then(|state| state.attached.get(listener));
                hostnames.extend(attached.into_iter().flatten().cloned());
                now_changed.routes.insert(route);
            }
        }
        now_changed
    }

    /// The verdicts of a route, those of parents where it is in conflict on a listener included:
    /// "The rejected Route MUST raise an 'Accepted' condition with a status of 'False' in the
    /// corresponding RouteParentStatus", also if there are other listeners that have it.
    pub(super) fn verdicts(
        &self,
        key: &ObjectKey,
        state: &RouteState,
        parents: Parents<'_>,
    ) -> Vec<ParentVerdict> {
        let mut verdicts = state.verdicts.to_vec();
        if !state.attached.iter().any(|(listener, _)| self.at(listener).contains_key(key)) {
            return verdicts;
        }
        for verdict in verdicts.iter_mut().filter(|verdict| verdict.refusal.is_none()) {
            let listeners = parents.listeners_by_reference(&state.parsed, verdict.reference);
            let other = listeners.iter().find_map(|listener| self.at(listener).get(key).copied());
            let served: Vec<_> =
                listeners.iter().filter(|listener| !self.at(listener).contains_key(key)).collect();
            verdict.refusal = other.map(|other| Box::new(fault(other, &served)));
        }
        verdicts
    }
}

/// The routes that are in one and not, or for another kind, in the other.
fn different(before: &Conflicted, now: &Conflicted) -> BTreeSet<ObjectKey> {
    let gone = before.iter().filter(|(route, kind)| now.get(*route) != Some(*kind));
    let new = now.iter().filter(|(route, kind)| before.get(*route) != Some(*kind));
    gone.chain(new).map(|(route, _)| route.clone()).collect()
}

/// The routes of a listener that are not accepted there, because one of another kind has their
/// names.
fn conflicted(listener: &ListenerKey, routes: &Routes) -> Conflicted {
    let Some(attached) = routes.at_listener(listener).filter(|attached| attached.has_several_kinds()) else {
        return Conflicted::new();
    };
    let attached = attached.all().into_iter();
    let mut by_age: Vec<(&ObjectKey, &RouteState)> =
        attached.filter_map(|key| Some((key, routes.get(key)?))).collect();
    by_age.sort_by(|(a, of_a), (b, of_b)| (&of_a.parsed.origin, a).cmp(&(&of_b.parsed.origin, b)));
    let (mut taken, mut conflicted) = (BTreeMap::<Kind, Hosts<'_>>::new(), Conflicted::new());
    for (key, state) in by_age {
        let Some(hostnames) = state.attached.get(listener) else { continue };
        let mut others = taken.iter().filter(|(kind, _)| **kind != key.kind);
        let other = others.find(|(_, names)| hostnames.iter().any(|hostname| names.overlap(hostname)));
        if let Some((other, _)) = other {
            conflicted.insert(key.clone(), *other);
        } else if state.parsed.refusal().is_none() {
            let own = taken.entry(key.kind).or_default();
            hostnames.iter().for_each(|hostname| own.add(hostname));
        }
    }
    conflicted
}

/// The other route may be another tenant's: it is not named.
fn fault(other: Kind, served: &[&ListenerKey]) -> Fault {
    let served: Vec<_> = served.iter().map(|(_, name)| &**name).collect();
    let message = match served.as_slice() {
        [] => format!(
            "an older {other} has hostnames in common with the route on the same listeners: use other hostnames, \
             or another listener"
        ),
        served => format!(
            "an older {other} has hostnames in common with the route on some of the listeners: use other hostnames, \
             or name the listener by sectionName; it is served on {}",
            served.join(", ")
        ),
    };
    Fault::not_accepted(Reason::Conflicted, message)
}
