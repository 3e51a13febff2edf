//! Reverse look-ups: who depends on an object.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_model::ObjectName;

use crate::listener::ParentKey;
use crate::{Kind, ObjectKey};

#[derive(Debug, Default)]
pub(super) struct Index {
    /// Who refers to a Secret.
    pub(super) secrets: Relation<ObjectName, ParentKey>,
    /// Who asks to be a child of a Gateway, admitted or not.
    pub(super) children: Relation<ObjectName, ParentKey>,
    pub(super) routes_by_parent: Relation<ParentKey, ObjectKey>,
    /// Routes by the routes that their parentRefs name.
    pub(super) children_of_route: Relation<ObjectKey, ObjectKey>,
    /// Routes by the routes that their backendRefs name; a name `*` stands for all of the namespace.
    pub(super) listers: Relation<ObjectKey, ObjectKey>,
    pub(super) routes_by_service: Relation<ObjectName, ObjectKey>,
    pub(super) slices_by_service: Relation<ObjectName, ObjectName>,
}

impl Index {
    /// Routes whose backendRefs name routes of a kind and namespace.
    pub(super) fn listers_in(&self, kind: Kind, namespace: &str) -> impl Iterator<Item = &ObjectKey> {
        let first = ObjectKey { kind, name: ObjectName::new(namespace, "") };
        let targets = self.listers.by_target.range(first..);
        targets
            .take_while(move |(target, _)| target.kind == kind && *target.name.namespace == *namespace)
            .flat_map(|(_, listers)| listers)
    }
}

/// Many to many, looked up by the object depended on.
#[derive(Debug)]
pub(super) struct Relation<To, From> {
    by_target: BTreeMap<To, BTreeSet<From>>,
}

impl<To, From> Default for Relation<To, From> {
    fn default() -> Self {
        Self { by_target: BTreeMap::new() }
    }
}

impl<To: Ord + Clone, From: Ord + Clone> Relation<To, From> {
    /// Makes `from` depend on `now` instead of `before`.
    pub(super) fn update(&mut self, from: &From, before: &BTreeSet<To>, now: &BTreeSet<To>) {
        before.difference(now).for_each(|target| self.remove(target, from));
        now.difference(before).for_each(|target| self.insert(target.clone(), from.clone()));
    }

    /// The same of short ordered lists.
    pub(super) fn update_list(&mut self, from: &From, before: &[To], now: &[To]) {
        only_in(before, now).for_each(|target| self.remove(target, from));
        only_in(now, before).for_each(|target| self.insert(target.clone(), from.clone()));
    }

    pub(super) fn insert(&mut self, target: To, from: From) {
        self.by_target.entry(target).or_default().insert(from);
    }

    pub(super) fn remove(&mut self, target: &To, from: &From) {
        if let Some(dependents) = self.by_target.get_mut(target) {
            dependents.remove(from);
            if dependents.is_empty() {
                self.by_target.remove(target);
            }
        }
    }

    pub(super) fn of(&self, target: &To) -> impl Iterator<Item = &From> {
        self.by_target.get(target).into_iter().flatten()
    }
}

/// The elements of one ordered list that another one lacks.
pub(super) fn only_in<'l, T: Ord>(list: &'l [T], other: &'l [T]) -> impl Iterator<Item = &'l T> {
    list.iter().filter(|element| other.binary_search(element).is_err())
}

impl<From: Ord + Clone> Relation<ObjectName, From> {
    /// Everyone who depends on something in a namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &From> {
        self.by_target
            .range(ObjectName::new(namespace, "")..)
            .take_while(move |(target, _)| *target.namespace == *namespace)
            .flat_map(|(_, dependents)| dependents)
    }
}
