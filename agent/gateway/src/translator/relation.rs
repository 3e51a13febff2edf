//! Many-to-many relations, looked up by the object that others depend on.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_model::ObjectName;

#[derive(Debug)]
pub(super) struct Relation<To, From> {
    by_target: BTreeMap<To, BTreeSet<From>>,
}

// === impl Relation ===

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

    /// Those that depend on one of the targets from `first` on for which `is_in` holds.
    pub(super) fn in_range(&self, first: To, is_in: impl Fn(&To) -> bool) -> impl Iterator<Item = &From> {
        let targets = self.by_target.range(first..).take_while(move |(target, _)| is_in(target));
        targets.flat_map(|(_, dependents)| dependents)
    }
}

impl<From: Ord + Clone> Relation<ObjectName, From> {
    /// Those that depend on something in a namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &From> {
        self.in_range(ObjectName::new(namespace, ""), move |target| *target.namespace == *namespace)
    }
}

/// The elements of one ordered list that another one lacks.
pub(super) fn only_in<'l, T: Ord>(list: &'l [T], other: &'l [T]) -> impl Iterator<Item = &'l T> {
    list.iter().filter(|element| other.binary_search(element).is_err())
}
