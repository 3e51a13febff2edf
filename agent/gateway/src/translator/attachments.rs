//! Routes at the listeners that they are attached to: what a parentRef comes to, and which routes
//! each listener has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::types::shared::SessionPersistence;
use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::{HostPattern, ObjectName, RuleId, TrafficPolicy};

use super::backend_policies::BackendPolicies;
use super::externals::Externals;
use super::gateways::Gateways;
use super::hierarchy::{Attachment, Hierarchy};
use super::known_services::KnownServices;
use super::listeners::Listeners;
use super::route_filters::RouteFilters;
use super::traffic_policies::TrafficPolicies;
use crate::claims::Claims;
use crate::listener::{ListenerKey, ParentKey, RouteAttachment, admits, attach, parent_key};
use crate::route::{Extension, ExternalTerms, ParsedRoute, Resolver, Services};
use crate::selector::Namespaces;
use crate::status::ParentVerdict;
use crate::{Fault, Reason};

/// The names for which a route is attached to each of its listeners, while it is worked out.
pub(super) type Attached = BTreeMap<ListenerKey, BTreeSet<HostPattern>>;

/// Host patterns of listeners.
pub(super) type ListenerHostnames = BTreeMap<ListenerKey, BTreeSet<HostPattern>>;

/// The listeners that a route is attached to, in order, and for which names there.
#[derive(Debug, Default, PartialEq)]
pub(super) struct AttachedTo(Box<[(ListenerKey, Box<[HostPattern]>)]>);

/// The routes of one listener.
#[derive(Debug, Default)]
pub(super) struct ListenerRoutes {
    /// Those that count as attached.
    accepted: BTreeSet<ObjectKey>,
    /// Those that are served, be it with errors.
    by_hostname: BTreeMap<HostPattern, BTreeSet<ObjectKey>>,
    /// The number of entries of `by_hostname` of each kind: they must not be merged.
    of_kind: BTreeMap<Kind, usize>,
    /// The same of each namespace: they may take names from each other.
    of_namespace: BTreeMap<Arc<str>, usize>,
}

/// The state that the attachment of routes and the resolution of their references depend on.
#[derive(Clone, Copy)]
pub(super) struct Parents<'s> {
    pub(super) listeners: &'s Listeners,
    pub(super) hierarchy: &'s Hierarchy,
    pub(super) gateways: &'s Gateways,
    pub(super) objects: &'s Objects,
    pub(super) traffic: &'s TrafficPolicies,
    pub(super) services: KnownServices<'s>,
    pub(super) route_filters: &'s RouteFilters,
    pub(super) externals: &'s Externals,
    pub(super) backend_policies: &'s BackendPolicies,
}

// === impl Parents ===

impl Resolver for Parents<'_> {
    fn services(&self) -> &impl Services {
        &self.services
    }

    fn traffic_policy(&self, id: &RuleId, joined: &[Arc<RuleId>]) -> Option<Arc<TrafficPolicy>> {
        self.traffic.of_rule(id, joined)
    }

    fn sessions(&self, service: &ObjectName) -> Option<&SessionPersistence> {
        self.backend_policies.sessions(service)
    }

    fn route_filter(&self, name: &ObjectName) -> Option<&Result<Extension, Fault>> {
        self.route_filters.get(name)
    }

    fn external(&self, name: &ObjectName) -> Option<Result<ExternalTerms, &Fault>> {
        let host = self.externals.get(name)?.host.as_ref();
        Some(host.map(|host| ExternalTerms { port: host.port, protocol: host.protocol }))
    }
}

impl Parents<'_> {
    /// Each parentRef is judged on its own; what is attached is the union.
    pub(super) fn attach(self, route: &ParsedRoute) -> (Attached, Vec<ParentVerdict>) {
        let mut attached = Attached::new();
        let mut verdicts = Vec::new();
        for (at, reference) in route.parent_refs.iter().enumerate() {
            let Some(parent) = parent_key(reference) else { continue };
            let Some(declared) = self.listeners.get(&parent) else { continue };
            let Some(attachment) = self.attach_to(route, at, &parent) else { continue };
            for (listener, hostnames) in attachment.listeners {
                let name = declared.listeners[listener].name.clone();
                attached.entry((declared.key.clone(), name)).or_default().extend(hostnames);
            }
            verdicts.push(ParentVerdict { reference: at, refusal: attachment.refusal.map(Box::new) });
        }
        (attached, verdicts)
    }

    /// By one of the route's parentRefs. `None` if the parent is not ours, or if it is a default
    /// Gateway that does not claim the route: "subject to the usual rules about which Routes a
    /// Gateway is allowed to claim". The owner of a route that did not name it learns nothing of it
    /// then.
    pub(super) fn attach_to(
        self,
        route: &ParsedRoute,
        reference: usize,
        parent: &ParentKey,
    ) -> Option<RouteAttachment> {
        let declared = self.listeners.get(parent)?;
        let namespaces = Namespaces::new(self.objects);
        let is_by_default = route.is_by_default(reference);
        if is_by_default && !admits(route, declared, namespaces) {
            return None;
        }
        let attachment = match &self.hierarchy.get(parent)?.attachment {
            Attachment::Foreign => return None,
            Attachment::Refused(_) if is_by_default => return None,
            Attachment::Refused(_) => {
                let message =
                    format!("the {} is not accepted by the Gateway it asks to be attached to", parent.kind());
                let fault = Fault::not_accepted(Reason::NoMatchingParent, message);
                return Some(RouteAttachment::refused(fault));
            }
            Attachment::Independent | Attachment::Child(_) => {
                let (of, gateway) = self.claims_at(parent)?;
                let is_foreign = *of.namespace != *route.key.name.namespace;
                let claims = if is_foreign { gateway } else { &Claims::default() };
                attach(route, route.parent_refs.get(reference)?, declared, claims, namespaces)
            }
        };
        // What is wrong with the route as a whole comes first: without hostnames, for example, it
        // fits nowhere anyway.
        let refusal = route.refusal().filter(|_| attachment.refusal.is_none() || !route.faults.is_empty());
        Some(match refusal {
            // Invalid rules own their traffic still, and fail it: a filter that cannot be served
            // "MUST NOT be skipped", and without the rule another route's could take the request
            // past it.
            Some(refusal) => RouteAttachment { listeners: attachment.listeners, refusal: Some(refusal) },
            None => attachment,
        })
    }

    /// The Gateway that an object's listeners are merged into, and what may be claimed there.
    fn claims_at<'p>(&'p self, parent: &'p ParentKey) -> Option<(&'p ObjectName, &'p Claims)> {
        let (name, gateway) = self.gateways.get_key_value(self.hierarchy.gateway_of(parent)?)?;
        Some((name, &gateway.parameters.claims))
    }

    /// True if the listeners' Gateway gives namespaces their claims, by their labels.
    pub(super) fn has_claims(&self, parent: &ParentKey) -> bool {
        self.claims_at(parent).is_some_and(|(_, claims)| !claims.is_anything())
    }

    /// The listeners that a route is attached to by one of its parentRefs.
    pub(super) fn listeners_by_reference(self, route: &ParsedRoute, reference: usize) -> Vec<ListenerKey> {
        let found = route.parent_refs.get(reference).and_then(|named| {
            let parent = parent_key(named)?;
            let attachment = self.attach_to(route, reference, &parent)?;
            Some((parent, attachment))
        });
        let Some((parent, attachment)) = found else { return Vec::new() };
        let Some(declared) = self.listeners.get(&parent) else { return Vec::new() };
        let listeners = attachment.listeners.into_iter();
        listeners.map(|(at, _)| (declared.key.clone(), declared.listeners[at].name.clone())).collect()
    }

    /// The hostnames of the listeners that an attachment is to.
    pub(super) fn listener_hostnames(
        self,
        parent: &ParentKey,
        attachment: &RouteAttachment,
    ) -> BTreeSet<HostPattern> {
        let listeners = self.listeners.get(parent).map(|declared| &declared.listeners);
        let attached = attachment.listeners.iter().filter_map(|(at, _)| listeners?.get(*at));
        attached.map(|listener| listener.hostname.clone()).collect()
    }

    /// The same key with the names of the object's own, if it is there: one copy instead of one for
    /// each of its routes.
    pub(super) fn shared(self, parent: ParentKey) -> ParentKey {
        self.listeners.get(&parent).map_or(parent, |declared| declared.key.clone())
    }
}

// === impl AttachedTo ===

impl AttachedTo {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ListenerKey, &[HostPattern])> {
        self.0.iter().map(|(listener, hostnames)| (listener, &**hostnames))
    }

    pub(super) fn get(&self, listener: &ListenerKey) -> Option<&[HostPattern]> {
        let at = self.0.binary_search_by(|(key, _)| key.cmp(listener)).ok()?;
        Some(&self.0[at].1)
    }
}

impl From<Attached> for AttachedTo {
    fn from(attached: Attached) -> Self {
        Self(attached.into_iter().map(|(key, hostnames)| (key, hostnames.into_iter().collect())).collect())
    }
}

// === impl ListenerRoutes ===

impl ListenerRoutes {
    pub(super) fn is_empty(&self) -> bool {
        self.accepted.is_empty() && self.by_hostname.is_empty()
    }

    pub(super) fn add(&mut self, route: &ObjectKey, hostnames: &[HostPattern]) {
        for hostname in hostnames {
            if self.by_hostname.entry(hostname.clone()).or_default().insert(route.clone()) {
                *self.of_kind.entry(route.kind).or_default() += 1;
                *self.of_namespace.entry(route.name.namespace.clone()).or_default() += 1;
            }
        }
    }

    pub(super) fn count_as_attached(&mut self, route: &ObjectKey) {
        self.accepted.insert(route.clone());
    }

    pub(super) fn remove(&mut self, route: &ObjectKey, hostnames: &[HostPattern]) {
        self.accepted.remove(route);
        for hostname in hostnames {
            let Some(routes) = self.by_hostname.get_mut(hostname) else { continue };
            let was_there = routes.remove(route);
            if routes.is_empty() {
                self.by_hostname.remove(hostname);
            }
            if was_there {
                count_down(&mut self.of_kind, &route.kind);
                count_down(&mut self.of_namespace, &route.name.namespace);
            }
        }
    }

    /// The routes under a host pattern, those in conflict included.
    pub(super) fn at(&self, hostname: &HostPattern) -> impl Iterator<Item = &ObjectKey> {
        self.by_hostname.get(hostname).into_iter().flatten()
    }

    /// All routes, those in conflict included.
    pub(super) fn all(&self) -> BTreeSet<&ObjectKey> {
        self.by_hostname.values().flatten().collect()
    }

    /// "Routes with any other value for the Accepted condition MUST NOT be included"
    /// (attachedRoutes).
    pub(super) fn accepted_without<'r>(&self, conflicted: impl Iterator<Item = &'r ObjectKey>) -> usize {
        self.accepted.len() - conflicted.filter(|route| self.accepted.contains(*route)).count()
    }

    /// The host patterns that routes are attached under.
    pub(super) fn hostnames(&self) -> impl Iterator<Item = &HostPattern> {
        self.by_hostname.keys()
    }

    pub(super) fn has_several_kinds(&self) -> bool {
        self.of_kind.len() > 1
    }

    pub(super) fn has_several_namespaces(&self) -> bool {
        self.of_namespace.len() > 1
    }
}

fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    let Some(count) = counts.get_mut(key) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(key);
    }
}
