//! Stage: the way in which Services are spoken to, by BackendPolicies, and how much of their
//! traffic may be retries, and the sessions of their clients, by XBackendTrafficPolicies. A
//! BackendPolicy on a port goes before those on its Service, each field for itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::types::shared::SessionPersistence;
use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::{ObjectName, RetryBudget};

use super::changes::ChangedObjects;
use super::in_force::InForce;
use crate::policy::backend::{self, Terms};
use crate::policy::backend_traffic::{self, TrafficTerms};
use crate::policy::declared::Target;
use crate::route::check_sessions;

#[derive(Debug, Default)]
pub(super) struct BackendPolicies {
    policies: InForce<Terms>,
    traffic: InForce<TrafficTerms>,
}

#[derive(Debug, Default)]
pub(super) struct ChangedBackendPolicies {
    /// The Services that other policies apply to than before, or the same ones in another way.
    pub(super) services: BTreeSet<ObjectName>,
    /// Those of them that other XBackendTrafficPolicies apply to: rules may have other sessions.
    pub(super) sessions: BTreeSet<ObjectName>,
    /// Policies of which something else is to be said: they changed, or others with their targets
    /// did.
    pub(super) policies: BTreeSet<ObjectKey>,
}

// === impl BackendPolicies ===

impl BackendPolicies {
    pub(super) fn policies(&self) -> &InForce<Terms> {
        &self.policies
    }

    pub(super) fn traffic(&self) -> &InForce<TrafficTerms> {
        &self.traffic
    }

    pub(super) fn update(&mut self, changed: &ChangedObjects, objects: &Objects) -> ChangedBackendPolicies {
        let mut now_changed = ChangedBackendPolicies::default();
        let (mut targeted, mut with_traffic) = (BTreeSet::new(), BTreeSet::new());
        for name in changed.of(Kind::BackendPolicy) {
            let policy = objects.backend_policies.get(name);
            let policy = policy.map(|policy| backend::declared(name, policy));
            self.policies.replace(name, policy, &mut targeted);
            now_changed.policies.insert(ObjectKey::new(Kind::BackendPolicy, name.clone()));
        }
        for name in changed.of(Kind::XBackendTrafficPolicy) {
            let policy = objects.backend_traffic_policies.get(name);
            let policy = policy.map(|policy| backend_traffic::declared(name, policy, check_sessions));
            self.traffic.replace(name, policy, &mut with_traffic);
            now_changed.policies.insert(ObjectKey::new(Kind::XBackendTrafficPolicy, name.clone()));
        }
        now_changed.sessions.extend(with_traffic.iter().map(|object| object.name.clone()));
        for object in targeted.into_iter().chain(with_traffic) {
            now_changed.policies.extend(self.on(&object.name));
            now_changed.services.insert(object.name);
        }
        now_changed
    }

    /// The policies that target a Service, or one of its ports.
    pub(super) fn on<'p>(&'p self, service: &ObjectName) -> impl Iterator<Item = ObjectKey> + use<'p> {
        let service = ObjectKey::new(Kind::Service, service.clone());
        let of_kind = |kind| move |name: &ObjectName| ObjectKey::new(kind, name.clone());
        let traffic = self.traffic.policies_on(&service).map(of_kind(Kind::XBackendTrafficPolicy));
        self.policies.policies_on(&service).map(of_kind(Kind::BackendPolicy)).chain(traffic)
    }

    /// The budget of retries for a Service; `None` if there is none.
    pub(super) fn retry_budget(&self, service: &ObjectName) -> Option<Arc<RetryBudget>> {
        if self.traffic.is_empty() {
            return None;
        }
        let whole = Target::whole(ObjectKey::new(Kind::Service, service.clone()));
        self.traffic.terms(&whole)?.1.retry_budget(service)
    }

    /// The sessions of clients with a Service, as its policy has them.
    pub(super) fn sessions(&self, service: &ObjectName) -> Option<&SessionPersistence> {
        if self.traffic.is_empty() {
            return None;
        }
        let whole = Target::whole(ObjectKey::new(Kind::Service, service.clone()));
        self.traffic.terms(&whole)?.1.sessions.as_deref()
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
