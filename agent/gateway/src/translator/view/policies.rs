//! Statuses of policies.

use std::collections::BTreeSet;

use portcullis_api::{Kind, ObjectKey, generation};
use portcullis_model::ObjectName;

use super::View;
use crate::listener::ListenerKey;
use crate::policy::backend_tls;
use crate::route::is_about_streams;
use crate::status::{Status, policy_status};
use crate::translator::listeners::Tls;
use crate::{Fault, Grants};

impl<'s> View<'s> {
    /// `None` if no route of one of our Gateways refers to what the policy targets: then it is not
    /// ours to speak about.
    pub(super) fn policy_status(self, name: &ObjectName) -> Option<Status> {
        let policy = self.objects.backend_tls_policies.get(name)?;
        let mut gateways = BTreeSet::new();
        for service in &self.policies.services(name) {
            let routes = self.routes.referring_to(service);
            let permitted = routes.filter(|(route, _)| self.may_refer(route, service));
            let parents = permitted.flat_map(|(route, attached)| {
                let listeners = attached.iter().map(|(listener, _)| listener);
                listeners.filter(move |listener| self.heeds_policies(route, listener))
            });
            let parents = parents.map(|(parent, _)| parent);
            gateways.extend(parents.filter_map(|parent| self.hierarchy.gateway_of(parent)));
        }
        let controller = &self.settings.controller_name;
        let fault = self.policy_fault(name)?;
        let status =
            policy_status(generation(&policy.metadata), &fault, gateways.iter().copied(), controller);
        (!gateways.is_empty()).then_some(Status::Policy(status))
    }

    fn policy_fault(self, name: &ObjectName) -> Option<Fault> {
        let targets = self.policies.targets(name);
        let missing = targets.iter().filter_map(|target| {
            let service = self.objects.services.get(&target.service);
            backend_tls::missing(target, service.map(|service| &**service))
        });
        let missing: Vec<_> = missing.collect();
        let unsupported = (missing.len() < targets.len()).then(backend_tls::unsupported);
        Fault::summary(unsupported.into_iter().chain(missing))
    }

    /// True if the agent has to encrypt for a route at a listener: bytes that are passed on as they
    /// came are not its to encrypt.
    fn heeds_policies(self, route: &ObjectKey, listener: &ListenerKey) -> bool {
        !is_about_streams(route.kind) || self.listeners.tls(listener) == Tls::Ended
    }

    /// True if the route has permission, or is a parent with a child that has. Strangers must not
    /// put their Gateways into the status of a policy.
    fn may_refer(self, route: &ObjectKey, service: &ObjectName) -> bool {
        let grants = Grants::new(self.objects);
        let may = |route: &ObjectKey| {
            let (from, to) = (&route.name.namespace, &service.namespace);
            grants.permits(route.kind, from, Kind::Service, to, &service.name)
        };
        let family = self.routes.family(route);
        may(route) || family.is_some_and(|family| family.children.iter().any(|report| may(&report.child)))
    }
}
