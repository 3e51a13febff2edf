//! Stage: HTTPRoutes and GRPCRoutes of one listener. "Merging MUST not be done between GRPCRoutes
//! and HTTPRoutes": where the hostnames of two overlap, one of them is not accepted. "The oldest
//! Route based on creation timestamp" stays, then "the Route appearing first in alphabetical order
//! by {namespace}/{name}" (GRPCRouteSpec.hostnames).

use std::collections::{BTreeMap, BTreeSet};

use portcullis_model::HostPattern;

use super::attachments::Parents;
use super::routes::{ChangedRoutes, RouteState, Routes};
use crate::listener::{Hosts, ListenerKey};
use crate::status::ParentVerdict;
use crate::{Fault, Kind, ObjectKey, Reason};

/// By listener, the routes that are not served there because one of another kind has their names.
#[derive(Debug, Default)]
pub(super) struct KindConflicts {
    conflicted: BTreeMap<ListenerKey, BTreeSet<ObjectKey>>,
    none: BTreeSet<ObjectKey>,
}

/// Routes that came into conflict or out of it.
#[derive(Debug, Default)]
pub(super) struct ChangedConflicts {
    pub(super) routes: BTreeSet<ObjectKey>,
    pub(super) listeners: BTreeSet<ListenerKey>,
    /// The host patterns of listeners that they are attached to.
    pub(super) hostnames: BTreeSet<(ListenerKey, HostPattern)>,
}

// === impl KindConflicts ===

impl KindConflicts {
    /// The routes of a listener that are in conflict.
    pub(super) fn at(&self, listener: &ListenerKey) -> &BTreeSet<ObjectKey> {
        self.conflicted.get(listener).unwrap_or(&self.none)
    }

    pub(super) fn update(&mut self, changed: &ChangedRoutes, routes: &Routes) -> ChangedConflicts {
        let mut now_changed = ChangedConflicts::default();
        for listener in &changed.listeners {
            let now = conflicted(listener, routes);
            let turned: Vec<_> = self.at(listener).symmetric_difference(&now).cloned().collect();
            if turned.is_empty() {
                continue;
            }
            if now.is_empty() {
                self.conflicted.remove(listener);
            } else {
                self.conflicted.insert(listener.clone(), now);
            }
            for route in turned {
                let hostnames = routes.get(&route).and_then(|state| state.attached.get(listener));
                let tables = hostnames.into_iter().flatten().map(|name| (listener.clone(), name.clone()));
                now_changed.hostnames.extend(tables);
                now_changed.routes.insert(route);
            }
            now_changed.listeners.insert(listener.clone());
        }
        now_changed
    }

    /// The verdicts of a route, those of parents where it is in conflict on every listener
    /// included.
    pub(super) fn verdicts(
        &self,
        key: &ObjectKey,
        state: &RouteState,
        parents: Parents<'_>,
    ) -> Vec<ParentVerdict> {
        let is_conflicted = |listener: &ListenerKey| self.at(listener).contains(key);
        let mut verdicts = state.verdicts.to_vec();
        if !state.attached.iter().any(|(listener, _)| is_conflicted(listener)) {
            return verdicts;
        }
        for verdict in verdicts.iter_mut().filter(|verdict| verdict.refusal.is_none()) {
            let listeners = parents.listeners_by_reference(&state.parsed, verdict.reference);
            if !listeners.is_empty() && listeners.iter().all(is_conflicted) {
                verdict.refusal = Some(Box::new(fault(key.kind)));
            }
        }
        verdicts
    }
}

/// The routes of a listener that are not accepted there, because one of the other kind has their
/// names.
fn conflicted(listener: &ListenerKey, routes: &Routes) -> BTreeSet<ObjectKey> {
    let Some(attached) = routes.at_listener(listener).filter(|attached| attached.has_both_kinds()) else {
        return BTreeSet::new();
    };
    let attached = attached.all().into_iter();
    let mut by_age: Vec<(&ObjectKey, &RouteState)> =
        attached.filter_map(|key| Some((key, routes.get(key)?))).collect();
    by_age.sort_by(|(a, of_a), (b, of_b)| (&of_a.parsed.origin, a).cmp(&(&of_b.parsed.origin, b)));
    let (mut http, mut grpc, mut conflicted) = (Hosts::default(), Hosts::default(), BTreeSet::new());
    for (key, state) in by_age {
        let Some(hostnames) = state.attached.get(listener) else { continue };
        let (own, other) = if key.kind == Kind::GrpcRoute { (&mut grpc, &http) } else { (&mut http, &grpc) };
        if hostnames.iter().any(|hostname| other.overlap(hostname)) {
            conflicted.insert(key.clone());
        } else if state.parsed.refusal().is_none() {
            hostnames.iter().for_each(|hostname| own.add(hostname));
        }
    }
    conflicted
}

/// The other route may be another tenant's: it is not named.
fn fault(kind: Kind) -> Fault {
    let other = if kind == Kind::GrpcRoute { Kind::HttpRoute } else { Kind::GrpcRoute };
    let message = format!(
        "an older {other} has hostnames in common with the route on the same listeners: use other hostnames, or another listener"
    );
    Fault::not_accepted(Reason::Conflicted, message)
}
