//! The auth services that TrafficPolicies name: what they refer to, and which policies have to be
//! read again when that changes.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::Kind;
use portcullis_api::types::shared::ExternalAuth as Written;
use portcullis_model::{ExternalAuth, ObjectName};

use super::changes::ChangedObjects;
use super::known_services::{ChangedUses, KnownServices};
use super::policies::ChangedPolicies;
use super::relation::Relation;
use crate::Fault;
use crate::route::external_auth::ParsedAuth;
use crate::route::{BackendUse, Services};

#[derive(Debug, Default)]
pub(super) struct AuthServices {
    /// By policy that names one.
    named: BTreeMap<ObjectName, Named>,
    /// Policies by Service, found or not.
    by_service: Relation<ObjectName, ObjectName>,
}

#[derive(Debug)]
struct Named {
    /// `None` if it is no reference to a Service.
    service: Option<ObjectName>,
    /// `None` if it may not be asked.
    used: Option<BackendUse>,
}

// === impl AuthServices ===

impl AuthServices {
    /// The policies whose services may be found now, or not any more, or in another way.
    pub(super) fn affected(
        &self,
        changed: &ChangedObjects,
        targeted: &ChangedPolicies,
        services: KnownServices<'_>,
    ) -> BTreeSet<ObjectName> {
        if targeted.all {
            return self.named.keys().cloned().collect();
        }
        let mut affected = BTreeSet::new();
        for service in changed.of(Kind::Service).chain(&targeted.services) {
            affected.extend(self.by_service.of(service).cloned());
        }
        // Their authorities may be others, and are to be read.
        for service in targeted.policies.iter().flat_map(|policy| services.policies.services(policy)) {
            affected.extend(self.by_service.of(&service).cloned());
        }
        for namespace in changed.granting_namespaces() {
            affected.extend(self.by_service.in_namespace(&namespace).cloned());
        }
        affected
    }

    /// The Service that a policy names, found or not.
    pub(super) fn of(&self, policy: &ObjectName) -> Option<&ObjectName> {
        self.named.get(policy)?.service.as_ref()
    }

    /// The policies that name a Service, found or not.
    pub(super) fn naming(&self, service: &ObjectName) -> impl Iterator<Item = &ObjectName> {
        self.by_service.of(service)
    }

    /// Looks up the service that a policy names, in place of the one that it named before.
    ///
    /// # Errors
    /// When it cannot be asked: the policy lets no request pass then.
    pub(super) fn replace(
        &mut self,
        policy: &ObjectName,
        written: Option<&Written>,
        services: &impl Services,
        changed: &mut ChangedUses,
    ) -> Result<Option<ExternalAuth>, Fault> {
        let parsed = written.map(|written| ParsedAuth::parse(written, 0, &policy.namespace)).transpose();
        let service = match &parsed {
            Ok(Some(auth)) => auth.service.referred().service(),
            Ok(None) | Err(_) => None,
        };
        let found = parsed
            .and_then(|parsed| parsed.map(|auth| auth.resolve(Kind::TrafficPolicy, services)).transpose());
        let used = found.as_ref().ok().and_then(|found| found.as_ref().map(|(_, used)| used.clone()));
        changed.used.extend(used.clone());
        let now = written.map(|_| Named { service, used });
        let [new, old] = [now.as_ref(), self.named.get(policy)]
            .map(|named| named.and_then(|named| named.service.clone()).into_iter().collect());
        self.by_service.update(policy, &old, &new);
        let before = match now {
            Some(now) => self.named.insert(policy.clone(), now),
            None => self.named.remove(policy),
        };
        changed.unused.extend(before.and_then(|before| before.used));
        found.map(|found| found.map(|(auth, _)| auth))
    }
}
