//! Stage: routes, from the object to the listeners they are attached to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use portcullis_model::{HostPattern, ObjectName};

use super::Translator;
use super::dirty::ListenerKey;
use super::family::{same_parts, stand_in};
use super::unit::{Place, Places, References, RouteUnit};
use crate::api::shared::ParentReference;
use crate::attach::{Attachment, attach, parent_key};
use crate::listener::ParentKey;
use crate::route::{
    ParsedRoute, ResolvedRoute, ResolvedRule, Resolver, RouteSource, parse_grpc, parse_http, resolve,
};
use crate::selector::Namespaces;
use crate::status::ParentVerdict;
use crate::{Fault, Grants, Kind, ObjectKey, Objects, Reason};

pub(super) struct Lookup<'o>(pub(super) &'o Objects);

impl Resolver for Lookup<'_> {
    fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.0.services.get(name).map(|service| &**service)
    }

    fn permits(&self, kind: Kind, namespace: &str, service: &ObjectName) -> bool {
        Grants::new(self.0).permits(kind, namespace, Kind::Service, &service.namespace, &service.name)
    }
}

impl Translator {
    pub(super) fn route(&mut self) {
        for key in self.parse_routes() {
            match self.parsed.get(&key).cloned() {
                Some(parsed) => self.update_route(&key, parsed),
                None => self.remove_route(&key),
            }
            self.dirty.statuses.insert(key);
        }
    }

    /// Parsed once per version of the object.
    pub(super) fn parse(
        &self,
        key: &ObjectKey,
        before: Option<&Arc<ParsedRoute>>,
    ) -> Option<Arc<ParsedRoute>> {
        match key.kind {
            Kind::HttpRoute => {
                let object = self.objects.http_routes.get(&key.name)?;
                let same = |parsed: &&Arc<ParsedRoute>| matches!(&parsed.source, RouteSource::Http(source) if source.is(object));
                Some(before.filter(same).cloned().unwrap_or_else(|| Arc::new(parse_http(object))))
            }
            Kind::GrpcRoute => {
                let object = self.objects.grpc_routes.get(&key.name)?;
                let same = |parsed: &&Arc<ParsedRoute>| matches!(&parsed.source, RouteSource::Grpc(source) if source.is(object));
                Some(before.filter(same).cloned().unwrap_or_else(|| Arc::new(parse_grpc(object))))
            }
            _ => None,
        }
    }

    fn update_route(&mut self, key: &ObjectKey, parsed: Arc<ParsedRoute>) {
        let before = self.routes.remove(key);
        let mut resolved = resolve(&parsed, &Lookup(&self.objects));
        let (mut attached, verdicts) = self.attach(&parsed);
        let bound = self.bound(&parsed, &verdicts, before.as_ref());
        let family = bound.as_ref().map(|bound| &bound.family).filter(|_| parsed.is_parent());
        let parts = family.map(|family| self.parts(family, &attached, before.as_ref())).unwrap_or_default();
        if let Some(family) = family {
            stand_in(&parts, family, &mut attached, &mut resolved);
        }
        if attached.is_empty() {
            // Nobody can be sent there.
            resolved.backends.clear();
        }
        let mut unit = RouteUnit {
            references: self.references(&parsed, &resolved),
            rules: resolved.rules.into(),
            unresolved: resolved.problem.map(Box::new),
            parsed,
            attached: attached.into(),
            verdicts: verdicts.into(),
            bound,
            parts: parts.into(),
        };
        self.update_route_references(key, before.as_ref(), &unit.references);
        self.route_changed(key, before.as_ref(), &mut unit);
        self.routes.insert(key.clone(), unit);
    }

    /// Hands on what is different: to listeners which routes they have, to tables what these serve.
    fn route_changed(&mut self, key: &ObjectKey, before: Option<&RouteUnit>, unit: &mut RouteUnit) {
        let same_rules = keep_if_same(before, unit);
        let same = same_rules && before.is_some_and(|before| same_parts(&before.parts, &unit.parts));
        let is_accepted = |unit: &RouteUnit| unit.parsed.refusal().is_none();
        let flipped = before.is_some_and(|before| is_accepted(before) != is_accepted(unit));
        let nothing = Places::default();
        let attached_before = before.map_or(&nothing, |before| &before.attached);
        if flipped {
            // Listeners count accepted routes only.
            self.move_route(key, attached_before, &nothing, false);
        }
        self.move_route(key, if flipped { &nothing } else { attached_before }, &unit.attached, !same);
        self.family_changed(key, before.and_then(|unit| unit.bound.as_deref()), unit.bound.as_deref());
    }

    fn remove_route(&mut self, key: &ObjectKey) {
        let Some(unit) = self.routes.remove(key) else { return };
        self.family_changed(key, unit.bound.as_deref(), None);
        self.update_route_references(key, Some(&unit), &References::default());
        self.move_route(key, &unit.attached, &Places::default(), false);
    }

    fn references(&self, parsed: &ParsedRoute, resolved: &ResolvedRoute) -> References {
        let parents: BTreeSet<_> = parsed.parent_refs.iter().filter_map(parent_key).collect();
        References {
            parents: parents.into_iter().map(|parent| self.shared(parent)).collect(),
            backends: resolved.backends.iter().cloned().collect(),
            services: resolved.services.iter().cloned().collect(),
        }
    }

    /// The same key with the names of the object's own, if it is there: one copy instead of one for each of its routes.
    fn shared(&self, parent: ParentKey) -> ParentKey {
        self.units.get(&parent).map_or(parent, |unit| unit.declared.key.clone())
    }

    fn update_route_references(&mut self, key: &ObjectKey, before: Option<&RouteUnit>, now: &References) {
        let nothing = References::default();
        let before = before.map_or(&nothing, |unit| &unit.references);
        self.index.routes_by_service.update_list(key, &before.services, &now.services);
        self.dirty.services.extend(self.backends.update(&before.backends, &now.backends));
        self.index.routes_by_parent.update_list(key, &before.parents, &now.parents);
    }

    /// Each parentRef is judged on its own; what is attached is the union.
    fn attach(
        &self,
        route: &ParsedRoute,
    ) -> (BTreeMap<ListenerKey, BTreeSet<HostPattern>>, Vec<ParentVerdict>) {
        let mut attached: BTreeMap<ListenerKey, BTreeSet<HostPattern>> = BTreeMap::new();
        let mut verdicts = Vec::new();
        for (at, reference) in route.parent_refs.iter().enumerate() {
            let Some(parent) = parent_key(reference) else { continue };
            let Some(attachment) = self.attach_to(route, reference, &parent) else { continue };
            let unit = &self.units[&parent];
            for (listener, hostnames) in attachment.listeners {
                let name = unit.declared.listeners[listener].name.clone();
                attached.entry((unit.declared.key.clone(), name)).or_default().extend(hostnames);
            }
            verdicts.push(ParentVerdict { reference: at, refusal: attachment.refusal.map(Box::new) });
        }
        (attached, verdicts)
    }

    /// `None` if the parent is not ours.
    pub(super) fn attach_to(
        &self,
        route: &ParsedRoute,
        reference: &ParentReference,
        parent: &ParentKey,
    ) -> Option<Attachment> {
        let unit = self.units.get(parent)?;
        let attachment = match &unit.place {
            Place::Foreign => return None,
            Place::Refused(_) => {
                let message =
                    format!("the {} is not accepted by the Gateway it asks to be attached to", parent.kind());
                return Some(Attachment::refused(Fault::not_accepted(Reason::NoMatchingParent, message)));
            }
            Place::Root | Place::Child(_) => {
                attach(route, reference, &unit.declared, Namespaces::new(&self.objects))
            }
        };
        // What is wrong with the route as a whole comes first: without hostnames, for example, it fits nowhere anyway.
        let refusal = route.refusal().filter(|_| attachment.refusal.is_none() || !route.problems.is_empty());
        Some(match refusal {
            // Invalid rules own their traffic still, and fail it: a filter that cannot be served "MUST NOT be skipped", and
            // without the rule another route's could take the request past it.
            Some(refusal) => Attachment { listeners: attachment.listeners, refusal: Some(refusal) },
            None => attachment,
        })
    }

    /// Moves a route between listeners, and marks the tables that are another's now.
    fn move_route(&mut self, key: &ObjectKey, before: &Places, now: &Places, rules_changed: bool) {
        for (listener, hostnames) in
            before.iter().filter(|(listener, hostnames)| now.get(listener) != Some(*hostnames))
        {
            self.detach(key, listener, hostnames);
        }
        for (listener, hostnames) in now.iter() {
            let is_new = before.get(listener) != Some(hostnames);
            if is_new {
                self.attach_routes(key, listener, hostnames);
            }
            if is_new || rules_changed {
                self.dirty.contests.insert(listener.clone());
                self.dirty
                    .tables
                    .extend(hostnames.iter().map(|hostname| (listener.clone(), hostname.clone())));
            }
        }
    }

    fn detach(&mut self, key: &ObjectKey, listener: &ListenerKey, hostnames: &[HostPattern]) {
        self.dirty_status(&listener.0);
        let Some(unit) = self.units.get_mut(&listener.0) else { return };
        let Some(attached) = unit.attached.get_mut(&listener.1) else { return };
        attached.routes.remove(key);
        self.dirty.contests.insert(listener.clone());
        for hostname in hostnames {
            attached.take(key, hostname);
            self.dirty.tables.insert((listener.clone(), hostname.clone()));
        }
    }

    fn attach_routes(&mut self, key: &ObjectKey, listener: &ListenerKey, hostnames: &[HostPattern]) {
        self.dirty_status(&listener.0);
        let Some(unit) = self.units.get_mut(&listener.0) else { return };
        let attached = unit.attached.entry(listener.1.clone()).or_default();
        if self.parsed.get(key).is_some_and(|parsed| parsed.refusal().is_none()) {
            attached.routes.insert(key.clone());
        }
        self.dirty.contests.insert(listener.clone());
        hostnames.iter().for_each(|hostname| attached.add(key, hostname));
    }

    pub(super) fn dirty_status(&mut self, parent: &ParentKey) {
        self.dirty.statuses.insert(ObjectKey { kind: parent.kind(), name: parent.name.clone() });
    }
}

/// Keeps the old rules where the new ones serve the same, so that nothing downstream changes.
fn keep_if_same(before: Option<&RouteUnit>, unit: &mut RouteUnit) -> bool {
    let Some(before) = before.filter(|before| before.parsed.origin == unit.parsed.origin) else {
        return false;
    };
    let same_rules = before.rules.len() == unit.rules.len()
        && before.rules.iter().zip(&unit.rules).all(|(a, b)| same_rule(a, b));
    if same_rules {
        unit.rules.clone_from(&before.rules);
    }
    same_rules
}

pub(super) fn same_rule(a: &ResolvedRule, b: &ResolvedRule) -> bool {
    a.rule == b.rule
        && a.matches.len() == b.matches.len()
        && a.matches.iter().zip(&b.matches).all(|(a, b)| Arc::ptr_eq(a, b))
}
