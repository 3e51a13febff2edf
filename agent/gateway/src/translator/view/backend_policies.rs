//! Statuses of BackendPolicies.

use std::collections::BTreeSet;

use portcullis_model::ObjectName;

use super::View;
use crate::policy::backend_tls::{self, Target};
use crate::status::{PolicyVerdict, Status, policy_status};
use crate::{Fault, Reason};

impl<'s> View<'s> {
    /// `None` if no route of one of our Gateways refers to what the policy targets: then it is not
    /// ours to speak about.
    pub(super) fn backend_policy_status(self, name: &ObjectName) -> Option<Status> {
        let declared = self.backend_policies.get(name)?;
        let gateways = self.gateways_of_backend_policy(name);
        let faults = declared.targets.iter().filter_map(|target| self.backend_target_fault(name, target));
        let mut faults: Vec<_> = declared.terms.as_ref().err().cloned().into_iter().chain(faults).collect();
        faults.sort_by_key(|fault| fault.reason != Reason::Conflicted);
        let refusal = Fault::summary(faults);
        let verdict = PolicyVerdict {
            generation: declared.generation,
            refusal: refusal.as_ref(),
            unresolved: None,
            ignored: &[],
        };
        let controller = &self.settings.controller_name;
        let status = policy_status(&verdict, gateways.iter().copied(), controller);
        (!gateways.is_empty()).then_some(Status::Policy(status))
    }

    /// The Gateways with a route to what the policy targets.
    fn gateways_of_backend_policy(self, policy: &ObjectName) -> BTreeSet<&'s ObjectName> {
        let mut gateways = BTreeSet::new();
        for service in &self.backend_policies.services(policy) {
            let routes = self.routes.referring_to(service);
            let permitted = routes.filter(|(route, _)| self.may_refer(route, service));
            let parents = permitted.flat_map(|(_, attached)| attached.iter().map(|((parent, _), _)| parent));
            gateways.extend(parents.filter_map(|parent| self.hierarchy.gateway_of(parent)));
        }
        gateways
    }

    /// The fault of a target that is not there, or that another policy is in force for.
    fn backend_target_fault(self, policy: &ObjectName, target: &Target) -> Option<Fault> {
        let in_force = self.backend_policies.in_force(target).map(|(in_force, _)| in_force);
        if let Some(in_force) = in_force.filter(|in_force| *in_force != policy) {
            let port = target.section.as_deref().map(|name| format!(" port {name}")).unwrap_or_default();
            let message = format!(
                "BackendPolicy {in_force} is in force for Service {}{port} (the oldest is, then the first by name); this \
                 one is without effect on it: merge them, or choose another target",
                target.service
            );
            return Some(Fault::not_accepted(Reason::Conflicted, message));
        }
        let service = self.objects.services.get(&target.service);
        backend_tls::missing(target, service.map(|service| &**service))
    }
}
