//! Statuses of BackendTLSPolicies, and their faults that no status can report.

use std::collections::BTreeSet;

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::ObjectName;

use super::View;
use crate::listener::ListenerKey;
use crate::policy::backend_tls::{self, Target};
use crate::route::is_about_streams;
use crate::status::{PolicyVerdict, Status, policy_status};
use crate::translator::listeners::Tls;
use crate::{Fault, Grants, Reason};

impl<'s> View<'s> {
    /// `None` if no route, filter or TrafficPolicy of one of our Gateways refers to what the policy
    /// targets: then it is not ours to speak about.
    pub(super) fn policy_status(self, name: &ObjectName) -> Option<Status> {
        let declared = self.policies.get(name)?;
        let gateways = self.gateways_of_policy(name);
        let mut faults: Vec<_> =
            declared.targets.iter().filter_map(|target| self.target_fault(name, target)).collect();
        // That another policy is in force "MUST" be said, and has a reason of its own.
        faults.sort_by_key(|fault| fault.reason != Reason::Conflicted);
        let without_effect = Fault::summary(faults);
        let verdict = PolicyVerdict {
            generation: declared.generation,
            refusal: declared.tls.as_ref().err().or(without_effect.as_ref()),
            unresolved: declared.unresolved.as_ref(),
            ignored: &declared.ignored,
        };
        let controller = &self.settings.controller_name;
        let status = policy_status(&verdict, gateways.iter().copied(), controller);
        (!gateways.is_empty()).then_some(Status::Policy(status))
    }

    /// Faults of targets that the status does not report: those that can be no target of ours, and,
    /// if there is no status, those that are not there.
    pub(super) fn policy_problems(self, name: &ObjectName) -> Vec<String> {
        let Some(declared) = self.policies.get(name) else { return Vec::new() };
        let is_reported = !self.gateways_of_policy(name).is_empty();
        let unreported = declared.targets.iter().filter(|_| !is_reported);
        let missing = unreported.filter_map(|target| self.missing_service(target));
        let faults = declared.misnamed.iter().cloned().chain(missing);
        let told = faults.map(|fault| {
            let message = fault.message;
            format!("{message}; until that is right, what was meant is spoken to without the policy's TLS")
        });
        told.collect()
    }

    /// The Gateways whose agents speak to what the policy targets.
    fn gateways_of_policy(self, name: &ObjectName) -> BTreeSet<&'s ObjectName> {
        let mut gateways = self.heeding_gateways(name);
        let services = self.policies.services(name);
        gateways.extend(services.iter().flat_map(|service| self.gateways_asking(service)));
        gateways
    }

    /// The Gateways with a route, or a filter of a listener, by which the agents speak to what the
    /// policy targets. Those of TrafficPolicies are not among them: it is all agents that read what
    /// these need, and pods of mode Dedicated have no right to.
    pub(in crate::translator) fn heeding_gateways(self, policy: &ObjectName) -> BTreeSet<&'s ObjectName> {
        let mut gateways = BTreeSet::new();
        for service in &self.policies.services(policy) {
            let routes = self.routes.referring_to(service);
            let permitted = routes.filter(|(route, _)| self.may_refer(route, service));
            let parents = permitted.flat_map(|(route, attached)| {
                let listeners = attached.iter().map(|(listener, _)| listener);
                listeners.filter(move |listener| self.heeds_policies(route, listener))
            });
            let parents = parents.map(|(parent, _)| parent);
            gateways.extend(parents.filter_map(|parent| self.hierarchy.gateway_of(parent)));
            gateways.extend(self.gateways_filtering_by(service));
        }
        gateways
    }

    /// The Gateways with listeners whose filters refer to a Service, and may.
    pub(super) fn gateways_filtering_by(self, service: &ObjectName) -> impl Iterator<Item = &'s ObjectName> {
        let grants = Grants::new(self.objects);
        let permitted = self.filters.referring_to(service).filter(move |parent| {
            let (kind, from) = (parent.object().kind, &parent.name.namespace);
            grants.permits(kind, from, Kind::Service, &service.namespace, &service.name)
        });
        permitted.filter_map(move |parent| self.hierarchy.gateway_of(parent))
    }

    /// The fault of a target that is not there, or that another policy is in force for.
    fn target_fault(self, policy: &ObjectName, target: &Target) -> Option<Fault> {
        let in_force = self.policies.in_force(target).filter(|in_force| *in_force != policy);
        if let Some(in_force) = in_force {
            let port = target.section.as_deref().map(|name| format!(" port {name}")).unwrap_or_default();
            let message = format!(
                "BackendTLSPolicy {in_force} is in force for Service {}{port} (the oldest is, then the first by name); \
                 this one is without effect on it: merge them, or choose another target",
                target.service
            );
            return Some(Fault::not_accepted(Reason::Conflicted, message));
        }
        self.missing_service(target)
    }

    fn missing_service(self, target: &Target) -> Option<Fault> {
        let service = self.objects.services.get(&target.service);
        backend_tls::missing(target, service.map(|service| &**service))
    }

    /// True if the agent has to encrypt for a route at a listener: bytes that are passed on as they
    /// came are not its to encrypt.
    fn heeds_policies(self, route: &ObjectKey, listener: &ListenerKey) -> bool {
        !is_about_streams(route.kind) || self.listeners.tls(listener) == Tls::Ended
    }

    /// True if the route has permission, or is a parent with a child that has. Strangers must not
    /// put their Gateways into the status of a policy.
    pub(super) fn may_refer(self, route: &ObjectKey, service: &ObjectName) -> bool {
        let grants = Grants::new(self.objects);
        let may = |route: &ObjectKey| {
            let (from, to) = (&route.name.namespace, &service.namespace);
            grants.permits(route.kind, from, Kind::Service, to, &service.name)
        };
        let family = self.routes.family(route);
        may(route) || family.is_some_and(|family| family.children.iter().any(|report| may(&report.child)))
    }
}
