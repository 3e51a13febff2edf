//! Statuses of BackendPolicies, and of other policies on Services that say how these are spoken to.

use std::collections::BTreeSet;

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::{L4Protocol, ObjectName};

use super::View;
use crate::policy::backend::{HttpChecks, Terms};
use crate::policy::backend_traffic::TrafficTerms;
use crate::policy::declared::{Declared, Target};
use crate::route::is_about_streams;
use crate::status::{Effect, PolicyVerdict, Status, TargetVerdict, policy_status, targeted_status};
use crate::translator::attachments::AttachedTo;
use crate::translator::in_force::InForce;
use crate::{Fault, Reason};

/// Those that lead to a Service from our Gateways, as words.
#[derive(Default)]
struct Ways {
    /// Routes of connections and datagrams.
    streams: BTreeSet<String>,
    /// Routes of requests.
    requests: BTreeSet<String>,
    /// Requests that are no client's: copies, and questions of filters and policies.
    asking: BTreeSet<String>,
}

// === impl Ways ===

impl Ways {
    /// True if, of connections and datagrams, datagrams alone lead there.
    fn are_datagrams(&self) -> bool {
        self.streams.iter().eq(["UDPRoutes"])
    }

    /// `None` without such fields.
    fn ignored(self, fields: &[&str], service: &ObjectName) -> Option<String> {
        let Self { streams, requests, asking } = self;
        let ways: Vec<_> = streams.into_iter().chain(requests).chain(asking).collect();
        if fields.is_empty() || ways.is_empty() {
            return None;
        }
        Some(format!("{} on Service {service}, to which only {} lead", fields.join(", "), ways.join(", ")))
    }
}

impl<'s> View<'s> {
    /// `None` if no route, filter or TrafficPolicy of one of our Gateways refers to what it
    /// targets, and all of it is there.
    pub(super) fn backend_policy_status(self, name: &ObjectName) -> Option<Status> {
        let policies = self.backend_policies.policies();
        let by_services = self.status_by_services(Kind::BackendPolicy, name, policies, |declared| {
            let by_target = declared.targets.iter().flat_map(|target| {
                [self.without_udp(declared, target), self.without_other_ways(&declared.terms, target)]
            });
            by_target.flatten().collect()
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
        let port = self.udp_port(target)?;
        let message = format!("{} on UDP port {port} of Service {}", fields.join(", "), target.object.name);
        (!fields.is_empty()).then_some(message)
    }

    /// The first port of a target that speaks UDP.
    fn udp_port(self, target: &Target) -> Option<i32> {
        let ports = self.objects.services.get(&target.object.name)?.spec.as_ref()?.ports.as_ref()?;
        let is_meant = |name: Option<&str>| target.section.as_deref().is_none_or(|it| Some(it) == name);
        let mut udp = ports.iter().filter(|port| port.protocol.as_deref() == Some(L4Protocol::Udp.as_str()));
        udp.find(|port| is_meant(port.name.as_deref())).map(|port| port.port)
    }

    /// The fields without effect on a Service that requests alone lead to, or none: they are about
    /// the others.
    fn without_other_ways(self, terms: &Terms, target: &Target) -> Option<String> {
        let ways = self.ways_to(&target.object.name);
        let fields = match (ways.streams.is_empty(), ways.requests.is_empty() && ways.asking.is_empty()) {
            (false, true) => {
                let mut fields = terms.of_requests(self.http_checks(&target.object));
                if ways.are_datagrams() && self.udp_port(target).is_some() {
                    // What the status names as a whole, of the port, it does not name in parts.
                    let whole = terms.without_udp();
                    fields.retain(|field| field.split('.').next().is_none_or(|it| !whole.contains(&it)));
                }
                fields
            }
            (true, false) => terms.of_connections(),
            (false, false) | (true, true) => return None,
        };
        ways.ignored(&fields, &target.object.name)
    }

    /// The checks by which endpoints of a Service, or of a port of it, are asked in its protocol.
    fn http_checks(self, service: &ObjectKey) -> HttpChecks {
        let policies = self.backend_policies.policies();
        let mut terms = policies.targets_at(service).filter_map(|target| policies.terms(target));
        match terms.any(|(_, terms)| terms.resilience.checks_by_http()) {
            true => HttpChecks::Some,
            false => HttpChecks::None,
        }
    }

    /// The fields without effect on a Service that connections, datagrams, copies, and questions of
    /// filters and policies lead to, and no requests of routes. Questions are no client's, and
    /// count to the budget.
    fn without_requests(self, declared: &Declared<TrafficTerms>, target: &Target) -> Option<String> {
        let ways = self.ways_to(&target.object.name);
        let fields = match ways.asking.is_empty() {
            _ if !ways.requests.is_empty() => return None,
            true => declared.terms.of_requests(),
            false => declared.terms.of_sessions(),
        };
        ways.ignored(&fields, &target.object.name)
    }

    fn ways_to(self, service: &ObjectName) -> Ways {
        let mut ways = Ways::default();
        let attached =
            self.permitted_routes(service).filter(|(_, attached)| attached.iter().next().is_some());
        for (route, _) in attached {
            if is_about_streams(route.kind) {
                ways.streams.insert(format!("{}s", route.kind));
            } else if self.routes.get(route).is_some_and(|state| state.forwards_to(service)) {
                ways.requests.insert(format!("{}s", route.kind));
            } else {
                ways.asking.insert(format!("filters of {}s", route.kind));
            }
        }
        let filtering = self.gateways_filtering_by(service).next();
        ways.asking.extend(filtering.map(|_| "filters of listeners".to_owned()));
        ways.asking.extend(self.gateways_asking(service).first().map(|_| "TrafficPolicies".to_owned()));
        ways
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
