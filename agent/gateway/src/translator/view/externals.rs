//! Statuses of XBackends.

use std::collections::BTreeSet;

use portcullis_api::ObjectKey;
use portcullis_model::ObjectName;

use super::View;
use crate::Fault;
use crate::route::is_about_streams;
use crate::status::{PolicyVerdict, Status, policy_status};

impl<'s> View<'s> {
    /// `None` if no route of one of our Gateways refers to it: then it is not ours to speak about.
    pub(super) fn external_status(self, name: &ObjectName) -> Option<Status> {
        let declared = self.externals.get(name)?;
        let gateways = self.gateways_of_external(name);
        let refusal = declared.host.as_ref().err();
        let unresolved = refusal.filter(|fault| !fault.is_unacceptable()).or(declared.unresolved.as_ref());
        let name_fault = || self.external_endpoints.name_fault(name, self.externals, self.observations);
        let unresolved = unresolved.cloned().or_else(name_fault);
        let verdict = PolicyVerdict {
            generation: declared.generation,
            refusal: refusal.filter(|fault| Fault::is_unacceptable(fault)),
            unresolved: unresolved.as_ref(),
            ignored: &[],
        };
        let status = policy_status(&verdict, gateways.iter().copied(), &self.settings.controller_name);
        (!gateways.is_empty()).then_some(Status::Policy(status))
    }

    /// The Gateways with a route that leads to an XBackend. Routes of other namespaces do not,
    /// whatever they say.
    pub(in crate::translator) fn gateways_of_external(self, name: &ObjectName) -> BTreeSet<&'s ObjectName> {
        let routes = self.routes.referring_to_external(name);
        let permitted =
            routes.filter(|(route, _)| self.is_beside(route, name) && !is_about_streams(route.kind));
        let listeners = permitted.flat_map(|(_, attached)| attached.iter().map(|(listener, _)| listener));
        listeners.filter_map(|(parent, _)| self.hierarchy.gateway_of(parent)).collect()
    }

    /// True if the route, or a child that it has, is in the namespace of the XBackend.
    fn is_beside(self, route: &ObjectKey, name: &ObjectName) -> bool {
        let is_there = |route: &ObjectKey| route.name.namespace == name.namespace;
        let family = self.routes.family(route);
        is_there(route) || family.is_some_and(|family| family.children.iter().any(|it| is_there(&it.child)))
    }
}
