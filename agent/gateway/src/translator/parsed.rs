//! Stage: routes as far as they can be understood by themselves, and which of them name each other
//! as parent or child.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::types::shared::ParentReference;
use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::ObjectName;

use super::default_gateways::DefaultGateways;
use super::relation::Relation;
use crate::default_scope::DefaultScope;
use crate::route::{self, Delegation, ParsedRoute};
use crate::selector::NamespaceRule;

#[derive(Debug, Default)]
pub(super) struct ParsedRoutes {
    parsed: BTreeMap<ObjectKey, Arc<ParsedRoute>>,
    /// Those that ask for default Gateways.
    defaulted: BTreeSet<ObjectKey>,
    /// Routes by the routes that their parentRefs name.
    children: Relation<ObjectKey, ObjectKey>,
    /// Routes by the routes that their backendRefs name; [`ANY_NAME`] stands for all of the
    /// namespace.
    listers: Relation<ObjectKey, ObjectKey>,
}

/// Stands for every name of a namespace.
const ANY_NAME: &str = "*";

// === impl ParsedRoutes ===

impl ParsedRoutes {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<ParsedRoute>> {
        self.parsed.get(key)
    }

    /// The routes that ask for default Gateways.
    pub(super) fn defaulted(&self) -> impl Iterator<Item = &ObjectKey> {
        self.defaulted.iter()
    }

    /// Parses those of `routes` that changed, or have other default Gateways. Returns all of them,
    /// and those that are or were named by them or name them.
    pub(super) fn update(
        &mut self,
        mut routes: BTreeSet<ObjectKey>,
        defaults: &DefaultGateways,
        objects: &Objects,
    ) -> BTreeSet<ObjectKey> {
        let mut relatives = BTreeSet::new();
        for key in &routes {
            let before = self.parsed.remove(key);
            let now = parse(key, before.as_ref(), defaults, objects);
            if now.as_ref().is_some_and(|now| now.default_scope != DefaultScope::None) {
                self.defaulted.insert(key.clone());
            } else {
                self.defaulted.remove(key);
            }
            let parents_before = before.as_deref().map(parents_of).unwrap_or_default();
            let parents_now = now.as_deref().map(parents_of).unwrap_or_default();
            self.children.update(key, &parents_before, &parents_now);
            let listed_before = before.as_deref().map(listed_by).unwrap_or_default();
            let listed_now = now.as_deref().map(listed_by).unwrap_or_default();
            self.listers.update(key, &listed_before, &listed_now);
            relatives.extend(parents_before);
            relatives.extend(parents_now);
            relatives.extend(self.listers(key).cloned());
            now.into_iter().for_each(|now| drop(self.parsed.insert(key.clone(), now)));
        }
        routes.append(&mut relatives);
        routes
    }

    /// The routes whose parentRefs name a route.
    pub(super) fn children(&self, parent: &ObjectKey) -> impl Iterator<Item = &ObjectKey> {
        self.children.of(parent)
    }

    /// Parents that name the route, or all routes of its namespace, as children.
    pub(super) fn listers(&self, child: &ObjectKey) -> impl Iterator<Item = &ObjectKey> {
        let any =
            ObjectKey { kind: child.kind, name: ObjectName::new(child.name.namespace.clone(), ANY_NAME) };
        let any_there = self.listers.in_range(any.clone(), move |target| *target == any);
        self.listers.of(child).chain(any_there)
    }

    /// Routes whose backendRefs name routes of a namespace.
    pub(super) fn listers_in(&self, namespace: &str) -> impl Iterator<Item = &ObjectKey> {
        Kind::routes().flat_map(move |kind| {
            let first = ObjectKey { kind, name: ObjectName::new(namespace, "") };
            let is_there =
                move |target: &ObjectKey| target.kind == kind && *target.name.namespace == *namespace;
            self.listers.in_range(first, is_there)
        })
    }

    /// All routes of a namespace.
    pub(super) fn in_namespace<'n>(&'n self, namespace: &'n str) -> impl Iterator<Item = &'n ObjectKey> {
        Kind::routes().flat_map(move |kind| self.of_kind_in(kind, namespace))
    }

    fn of_kind_in<'n>(&'n self, kind: Kind, namespace: &'n str) -> impl Iterator<Item = &'n ObjectKey> {
        let first = ObjectKey { kind, name: ObjectName::new(namespace, "") };
        let keys = self.parsed.range(first..).map(|(key, _)| key);
        keys.take_while(move |key| key.kind == kind && *key.name.namespace == *namespace)
    }

    /// The routes that name a route as their parent, and those that it names as its children.
    pub(super) fn candidates(&self, parent: &ParsedRoute) -> Vec<Arc<ParsedRoute>> {
        let mut keys: BTreeSet<&ObjectKey> = self.children(&parent.key).collect();
        let listed = listed_by(parent);
        for listed in &listed {
            if &*listed.name.name == ANY_NAME {
                keys.extend(self.of_kind_in(listed.kind, &listed.name.namespace));
            } else {
                keys.insert(listed);
            }
        }
        keys.into_iter().filter_map(|key| self.parsed.get(key)).cloned().collect()
    }

    /// True if a rule of the route admits children by the labels of their namespace.
    pub(super) fn selects_by_label(&self, parent: &ObjectKey) -> bool {
        let rules = self.parsed.get(parent).into_iter().flat_map(|parsed| &parsed.rules);
        let mut delegations = rules.filter_map(|rule| rule.delegation.as_ref());
        delegations.any(|delegation| match delegation {
            Delegation::Allowed(allowed) => {
                let rule = NamespaceRule::new(allowed.namespaces.as_ref(), NamespaceRule::Same);
                matches!(rule, NamespaceRule::Selector(_))
            }
            Delegation::Listed(_) => false,
        })
    }
}

/// Parsed once per version of the object.
fn parse(
    key: &ObjectKey,
    before: Option<&Arc<ParsedRoute>>,
    defaults: &DefaultGateways,
    objects: &Objects,
) -> Option<Arc<ParsedRoute>> {
    let object = objects.get(key)?;
    let parsed = match before.filter(|parsed| parsed.source.is(&object)) {
        Some(parsed) => parsed.clone(),
        None => Arc::new(route::parse(&object)?),
    };
    if parsed.default_scope == DefaultScope::None {
        return Some(parsed);
    }
    let attached = parsed.with_default_gateways(defaults.all());
    Some(if attached.parent_refs == parsed.parent_refs { parsed } else { Arc::new(attached) })
}

/// The routes that a route names as its parents.
pub(super) fn parents_of(route: &ParsedRoute) -> BTreeSet<ObjectKey> {
    route.parent_routes().filter_map(|(_, reference)| parent_route(route.key.kind, reference)).collect()
}

pub(super) fn parent_route(kind: Kind, reference: &ParentReference) -> Option<ObjectKey> {
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
