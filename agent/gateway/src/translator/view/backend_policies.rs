//! Statuses of BackendPolicies, and of other policies on Services that say how these are spoken to.

use std::collections::BTreeSet;

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::{L4Protocol, ObjectName};

use super::View;
use crate::policy::backend::Terms;
use crate::policy::backend_traffic::TrafficTerms;
use crate::policy::declared::{Declared, Target};
use crate::route::is_about_streams;
use crate::status::{Effect, PolicyVerdict, Status, TargetVerdict, policy_status, targeted_status};
use crate::translator::attachments::AttachedTo;
use crate::translator::in_force::InForce;
use crate::{Fault, Reason};

impl<'s> View<'s> {
    /// `None` if no route, filter or TrafficPolicy of one of our Gateways refers to what it
    /// targets, and all of it is there.
    pub(super) fn backend_policy_status(self, name: &ObjectName) -> Option<Status> {
        let policies = self.backend_policies.policies();
        let by_services = self.status_by_services(Kind::BackendPolicy, name, policies, |declared| {
            declared.targets.iter().filter_map(|target| self.without_udp(declared, target)).collect()
        });
        by_services.or_else(|| self.status_by_missing_services(policies.get(name)?))
    }

    /// The same of an XBackendTrafficPolicy: its kind is any controller's, so that one without such
    /// a route is not ours to speak about.
    pub(super) fn backend_traffic_policy_status(self, name: &ObjectName) -> Option<Status> {
        let policies = self.backend_policies.traffic();
        self.status_by_services(Kind::XBackendTrafficPolicy, name, policies, |declared| {
            declared.targets.iter().filter_map(|target| self.without_requests(declared, target)).collect()
        })
    }

    /// Of a policy that no Gateway has to do with: its kind is ours, and what it targets without
    /// avail is in the place of an ancestor, as in the status of other policies of ours.
    fn status_by_missing_services(self, declared: &Declared<Terms>) -> Option<Status> {
        let missing = declared.targets.iter().filter_map(|target| {
            let refusal = Some(self.missing(target)?);
            Some(TargetVerdict { target, refusal, effect: Effect::Enforced("") })
        });
        let missing: Vec<_> = missing.collect();
        let status = targeted_status(declared.generation, &missing, &self.settings.controller_name);
        (!missing.is_empty()).then_some(Status::Policy(status))
    }

    /// `ignored` names the fields that are without effect.
    fn status_by_services<T>(
        self,
        kind: Kind,
        name: &ObjectName,
        policies: &InForce<T>,
        ignored: impl Fn(&Declared<T>) -> Vec<String>,
    ) -> Option<Status> {
        let declared = policies.get(name)?;
        let gateways = self.gateways_of_backend_policy(declared);
        let faults = declared.targets.iter();
        let faults = faults.filter_map(|target| self.fault_of_target(kind, name, policies, target));
        let mut faults: Vec<_> = declared.fault.iter().cloned().chain(faults).collect();
        faults.sort_by_key(|fault| fault.reason != Reason::Conflicted);
        let refusal = Fault::summary(faults);
        let verdict = PolicyVerdict {
            generation: declared.generation,
            refusal: refusal.as_ref(),
            unresolved: None,
            ignored: &ignored(declared),
        };
        let controller = &self.settings.controller_name;
        let status = policy_status(&verdict, gateways.iter().copied(), controller);
        (!gateways.is_empty()).then_some(Status::Policy(status))
    }

    /// The fields without effect on the ports of a target that speak UDP.
    fn without_udp(self, declared: &Declared<Terms>, target: &Target) -> Option<String> {
        let fields = declared.terms.without_udp();
        let ports = self.objects.services.get(&target.object.name)?.spec.as_ref()?.ports.as_ref()?;
        let is_meant = |name: Option<&str>| target.section.as_deref().is_none_or(|it| Some(it) == name);
        let udp = ports.iter().filter(|port| port.protocol.as_deref() == Some(L4Protocol::Udp.as_str()));
        let port = udp.filter(|port| is_meant(port.name.as_deref())).map(|port| port.port).next()?;
        let message = format!("{} on UDP port {port} of Service {}", fields.join(", "), target.object.name);
        (!fields.is_empty()).then_some(message)
    }

    /// The fields without effect on a Service that connections, datagrams, copies, and questions of
    /// filters and policies lead to, and no requests of routes. Questions are no client's, and
    /// count to the budget.
    fn without_requests(self, declared: &Declared<TrafficTerms>, target: &Target) -> Option<String> {
        let service = &target.object.name;
        let attached =
            self.permitted_routes(service).filter(|(_, attached)| attached.iter().next().is_some());
        let (mut passing, mut asking) = (BTreeSet::new(), BTreeSet::new());
        for (route, _) in attached {
            if is_about_streams(route.kind) {
                passing.insert(format!("{}s", route.kind));
            } else if self.routes.get(route).is_some_and(|state| state.forwards_to(service)) {
                return None;
            } else {
                asking.insert(format!("filters of {}s", route.kind));
            }
        }
        asking.extend(self.gateways_filtering_by(service).next().map(|_| "filters of listeners".to_owned()));
        asking.extend(self.gateways_asking(service).first().map(|_| "TrafficPolicies".to_owned()));
        let fields = match asking.is_empty() {
            true => declared.terms.of_requests(),
            false => declared.terms.of_sessions(),
        };
        let ways: Vec<_> = passing.into_iter().chain(asking).collect();
        if fields.is_empty() || ways.is_empty() {
            return None;
        }
        Some(format!("{} on Service {service}, to which only {} lead", fields.join(", "), ways.join(", ")))
    }

    /// The Gateways with a route, a filter of a listener or a TrafficPolicy that leads to what the
    /// policy targets.
    fn gateways_of_backend_policy<T>(self, policy: &Declared<T>) -> BTreeSet<&'s ObjectName> {
        let mut gateways = BTreeSet::new();
        for service in policy.targets.iter().map(|target| &target.object.name) {
            let attached = self.permitted_routes(service).flat_map(|(_, attached)| attached.iter());
            let parents = attached.map(|((parent, _), _)| parent);
            gateways.extend(parents.filter_map(|parent| self.hierarchy.gateway_of(parent)));
            gateways.extend(self.gateways_filtering_by(service));
            gateways.extend(self.gateways_asking(service));
        }
        gateways
    }

    /// The routes that refer to a Service with permission, and where they are attached.
    fn permitted_routes<'p>(
        self,
        service: &'p ObjectName,
    ) -> impl Iterator<Item = (&'s ObjectKey, &'s AttachedTo)> + use<'s, 'p> {
        let routes = self.routes.referring_to(service);
        routes.filter(move |(route, _)| self.may_refer(route, service))
    }
}
