//! Statuses of TrafficPolicies, and what the statuses of their targets say of them.

use std::collections::BTreeSet;

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::{ClientRules, HostPattern, ObjectName, PolicyState, Protection};

use super::View;
use crate::listener::{ListenerKey, ParentKey};
use crate::policy::declared::Target;
use crate::protocol::Protocol;
use crate::status::{Effect, Status};
use crate::translator::parsed::parents_of;
use crate::translator::remote_key_sets::MOST_OF_NAMESPACE;
use crate::translator::routes::RouteState;
use crate::{Fault, Grants, Reason};

const ENFORCED: &str = "enforced by every agent, at each request";
const SHARED: &str = "enforced by every agent, at each request; limits of all agents together approximately: each lets its share pass";
const WITH_CREDENTIALS: &str = "enforced by every agent, at each request; pods of Gateways in mode Dedicated have no right to read \
     what credentials are checked against, and let no request pass";
const SHARED_WITH_CREDENTIALS: &str = "enforced by every agent, at each request; limits of all agents together approximately: each lets its share pass; \
     pods of Gateways in mode Dedicated have no right to read what credentials are checked against, and let no request pass";

impl<'s> View<'s> {
    /// `None` if all targets are other controllers'.
    pub(super) fn traffic_policy_status(self, name: &ObjectName) -> Option<Status> {
        let has_credentials = self.holders_of_traffic(name).next().is_some();
        let enforced = match (self.traffic.is_sharing(name), has_credentials) {
            (false, false) => ENFORCED,
            (false, true) => WITH_CREDENTIALS,
            (true, false) => SHARED,
            (true, true) => SHARED_WITH_CREDENTIALS,
        };
        let is_beyond = self.traffic.remote_key_sets().is_beyond(name);
        let policies = self.traffic.policies();
        let clients = policies.get(name).and_then(|policy| policy.terms.protection.clients.as_ref());
        self.targeted_status(Kind::TrafficPolicy, name, policies, |target| {
            let is_route = target.object.kind.is_route();
            let streams = self.streams_of(target);
            let is_served = self.is_any_served(target, Protocol::has_requests);
            if is_beyond {
                Effect::Unfit(too_many_key_sets(name))
            } else if is_route && self.is_served_route(&target.object) {
                Effect::Enforced(enforced)
            } else if is_route {
                Effect::unattached()
            } else if streams.is_empty() {
                match is_served {
                    true => Effect::Enforced(enforced),
                    false => Effect::nothing("listener of the target"),
                }
            } else if target.section.is_some() {
                Effect::Unfit(no_requests(target))
            } else {
                let without = without_requests(&streams, clients);
                match is_served {
                    true => Effect::Partly { places: enforced, without },
                    false => Effect::Nothing(Fault::not_programmed(
                        Reason::NoListener,
                        format!("no listener of the target that has requests is programmed; {without}"),
                    )),
                }
            }
        })
    }

    /// The listeners among those that a target covers which have connections or datagrams, and no
    /// requests.
    fn streams_of(self, target: &Target) -> Vec<String> {
        let holders = self.holders_of(target).filter_map(|holder| {
            let is_itself = holder.object() == target.object;
            let of = if is_itself { String::new() } else { format!(" of {}", holder.object()) };
            Some((self.listeners.get(&holder)?, of))
        });
        let names = holders.flat_map(|(declared, of)| {
            let covered = declared.listeners.iter().filter(|listener| {
                let is_meant = target.section.as_ref().is_none_or(|name| listener.name == *name);
                is_meant && !listener.protocol.has_requests()
            });
            covered.map(move |listener| format!("{}{of}", listener.name))
        });
        names.collect()
    }

    /// The objects that the credentials of a policy are checked against, and those with the
    /// authorities of the Services that its key sets are fetched from, and that it has asked, if
    /// it may ask them.
    pub(in crate::translator) fn holders_of_traffic(
        self,
        name: &ObjectName,
    ) -> impl Iterator<Item = &'s ObjectKey> {
        let asked = self.traffic.asked_by(name).filter(move |service| self.may_ask(name, service));
        let policies = asked.flat_map(move |service| self.policies.on(service));
        let declared = policies.filter_map(move |policy| self.policies.get(policy));
        self.traffic.holders(name).chain(declared.flat_map(|declared| &declared.holders))
    }

    /// The Gateways of what policies are in force for that have a Service asked, and may.
    pub(super) fn gateways_asking(self, service: &ObjectName) -> BTreeSet<&'s ObjectName> {
        let permitted = self.traffic.asking(service).filter(|policy| self.may_ask(policy, service));
        permitted.flat_map(|policy| self.gateways_of_traffic(policy)).collect()
    }

    fn may_ask(self, policy: &ObjectName, service: &ObjectName) -> bool {
        let (from, to) = (&policy.namespace, &service.namespace);
        Grants::new(self.objects).permits(Kind::TrafficPolicy, from, Kind::Service, to, &service.name)
    }

    /// The Gateways at which a policy is in force for listeners or routes.
    fn gateways_of_traffic(self, policy: &ObjectName) -> BTreeSet<&'s ObjectName> {
        let policies = self.traffic.policies();
        let targets = policies.get(policy).into_iter().flat_map(|declared| &declared.targets);
        let mut gateways = BTreeSet::new();
        for target in targets.filter(|it| policies.on(it) == Some(policy) && self.is_ours(it)) {
            match ParentKey::of(&target.object) {
                Some(parent) => gateways.extend(self.hierarchy.gateway_of(&parent)),
                None => gateways.extend(self.gateways_of_route(&target.object)),
            }
        }
        gateways
    }

    /// The Gateways that a route is attached to, by itself or as a child: of the parent route's
    /// those at which the child has a hostname.
    fn gateways_of_route(self, key: &ObjectKey) -> BTreeSet<&'s ObjectName> {
        let Some(state) = self.routes.get(key) else { return BTreeSet::new() };
        let mut listeners: BTreeSet<_> = state.attached.iter().map(|(listener, _)| listener).collect();
        for above in self.families_of(key, state) {
            let Some(family) = self.routes.family(&above) else { continue };
            let Some(report) = family.report(key).filter(|report| report.is_bound()) else { continue };
            let takes = |names: &[HostPattern]| {
                names.iter().any(|name| report.hostnames.iter().any(|own| own.intersect(name).is_some()))
            };
            let attached = self.routes.get(&above).into_iter().flat_map(|above| above.attached.iter());
            listeners.extend(attached.filter(|(_, names)| takes(names)).map(|(listener, _)| listener));
        }
        listeners.into_iter().filter_map(|(parent, _)| self.hierarchy.gateway_of(parent)).collect()
    }

    /// True if a route has another one as its child.
    fn is_bound(self, parent: &ObjectKey, child: &ObjectKey) -> bool {
        let family = self.routes.family(parent);
        family.is_some_and(|family| family.report(child).is_some_and(|report| report.is_bound()))
    }

    /// True if a parent of ours accepts the route, or takes it as its child.
    fn is_served_route(self, key: &ObjectKey) -> bool {
        let Some(state) = self.routes.get(key) else { return false };
        state.verdicts.iter().any(|verdict| verdict.refusal.is_none())
            || self.families_of(key, state).any(|parent| self.is_bound(&parent, key))
    }

    /// True if the route is attached to a parent of ours, or wants to be; by itself or as a child.
    pub(super) fn is_route_of_ours(self, key: &ObjectKey) -> bool {
        let Some(state) = self.routes.get(key) else { return false };
        let mut parents = self.families_of(key, state);
        !state.verdicts.is_empty()
            || parents.any(|parent| self.routes.get(&parent).is_some_and(|it| !it.verdicts.is_empty()))
    }

    /// The routes that have it as a child, or may have.
    fn families_of(self, key: &ObjectKey, state: &RouteState) -> impl Iterator<Item = ObjectKey> {
        let mut parents = parents_of(&state.parsed);
        parents.extend(self.parsed.listers(key).cloned());
        parents.into_iter()
    }

    /// The TrafficPolicies that hold for all listeners of an object, as its owner may read it.
    /// Where all of these are without requests, they are those with a say in clients.
    pub(super) fn traffic_of_parent(self, parent: &ParentKey) -> Option<String> {
        let gateway = self.hierarchy.gateway_of(parent)?;
        let gateway = ObjectKey { kind: Kind::Gateway, name: gateway.clone() };
        let object = parent.object();
        let listeners = self.listeners.get(parent).into_iter().flat_map(|it| &it.listeners);
        let (of_requests, streams): (Vec<_>, Vec<_>) =
            listeners.partition(|listener| listener.protocol.has_requests());
        let above = (gateway != object).then(|| gateway.clone());
        let policies = above.into_iter().chain([object]).filter_map(|holder| {
            let (policy, terms) = self.traffic.policies().terms(&Target::whole(holder))?;
            let Protection { clients, state, .. } = &*terms.protection;
            if of_requests.is_empty() && clients.is_none() && *state == PolicyState::Valid {
                return None;
            }
            Some(match policy.namespace == parent.name.namespace {
                true => format!("TrafficPolicy {policy}"),
                false => "a TrafficPolicy of the Gateway attached to".to_owned(),
            })
        });
        let policies = policies.collect::<Vec<_>>().join(", ");
        let places = match streams.is_empty() {
            true => "for all listeners",
            false => "for all listeners, by allow and deny alone at those without requests",
        };
        (!policies.is_empty()).then(|| format!("{places}: {policies}"))
    }

    /// The TrafficPolicy of a listener itself. One without requests is closed by it.
    pub(super) fn traffic_of_listener(self, (parent, name): &ListenerKey) -> Option<String> {
        self.hierarchy.gateway_of(parent)?;
        let target = Target { section: Some(name.clone()), ..Target::whole(parent.object()) };
        let policy = self.traffic.policies().on(&target)?;
        let closed = "which is for listeners with requests: no client is let in";
        Some(match self.streams_of(&target).is_empty() {
            true => format!("TrafficPolicy {policy}"),
            false => format!("TrafficPolicy {policy}, {closed}"),
        })
    }

    /// The TrafficPolicies on a route and its rules, and those that it gets by its parent routes,
    /// as its owner may read it.
    pub(super) fn traffic_of_route(self, key: &ObjectKey) -> Option<String> {
        let state = self.routes.get(key)?;
        let policies = self.traffic.policies();
        let on = |object: &ObjectKey| {
            let targets = policies.targets_at(object);
            targets.filter_map(|it| Some((policies.on(it)?.clone(), it.section.clone()))).collect::<Vec<_>>()
        };
        let mut texts = Vec::new();
        for parent in self.families_of(key, state) {
            if self.is_bound(&parent, key) && !on(&parent).is_empty() {
                texts.push("what the parent route has".to_owned());
            }
        }
        texts.dedup();
        let is_there =
            |name: &str| state.parsed.rules.iter().any(|rule| rule.id.name.as_deref() == Some(name));
        let own = on(key).into_iter().filter(|(_, section)| section.as_deref().is_none_or(is_there));
        texts.extend(own.map(|(policy, section)| match section {
            None => format!("TrafficPolicy {policy}"),
            Some(rule) => format!("TrafficPolicy {policy} for rule {rule}"),
        }));
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

/// A TrafficPolicy's addresses are those of requests.
fn no_requests(target: &Target) -> Fault {
    let section = target.section.as_deref().unwrap_or_default();
    let message = format!(
        "targetRefs: listener {section} of {} has no requests, which a TrafficPolicy is about: until that is right, no \
         client is let in there; a ListenerPolicy says which clients are let in",
        target.object
    );
    Fault::not_accepted(Reason::Invalid, message)
}

/// The part of a policy that listeners without requests do not have.
fn without_requests(streams: &[String], clients: Option<&ClientRules>) -> String {
    const NAMED: usize = 8;
    let named = streams.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = streams.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let judged = if clients.is_some() { "judged by allow and deny alone" } else { "not judged" };
    format!("connections and datagrams are {judged}: listeners {named}{more}; see ListenerPolicy")
}

fn too_many_key_sets(policy: &ObjectName) -> Fault {
    let message = format!(
        "policies of namespace {} have more than {MOST_OF_NAMESPACE} key sets fetched, and this one is not among the first by          name: no token of those of its providers passes; have the same ones fetched, or fewer",
        policy.namespace
    );
    Fault::not_accepted(Reason::LimitExceeded, message)
}
