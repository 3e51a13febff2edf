//! Stage: the terms of TrafficPolicies for requests, by listener and by rule. Each level protects,
//! the widest first: Gateway, the object that defines a listener, listener; then parent route, its
//! rule, route, rule. Of several policies on one target the oldest is in force. Where there are no
//! requests, what says which clients may come holds for them all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{GATEWAY_GROUP, Kind, ObjectKey};
use portcullis_model::{
    ClientList, Level, ObjectName, ParentKind, PolicyState, RateScope, RemoteKeySet, RuleId, TrafficPolicy,
};

use super::auth_services::AuthServices;
use super::changes::ChangedObjects;
use super::hierarchy::Hierarchy;
use super::in_force::InForce;
use super::known_services::{ChangedUses, KnownServices};
use super::policies::ChangedPolicies;
use super::relation::Relation;
use super::remote_key_sets::{InLine, RemoteKeySets};
use crate::feedback::Observations;
use crate::listener::{ListenerKey, ParentKey};
use crate::policy::credentials::{self, Holders, Parsed};
use crate::policy::declared::Target;
use crate::policy::listener;
use crate::policy::traffic::{Terms, declared};

#[derive(Debug, Default)]
pub(super) struct TrafficPolicies {
    policies: InForce<Terms>,
    /// By policy, the objects that credentials are checked against.
    holders: BTreeMap<ObjectName, BTreeSet<ObjectKey>>,
    /// Policies by these objects.
    by_holder: Relation<ObjectKey, ObjectName>,
    /// Their contents.
    parsed: Parsed,
    remote: RemoteKeySets,
    /// Those with limits of all agents together.
    sharing: BTreeSet<ObjectName>,
    auth_services: AuthServices,
    /// True if there may be policies that cannot be read.
    are_unread: bool,
}

#[derive(Debug, Default)]
pub(super) struct ChangedTraffic {
    /// The objects with listeners that policies apply to, or did.
    pub(super) parents: BTreeSet<ParentKey>,
    /// The routes that policies target, or did.
    pub(super) routes: BTreeSet<ObjectKey>,
    /// Policies of which something else is to be said: they changed, their targets did, or others
    /// on these.
    pub(super) policies: BTreeSet<ObjectName>,
    pub(super) key_sets: KeySets,
    /// Of Services with keys, and of auth services.
    pub(super) uses: ChangedUses,
    /// Services that policies ask which are read again, or asked before.
    pub(super) asked: BTreeSet<ObjectName>,
}

/// The key sets that policies name, compared with those before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KeySets {
    #[default]
    Same,
    Others,
}

// === impl TrafficPolicies ===

impl TrafficPolicies {
    pub(super) fn policies(&self) -> &InForce<Terms> {
        &self.policies
    }

    /// True if no request passes anywhere, because there may be policies that cannot be read.
    pub(super) fn are_unread(&self) -> bool {
        self.are_unread
    }

    /// True if the number of agents matters.
    pub(super) fn are_sharing(&self) -> bool {
        !self.sharing.is_empty()
    }

    /// True if the policy has limits of all agents together.
    pub(super) fn is_sharing(&self, policy: &ObjectName) -> bool {
        self.sharing.contains(policy)
    }

    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        targeted_services: &ChangedPolicies,
        hierarchy: &Hierarchy,
        services: KnownServices<'_>,
        observations: &Observations,
    ) -> ChangedTraffic {
        let objects = services.objects;
        let mut now_changed = ChangedTraffic::default();
        let (mut targeted, mut are_others) = (BTreeSet::new(), false);
        let mut affected = self.affected(changed);
        affected.extend(self.remote.affected(changed, targeted_services, services));
        affected.extend(self.auth_services.affected(changed, targeted_services, services));
        for name in affected {
            let policy = objects.traffic_policies.get(&name);
            let jwt = policy.and_then(|policy| policy.spec.jwt.as_ref());
            now_changed.asked.extend(self.asked_by(&name).cloned());
            let uses = (&mut now_changed.uses, &mut are_others);
            let remote = self.remote.replace(&name, jwt, services, uses);
            let written = policy.and_then(|policy| policy.spec.external_auth.as_ref());
            let auth = self.auth_services.replace(&name, written, &services, &mut now_changed.uses);
            now_changed.asked.extend(self.asked_by(&name).cloned());
            let holders = policy.map(|policy| credentials::references(&name.namespace, &policy.spec));
            let mut sources = Holders { objects, parsed: &mut self.parsed, remote: &remote };
            let now = policy.map(|policy| declared(&name, policy, &mut sources, auth));
            let terms = now.as_ref().map(|declared| &declared.terms.protection);
            let mut limits = terms.into_iter().flat_map(|protection| &protection.rate_limits);
            match limits.any(|limit| limit.scope == RateScope::Cluster) {
                true => drop(self.sharing.insert(name.clone())),
                false => drop(self.sharing.remove(&name)),
            }
            self.policies.replace(&name, now, &mut targeted);
            self.refer(&name, holders.unwrap_or_default());
            now_changed.policies.insert(name);
        }
        if are_others {
            now_changed.key_sets = KeySets::Others;
        }
        let mut others = BTreeSet::new();
        for kind in Kind::TrafficPolicy.targets().iter().copied() {
            others.extend(changed.of(kind).map(|name| ObjectKey { kind, name: name.clone() }));
        }
        for object in targeted.union(&others).filter(|_| !self.policies.is_empty()) {
            now_changed.policies.extend(self.policies.policies_on(object).cloned());
        }
        now_changed.parents = targeted.iter().filter_map(ParentKey::of).collect();
        now_changed.routes = targeted.into_iter().filter(|object| object.kind.is_route()).collect();
        let are_unread = observations.is_unread(Kind::TrafficPolicy);
        if std::mem::replace(&mut self.are_unread, are_unread) != are_unread {
            now_changed.parents.extend(hierarchy.keys().cloned());
        }
        let gateways = now_changed.parents.iter().filter(|parent| parent.kind == ParentKind::Gateway);
        let below: Vec<_> = gateways.flat_map(|parent| hierarchy.children(&parent.name)).cloned().collect();
        now_changed.parents.extend(below);
        now_changed
    }

    /// The policies that changed, or what their credentials are checked against did.
    fn affected(&mut self, changed: &ChangedObjects) -> BTreeSet<ObjectName> {
        let mut affected: BTreeSet<_> = changed.of(Kind::TrafficPolicy).cloned().collect();
        for kind in [Kind::ConfigMap, Kind::Secret] {
            for name in changed.of(kind) {
                let holder = ObjectKey { kind, name: name.clone() };
                if self.by_holder.of(&holder).next().is_some() {
                    affected.extend(self.by_holder.of(&holder).cloned());
                    self.parsed.forget(&holder);
                }
            }
        }
        affected
    }

    fn refer(&mut self, policy: &ObjectName, now: BTreeSet<ObjectKey>) {
        let before = self.holders.remove(policy).unwrap_or_default();
        self.by_holder.update(policy, &before, &now);
        for holder in before.difference(&now) {
            if self.by_holder.of(holder).next().is_none() {
                self.parsed.forget(holder);
            }
        }
        if !now.is_empty() {
            self.holders.insert(policy.clone(), now);
        }
    }

    /// The objects that the credentials of a policy are checked against, in order.
    pub(super) fn holders(&self, policy: &ObjectName) -> impl Iterator<Item = &ObjectKey> {
        self.holders.get(policy).into_iter().flatten()
    }

    /// The Services that a policy has key sets fetched from, and the one that it has asked about
    /// requests, found or not.
    pub(super) fn asked_by(&self, policy: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        self.remote.services(policy).chain(self.auth_services.of(policy))
    }

    /// The policies that so ask a Service.
    pub(super) fn asking<'p>(&'p self, service: &'p ObjectName) -> impl Iterator<Item = &'p ObjectName> {
        self.remote.fetching_from(service).chain(self.auth_services.naming(service))
    }

    pub(super) fn remote_key_sets(&self) -> &RemoteKeySets {
        &self.remote
    }

    /// The key sets that are to be fetched, if they are not the same as before: those of the
    /// policies that have effect, or come next. Adds to `changed` the policies of which something
    /// else is to be said.
    pub(super) fn fetch(
        &mut self,
        in_line: BTreeSet<ObjectName>,
        changed: &mut ChangedTraffic,
    ) -> Option<Arc<[Arc<RemoteKeySet>]>> {
        let order = self.remote.put_in_line(in_line);
        if (changed.key_sets, order) == (KeySets::Same, InLine::Same) {
            return None;
        }
        let (fetched, turned) = self.remote.fetched();
        changed.policies.extend(turned);
        Some(fetched)
    }

    /// The policy of a listener: its own level and those above it.
    pub(super) fn of_listener(
        &self,
        (holder, name): &ListenerKey,
        gateway: &ObjectName,
    ) -> Option<Arc<TrafficPolicy>> {
        let object = holder.object();
        let gateway = ObjectKey { kind: Kind::Gateway, name: gateway.clone() };
        let section = Target { object: object.clone(), section: Some(name.clone()) };
        let above = (gateway != object).then(|| self.at(&Target::whole(gateway))).flatten();
        let own = [Target::whole(object), section];
        let mut levels: Vec<_> = own.iter().filter_map(|it| self.at(it)).collect();
        if self.are_unread {
            let unknown = Terms::closed(&ObjectName::new("", "unknown"));
            levels.push(unknown.at(&Target::whole(holder.object())));
        }
        TrafficPolicy::below(above, levels)
    }

    /// The lists of clients that hold at a listener without requests: `allow` and `deny` of the
    /// policies on all of what it is part of, whose other fields have nothing to judge there. A
    /// policy on the listener itself is misplaced, and lets no client in; nor does one that cannot
    /// be followed, or read: it might have kept any of them out.
    pub(super) fn clients_without_requests(
        &self,
        (holder, name): &ListenerKey,
        gateway: &ObjectName,
    ) -> Vec<ClientList> {
        let object = holder.object();
        let gateway = ObjectKey { kind: Kind::Gateway, name: gateway.clone() };
        let section = Target { object: object.clone(), section: Some(name.clone()) };
        let above = (gateway != object).then_some(gateway);
        let wholes = above.into_iter().chain([object]).map(Target::whole);
        let levels = || wholes.clone().filter_map(|target| self.policies.terms(&target));
        let is_closed = |terms: &Terms| terms.protection.state == PolicyState::Closed;
        if self.are_unread
            || self.policies.on(&section).is_some()
            || levels().any(|(_, terms)| is_closed(terms))
        {
            return listener::Terms::closed().clients().cloned().into_iter().collect();
        }
        let clients = levels().filter_map(|(_, terms)| terms.protection.clients.as_ref());
        clients.flat_map(|clients| clients.levels()).cloned().collect()
    }

    /// The policy of a rule: its own level and those above it. `joined` are others that have become
    /// one with it.
    pub(super) fn of_rule(&self, id: &RuleId, joined: &[Arc<RuleId>]) -> Option<Arc<TrafficPolicy>> {
        if self.policies.is_empty() {
            return None;
        }
        let mut targets = Vec::new();
        for id in std::iter::once(id).chain(joined.iter().map(|id| &**id)) {
            for id in id.parent.as_deref().into_iter().chain([id]) {
                for target in targets_of(id) {
                    if !targets.contains(&target) {
                        targets.push(target);
                    }
                }
            }
        }
        TrafficPolicy::of(targets.iter().filter_map(|target| self.at(target)).collect())
    }

    fn at(&self, target: &Target) -> Option<Level> {
        let (_, terms) = self.policies.terms(target)?;
        Some(terms.at(target))
    }
}

/// A rule's route, and the rule itself, if it has a name.
fn targets_of(id: &RuleId) -> Vec<Target> {
    let Some(kind) = Kind::of(GATEWAY_GROUP, id.kind) else { return Vec::new() };
    let whole = Target::whole(ObjectKey { kind, name: ObjectName::clone(&id.route) });
    let named = id.name.clone().map(|name| Target { section: Some(name), ..whole.clone() });
    std::iter::once(whole).chain(named).collect()
}
