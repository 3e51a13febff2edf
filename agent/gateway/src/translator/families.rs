//! Parent and child routes (GEP-1058). A parent is served by the routes that delegation computes;
//! what its children's statuses say is taken from the same [`Family`]. Binding is done again only
//! when a route of the family, or something that consent depends on, is another, and then only for
//! the pairs concerned; a child's status only if its pair, or what the parent is attached to, is
//! another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::types::shared::ParentReference;
use portcullis_api::{Kind, Objects};
use portcullis_model::{Entry, HostPattern, ObjectName};

use super::attachments::{Attached, Parents};
use super::parsed::ParsedRoutes;
use super::route_filters::RouteFilters;
use crate::delegate::{Family, Grandparent, Surroundings, bind};
use crate::listener::{ListenerKey, ParentKey, hostnames_at, parent_key};
use crate::route::{Extension, ParsedRoute, ResolvedRoute, ResolvedRule, resolve, table_entries};
use crate::selector::{NamespaceRule, Namespaces};
use crate::status::ParentVerdict;
use crate::{Fault, Grants, Reason};

/// A family, and where it is attached.
#[derive(Debug)]
pub(super) struct AttachedFamily {
    pub(super) family: Arc<Family>,
    pub(super) grandparents: Vec<GrandparentState>,
}

/// The verdict of one of the parent's own Gateways or ListenerSets on it: all that children depend
/// on there.
#[derive(Debug, PartialEq)]
pub(super) struct GrandparentState {
    pub(super) verdict: ParentVerdict,
    reference: ParentReference,
    key: ParentKey,
    /// The hostnames of the listeners that the parent attaches to.
    listeners: BTreeSet<HostPattern>,
}

/// One of the routes that are served in place of a parent.
#[derive(Debug)]
pub(super) struct StandIn {
    route: Arc<ParsedRoute>,
    resolved: Arc<ResolvedRoute>,
    /// The state of Services and grants that it was resolved by.
    references: u64,
    attached: Attached,
}

/// The state that parents and children depend on to agree.
pub(super) struct Consent<'s> {
    pub(super) objects: &'s Objects,
    pub(super) route_filters: &'s RouteFilters,
    /// Counts by namespace the changes of its grants, labels and RouteFilters.
    pub(super) versions: &'s BTreeMap<Arc<str>, u64>,
}

impl Surroundings for Consent<'_> {
    fn admits(&self, rule: &NamespaceRule, parent: &str, child: &str) -> bool {
        rule.admits(parent, child, Namespaces::new(self.objects))
    }

    fn permits(&self, kind: Kind, namespace: &str, to: &ObjectName) -> bool {
        Grants::new(self.objects).permits(kind, namespace, kind, &to.namespace, &to.name)
    }

    fn route_filter(&self, name: &ObjectName) -> Option<&Extension> {
        self.route_filters.get(name)?.as_ref().ok()
    }

    fn version(&self, parent: &str, child: &str) -> u64 {
        let of = |namespace: &str| self.versions.get(namespace).copied().unwrap_or_default();
        of(child) + if parent == child { 0 } else { of(parent) }
    }
}

// === impl AttachedFamily ===

impl AttachedFamily {
    /// `None` if no route asks to be the route's child and it asks for none.
    pub(super) fn bind(
        parent: &Arc<ParsedRoute>,
        verdicts: &[ParentVerdict],
        before: Option<&Self>,
        parsed: &ParsedRoutes,
        parents: Parents<'_>,
        consent: &Consent<'_>,
    ) -> Option<Arc<Self>> {
        let candidates = parsed.candidates(parent);
        if candidates.is_empty() && !parent.is_parent() {
            return None;
        }
        let family = bind(parent, &candidates, consent, before.map(|before| &before.family));
        Some(Arc::new(Self { family, grandparents: grandparents(parent, verdicts, parents) }))
    }

    /// The parent's own parents as they are to a child with these hostnames; `verdicts` are those
    /// on the parent, conflicts included.
    pub(super) fn grandparents_of(
        &self,
        child: &ParsedRoute,
        hostnames: &[HostPattern],
        verdicts: &[ParentVerdict],
    ) -> Vec<Grandparent> {
        let mut grandparents = Vec::with_capacity(self.grandparents.len());
        for state in &self.grandparents {
            let refusal = match state.refusal(verdicts) {
                Some(refusal) => Some(state.parent_refused(refusal.reason)),
                None if state.takes(hostnames) => None,
                None => Some(self.mismatch(state, child, hostnames)),
            };
            grandparents.push(Grandparent { reference: state.reference.clone(), refusal });
        }
        grandparents
    }

    /// The child's hostnames match none of the listeners that the parent attaches to; named as far
    /// as the child's owner may read them.
    fn mismatch(
        &self,
        grandparent: &GrandparentState,
        child: &ParsedRoute,
        hostnames: &[HostPattern],
    ) -> Fault {
        let reader = &child.key.name.namespace;
        let sees_parent = self.family.parent.key.name.namespace == *reader;
        let own = if sees_parent { hostnames } else { child.hostnames.as_slice() };
        let narrowed = if own == hostnames { "" } else { ", together with the parent route's hostnames," };
        let sees_listeners = grandparent.key.name.namespace == *reader && !grandparent.listeners.is_empty();
        let listeners = if sees_listeners {
            quoted(&grandparent.listeners)
        } else {
            "the hostnames of the listeners that the parent route attaches to".to_owned()
        };
        let message = format!(
            "The route could not be accepted because of a hostname mismatch - {}{narrowed} does not match {listeners}.",
            quoted(own)
        );
        Fault::not_accepted(Reason::HostnameMismatch, message)
    }
}

impl GrandparentState {
    fn parent_refused(&self, reason: Reason) -> Fault {
        let kind = self.reference.kind.as_deref().unwrap_or("Gateway");
        let message = format!("The {kind} does not accept the parent route: see the parent route's status.");
        Fault::not_accepted(reason, message)
    }

    /// The fault for which it refuses the parent, by the `verdicts` on it.
    pub(super) fn refusal<'v>(&self, verdicts: &'v [ParentVerdict]) -> Option<&'v Fault> {
        let own = verdicts.iter().find(|verdict| verdict.reference == self.verdict.reference)?;
        own.refusal.as_deref()
    }

    /// A child's hostnames are the parent's or fewer, so no other listener can be meant than those
    /// the parent attaches to.
    pub(super) fn takes(&self, hostnames: &[HostPattern]) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.any(|listener| hostnames.iter().any(|name| listener.intersect(name).is_some()))
    }
}

fn quoted<'h>(hostnames: impl IntoIterator<Item = &'h HostPattern>) -> String {
    hostnames.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn grandparents(
    parent: &ParsedRoute,
    verdicts: &[ParentVerdict],
    parents: Parents<'_>,
) -> Vec<GrandparentState> {
    let own = parent.parent_refs.iter().enumerate().filter_map(|(at, reference)| {
        let key = parent_key(reference)?;
        let attachment = parents.attach_to(parent, at, &key)?;
        Some((parents.listener_hostnames(&key, &attachment), key))
    });
    let mut states = Vec::with_capacity(verdicts.len());
    for (verdict, (listeners, key)) in verdicts.iter().zip(own) {
        let Some(reference) = parent.as_written(verdict.reference) else { continue };
        states.push(GrandparentState { verdict: verdict.clone(), reference, key, listeners });
    }
    states
}

// === impl StandIn ===

impl StandIn {
    pub(super) fn route(&self) -> &Arc<ParsedRoute> {
        &self.route
    }

    /// Those of a family, attached to the listeners that the parent itself is attached to. `known`
    /// are those before, and `references` is the state of Services and grants.
    pub(super) fn of(
        family: &Family,
        attached: &Attached,
        known: &[Self],
        references: u64,
        parents: Parents<'_>,
    ) -> Vec<Self> {
        let mut stand_ins = Vec::with_capacity(family.ephemeral.len());
        for route in family.routes() {
            let same = known.iter().find(|it| Arc::ptr_eq(&it.route, route) && it.references == references);
            let resolved = same.map(|same| same.resolved.clone());
            stand_ins.push(Self {
                resolved: resolved.unwrap_or_else(|| Arc::new(resolve(route, &parents))),
                references,
                attached: attached.keys().map(|it| (it.clone(), hostnames_on(it, route, parents))).collect(),
                route: route.clone(),
            });
        }
        stand_ins
    }

    fn serves_same(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.resolved, &other.resolved);
        (&self.route.origin, self.route.first_rule) == (&other.route.origin, other.route.first_rule)
            && self.attached == other.attached
            && (Arc::ptr_eq(ours, theirs) || same_rules(&ours.rules, &theirs.rules))
    }

    /// The entries that it contributes to the table of a listener's host pattern.
    pub(super) fn entries(&self, listener: &ListenerKey, hostname: &HostPattern) -> Vec<Entry> {
        let is_there = self.attached.get(listener).is_some_and(|hostnames| hostnames.contains(hostname));
        let rules = if is_there { &*self.resolved.rules } else { &[] };
        table_entries(&self.route, rules)
    }
}

fn hostnames_on(
    (parent, name): &ListenerKey,
    route: &ParsedRoute,
    parents: Parents<'_>,
) -> BTreeSet<HostPattern> {
    let listeners = parents.listeners.get(parent).map(|declared| declared.listeners.iter());
    let listener = listeners.into_iter().flatten().find(|listener| listener.name == *name);
    listener.map(|listener| hostnames_at(listener, route)).unwrap_or_default()
}

/// Takes the parent's own place: its listeners stay, under the hostnames and with the references of
/// the routes that stand in.
pub(super) fn replace_parent(
    stand_ins: &[StandIn],
    family: &Family,
    attached: &mut Attached,
    resolved: &mut ResolvedRoute,
) {
    for (listener, hostnames) in attached.iter_mut() {
        *hostnames = stand_ins.iter().filter_map(|it| it.attached.get(listener)).flatten().cloned().collect();
    }
    for stand_in in stand_ins {
        resolved.backends.extend(stand_in.resolved.backends.iter().cloned());
        resolved.services.extend(stand_in.resolved.services.iter().cloned());
        resolved.route_filters.extend(stand_in.resolved.route_filters.iter().cloned());
        resolved.external_uses.extend(stand_in.resolved.external_uses.iter().cloned());
        resolved.externals.extend(stand_in.resolved.externals.iter().cloned());
    }
    resolved.fault =
        Fault::summary(resolved.fault.take().into_iter().chain(family.unresolved.iter().cloned()));
}

pub(super) fn serve_same(before: &[StandIn], now: &[StandIn]) -> bool {
    before.len() == now.len() && before.iter().zip(now).all(|(a, b)| a.serves_same(b))
}

pub(super) fn same_rules(before: &[ResolvedRule], now: &[ResolvedRule]) -> bool {
    before.len() == now.len() && before.iter().zip(now).all(|(a, b)| a.serves_same(b))
}
