//! Stage: the terms on which clients are let in at listeners, by ListenerPolicies. Those of all
//! levels hold: of the Gateway that a listener is merged into, of the object that defines it, and
//! its own. So a child can ask for more than its parent, never for less. Of several policies on one
//! target the oldest is in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{Kind, Objects};
use portcullis_model::{Admission, ClientRules, ObjectName, ParentKind, ProxyProtocol};

use super::changes::ChangedObjects;
use super::gateways::ChangedGateways;
use super::hierarchy::{ChangedHierarchy, Hierarchy};
use super::listeners::ChangedListeners;
use crate::feedback::Observations;
use crate::listener::{ListenerKey, ParentKey};
use crate::policy::listener::{Declared, Target, Terms};

#[derive(Debug, Default)]
pub(super) struct Admissions {
    policies: BTreeMap<ObjectName, Declared>,
    /// By target, its policies in order of precedence.
    by_target: BTreeMap<Target, BTreeSet<(i64, ObjectName)>>,
    /// The terms for all listeners of an object, if there are any.
    of_parents: BTreeMap<ParentKey, Arc<Admission>>,
    /// The terms for listeners that are targets themselves.
    of_listeners: BTreeMap<ListenerKey, Arc<Admission>>,
    /// True if there may be policies that cannot be read.
    are_unread: bool,
    /// The terms of all others.
    none: Arc<Admission>,
}

#[derive(Debug, Default)]
pub(super) struct ChangedAdmissions {
    /// The objects that policies apply to, or did; not all have other terms than before.
    pub(super) parents: BTreeSet<ParentKey>,
    /// Policies of which something else is to be said: they changed, or their targets did.
    pub(super) policies: BTreeSet<ObjectName>,
}

/// The changes of earlier stages.
#[derive(Clone, Copy)]
pub(super) struct Changes<'c> {
    pub(super) objects: &'c ChangedObjects,
    pub(super) listeners: &'c ChangedListeners,
    pub(super) hierarchy: &'c ChangedHierarchy,
    pub(super) gateways: &'c ChangedGateways,
}

// === impl Admissions ===

impl Admissions {
    pub(super) fn of(&self, listener: &ListenerKey) -> &Arc<Admission> {
        let own = self.of_listeners.get(listener).or_else(|| self.of_parents.get(&listener.0));
        own.unwrap_or(&self.none)
    }

    /// The terms of a listener of UDP, whose clients no proxy can name: a policy on the very
    /// listener that has them named closes it.
    pub(super) fn of_datagrams(&self, listener: &ListenerKey) -> Arc<Admission> {
        let (parent, name) = listener;
        let target = Target { section: Some(name.clone()), ..whole(parent) };
        let policy = self.in_force(&target).and_then(|policy| self.policies.get(policy));
        let admission = self.of(listener);
        if policy.is_some_and(|policy| policy.terms.proxies().is_some()) {
            Arc::new(Terms::without_clients())
        } else if admission.proxies.is_some() {
            Arc::new(Admission { proxies: None, ..(**admission).clone() })
        } else {
            admission.clone()
        }
    }

    pub(super) fn policy(&self, name: &ObjectName) -> Option<&Declared> {
        self.policies.get(name)
    }

    /// The policy that is in force for a target: the oldest, then the first by name.
    pub(super) fn in_force(&self, target: &Target) -> Option<&ObjectName> {
        self.by_target.get(target)?.first().map(|(_, policy)| policy)
    }

    /// True if no client is let in anywhere, because there may be policies that cannot be read.
    pub(super) fn are_unread(&self) -> bool {
        self.are_unread
    }

    pub(super) fn update(
        &mut self,
        changes: Changes<'_>,
        hierarchy: &Hierarchy,
        objects: &Objects,
        observations: &Observations,
    ) -> ChangedAdmissions {
        let mut targeted = BTreeSet::new();
        let mut now_changed = ChangedAdmissions::default();
        for name in changes.objects.of(Kind::ListenerPolicy) {
            let policy = objects.listener_policies.get(name);
            self.replace(name, policy.map(|policy| Declared::of(name, policy)), &mut targeted);
            now_changed.policies.insert(name.clone());
        }
        for parent in targeted.iter().chain(changes.parents(hierarchy).iter()) {
            now_changed.policies.extend(self.policies_on(parent).cloned());
        }

        let are_unread = observations.is_unread(Kind::ListenerPolicy);
        if std::mem::replace(&mut self.are_unread, are_unread) != are_unread {
            targeted.extend(hierarchy.keys().cloned());
        }
        // Gateways come first: what is attached to them may have the same terms.
        let children = targeted.iter().filter(|parent| parent.kind == ParentKind::Gateway);
        let children: Vec<_> =
            children.flat_map(|parent| hierarchy.children(&parent.name)).cloned().collect();
        for parent in targeted.iter().chain(&children).chain(&changes.hierarchy.moved) {
            self.compose(parent, hierarchy);
        }
        now_changed.parents = targeted;
        now_changed.parents.extend(children);
        now_changed
    }

    fn replace(&mut self, name: &ObjectName, now: Option<Declared>, targeted: &mut BTreeSet<ParentKey>) {
        if let Some(before) = self.policies.remove(name) {
            for target in &before.targets {
                if let Some(policies) = self.by_target.get_mut(target) {
                    policies.remove(&(before.created, name.clone()));
                    if policies.is_empty() {
                        self.by_target.remove(target);
                    }
                }
            }
            targeted.extend(before.targets.iter().map(parent_of));
        }
        if let Some(now) = now {
            for target in &now.targets {
                let policies = self.by_target.entry(target.clone()).or_default();
                policies.insert((now.created, name.clone()));
                targeted.insert(parent_of(target));
            }
            self.policies.insert(name.clone(), now);
        }
    }

    /// The targets that an object is, and those that its listeners are.
    fn targets_at(&self, parent: &ParentKey) -> impl Iterator<Item = &Target> {
        let first = whole(parent);
        let targets = self.by_target.range(first..).map(|(target, _)| target);
        targets.take_while(move |target| (target.kind, &target.name) == (parent.kind, &parent.name))
    }

    /// The policies on an object, or on listeners of it.
    pub(super) fn policies_on(&self, parent: &ParentKey) -> impl Iterator<Item = &ObjectName> {
        let targets = self.targets_at(parent).filter_map(|target| self.by_target.get(target));
        targets.flatten().map(|(_, policy)| policy)
    }

    fn compose(&mut self, parent: &ParentKey, hierarchy: &Hierarchy) {
        let gateway = hierarchy.gateway_of(parent).cloned();
        let gateway = gateway.map(|name| ParentKey { kind: ParentKind::Gateway, name });
        let mut levels = vec![whole(parent)];
        levels.extend(gateway.iter().filter(|gateway| *gateway != parent).map(whole));
        let now = gateway.as_ref().and_then(|gateway| self.terms(&levels, gateway));
        let of_gateway = gateway.as_ref().and_then(|gateway| self.of_parents.get(gateway)).cloned();
        put(&mut self.of_parents, parent, now, of_gateway.as_ref());

        let before = self.of_listeners.range((parent.clone(), Arc::from(""))..);
        let before = before.map(|(listener, _)| listener).take_while(|(holder, _)| holder == parent);
        let targets = self.targets_at(parent).filter_map(|target| target.section.clone());
        let now = targets.map(|section| (parent.clone(), section));
        let listeners: BTreeSet<ListenerKey> = before.cloned().chain(now).collect();
        for listener in listeners {
            let own = Target { section: Some(listener.1.clone()), ..whole(parent) };
            let of = gateway.as_ref().filter(|_| self.by_target.contains_key(&own));
            let levels: Vec<_> = std::iter::once(own).chain(levels.iter().cloned()).collect();
            let now = of.and_then(|gateway| self.terms(&levels, gateway));
            put(&mut self.of_listeners, &listener, now, None);
        }
    }

    /// The terms of all levels, from the listener's own on; `None` if there are none. Who the
    /// client is, only the owner of the Gateway can say: its ports are others', too.
    fn terms(&self, levels: &[Target], gateway: &ParentKey) -> Option<Admission> {
        let unread = Terms::closed();
        let of_level = |target| self.policies.get(self.in_force(target)?).map(|it| (target, &it.terms));
        let terms: Vec<_> = levels.iter().filter_map(of_level).collect();
        let budgets = terms.iter().filter_map(|(target, terms)| terms.budget(target)).collect::<Vec<_>>();
        let lists = terms.iter().filter_map(|(_, terms)| terms.clients());
        let is_misplaced =
            |target: &Target, terms: &Terms| terms.proxies().is_some() && parent_of(target) != *gateway;
        let closed = self.are_unread || terms.iter().any(|(target, terms)| is_misplaced(target, terms));
        let unread = unread.clients().filter(|_| closed);
        let lists: Vec<_> = lists.chain(unread).cloned().collect();
        let proxies = terms.iter().filter(|(target, _)| parent_of(target) == *gateway);
        let proxies: Vec<_> = proxies.filter_map(|(_, terms)| terms.proxies()).collect();
        let proxies = proxies.iter().map(|it| it.others).max().map(|others| {
            let levels = proxies.iter().map(|it| it.from.clone()).collect();
            Arc::new(ProxyProtocol { levels, others })
        });
        let clients = (!lists.is_empty()).then(|| Arc::new(ClientRules::new(lists)));
        let admission = Admission { budgets, clients, proxies };
        (admission != Admission::default()).then_some(admission)
    }
}

/// The object as a target.
pub(super) fn whole(parent: &ParentKey) -> Target {
    Target { kind: parent.kind, name: parent.name.clone(), section: None }
}

/// The object that a target is, or is part of.
pub(super) fn parent_of(target: &Target) -> ParentKey {
    ParentKey { kind: target.kind, name: target.name.clone() }
}

/// Keeps what is there if it is the same, and shares what `other` is if that is.
fn put<K: Ord + Clone>(
    map: &mut BTreeMap<K, Arc<Admission>>,
    key: &K,
    now: Option<Admission>,
    other: Option<&Arc<Admission>>,
) {
    let Some(now) = now else {
        map.remove(key);
        return;
    };
    if map.get(key).is_none_or(|before| **before != now) {
        let same = other.filter(|other| ***other == now).cloned();
        map.insert(key.clone(), same.unwrap_or_else(|| Arc::new(now)));
    }
}

// === impl Changes ===

impl Changes<'_> {
    /// The objects that may be another target than before: there or not, ours or not, served or
    /// not.
    fn parents(self, hierarchy: &Hierarchy) -> BTreeSet<ParentKey> {
        let gateway = |name: &ObjectName| ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let set = |name: &ObjectName| ParentKey { kind: ParentKind::ListenerSet, name: name.clone() };
        let mut parents: BTreeSet<_> = self.objects.of(Kind::Gateway).map(gateway).collect();
        parents.extend(self.objects.of(Kind::ListenerSet).map(set));
        parents.extend(self.listeners.parents.iter().chain(&self.hierarchy.moved).cloned());
        parents.extend(self.gateways.acceptances.iter().cloned());
        let above = parents.iter().filter_map(|parent| hierarchy.gateway_of(parent));
        let above: Vec<_> = above.chain(&self.hierarchy.gateways).map(gateway).collect();
        parents.extend(above);
        parents
    }
}
