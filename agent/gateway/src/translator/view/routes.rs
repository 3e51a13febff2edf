//! Statuses of routes.

use std::collections::BTreeSet;

use portcullis_api::types::shared::{ParentReference, RouteParentStatus, RouteStatus};
use portcullis_api::{GATEWAY_GROUP, Kind, ObjectKey};
use portcullis_model::HostPattern;
use serde_json::json;

use super::View;
use crate::conditions::{make_partial, remark};
use crate::delegate::{foreign_parent_conditions, missing_parent_conditions};
use crate::route::is_about_streams;
use crate::status::summary::parent_name;
use crate::status::{ParentVerdict, route_status};
use crate::translator::attachments::Parents;
use crate::translator::known_services::KnownServices;
use crate::translator::parsed::{parent_route, parents_of};
use crate::translator::routes::RouteState;
use crate::{ConditionStatus, ConditionType, Fault, Reason, condition};

/// By the CRD, of a route's status.
const MOST_PARENTS: usize = 32;

/// The kind of object that a parentRef of a route names.
enum Named {
    SameKind,
    OtherRoute,
    Other,
}

impl<'s> View<'s> {
    fn parents(self) -> Parents<'s> {
        let View { listeners, hierarchy, gateways, objects, traffic, policies, .. } = self;
        let View { externals, route_filters, backend_policies, .. } = self;
        let services = KnownServices { objects, policies };
        Parents {
            listeners,
            hierarchy,
            gateways,
            objects,
            traffic,
            services,
            externals,
            route_filters,
            backend_policies,
        }
    }

    /// The verdicts on a route, conflicts with other kinds included.
    fn verdicts(self, key: &ObjectKey, state: &RouteState) -> Vec<ParentVerdict> {
        self.conflicts.verdicts(key, state, self.parents())
    }

    pub(super) fn route_status(self, key: &ObjectKey, state: &RouteState) -> RouteStatus {
        let mut status = self.whole_route_status(key, state);
        status.parents.truncate(MOST_PARENTS);
        status
    }

    /// The parents of a route that its status has no room for: it has 32 parentRefs at most, but
    /// parent routes may name it on their own.
    pub(super) fn parents_left_out(self, key: &ObjectKey) -> Option<String> {
        let state = self.routes.get(key)?;
        if state.parsed.parent_refs.len() + self.parsed.listers(key).count() <= MOST_PARENTS {
            return None;
        }
        let entries = self.whole_route_status(key, state).parents;
        let left_out = entries.iter().skip(MOST_PARENTS).map(|entry| parent_name(&json!(entry.parent_ref)));
        let left_out: Vec<_> = left_out.collect();
        let words = format!(
            "status.parents has room for {MOST_PARENTS} entries, these have none: {}",
            left_out.join(", ")
        );
        (!left_out.is_empty()).then_some(words)
    }

    /// With an entry for every parent.
    fn whole_route_status(self, key: &ObjectKey, state: &RouteState) -> RouteStatus {
        let verdicts = self.verdicts(key, state);
        let controller = &self.settings.controller_name;
        let refused = self.refused_endpoints(state);
        let unresolved = Fault::summary(state.unresolved.as_deref().cloned().into_iter().chain(refused));
        let mut status = route_status(&state.parsed, unresolved.as_ref(), &verdicts, controller);
        for (entry, verdict) in status.parents.iter_mut().zip(&verdicts) {
            let remarks = [
                by_default(state, verdict),
                self.taken_names(state, verdict),
                self.given_names(state, verdict),
                unheeded(state),
            ];
            for words in remarks.into_iter().flatten() {
                remark(&mut entry.conditions, ConditionType::Accepted, &words);
            }
        }
        if let Some(bound) = state.family.as_ref().filter(|_| state.parsed.is_parent()) {
            for (entry, grandparent) in status.parents.iter_mut().zip(&bound.grandparents) {
                entry.conditions.extend(bound.family.parent_conditions(|child| {
                    grandparent.refusal(&verdicts).is_some() || grandparent.takes(&child.hostnames)
                }));
            }
        }
        status.parents.extend(self.parentless_entries(state));
        status.parents.extend(self.child_entries(key, state));
        if let Some(policies) = self.traffic_of_route(key) {
            let (r#type, reason) = (ConditionType::TrafficPolicyAffected, Reason::PolicyAffected);
            for entry in &mut status.parents {
                let generation = state.parsed.generation;
                let says = condition(r#type, ConditionStatus::True, reason, policies.as_str(), generation);
                entry.conditions.push(says);
            }
        }
        if state.parsed.parent_routes().next().is_some() {
            // Another order would tell strangers which parents there are.
            status.parents.sort_by_key(|entry| state.parsed.position_of(&entry.parent_ref));
        }
        status
    }

    /// The names at a parent's listeners that the route takes from older ones of other namespaces;
    /// `None` if there are none, or if the Gateway's owner said whose they are.
    fn taken_names(self, state: &RouteState, verdict: &ParentVerdict) -> Option<String> {
        let takes = |listener, pattern| self.shared_names.takes(listener, pattern, &state.parsed.origin);
        let mut attached = state.attached.iter();
        if !attached.any(|(listener, patterns)| patterns.iter().any(|pattern| takes(listener, pattern))) {
            return None;
        }
        let parents = self.parents();
        let listeners = parents.listeners_by_reference(&state.parsed, verdict.reference);
        let unclaimed = listeners.iter().filter(|(parent, _)| !parents.has_claims(parent));
        let names = unclaimed.flat_map(|listener| {
            let patterns = state.attached.get(listener).into_iter().flatten();
            patterns.filter(move |pattern| takes(listener, pattern))
        });
        let names: BTreeSet<_> = names.map(ToString::to_string).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        (!names.is_empty()).then(|| {
            format!(
                "requests for {names} come to this route and not to an older one of another namespace, whose \
                 hostnames include it; claims in the Gateway's GatewayParameters can say whose they are"
            )
        })
    }

    /// The listeners of a parent, or names there, that an older route of the kind has: a tenant's
    /// that is not named.
    fn given_names(self, state: &RouteState, verdict: &ParentVerdict) -> Option<String> {
        let key = &state.parsed.key;
        if !is_about_streams(key.kind) {
            return None;
        }
        let mut given = BTreeSet::new();
        let mut kept = false;
        for listener in self.parents().listeners_by_reference(&state.parsed, verdict.reference) {
            for pattern in state.attached.get(&listener).into_iter().flatten() {
                if self.tables.oldest(&listener, pattern).is_none_or(|oldest| oldest == *key) {
                    kept = true;
                } else if *pattern == HostPattern::Any {
                    given.insert(format!("listener {}", listener.1));
                } else {
                    given.insert(format!("{pattern} at listener {}", listener.1));
                }
            }
        }
        let given: Vec<_> = given.into_iter().collect();
        let rest = if kept { "the rest is" } else { "nothing is" };
        (!given.is_empty()).then(|| {
            format!(
                "an older {} has {}: of several, the oldest is served, and {rest} left to this one",
                key.kind,
                given.join(", ")
            )
        })
    }

    /// The endpoints of a route's Services that are no backends.
    fn refused_endpoints(self, state: &RouteState) -> impl Iterator<Item = Fault> {
        state.references.services.iter().filter_map(move |service| {
            let message = format!(
                "endpoints of Service {service} are not used: {}; point its EndpointSlices at pods, or have the \
                 agents' operator allow those of namespace {} with --endpoint-namespaces",
                self.backends.refused_of(service)?,
                service.namespace
            );
            Some(Fault::unresolved(Reason::RefNotPermitted, message))
        })
    }

    fn child_entries(self, key: &ObjectKey, state: &RouteState) -> Vec<RouteParentStatus> {
        let mut parents = parents_of(&state.parsed);
        parents.extend(self.parsed.listers(key).cloned());
        let mut entries = Vec::new();
        for (parent_key, parent) in parents.iter().filter_map(|key| Some((key, self.routes.get(key)?))) {
            let Some(bound) = parent.family.as_ref() else { continue };
            let Some(report) = bound.family.report(key) else { continue };
            // A stranger must not be able to tell whose the parent is, if there is one.
            if !self.is_of_ours(parent) && !report.is_strangers(&state.parsed) {
                continue;
            }
            let grandparents =
                bound.grandparents_of(&state.parsed, &report.hostnames, &self.verdicts(parent_key, parent));
            let unresolved = state.unresolved.as_deref();
            entries.extend(report.entries(&self.settings.controller_name, &grandparents, unresolved));
        }
        if let Some(ignored) = Fault::ignored(&state.parsed.ignored) {
            entries.iter_mut().for_each(|entry| make_partial(&mut entry.conditions, &ignored));
        }
        entries
    }

    /// ParentRefs to routes that do not exist, or are of another kind.
    fn parentless_entries(self, state: &RouteState) -> Vec<RouteParentStatus> {
        let child = &*state.parsed;
        let kind = child.key.kind;
        let mut entries = Vec::new();
        for (index, reference) in child.parent_refs.iter().enumerate() {
            let is_missing =
                parent_route(kind, reference).is_none_or(|parent| self.parsed.get(&parent).is_none());
            let conditions = match Named::by(reference, kind) {
                Named::OtherRoute => foreign_parent_conditions(child, reference),
                Named::SameKind if is_missing => {
                    missing_parent_conditions(child, reference, state.unresolved.as_deref())
                }
                _ => continue,
            };
            let Some(parent_ref) = child.as_written(index) else { continue };
            entries.push(RouteParentStatus {
                controller_name: self.settings.controller_name.clone(),
                parent_ref,
                conditions,
                grandparents: None,
            });
        }
        entries
    }

    /// True if a parent is attached to one of our Gateways: by itself, or as the child that it
    /// cannot be at the same time.
    fn is_of_ours(self, parent: &RouteState) -> bool {
        let above: BTreeSet<_> = parents_of(&parent.parsed);
        let mut above = above.iter().filter_map(|above| self.routes.get(above));
        !parent.verdicts.is_empty() || above.any(|above| !above.verdicts.is_empty())
    }
}

/// "The Gateway MUST use status.parents to announce that it has claimed the Route" (GEP-3793).
fn by_default(state: &RouteState, verdict: &ParentVerdict) -> Option<String> {
    let is_by_default = state.parsed.is_by_default(verdict.reference);
    is_by_default.then(|| "the route is bound to this Gateway by useDefaultGateways".to_owned())
}

/// The Services of policies that are without effect on what the route passes on.
fn unheeded(state: &RouteState) -> Option<String> {
    let services: Vec<_> = state.unheeded.iter().map(ToString::to_string).collect();
    (!services.is_empty()).then(|| {
        format!(
            "what the route passes on as it is reaches {} as it came: a BackendTLSPolicy is without effect on it",
            services.join(", ")
        )
    })
}

// === impl Named ===

impl Named {
    fn by(reference: &ParentReference, own: Kind) -> Self {
        let kind = reference.kind.as_deref().filter(|_| reference.group.as_deref() == Some(GATEWAY_GROUP));
        match kind {
            Some(kind) if kind == own.as_str() && !is_about_streams(own) => Self::SameKind,
            // Those that we do not know, too: the API names all kinds of routes so.
            Some(kind) if kind.ends_with("Route") => Self::OtherRoute,
            _ => Self::Other,
        }
    }
}
