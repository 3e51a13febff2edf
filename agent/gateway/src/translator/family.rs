//! Stage: parent and child routes (GEP-1058). A parent is served by the parts that delegation computes; what its children's
//! statuses say is taken from the same [`Family`]. Binding is done again only when a route of the family, or something that
//! consent depends on, is another, and then only for the pairs concerned; a child's status only if its pair, or what the parent
//! is attached to, is another.

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
use crate::route::{
    Delegation, ParsedRoute, ParsedRule, ResolvedRoute, ResolvedRule, resolve, table_entries,
};
use crate::selector::{NamespaceRule, Namespaces};
use crate::status::{ParentVerdict, route_status};
use crate::{Fault, GATEWAY_GROUP, Grants, Kind, ObjectKey};

/// A family, and where it hangs.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) family: Arc<Family>,
    standing: Vec<Standing>,
}

/// How the parent fares with one of its own Gateways or ListenerSets: all that children depend on there.
#[derive(Debug, PartialEq)]
struct Standing {
    verdict: ParentVerdict,
    reference: ParentReference,
    with: ParentKey,
    /// The hostnames of the listeners that it attaches to.
    listeners: BTreeSet<HostPattern>,
}

/// One of the routes that are served in place of a parent.
#[derive(Debug)]
pub(super) struct Part {
    route: Arc<ParsedRoute>,
    resolved: Arc<ResolvedRoute>,
    /// The state of Services and grants that it was resolved by.
    references: u64,
    attached: BTreeMap<ListenerKey, BTreeSet<HostPattern>>,
}

/// Stands for every name of a namespace in [`super::index::Index::listers`].
const ANY_NAME: &str = "*";

struct Consent<'t>(&'t Translator);

impl Surroundings for Consent<'_> {
    fn admits(&self, rule: &NamespaceRule, parent: &str, child: &str) -> bool {
        rule.admits(parent, child, Namespaces::new(&self.0.objects))
    }

    fn permits(&self, kind: Kind, namespace: &str, to: &ObjectName) -> bool {
        Grants::new(&self.0.objects).permits(kind, namespace, kind, &to.namespace, &to.name)
    }

    fn version(&self, child: &str) -> u64 {
        self.0.consent.get(child).copied().unwrap_or_default()
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

    /// The labels of the namespace are others: routes there that listeners select by label, and parents that so select children.
    pub(super) fn labels_changed(&mut self, namespace: &str) {
        self.consent_changed(namespace);
        for kind in [Kind::HttpRoute, Kind::GrpcRoute] {
            let any = ObjectKey { kind, name: ObjectName::new(namespace, ANY_NAME) };
            for key in self.routes_in(&any).collect::<Vec<_>>() {
                let Some(unit) = self.routes.get(&key) else { continue };
                let parents = parents_of(&unit.parsed);
                let selecting = parents.into_iter().filter(|parent| self.selects_by_label(parent));
                let selected =
                    unit.references.parents.iter().any(|parent| self.listeners_select_by_label(parent));
                let concerned: Vec<_> = selecting.chain(selected.then_some(key)).collect();
                self.dirty.routes.extend(concerned);
            }
        }
    }

    fn selects_by_label(&self, parent: &ObjectKey) -> bool {
        let selects = |rule: &ParsedRule| match &rule.delegation {
            Some(Delegation::Allowed(allowed)) => {
                matches!(
                    NamespaceRule::new(allowed.namespaces.as_ref(), NamespaceRule::Same),
                    NamespaceRule::Selector(_)
                )
            }
            _ => false,
        };
        self.parsed.get(parent).is_some_and(|parsed| parsed.rules.iter().any(selects))
    }

    fn listeners_select_by_label(&self, parent: &ParentKey) -> bool {
        let listeners = self.units.get(parent).map(|unit| unit.declared.listeners.iter());
        let mut listeners = listeners.into_iter().flatten();
        listeners.any(|listener| matches!(listener.namespaces, NamespaceRule::Selector(_)))
    }

    /// Parents that name the route, or all routes of its namespace, as children.
    fn listers(&self, child: &ObjectKey) -> impl Iterator<Item = ObjectKey> {
        let any =
            ObjectKey { kind: child.kind, name: ObjectName::new(child.name.namespace.clone(), ANY_NAME) };
        let by_name = self.index.listers.of(child).cloned().collect::<Vec<_>>();
        by_name.into_iter().chain(self.index.listers.of(&any).cloned().collect::<Vec<_>>())
    }

    fn consent_changed(&mut self, namespace: &str) {
        *self.consent.entry(namespace.into()).or_default() += 1;
    }

    /// A ReferenceGrant of the namespace is another: parents may refer to children there, or no longer.
    pub(super) fn child_grants_changed(&mut self, namespace: &str) {
        self.consent_changed(namespace);
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
    pub(super) fn bound(
        &self,
        parent: &Arc<ParsedRoute>,
        verdicts: &[ParentVerdict],
        before: Option<&RouteUnit>,
    ) -> Option<Arc<Bound>> {
        let candidates = self.candidates(parent);
        if candidates.is_empty() && !parent.is_parent() {
            return None;
        }
        let before = before.and_then(|unit| unit.bound.as_ref()).map(|bound| &bound.family);
        let family = bind(parent, &candidates, &Consent(self), before);
        Some(Arc::new(Bound { family, standing: self.standing(parent, verdicts) }))
    }

    fn standing(&self, parent: &ParsedRoute, verdicts: &[ParentVerdict]) -> Vec<Standing> {
        let own = parent.parent_refs.iter().filter_map(|reference| {
            let with = parent_key(reference)?;
            let attachment = self.attach_to(parent, reference, &with)?;
            Some((self.listener_hostnames(&with, &attachment), with))
        });
        let standing = verdicts.iter().zip(own);
        standing
            .filter_map(|(verdict, (listeners, with))| {
                let reference = parent.as_written(verdict.reference)?;
                Some(Standing { verdict: verdict.clone(), reference, with, listeners })
            })
            .collect()
    }

    /// Everybody whose status tells of the family, before and now.
    pub(super) fn family_changed(&mut self, key: &ObjectKey, before: Option<&Bound>, now: Option<&Bound>) {
        let families = [before, now].into_iter().flatten().map(|bound| &bound.family);
        let is_same = before.zip(now).is_some_and(|(a, b)| Arc::ptr_eq(&a.family, &b.family));
        match (before, now) {
            (Some(before), Some(now)) if before.standing == now.standing => {
                self.dirty.statuses.extend(now.family.different_from(&before.family).cloned());
            }
            _ => self.all_below(key, families.clone()),
        }
        if !is_same && families.clone().any(|family| family.parent.is_parent()) {
            self.dirty.families.insert(key.clone());
        }
    }

    fn all_below<'f>(&mut self, key: &ObjectKey, families: impl Iterator<Item = &'f Arc<Family>>) {
        let children = families.flat_map(|family| &family.children).map(|report| report.child.clone());
        self.dirty.statuses.extend(children);
        for child in self.index.children_of_route.of(key) {
            // Grandchildren, too: that they are refused is ours to tell if the top is.
            let family = self.routes.get(child).and_then(|unit| unit.bound.as_ref());
            let adopted = family.into_iter().flat_map(|bound| &bound.family.children);
            self.dirty.statuses.extend(adopted.map(|report| report.child.clone()));
            self.dirty.statuses.insert(child.clone());
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
        before: Option<&RouteUnit>,
    ) -> Vec<Part> {
        let known = before.map_or(&[][..], |unit| &unit.parts);
        let part = |route: &Arc<ParsedRoute>| Part {
            resolved: self.resolved_part(route, known),
            references: self.references,
            attached: attached.keys().map(|key| (key.clone(), self.hostnames_on(key, route))).collect(),
            route: route.clone(),
        };
        family.routes().map(part).collect()
    }

    fn resolved_part(&self, route: &Arc<ParsedRoute>, known: &[Part]) -> Arc<ResolvedRoute> {
        let is_same = |part: &&Part| Arc::ptr_eq(&part.route, route) && part.references == self.references;
        match known.iter().find(is_same) {
            Some(part) => part.resolved.clone(),
            None => Arc::new(resolve(route, &Lookup(&self.objects))),
        }
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
        Fault::summary(resolved.problem.take().into_iter().chain(family.unresolved.iter().cloned()));
}

pub(super) fn same_parts(before: &[Part], now: &[Part]) -> bool {
    let same = |(a, b): (&Part, &Part)| {
        a.route.origin == b.route.origin
            && a.attached == b.attached
            && (Arc::ptr_eq(&a.resolved, &b.resolved) || same_rules(&a.resolved.rules, &b.resolved.rules))
    };
    before.len() == now.len() && before.iter().zip(now).all(same)
}

fn same_rules(before: &[ResolvedRule], now: &[ResolvedRule]) -> bool {
    before.len() == now.len() && before.iter().zip(now).all(|(a, b)| same_rule(a, b))
}

impl RouteUnit {
    /// What the route contributes to the table of a listener's host pattern.
    pub(super) fn entries(&self, listener: &ListenerKey, hostname: &HostPattern) -> Vec<Entry> {
        if !self.parsed.is_parent() {
            return table_entries(&self.parsed.origin, &self.rules);
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
        let (unresolved, name) = (unit.unresolved.as_deref(), &self.settings.controller_name);
        let mut status = route_status(&unit.parsed, unresolved, &self.contested(key, unit), name);
        if let Some(bound) = unit.bound.as_ref().filter(|_| unit.parsed.is_parent()) {
            for (entry, standing) in status.parents.iter_mut().zip(&bound.standing) {
                let fits = |hostnames: &[HostPattern]| {
                    standing.verdict.refusal.is_some() || standing.takes(hostnames)
                };
                entry.conditions.extend(bound.family.parent_conditions(|child| fits(&child.hostnames)));
            }
        }
        status.parents.extend(self.child_entries(key, unit));
        status
    }

    fn child_entries(&self, key: &ObjectKey, unit: &RouteUnit) -> Vec<RouteParentStatus> {
        let mut entries = self.parentless_entries(&unit.parsed);
        let parents: BTreeSet<_> = parents_of(&unit.parsed).into_iter().chain(self.listers(key)).collect();
        for parent in parents.iter().filter_map(|parent| self.routes.get(parent)) {
            let Some(bound) = parent.bound.as_ref().filter(|_| self.is_of_ours(parent)) else { continue };
            let Some(report) = bound.family.report(key) else { continue };
            let grandparents = bound.grandparents(&unit.parsed, &report.hostnames);
            let unresolved = unit.unresolved.as_deref();
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
            let conditions = match Named::by(reference, kind) {
                Named::OtherRoute => foreign_parent_conditions(child, reference),
                Named::SameKind if is_missing => missing_parent_conditions(child, reference),
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

    /// Whether a parent hangs on one of our Gateways: by itself, or as the child that it cannot be at the same time.
    fn is_of_ours(&self, parent: &RouteUnit) -> bool {
        !parent.verdicts.is_empty()
            || parents_of(&parent.parsed)
                .iter()
                .any(|above| self.routes.get(above).is_some_and(|above| !above.verdicts.is_empty()))
    }

    fn listener_hostnames(&self, to: &ParentKey, attachment: &Attachment) -> BTreeSet<HostPattern> {
        let listeners = self.units.get(to).map(|unit| &unit.declared.listeners);
        let attached = attachment.listeners.iter().filter_map(|(at, _)| listeners?.get(*at));
        attached.map(|listener| listener.hostname.clone()).collect()
    }
}

impl Bound {
    /// What the parent's own parents say about a child with these hostnames.
    fn grandparents(&self, child: &ParsedRoute, hostnames: &[HostPattern]) -> Vec<Grandparent> {
        let verdict = |standing: &Standing| match &standing.verdict.refusal {
            Some(refusal) => Verdict::ParentRefused(refusal.reason),
            None if standing.takes(hostnames) => Verdict::Accepted,
            None => Verdict::HostnameMismatch(self.mismatch(standing, child, hostnames)),
        };
        let grandparent = |standing: &Standing| Grandparent {
            reference: standing.reference.clone(),
            verdict: verdict(standing),
        };
        self.standing.iter().map(grandparent).collect()
    }

    fn mismatch(&self, standing: &Standing, child: &ParsedRoute, hostnames: &[HostPattern]) -> Mismatch {
        let reader = &child.key.name.namespace;
        let sees_parent = self.family.parent.key.name.namespace == *reader;
        let sees_listeners = standing.with.name.namespace == *reader;
        let listeners = standing.listeners.iter().filter(|_| sees_listeners).cloned().collect();
        Mismatch {
            hostnames: if sees_parent { hostnames.to_vec() } else { child.hostnames.clone() },
            listeners,
        }
    }
}

impl Standing {
    /// A child's hostnames are the parent's or fewer, so no other listener can be meant than those the parent attaches to.
    fn takes(&self, hostnames: &[HostPattern]) -> bool {
        let meets = |listener: &HostPattern| hostnames.iter().any(|name| listener.intersect(name).is_some());
        self.listeners.iter().any(meets)
    }
}

/// The kind of object that a parentRef of a route names.
enum Named {
    SameKind,
    OtherRoute,
    Other,
}

impl Named {
    fn by(reference: &ParentReference, own: Kind) -> Self {
        let kind = reference.kind.as_deref().filter(|_| reference.group.as_deref() == Some(GATEWAY_GROUP));
        match kind {
            Some(kind) if kind == own.as_str() => Self::SameKind,
            Some("HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute" | "UDPRoute") => Self::OtherRoute,
            _ => Self::Other,
        }
    }
}
