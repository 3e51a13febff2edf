//! Stage: parent and child routes (GEP-1058). A parent is served by the parts that delegation computes; what its children's
//! statuses say is taken from the same [`Family`]. Binding is done again only when a route of the family, or something that
//! consent depends on, is another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_model::{Entry, HostPattern, ObjectName};

use super::Translator;
use super::dirty::ListenerKey;
use super::routes::{Lookup, same_rule};
use super::unit::RouteUnit;
use crate::api::shared::{ParentReference, RouteParentStatus, RouteStatus};
use crate::attach::{Attachment, parent_key};
use crate::delegate::{
    Family, Grandparent, Mismatch, Surroundings, Verdict, bind, foreign_parent_conditions,
    missing_parent_conditions,
};
use crate::listener::ParentKey;
use crate::route::{Delegation, ParsedRoute, Problem, ResolvedRoute, resolve, table_entries};
use crate::selector::{NamespaceRule, Namespaces};
use crate::status::route_status;
use crate::{GATEWAY_GROUP, Grants, Kind, ObjectKey, Objects};

/// A family and what it was computed from.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) family: Arc<Family>,
    candidates: Vec<Arc<ParsedRoute>>,
    consent: u64,
}

/// One of the routes that are served in place of a parent.
#[derive(Debug)]
pub(super) struct Part {
    route: Arc<ParsedRoute>,
    resolved: ResolvedRoute,
    attached: BTreeMap<ListenerKey, BTreeSet<HostPattern>>,
}

/// Stands for every name of a namespace in [`super::index::Index::listers`].
const ANY_NAME: &str = "*";

struct Consent<'o>(&'o Objects);

impl Surroundings for Consent<'_> {
    fn admits(&self, rule: &NamespaceRule, parent: &str, child: &str) -> bool {
        rule.admits(parent, child, Namespaces::new(self.0))
    }

    fn permits(&self, kind: Kind, namespace: &str, to: &ObjectName) -> bool {
        Grants::new(self.0).permits(kind, namespace, kind, &to.namespace, &to.name)
    }
}

// === who belongs together ===

impl Translator {
    /// Parses what changed, and adds the parents of changed routes to them.
    pub(super) fn parse_routes(&mut self) -> BTreeSet<ObjectKey> {
        let changed = std::mem::take(&mut self.dirty.routes);
        let mut dirty = changed.clone();
        for key in changed {
            let before = self.parsed.remove(&key);
            let now = self.parse(&key, before.as_ref());
            let parents_before = before.as_deref().map(parents_of).unwrap_or_default();
            let parents_now = now.as_deref().map(parents_of).unwrap_or_default();
            self.index.children_of_route.update(&key, &parents_before, &parents_now);
            let listed_before = before.as_deref().map(listed_by).unwrap_or_default();
            let listed_now = now.as_deref().map(listed_by).unwrap_or_default();
            self.index.listers.update(&key, &listed_before, &listed_now);
            dirty.extend(parents_before);
            dirty.extend(parents_now);
            dirty.extend(self.listers(&key));
            now.into_iter().for_each(|now| drop(self.parsed.insert(key.clone(), now)));
        }
        dirty
    }

    /// Parents that name the route, or all routes of its namespace, as children.
    fn listers(&self, child: &ObjectKey) -> impl Iterator<Item = ObjectKey> {
        let any =
            ObjectKey { kind: child.kind, name: ObjectName::new(child.name.namespace.clone(), ANY_NAME) };
        let by_name = self.index.listers.of(child).cloned().collect::<Vec<_>>();
        by_name.into_iter().chain(self.index.listers.of(&any).cloned().collect::<Vec<_>>())
    }

    /// A ReferenceGrant of the namespace is another: parents may refer to children there, or no longer.
    pub(super) fn child_grants_changed(&mut self, namespace: &str) {
        self.consent += 1;
        for kind in [Kind::HttpRoute, Kind::GrpcRoute] {
            self.dirty.routes.extend(self.index.listers_in(kind, namespace).cloned());
        }
    }

    fn candidates(&self, parent: &ParsedRoute) -> Vec<Arc<ParsedRoute>> {
        let mut keys: BTreeSet<ObjectKey> = self.index.children_of_route.of(&parent.key).cloned().collect();
        for listed in listed_by(parent) {
            if &*listed.name.name == ANY_NAME {
                keys.extend(self.routes_in(&listed));
            } else {
                keys.insert(listed);
            }
        }
        keys.iter().filter_map(|key| self.parsed.get(key)).cloned().collect()
    }

    fn routes_in(&self, any: &ObjectKey) -> impl Iterator<Item = ObjectKey> {
        let first = ObjectKey { kind: any.kind, name: ObjectName::new(any.name.namespace.clone(), "") };
        let keys = self.parsed.range(first..).map(|(key, _)| key);
        keys.take_while(|key| key.kind == any.kind && key.name.namespace == any.name.namespace).cloned()
    }

    /// `None` if nobody asks to be the route's child and it asks for none.
    pub(super) fn bound(&self, parent: &Arc<ParsedRoute>, before: Option<&RouteUnit>) -> Option<Arc<Bound>> {
        let candidates = self.candidates(parent);
        if candidates.is_empty() && !parent.is_parent() {
            return None;
        }
        let unchanged = |bound: &&Arc<Bound>| {
            bound.consent == self.consent
                && Arc::ptr_eq(&bound.family.parent, parent)
                && bound.candidates.len() == candidates.len()
                && bound.candidates.iter().zip(&candidates).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if let Some(same) = before.and_then(|unit| unit.bound.as_ref()).filter(unchanged) {
            return Some(same.clone());
        }
        let family = Arc::new(bind(parent, &candidates, &Consent(&self.objects)));
        Some(Arc::new(Bound { family, candidates, consent: self.consent }))
    }

    /// Everybody whose status tells of the family, before and now.
    pub(super) fn family_changed(&mut self, key: &ObjectKey, before: Option<&Bound>, now: Option<&Bound>) {
        let families = [before, now].into_iter().flatten().map(|bound| &bound.family);
        let children =
            families.clone().flat_map(|family| &family.children).map(|report| report.child.clone());
        self.dirty.statuses.extend(children);
        for child in self.index.children_of_route.of(key) {
            // Grandchildren, too: that they are refused is ours to tell if the top is.
            let family = self.routes.get(child).and_then(|unit| unit.bound.as_ref());
            let adopted = family.into_iter().flat_map(|bound| &bound.family.children);
            self.dirty.statuses.extend(adopted.map(|report| report.child.clone()));
            self.dirty.statuses.insert(child.clone());
        }
        let is_same = before.zip(now).is_some_and(|(a, b)| Arc::ptr_eq(&a.family, &b.family));
        if !is_same && families.clone().any(|family| family.parent.is_parent()) {
            self.dirty.families.insert(key.clone());
        }
    }
}

fn parents_of(route: &ParsedRoute) -> BTreeSet<ObjectKey> {
    route.parent_routes().filter_map(|(_, reference)| parent_route(route.key.kind, reference)).collect()
}

fn parent_route(kind: Kind, reference: &ParentReference) -> Option<ObjectKey> {
    let name = ObjectName::new(reference.namespace.as_deref()?, reference.name.as_str());
    Some(ObjectKey { kind, name })
}

fn listed_by(route: &ParsedRoute) -> BTreeSet<ObjectKey> {
    let children = route.rules.iter().filter_map(|rule| match &rule.delegation {
        Some(Delegation::Listed(children)) => Some(children),
        _ => None,
    });
    let key = |namespace: &Arc<str>, name: Option<&Arc<str>>| {
        let name = name.cloned().unwrap_or_else(|| ANY_NAME.into());
        ObjectKey { kind: route.key.kind, name: ObjectName::new(namespace.clone(), name) }
    };
    children.flatten().map(|child| key(&child.namespace, child.name.as_ref())).collect()
}

// === what is served ===

impl Translator {
    /// The parts of a parent, attached to the listeners that the parent itself is attached to.
    pub(super) fn parts(
        &self,
        family: &Family,
        attached: &BTreeMap<ListenerKey, BTreeSet<HostPattern>>,
    ) -> Vec<Part> {
        let part = |route: &Arc<ParsedRoute>| Part {
            resolved: resolve(route, &Lookup(&self.objects)),
            attached: attached.keys().map(|key| (key.clone(), self.hostnames_on(key, route))).collect(),
            route: route.clone(),
        };
        family.routes().map(part).collect()
    }

    fn hostnames_on(&self, (parent, name): &ListenerKey, route: &ParsedRoute) -> BTreeSet<HostPattern> {
        let listeners = self.units.get(parent).map(|unit| unit.declared.listeners.iter());
        let listener = listeners.into_iter().flatten().find(|listener| listener.name == *name);
        let both =
            |hostname: &HostPattern| listener.and_then(|listener| listener.hostname.intersect(hostname));
        route.hostnames.iter().filter_map(both).collect()
    }
}

/// Takes the parent's own place: its listeners stay, under the hostnames and with the references of its parts.
pub(super) fn stand_in(
    parts: &[Part],
    family: &Family,
    attached: &mut BTreeMap<ListenerKey, BTreeSet<HostPattern>>,
    resolved: &mut ResolvedRoute,
) {
    for (listener, hostnames) in attached.iter_mut() {
        *hostnames = parts.iter().filter_map(|part| part.attached.get(listener)).flatten().cloned().collect();
    }
    for part in parts {
        resolved.backends.extend(part.resolved.backends.iter().cloned());
        resolved.services.extend(part.resolved.services.iter().cloned());
    }
    resolved.problem =
        Problem::summary(resolved.problem.take().into_iter().chain(family.unresolved.iter().cloned()));
}

pub(super) fn same_parts(before: &[Part], now: &[Part]) -> bool {
    let same = |(a, b): (&Part, &Part)| {
        a.route.origin == b.route.origin
            && a.attached == b.attached
            && a.resolved.rules.len() == b.resolved.rules.len()
            && a.resolved.rules.iter().zip(&b.resolved.rules).all(|(a, b)| same_rule(a, b))
    };
    before.len() == now.len() && before.iter().zip(now).all(same)
}

impl RouteUnit {
    /// What the route contributes to the table of a listener's host pattern.
    pub(super) fn entries(&self, listener: &ListenerKey, hostname: &HostPattern) -> Vec<Entry> {
        if !self.parsed.is_parent() {
            return table_entries(&self.parsed.origin, &self.resolved.rules);
        }
        let has_host =
            |part: &&Part| part.attached.get(listener).is_some_and(|hosts| hosts.contains(hostname));
        let parts = self.parts.iter().filter(has_host);
        parts.flat_map(|part| table_entries(&part.route.origin, &part.resolved.rules)).collect()
    }
}

// === statuses ===

impl Translator {
    pub(super) fn route_status_of(&self, key: &ObjectKey, unit: &RouteUnit) -> RouteStatus {
        let (unresolved, name) = (unit.resolved.problem.as_ref(), &self.settings.controller_name);
        let mut status = route_status(&unit.parsed, unresolved, &unit.verdicts, name);
        if let Some(bound) = unit.bound.as_ref().filter(|_| unit.parsed.is_parent()) {
            let references = self.attachments(&unit.parsed);
            for (entry, (reference, parent, attachment)) in status.parents.iter_mut().zip(references) {
                let fits = |hostnames: &[HostPattern]| {
                    attachment.refusal.is_some() || self.fits(&unit.parsed, hostnames, reference, &parent)
                };
                entry.conditions.extend(bound.family.parent_conditions(|child| fits(&child.hostnames)));
            }
        }
        status.parents.extend(self.child_entries(key, unit));
        status
    }

    /// Our Gateways and ListenerSets, in the order of the route's parentRefs, as its own verdicts are.
    fn attachments<'r>(
        &self,
        route: &'r ParsedRoute,
    ) -> impl Iterator<Item = (&'r ParentReference, ParentKey, Attachment)> {
        route.parent_refs.iter().filter_map(|reference| {
            let parent = parent_key(reference)?;
            let attachment = self.attach_to(route, reference, &parent)?;
            Some((reference, parent, attachment))
        })
    }

    fn fits(
        &self,
        parent: &ParsedRoute,
        hostnames: &[HostPattern],
        reference: &ParentReference,
        to: &ParentKey,
    ) -> bool {
        let probe = parent.for_hostnames(hostnames);
        self.attach_to(&probe, reference, to).is_some_and(|attachment| attachment.refusal.is_none())
    }

    fn child_entries(&self, key: &ObjectKey, unit: &RouteUnit) -> Vec<RouteParentStatus> {
        let mut entries = self.parentless_entries(&unit.parsed);
        let parents: BTreeSet<_> = parents_of(&unit.parsed).into_iter().chain(self.listers(key)).collect();
        for parent in parents.iter().filter_map(|parent| self.routes.get(parent)) {
            let Some(bound) = parent.bound.as_ref().filter(|_| self.is_of_ours(parent)) else { continue };
            let Some(report) = bound.family.report(key) else { continue };
            let grandparents = self.grandparents(parent, &unit.parsed, &report.hostnames);
            let unresolved = unit.resolved.problem.as_ref();
            entries.extend(report.entries(&self.settings.controller_name, &grandparents, unresolved));
        }
        entries
    }

    /// ParentRefs to routes that do not exist, or are of another kind.
    fn parentless_entries(&self, child: &ParsedRoute) -> Vec<RouteParentStatus> {
        let kind = child.key.kind;
        let mut entries = Vec::new();
        for (index, reference) in child.parent_refs.iter().enumerate() {
            let is_missing =
                parent_route(kind, reference).is_none_or(|parent| !self.parsed.contains_key(&parent));
            let conditions = match foreign_route_kind(kind, reference) {
                Some(true) => foreign_parent_conditions(child, reference),
                Some(false) if is_missing => missing_parent_conditions(child, reference),
                _ => continue,
            };
            let written = child.written_parent_ref(index).and_then(|written| written.namespace.clone());
            entries.push(RouteParentStatus {
                controller_name: self.settings.controller_name.clone(),
                parent_ref: ParentReference { namespace: written, ..reference.clone() },
                conditions,
                grandparents: None,
            });
        }
        entries
    }

    /// Whether a parent hangs on one of our Gateways: by itself, or as the child that it cannot be at the same time.
    fn is_of_ours(&self, parent: &RouteUnit) -> bool {
        !parent.verdicts.is_empty()
            || parents_of(&parent.parsed)
                .iter()
                .any(|above| self.routes.get(above).is_some_and(|above| !above.verdicts.is_empty()))
    }

    fn grandparents(
        &self,
        parent: &RouteUnit,
        child: &ParsedRoute,
        hostnames: &[HostPattern],
    ) -> Vec<Grandparent> {
        let attachments = parent.verdicts.iter().zip(self.attachments(&parent.parsed));
        let mut grandparents = Vec::new();
        for (verdict, (reference, to, attachment)) in attachments {
            let judged = match &verdict.refusal {
                Some(refusal) => Verdict::ParentRefused(refusal.reason),
                None if self.fits(&parent.parsed, hostnames, reference, &to) => Verdict::Accepted,
                None => Verdict::HostnameMismatch(self.mismatch(parent, child, hostnames, &to, &attachment)),
            };
            grandparents.push(Grandparent { reference: verdict.parent.clone(), verdict: judged });
        }
        grandparents
    }

    fn mismatch(
        &self,
        parent: &RouteUnit,
        child: &ParsedRoute,
        hostnames: &[HostPattern],
        to: &ParentKey,
        attachment: &Attachment,
    ) -> Mismatch {
        let reader = &child.key.name.namespace;
        let sees_parent = parent.parsed.key.name.namespace == *reader;
        let sees_listeners = to.name.namespace == *reader;
        Mismatch {
            hostnames: if sees_parent { hostnames.to_vec() } else { child.hostnames.clone() },
            listeners: if sees_listeners { self.listener_hostnames(to, attachment) } else { Vec::new() },
        }
    }

    fn listener_hostnames(&self, to: &ParentKey, attachment: &Attachment) -> Vec<HostPattern> {
        let Some(unit) = self.units.get(to) else { return Vec::new() };
        let listeners = attachment.listeners.iter().filter_map(|(at, _)| unit.declared.listeners.get(*at));
        let hostnames: BTreeSet<_> = listeners.map(|listener| listener.hostname.clone()).collect();
        hostnames.into_iter().collect()
    }
}

/// `None`: no route. `Some(true)`: a route of another kind.
fn foreign_route_kind(own: Kind, reference: &ParentReference) -> Option<bool> {
    let kind = reference.kind.as_deref().filter(|_| reference.group.as_deref() == Some(GATEWAY_GROUP))?;
    let is_route = matches!(kind, "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute" | "UDPRoute");
    is_route.then(|| kind != own.as_str())
}
