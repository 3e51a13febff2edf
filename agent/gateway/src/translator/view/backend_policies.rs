//! Statuses of BackendPolicies.

use std::collections::BTreeSet;

use portcullis_model::{L4Protocol, ObjectName};

use super::View;
use crate::policy::backend::Declared;
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
        let ignored: Vec<_> =
            declared.targets.iter().filter_map(|target| self.without_udp(declared, target)).collect();
        let verdict = PolicyVerdict {
            generation: declared.generation,
            refusal: refusal.as_ref(),
            unresolved: None,
            ignored: &ignored,
        };
        let controller = &self.settings.controller_name;
        let status = policy_status(&verdict, gateways.iter().copied(), controller);
        (!gateways.is_empty()).then_some(Status::Policy(status))
    }

    /// The fields without effect on the ports of a target that speak UDP.
    fn without_udp(self, declared: &Declared, target: &Target) -> Option<String> {
        let fields = declared.terms.as_ref().ok()?.resilience.without_udp();
        let ports = self.objects.services.get(&target.service)?.spec.as_ref()?.ports.as_ref()?;
        let is_meant = |name: Option<&str>| target.section.as_deref().is_none_or(|it| Some(it) == name);
        let udp = ports.iter().filter(|port| port.protocol.as_deref() == Some(L4Protocol::Udp.as_str()));
        let port = udp.filter(|port| is_meant(port.name.as_deref())).map(|port| port.port).next()?;
        let message = format!("{} on UDP port {port} of Service {}", fields.join(", "), target.service);
        (!fields.is_empty()).then_some(message)
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
