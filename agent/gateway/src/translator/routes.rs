//! Stage: routes, from what they say to the listeners they are attached to and the rules they are
//! served with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::{Entry, HostPattern, L4Rule, ObjectName};

use super::attachments::{AttachedTo, ListenerHostnames, ListenerRoutes, Parents};
use super::changes::ChangedObjects;
use super::counts::Counts;
use super::families::{AttachedFamily, Consent, StandIn, replace_parent, same_rules, serve_same};
use super::hierarchy::ChangedHierarchy;
use super::listeners::{ChangedListeners, Tls};
use super::parsed::{ParsedRoutes, parents_of};
use super::policies::ChangedPolicies;
use super::relation::{Relation, only_in};
use crate::Fault;
use crate::delegate::Family;
use crate::listener::{ListenerKey, ParentKey, parent_key};
use crate::route::{
    BackendUse, ExternalUse, ParsedRoute, ResolvedRoute, ResolvedRule, resolve, table_entries,
};
use crate::selector::NamespaceRule;
use crate::status::ParentVerdict;

#[derive(Debug, Default)]
pub(super) struct Routes {
    states: BTreeMap<ObjectKey, RouteState>,
    by_parent: Relation<ParentKey, ObjectKey>,
    by_service: Relation<ObjectName, ObjectKey>,
    by_filter: Relation<ObjectName, ObjectKey>,
    by_listener: BTreeMap<ListenerKey, ListenerRoutes>,
    /// The number of routes that use each backend.
    backend_uses: Counts<BackendUse>,
    by_external: Relation<ObjectName, ObjectKey>,
    external_uses: Counts<ExternalUse>,
    /// Counts by namespace the changes of what parents and children there may need to agree: its
    /// grants, labels and RouteFilters.
    consent: BTreeMap<Arc<str>, u64>,
    /// Counts changes of what references lead to: Services, their policies, grants, RouteFilters.
    references: u64,
}

#[derive(Debug)]
pub(super) struct RouteState {
    pub(super) parsed: Arc<ParsedRoute>,
    rules: Box<[ResolvedRule]>,
    /// The fault that `ResolvedRefs=False` reports.
    pub(super) unresolved: Option<Box<Fault>>,
    pub(super) references: References,
    pub(super) attached: AttachedTo,
    pub(super) verdicts: Box<[ParentVerdict]>,
    /// With its children, if it has or wants any; `stand_ins` are then served in the route's place.
    pub(super) family: Option<Arc<AttachedFamily>>,
    stand_ins: Box<[StandIn]>,
    /// Services with policies that are without effect where the route is attached.
    pub(super) unheeded: Box<[ObjectName]>,
}

/// The references of a route. Ordered lists rather than sets: most have one element, and there are
/// tens of thousands of them.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) parents: Box<[ParentKey]>,
    backends: Box<[BackendUse]>,
    pub(super) services: Box<[ObjectName]>,
    route_filters: Box<[ObjectName]>,
    external_uses: Box<[ExternalUse]>,
    externals: Box<[ObjectName]>,
}

#[derive(Debug, Default)]
pub(super) struct ChangedRoutes {
    /// Routes with another status, as far as this stage knows.
    pub(super) statuses: BTreeSet<ObjectKey>,
    /// Parent routes with another ephemeral route.
    pub(super) families: BTreeSet<ObjectKey>,
    /// Gateways and ListenerSets with another number of attached routes.
    pub(super) parents: BTreeSet<ParentKey>,
    /// Listeners with other routes, or with routes that serve something else, and the host patterns
    /// for which that is so.
    pub(super) listeners: ListenerHostnames,
    /// Services of which another port came into use, or went out of use.
    pub(super) services: BTreeSet<ObjectName>,
    /// XBackends that changed routes refer to, or did.
    pub(super) externals: BTreeSet<ObjectName>,
    /// Policies on what changed routes refer to, or did.
    pub(super) policies: BTreeSet<ObjectName>,
    /// Services that changed routes refer to, or did.
    pub(super) referred: BTreeSet<ObjectName>,
}

/// The rules of a route, compared with those before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    Same,
    Other,
}

// === impl Routes ===

impl Routes {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&RouteState> {
        self.states.get(key)
    }

    /// A parent route with its children.
    pub(super) fn family(&self, parent: &ObjectKey) -> Option<Arc<Family>> {
        let state = self.states.get(parent).filter(|state| state.parsed.is_parent())?;
        Some(state.family.as_ref()?.family.clone())
    }

    pub(super) fn at_listener(&self, listener: &ListenerKey) -> Option<&ListenerRoutes> {
        self.by_listener.get(listener)
    }

    /// The routes that refer to a Service, with permission or without, and where they are attached.
    pub(super) fn referring_to(
        &self,
        service: &ObjectName,
    ) -> impl Iterator<Item = (&ObjectKey, &AttachedTo)> {
        self.by_service.of(service).filter_map(|route| Some((route, &self.get(route)?.attached)))
    }

    /// The same for an XBackend.
    pub(super) fn referring_to_external(
        &self,
        backend: &ObjectName,
    ) -> impl Iterator<Item = (&ObjectKey, &AttachedTo)> {
        self.by_external.of(backend).filter_map(|route| Some((route, &self.get(route)?.attached)))
    }

    pub(super) fn external_uses(&self) -> &Counts<ExternalUse> {
        &self.external_uses
    }

    pub(super) fn backend_uses(&self) -> &Counts<BackendUse> {
        &self.backend_uses
    }

    /// The routes that may fare differently, as far as other objects than their relatives are
    /// concerned; `rewritten` are those that changed themselves.
    pub(super) fn affected(
        &mut self,
        rewritten: BTreeSet<ObjectKey>,
        changed: &ChangedObjects,
        judged: &ChangedListeners,
        attached: &ChangedHierarchy,
        parsed: &ParsedRoutes,
        parents: Parents<'_>,
    ) -> BTreeSet<ObjectKey> {
        let mut affected = rewritten;
        for parent in judged.for_routes.union(&attached.moved) {
            affected.extend(self.by_parent.of(parent).cloned());
        }
        for service in changed.of(Kind::Service) {
            self.references += 1;
            affected.extend(self.by_service.of(service).cloned());
        }
        for namespace in changed.granting_namespaces() {
            self.references += 1;
            affected.extend(self.by_service.in_namespace(&namespace).cloned());
            affected.extend(parsed.listers_in(&namespace).cloned());
            *self.consent.entry(namespace).or_default() += 1;
        }
        for namespace in changed.relabelled_namespaces() {
            affected.extend(self.selected_by_label(namespace, parsed, parents));
            *self.consent.entry(namespace.clone()).or_default() += 1;
        }
        affected
    }

    /// The routes that refer to one of these Gateways and ListenerSets.
    pub(super) fn of_parents(&self, parents: &BTreeSet<ParentKey>) -> impl Iterator<Item = &ObjectKey> {
        parents.iter().flat_map(|parent| self.by_parent.of(parent))
    }

    /// Those of `routes` that are there; what stands in for them is to be resolved again.
    pub(super) fn retargeted(&mut self, routes: &BTreeSet<ObjectKey>) -> impl Iterator<Item = ObjectKey> {
        self.references += u64::from(!routes.is_empty());
        routes.iter().filter(|route| self.states.contains_key(*route)).cloned()
    }

    /// The routes that refer to Services with other policies.
    pub(super) fn targeted(&mut self, policies: &ChangedPolicies) -> BTreeSet<ObjectKey> {
        self.references += policies.services.len() as u64 + u64::from(policies.all);
        if policies.all {
            return self.states.keys().cloned().collect();
        }
        policies.services.iter().flat_map(|service| self.by_service.of(service)).cloned().collect()
    }

    /// The routes that refer to these Services, of whose sessions other policies speak.
    pub(super) fn with_services(&mut self, services: &BTreeSet<ObjectName>) -> BTreeSet<ObjectKey> {
        self.references += services.len() as u64;
        services.iter().flat_map(|service| self.by_service.of(service)).cloned().collect()
    }

    /// The routes that refer to RouteFilters which are something else now.
    pub(super) fn filtered(&mut self, filters: &BTreeSet<ObjectName>) -> BTreeSet<ObjectKey> {
        self.references += filters.len() as u64;
        for filter in filters {
            *self.consent.entry(filter.namespace.clone()).or_default() += 1;
        }
        filters.iter().flat_map(|filter| self.by_filter.of(filter)).cloned().collect()
    }

    /// The routes that refer to these XBackends, which changed.
    pub(super) fn with_externals(&mut self, backends: &BTreeSet<ObjectName>) -> BTreeSet<ObjectKey> {
        self.references += backends.len() as u64;
        backends.iter().flat_map(|backend| self.by_external.of(backend)).cloned().collect()
    }

    /// Routes of a namespace that listeners or claims select by its labels, and parents that so
    /// select children there.
    fn selected_by_label(
        &self,
        namespace: &str,
        parsed: &ParsedRoutes,
        attachment: Parents<'_>,
    ) -> BTreeSet<ObjectKey> {
        let mut selected = BTreeSet::new();
        for (key, state) in parsed.in_namespace(namespace).filter_map(|key| Some((key, self.get(key)?))) {
            let parents = parents_of(&state.parsed).into_iter();
            selected.extend(parents.filter(|parent| parsed.selects_by_label(parent)));
            let declared =
                state.references.parents.iter().filter_map(|parent| attachment.listeners.get(parent));
            let mut rules = declared.flat_map(|it| &it.listeners).map(|listener| &listener.namespaces);
            let is_claimed = state.references.parents.iter().any(|parent| attachment.has_claims(parent));
            if is_claimed || rules.any(|rule| matches!(rule, NamespaceRule::Selector(_))) {
                selected.insert(key.clone());
            }
        }
        selected
    }

    pub(super) fn update(
        &mut self,
        affected: BTreeSet<ObjectKey>,
        parsed: &ParsedRoutes,
        parents: Parents<'_>,
    ) -> ChangedRoutes {
        let mut changed = ChangedRoutes::default();
        for key in &affected {
            let before = self.states.remove(key);
            if before.is_none() && parsed.get(key).is_none() {
                continue;
            }
            let now = parsed.get(key).map(|route| self.state(route, before.as_ref(), parsed, parents));
            self.update_references(key, before.as_ref(), now.as_ref(), &mut changed);
            let services = before.iter().chain(&now).flat_map(|state| &state.references.services);
            changed.referred.extend(services.clone().cloned());
            let externals = before.iter().chain(&now).flat_map(|state| &state.references.externals);
            changed.externals.extend(externals.cloned());
            changed
                .policies
                .extend(services.flat_map(|service| parents.services.policies.on(service)).cloned());
            let now = now.map(|now| now.sharing_rules_with(before.as_ref()));
            self.move_route(key, before.as_ref(), now.as_ref(), &mut changed);
            let families =
                [&before, &now].map(|state| state.as_ref().and_then(|state| state.family.as_deref()));
            self.note_family(key, families, parsed, &mut changed);
            now.into_iter().for_each(|now| drop(self.states.insert(key.clone(), now)));
        }
        changed.statuses.extend(affected);
        changed
    }

    fn state(
        &self,
        parsed: &Arc<ParsedRoute>,
        before: Option<&RouteState>,
        all: &ParsedRoutes,
        parents: Parents<'_>,
    ) -> RouteState {
        let mut resolved = resolve(parsed, &parents);
        let (mut attached, verdicts) = parents.attach(parsed);
        let Parents { objects, route_filters, .. } = parents;
        let consent = Consent { objects, route_filters, versions: &self.consent };
        let known = before.and_then(|before| before.family.as_deref());
        let family = AttachedFamily::bind(parsed, &verdicts, known, all, parents, &consent);
        let mut stand_ins = Vec::new();
        if let Some(family) = family.as_ref().map(|it| &it.family).filter(|_| parsed.is_parent()) {
            let known = before.map_or(&[][..], |before| &before.stand_ins);
            stand_ins = StandIn::of(family, &attached, known, self.references, parents);
            replace_parent(&stand_ins, family, &mut attached, &mut resolved);
            resolved.route_filters.extend(family.route_filters().cloned());
        }
        if attached.is_empty() {
            // No client can be sent there.
            resolved.backends.clear();
            resolved.external_uses.clear();
        }
        let (decrypted, passed_on): (Vec<_>, Vec<_>) =
            attached.keys().partition(|listener| parents.listeners.tls(listener) == Tls::Ended);
        if !decrypted.is_empty() {
            let faults = [resolved.fault.take(), resolved.decrypted_fault.take()];
            resolved.fault = Fault::summary(faults.into_iter().flatten());
        }
        if passed_on.is_empty() {
            resolved.unheeded.clear();
        }
        RouteState {
            references: References::of(parsed, &resolved, parents),
            rules: resolved.rules.into(),
            unresolved: resolved.fault.map(Box::new),
            parsed: parsed.clone(),
            attached: attached.into(),
            verdicts: verdicts.into(),
            family,
            stand_ins: stand_ins.into(),
            unheeded: resolved.unheeded.into_iter().collect(),
        }
    }

    /// Counts backends of others than routes. Returns the Services of which another port came into
    /// use, or went out of use.
    pub(super) fn count_backends(&mut self, used: &[BackendUse], unused: &[BackendUse]) -> Vec<ObjectName> {
        let uses = &mut self.backend_uses;
        let new = used.iter().filter(|used| uses.add(used)).map(|used| used.service.clone());
        let mut services: Vec<_> = new.collect();
        services.extend(unused.iter().filter(|used| uses.remove(used)).map(|used| used.service.clone()));
        services
    }

    fn update_references(
        &mut self,
        key: &ObjectKey,
        before: Option<&RouteState>,
        now: Option<&RouteState>,
        changed: &mut ChangedRoutes,
    ) {
        let nothing = References::default();
        let [before, now] = [before, now].map(|state| state.map_or(&nothing, |state| &state.references));
        self.by_service.update_list(key, &before.services, &now.services);
        self.by_filter.update_list(key, &before.route_filters, &now.route_filters);
        self.by_parent.update_list(key, &before.parents, &now.parents);
        self.by_external.update_list(key, &before.externals, &now.externals);
        for used in only_in(&now.external_uses, &before.external_uses) {
            self.external_uses.add(used);
        }
        for used in only_in(&before.external_uses, &now.external_uses) {
            self.external_uses.remove(used);
        }
        let uses = &mut self.backend_uses;
        let new = only_in(&now.backends, &before.backends).filter(|used| uses.add(used));
        changed.services.extend(new.map(|used| used.service.clone()));
        let gone = only_in(&before.backends, &now.backends).filter(|used| uses.remove(used));
        changed.services.extend(gone.map(|used| used.service.clone()));
    }

    /// Moves a route between listeners, and marks the tables that are another's now.
    fn move_route(
        &mut self,
        key: &ObjectKey,
        before: Option<&RouteState>,
        now: Option<&RouteState>,
        changed: &mut ChangedRoutes,
    ) {
        let rules = match (before, now) {
            (Some(before), Some(now)) if now.serves_same(before) => Rules::Same,
            _ => Rules::Other,
        };
        // Listeners count accepted routes only.
        let is_accepted = |state: Option<&RouteState>| state.map(|state| state.parsed.refusal().is_none());
        let flipped = before.is_some() && is_accepted(before) != is_accepted(now);
        let nothing = AttachedTo::default();
        let [old, new] = [before, now].map(|state| state.map_or(&nothing, |state| &state.attached));
        for (listener, hostnames) in old.iter() {
            if flipped || new.get(listener) != Some(hostnames) {
                self.detach(key, listener, hostnames, changed);
            }
        }
        for (listener, hostnames) in new.iter() {
            let is_new = flipped || old.get(listener) != Some(hostnames);
            if is_new {
                let routes = self.by_listener.entry(listener.clone()).or_default();
                routes.add(key, hostnames);
                if is_accepted(now) == Some(true) {
                    routes.count_as_attached(key);
                }
                changed.parents.insert(listener.0.clone());
            }
            if is_new || rules == Rules::Other {
                changed.note_tables(listener, hostnames);
            }
        }
    }

    fn detach(
        &mut self,
        key: &ObjectKey,
        listener: &ListenerKey,
        hostnames: &[HostPattern],
        changed: &mut ChangedRoutes,
    ) {
        changed.parents.insert(listener.0.clone());
        changed.note_tables(listener, hostnames);
        let Some(routes) = self.by_listener.get_mut(listener) else { return };
        routes.remove(key, hostnames);
        if routes.is_empty() {
            self.by_listener.remove(listener);
        }
    }

    /// All whose status reports on the family, before and now.
    fn note_family(
        &self,
        key: &ObjectKey,
        [before, now]: [Option<&AttachedFamily>; 2],
        parsed: &ParsedRoutes,
        changed: &mut ChangedRoutes,
    ) {
        let mut families = before.into_iter().chain(now).map(|it| &it.family);
        match (before, now) {
            (Some(before), Some(now)) if before.grandparents == now.grandparents => {
                changed.statuses.extend(now.family.different_from(&before.family).cloned());
            }
            _ => {
                let children = families.clone().flat_map(|family| &family.children);
                changed.statuses.extend(children.map(|report| report.child.clone()));
                self.note_descendants(key, parsed, changed);
            }
        }
        let is_same = before.zip(now).is_some_and(|(a, b)| Arc::ptr_eq(&a.family, &b.family));
        if !is_same && families.any(|family| family.parent.is_parent()) {
            changed.families.insert(key.clone());
        }
    }

    /// Grandchildren, too: that they are refused is ours to report if the top is.
    fn note_descendants(&self, key: &ObjectKey, parsed: &ParsedRoutes, changed: &mut ChangedRoutes) {
        for child in parsed.children(key) {
            let family = self.states.get(child).and_then(|state| state.family.as_ref());
            let adopted = family.into_iter().flat_map(|it| &it.family.children);
            changed.statuses.extend(adopted.map(|report| report.child.clone()));
            changed.statuses.insert(child.clone());
        }
    }
}

// === impl RouteState ===

impl RouteState {
    /// The entries that the route contributes to the table of a listener's host pattern.
    pub(super) fn entries(&self, listener: &ListenerKey, hostname: &HostPattern) -> Vec<Entry> {
        if self.parsed.is_parent() {
            self.stand_ins.iter().flat_map(|it| it.entries(listener, hostname)).collect()
        } else {
            table_entries(&self.parsed, &self.rules)
        }
    }

    /// True if a rule has the Service as a backend; filters may refer to it as well. Rules of a
    /// parent route's children are its own here, where they are served.
    pub(super) fn forwards_to(&self, service: &ObjectName) -> bool {
        let routes = std::iter::once(&self.parsed).chain(self.stand_ins.iter().map(StandIn::route));
        let references = routes.flat_map(|route| &route.rules).flat_map(|rule| &rule.backend_refs);
        references.into_iter().any(|it| it.referred().service().as_ref() == Some(service))
    }

    /// The rule for connections, or datagrams.
    pub(super) fn stream_rule(&self, tls: Tls) -> Option<Arc<L4Rule>> {
        match (self.rules.first()?, tls) {
            (ResolvedRule::Streams { rule, .. }, Tls::PassedOn) => Some(rule.clone()),
            (ResolvedRule::Streams { decrypted, .. }, Tls::Ended) => Some(decrypted.clone()),
            (ResolvedRule::Requests { .. }, _) => None,
        }
    }

    /// Keeps the old rules where the new ones serve the same, so that nothing downstream changes.
    fn sharing_rules_with(mut self, before: Option<&Self>) -> Self {
        if let Some(before) = before.filter(|before| self.has_rules_of(before)) {
            self.rules.clone_from(&before.rules);
        }
        self
    }

    fn serves_same(&self, before: &Self) -> bool {
        self.has_rules_of(before) && serve_same(&before.stand_ins, &self.stand_ins)
    }

    fn has_rules_of(&self, before: &Self) -> bool {
        before.parsed.origin == self.parsed.origin && same_rules(&before.rules, &self.rules)
    }
}

impl References {
    fn of(parsed: &ParsedRoute, resolved: &ResolvedRoute, parents: Parents<'_>) -> Self {
        let named: BTreeSet<_> = parsed.parent_refs.iter().filter_map(parent_key).collect();
        Self {
            parents: named.into_iter().map(|parent| parents.shared(parent)).collect(),
            backends: resolved.backends.iter().cloned().collect(),
            services: resolved.services.iter().cloned().collect(),
            route_filters: resolved.route_filters.iter().cloned().collect(),
            external_uses: resolved.external_uses.iter().cloned().collect(),
            externals: resolved.externals.iter().cloned().collect(),
        }
    }
}

impl ChangedRoutes {
    fn note_tables(&mut self, listener: &ListenerKey, hostnames: &[HostPattern]) {
        // From scratch, a listener comes again with each of its routes.
        let known = match self.listeners.get_mut(listener) {
            Some(known) => known,
            None => self.listeners.entry(listener.clone()).or_default(),
        };
        known.extend(hostnames.iter().cloned());
    }
}
