//! Stage: the policies that are objects, by what they target: which Services have to be spoken to
//! in TLS, and how (BackendTLSPolicy). Of several policies on one target the oldest is in force,
//! and one on a port goes before those on its Service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::{Encryption, ObjectName};

use super::changes::ChangedObjects;
use super::relation::Relation;
use crate::feedback::Observations;
use crate::policy::authorities::{HOLDERS, Holders};
use crate::policy::backend_tls::{Declared, Target, TlsPolicy};

#[derive(Debug, Default)]
pub(super) struct Policies {
    declared: BTreeMap<ObjectName, Arc<Declared>>,
    /// Policies by the Services that they target.
    by_service: Relation<ObjectName, ObjectName>,
    /// Policies by the objects with their authorities.
    by_holder: Relation<ObjectKey, ObjectName>,
    /// True if there may be others, which cannot be read.
    are_unread: bool,
}

#[derive(Debug, Default)]
pub(super) struct ChangedPolicies {
    /// The Services that other policies apply to than before, or the same ones in another way.
    pub(super) services: BTreeSet<ObjectName>,
    /// Of all others it is known now, or not any more, whether policies apply to them.
    pub(super) all: bool,
    /// Policies of which something else is to be said: they changed, or others with their targets
    /// did.
    pub(super) policies: BTreeSet<ObjectName>,
}

// === impl Policies ===

impl Policies {
    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        sources: Holders<'_>,
        observations: &Observations,
    ) -> ChangedPolicies {
        let are_unread = observations.is_unread(Kind::BackendTlsPolicy);
        let all = std::mem::replace(&mut self.are_unread, are_unread) != are_unread;
        let mut now_changed = ChangedPolicies { all, ..ChangedPolicies::default() };
        for name in self.affected(changed) {
            let policy = sources.objects.backend_tls_policies.get(&name);
            let now = policy.map(|policy| Declared::of(&name, policy, sources));
            let before = self.declared.remove(&name);
            let [services_before, services_now] =
                [before.as_deref(), now.as_ref()].map(|declared| services(declared));
            self.by_service.update(&name, &services_before, &services_now);
            let holders =
                |declared: Option<&Declared>| declared.map(|it| it.holders.clone()).unwrap_or_default();
            self.by_holder.update(&name, &holders(before.as_deref()), &holders(now.as_ref()));
            let is_same = before.as_deref().zip(now.as_ref()).is_some_and(|(before, now)| {
                (&before.targets, &before.tls, before.created) == (&now.targets, &now.tls, now.created)
            });
            if !is_same {
                let services: BTreeSet<_> = services_before.union(&services_now).cloned().collect();
                now_changed.policies.extend(services.iter().flat_map(|service| self.on(service)).cloned());
                now_changed.services.extend(services);
            }
            if let Some(now) = now {
                self.declared.insert(name.clone(), Arc::new(now));
            }
            now_changed.policies.insert(name);
        }
        now_changed
    }

    /// The policies that changed, or their authorities did.
    fn affected(&self, changed: &ChangedObjects) -> BTreeSet<ObjectName> {
        let mut affected: BTreeSet<_> = changed.of(Kind::BackendTlsPolicy).cloned().collect();
        for kind in HOLDERS {
            for name in changed.of(kind) {
                affected.extend(self.by_holder.of(&ObjectKey { kind, name: name.clone() }).cloned());
            }
        }
        affected
    }

    pub(super) fn get(&self, policy: &ObjectName) -> Option<&Arc<Declared>> {
        self.declared.get(policy)
    }

    /// The policies that target a Service, or one of its ports.
    pub(super) fn on<'p>(&'p self, service: &'p ObjectName) -> impl Iterator<Item = &'p ObjectName> {
        self.by_service.of(service)
    }

    /// The policy on a port of a Service.
    pub(super) fn tls_to(&self, service: &ObjectName, port: Option<&str>) -> TlsPolicy<'_> {
        let targets = self.targets_at(service).filter(|(_, target, _)| target.covers(port));
        let first = targets
            .min_by_key(|(policy, target, declared)| (target.section.is_none(), declared.created, *policy));
        match first {
            Some((policy, _, declared)) => TlsPolicy::InForce(policy, &declared.tls),
            None if self.are_unread => TlsPolicy::Unknown,
            None => TlsPolicy::None,
        }
    }

    /// The way to speak to a port of a Service.
    pub(super) fn encryption(&self, service: &ObjectName, port: Option<&str>) -> Encryption {
        self.tls_to(service, port).encryption()
    }

    /// The policy that is in force for a target: the oldest, then the first by name.
    pub(super) fn in_force(&self, target: &Target) -> Option<&ObjectName> {
        let same = self.targets_at(&target.service).filter(|(_, other, _)| *other == target);
        let first = same.min_by_key(|(policy, _, declared)| (declared.created, *policy));
        first.map(|(policy, ..)| policy)
    }

    fn targets_at(&self, service: &ObjectName) -> impl Iterator<Item = (&ObjectName, &Target, &Declared)> {
        let policies = self.by_service.of(service).filter_map(|name| self.declared.get_key_value(name));
        policies.flat_map(move |(name, declared)| {
            let targets = declared.targets.iter().filter(move |target| target.service == *service);
            targets.map(move |target| (name, target, &**declared))
        })
    }

    /// The Services that a policy targets; none if there is no such policy.
    pub(super) fn services(&self, policy: &ObjectName) -> BTreeSet<ObjectName> {
        services(self.declared.get(policy).map(|it| &**it))
    }
}

fn services(declared: Option<&Declared>) -> BTreeSet<ObjectName> {
    declared.into_iter().flat_map(|it| &it.targets).map(|target| target.service.clone()).collect()
}
