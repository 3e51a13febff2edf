//! Stage: the way in which Services are spoken to, by BackendPolicies. One on a port goes before
//! those on its Service, each field for itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::ObjectName;

use super::changes::ChangedObjects;
use super::in_force::InForce;
use crate::policy::backend::{Terms, declared};
use crate::policy::declared::Target;

#[derive(Debug, Default)]
pub(super) struct BackendPolicies {
    policies: InForce<Terms>,
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
    pub(super) fn policies(&self) -> &InForce<Terms> {
        &self.policies
    }

    pub(super) fn update(&mut self, changed: &ChangedObjects, objects: &Objects) -> ChangedBackendPolicies {
        let mut now_changed = ChangedBackendPolicies::default();
        let mut targeted = BTreeSet::new();
        for name in changed.of(Kind::BackendPolicy) {
            let policy = objects.backend_policies.get(name);
            self.policies.replace(name, policy.map(|policy| declared(name, policy)), &mut targeted);
            now_changed.policies.insert(name.clone());
        }
        for object in targeted {
            now_changed.policies.extend(self.policies.policies_on(&object).cloned());
            now_changed.services.insert(object.name);
        }
        now_changed
    }

    /// The policies that target a Service, or one of its ports.
    pub(super) fn on<'p>(&'p self, service: &ObjectName) -> impl Iterator<Item = &'p ObjectName> + use<'p> {
        self.policies.policies_on(&ObjectKey::new(Kind::Service, service.clone()))
    }

    /// The terms for a port of a Service, whose name it may have; `None` if there are none.
    pub(super) fn terms(&self, service: &ObjectName, port: Option<&str>) -> Option<Terms> {
        if self.policies.is_empty() {
            return None;
        }
        let whole = Target::whole(ObjectKey::new(Kind::Service, service.clone()));
        let own = port.and_then(|port| {
            let target = Target { section: Some(Arc::from(port)), ..whole.clone() };
            self.policies.terms(&target)
        });
        match (own, self.policies.terms(&whole)) {
            (Some((_, own)), Some((_, wider))) => Some(own.clone().over(wider)),
            (own, wider) => own.or(wider).map(|(_, terms)| terms.clone()),
        }
    }
}
