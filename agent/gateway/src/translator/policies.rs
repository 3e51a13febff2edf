//! Stage: the policies that are objects, by what they target: which Services have to be spoken to
//! in TLS (BackendTLSPolicy).

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::{Kind, Objects};
use portcullis_model::ObjectName;

use super::changes::ChangedObjects;
use super::relation::Relation;
use crate::feedback::Observations;
use crate::policy::backend_tls::{self, BackendTls, Target};

#[derive(Debug, Default)]
pub(super) struct Policies {
    targets: BTreeMap<ObjectName, Box<[Target]>>,
    /// Policies by the Services that they target.
    by_service: Relation<ObjectName, ObjectName>,
    /// True if there may be others, which cannot be read.
    are_unread: bool,
}

/// The Services that other policies apply to than before.
#[derive(Debug, Default)]
pub(super) struct ChangedPolicies {
    pub(super) services: BTreeSet<ObjectName>,
    /// Of all others it is known now, or not any more, whether policies apply to them.
    pub(super) all: bool,
}

// === impl Policies ===

impl Policies {
    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        objects: &Objects,
        observations: &Observations,
    ) -> ChangedPolicies {
        let are_unread = observations.is_unread(Kind::BackendTlsPolicy);
        let all = std::mem::replace(&mut self.are_unread, are_unread) != are_unread;
        let mut now_changed = ChangedPolicies { all, ..ChangedPolicies::default() };
        for name in changed.of(Kind::BackendTlsPolicy) {
            let policy = objects.backend_tls_policies.get(name);
            let now = policy.map(|policy| backend_tls::targets(name, policy)).unwrap_or_default();
            let before = self.targets.remove(name).unwrap_or_default();
            let [services_before, services_now] = [&before, &now].map(|targets| services(targets));
            self.by_service.update(name, &services_before, &services_now);
            if before != now {
                now_changed.services.extend(services_before.into_iter().chain(services_now));
            }
            if policy.is_some() {
                self.targets.insert(name.clone(), now);
            }
        }
        now_changed
    }

    /// The policies that target a Service, or one of its ports.
    pub(super) fn on<'p>(&'p self, service: &'p ObjectName) -> impl Iterator<Item = &'p ObjectName> {
        self.by_service.of(service)
    }

    /// Tells whether a port of a Service has to be spoken to in TLS.
    pub(super) fn tls_to<'p>(&'p self, service: &'p ObjectName, port: Option<&str>) -> BackendTls<'p> {
        let asking = self.on(service).find(|policy| {
            let mut targets = self.targets(policy).iter();
            targets.any(|target| target.service == *service && target.covers(port))
        });
        match asking {
            Some(policy) => BackendTls::Asked(policy),
            None if self.are_unread => BackendTls::Unknown,
            None => BackendTls::NotAsked,
        }
    }

    /// The Services, or their ports, that a policy names; none if there is no such policy.
    pub(super) fn targets(&self, policy: &ObjectName) -> &[Target] {
        self.targets.get(policy).map(|it| &**it).unwrap_or_default()
    }

    /// The Services that a policy targets; none if there is no such policy.
    pub(super) fn services(&self, policy: &ObjectName) -> BTreeSet<ObjectName> {
        services(self.targets(policy))
    }
}

fn services(targets: &[Target]) -> BTreeSet<ObjectName> {
    targets.iter().map(|target| target.service.clone()).collect()
}
