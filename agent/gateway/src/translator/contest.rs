//! Stage: HTTPRoutes and GRPCRoutes of one listener. "Merging MUST not be done between GRPCRoutes and HTTPRoutes": where the
//! hostnames of two overlap, one of them is not accepted. "The oldest Route based on creation timestamp" stays, then "the
//! Route appearing first in alphabetical order by {namespace}/{name}" (GRPCRouteSpec.hostnames).

use std::collections::BTreeSet;

use portcullis_model::{HostPattern, RouteOrigin};

use super::Translator;
use super::dirty::ListenerKey;
use super::hosts::Hosts;
use super::unit::RouteUnit;
use crate::attach::parent_key;
use crate::route::ParsedRoute;
use crate::status::ParentVerdict;
use crate::{Fault, Kind, ObjectKey, Reason};

impl Translator {
    pub(super) fn contest(&mut self) {
        for listener in std::mem::take(&mut self.dirty.contests) {
            let now = self.losers(&listener);
            self.set_losers(&listener, now);
        }
    }

    /// The routes of a listener that are not accepted there, because one of the other kind has their names.
    fn losers(&self, listener: &ListenerKey) -> BTreeSet<ObjectKey> {
        let attached = self.units.get(&listener.0).and_then(|unit| unit.attached.get(&listener.1));
        let Some(attached) = attached.filter(|attached| attached.has_both_kinds()) else {
            return BTreeSet::new();
        };
        let mut routes: Vec<(&RouteOrigin, &ObjectKey, &[HostPattern], bool)> = attached
            .everybody()
            .into_iter()
            .filter_map(|key| {
                let unit = self.routes.get(key)?;
                let is_accepted = unit.parsed.refusal().is_none();
                Some((&unit.parsed.origin, key, unit.attached.get(listener)?, is_accepted))
            })
            .collect();
        routes.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        let (mut http, mut grpc, mut losers) = (Hosts::default(), Hosts::default(), BTreeSet::new());
        for (_, key, hostnames, is_accepted) in routes {
            let (own, other) =
                if key.kind == Kind::GrpcRoute { (&mut grpc, &http) } else { (&mut http, &grpc) };
            if hostnames.iter().any(|hostname| other.overlap(hostname)) {
                losers.insert(key.clone());
            } else if is_accepted {
                hostnames.iter().for_each(|hostname| own.add(hostname));
            }
        }
        losers
    }

    fn set_losers(&mut self, listener: &ListenerKey, now: BTreeSet<ObjectKey>) {
        let attached = self.units.get_mut(&listener.0).and_then(|unit| unit.attached.get_mut(&listener.1));
        let Some(attached) = attached else { return };
        let before = std::mem::replace(&mut attached.losers, now);
        let turned: Vec<_> = before.symmetric_difference(&attached.losers).cloned().collect();
        for route in turned {
            let hostnames = self.routes.get(&route).and_then(|unit| unit.attached.get(listener));
            let tables = hostnames.into_iter().flatten().map(|name| (listener.clone(), name.clone()));
            self.dirty.tables.extend(tables);
            self.dirty.statuses.insert(route);
            self.dirty_status(&listener.0);
        }
    }

    /// What becomes of the verdicts of a route that lost its names on some listener.
    pub(super) fn contested(&self, key: &ObjectKey, unit: &RouteUnit) -> Vec<ParentVerdict> {
        let lost = |listener: &ListenerKey| {
            let unit = self.units.get(&listener.0);
            unit.and_then(|unit| unit.attached.get(&listener.1))
                .is_some_and(|attached| attached.losers.contains(key))
        };
        let mut verdicts = unit.verdicts.to_vec();
        if !unit.attached.iter().any(|(listener, _)| lost(listener)) {
            return verdicts;
        }
        for verdict in verdicts.iter_mut().filter(|verdict| verdict.refusal.is_none()) {
            let listeners = self.listeners_of(&unit.parsed, verdict.reference);
            if !listeners.is_empty() && listeners.iter().all(lost) {
                verdict.refusal = Some(Box::new(refusal(key.kind)));
            }
        }
        verdicts
    }

    /// Where a route is attached by one of its parentRefs.
    fn listeners_of(&self, route: &ParsedRoute, reference: usize) -> Vec<ListenerKey> {
        let found = route.parent_refs.get(reference).and_then(|reference| {
            let parent = parent_key(reference)?;
            let attachment = self.attach_to(route, reference, &parent)?;
            Some((&self.units.get(&parent)?.declared, attachment))
        });
        let Some((declared, attachment)) = found else { return Vec::new() };
        let name = |at: usize| (declared.key.clone(), declared.listeners[at].name.clone());
        attachment.listeners.into_iter().map(|(at, _)| name(at)).collect()
    }
}

/// Whose route it is may be nobody's business.
fn refusal(kind: Kind) -> Fault {
    let other = if kind == Kind::GrpcRoute { Kind::HttpRoute } else { Kind::GrpcRoute };
    let message = format!(
        "an older {other} has hostnames in common with the route on the same listeners: use other hostnames, or another listener"
    );
    Fault::not_accepted(Reason::Conflicted, message)
}
