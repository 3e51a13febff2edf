//! The policies of one kind by what they target. Of several on one target the oldest is in force as
//! a whole, then the first by name.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::ObjectKey;
use portcullis_model::ObjectName;

use crate::policy::declared::{Declared, Target};

#[derive(Debug)]
pub(super) struct InForce<T> {
    declared: BTreeMap<ObjectName, Declared<T>>,
    /// By target, its policies in order of precedence.
    by_target: BTreeMap<Target, BTreeSet<(i64, ObjectName)>>,
}

// === impl InForce ===

impl<T> Default for InForce<T> {
    fn default() -> Self {
        Self { declared: BTreeMap::new(), by_target: BTreeMap::new() }
    }
}

impl<T> InForce<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.declared.is_empty()
    }

    /// A policy, in force or not.
    pub(super) fn get(&self, policy: &ObjectName) -> Option<&Declared<T>> {
        self.declared.get(policy)
    }

    /// The policy that is in force for a target.
    pub(super) fn on(&self, target: &Target) -> Option<&ObjectName> {
        self.by_target.get(target)?.first().map(|(_, policy)| policy)
    }

    /// True if the policy is in force for a target, or comes next when that which is goes.
    pub(super) fn is_in_line(&self, policy: &ObjectName, target: &Target) -> bool {
        let mut line = self.by_target.get(target).into_iter().flatten().take(2);
        line.any(|(_, name)| name == policy)
    }

    /// The terms of the policy that is in force for a target, with its name.
    pub(super) fn terms(&self, target: &Target) -> Option<(&ObjectName, &T)> {
        let policy = self.on(target)?;
        self.declared.get(policy).map(|declared| (policy, &declared.terms))
    }

    /// The objects of which targets were or are, the sections included, are added to `targeted`.
    pub(super) fn replace(
        &mut self,
        name: &ObjectName,
        now: Option<Declared<T>>,
        targeted: &mut BTreeSet<ObjectKey>,
    ) {
        if let Some(before) = self.declared.remove(name) {
            for target in &before.targets {
                if let Some(policies) = self.by_target.get_mut(target) {
                    policies.remove(&(before.created, name.clone()));
                    if policies.is_empty() {
                        self.by_target.remove(target);
                    }
                }
            }
            targeted.extend(before.targets.iter().map(|target| target.object.clone()));
        }
        if let Some(now) = now {
            for target in &now.targets {
                let policies = self.by_target.entry(target.clone()).or_default();
                policies.insert((now.created, name.clone()));
                targeted.insert(target.object.clone());
            }
            self.declared.insert(name.clone(), now);
        }
    }

    /// The targets that an object is, and those that its sections are.
    pub(super) fn targets_at<'p>(
        &'p self,
        object: &ObjectKey,
    ) -> impl Iterator<Item = &'p Target> + use<'p, T> {
        let first = Target::whole(object.clone());
        let (object, targets) = (object.clone(), self.by_target.range(first..));
        targets.map(|(target, _)| target).take_while(move |target| target.object == object)
    }

    /// The policies on an object, or on sections of it, in force or not.
    pub(super) fn policies_on<'p>(
        &'p self,
        object: &ObjectKey,
    ) -> impl Iterator<Item = &'p ObjectName> + use<'p, T> {
        let targets = self.targets_at(object).filter_map(|target| self.by_target.get(target));
        targets.flatten().map(|(_, policy)| policy)
    }
}
