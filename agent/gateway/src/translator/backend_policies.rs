//! Stage: the way in which Services are spoken to, by BackendPolicies. Of several on one target the
//! oldest is in force. One on a port goes before those on its Service, each field for itself.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::{Kind, Objects};
use portcullis_model::ObjectName;

use super::changes::ChangedObjects;
use super::relation::Relation;
use crate::policy::backend::{Declared, Terms};
use crate::policy::backend_tls::Target;

#[derive(Debug, Default)]
pub(super) struct BackendPolicies {
    declared: BTreeMap<ObjectName, Declared>,
    /// Policies by the Services that they target.
    by_service: Relation<ObjectName, ObjectName>,
}

#[derive(Debug, Default)]
pub(super) struct ChangedBackendPolicies {
    /// The Services that other policies apply to than before, or the same ones in another way.
    pub(super) services: BTreeSet<ObjectName>,
    /// Policies of which something else is to be said: they changed, or others with their targets
    /// did.
    pub(super) policies: BTreeSet<ObjectName>,
}

// === impl BackendPolicies ===

impl BackendPolicies {
    pub(super) fn update(&mut self, changed: &ChangedObjects, objects: &Objects) -> ChangedBackendPolicies {
        let mut now_changed = ChangedBackendPolicies::default();
        for name in changed.of(Kind::BackendPolicy) {
            let now = objects.backend_policies.get(name).map(|policy| Declared::of(name, policy));
            let before = self.declared.remove(name);
            let [services_before, services_now] = [&before, &now].map(|it| services(it.as_ref()));
            self.by_service.update(name, &services_before, &services_now);
            if let Some(now) = now {
                self.declared.insert(name.clone(), now);
            }
            for service in services_before.union(&services_now) {
                now_changed.policies.extend(self.on(service).cloned());
                now_changed.services.insert(service.clone());
            }
            now_changed.policies.insert(name.clone());
        }
        now_changed
    }

    pub(super) fn get(&self, policy: &ObjectName) -> Option<&Declared> {
        self.declared.get(policy)
    }

    /// The policies that target a Service, or one of its ports.
    pub(super) fn on<'p>(&'p self, service: &'p ObjectName) -> impl Iterator<Item = &'p ObjectName> {
        self.by_service.of(service)
    }

    /// The Services that a policy targets.
    pub(super) fn services(&self, policy: &ObjectName) -> BTreeSet<ObjectName> {
        services(self.declared.get(policy))
    }

    /// The policy that is in force for a target: the oldest, then the first by name.
    pub(super) fn in_force(&self, target: &Target) -> Option<(&ObjectName, &Declared)> {
        let policies =
            self.by_service.of(&target.service).filter_map(|name| self.declared.get_key_value(name));
        let same = policies.filter(|(_, declared)| declared.targets.contains(target));
        same.min_by_key(|(name, declared)| (declared.created, *name))
    }

    /// The terms for a port of a Service, whose name it may have; `None` if there are none.
    pub(super) fn terms(&self, service: &ObjectName, port: Option<&str>) -> Option<Terms> {
        self.by_service.of(service).next()?;
        let of_target = |section: Option<&str>| {
            let target = Target { service: service.clone(), section: section.map(Box::from) };
            let (_, declared) = self.in_force(&target)?;
            declared.terms.as_ref().ok()
        };
        match (port.and_then(|port| of_target(Some(port))), of_target(None)) {
            (Some(own), Some(wider)) => Some(own.clone().over(wider)),
            (own, wider) => own.or(wider).cloned(),
        }
    }
}

fn services(declared: Option<&Declared>) -> BTreeSet<ObjectName> {
    declared.into_iter().flat_map(|it| &it.targets).map(|target| target.service.clone()).collect()
}
