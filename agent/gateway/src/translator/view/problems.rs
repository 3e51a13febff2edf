//! Faults that no status can report.

use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use portcullis_api::types::gateways::Gateway;
use portcullis_api::types::shared::ParentReference;
use portcullis_api::{GATEWAY_GROUP, Kind, ObjectKey};
use portcullis_model::{ObjectName, ParentKind};

use super::View;
use crate::default_scope::DefaultScope;
use crate::listener::{ParentKey, parent_key};
use crate::parent;
use crate::policy::frontend_tls;

impl<'s> View<'s> {
    /// Faults of an object that no status can report.
    pub(in crate::translator) fn problems_of(self, key: &ObjectKey) -> Vec<String> {
        match key.kind {
            Kind::Gateway => self.gateway_problems(&key.name),
            Kind::ListenerSet => {
                let set = ParentKey { kind: ParentKind::ListenerSet, name: key.name.clone() };
                let missing = self.missing_gateway(&set).into_iter();
                let missing = missing.map(|gateway| format!("parentRef: there is no Gateway {gateway}"));
                missing.chain(self.duplicates(&set)).collect()
            }
            Kind::EndpointSlice => self.slice_problems(&key.name),
            Kind::BackendTlsPolicy => self.policy_problems(&key.name),
            Kind::ListenerPolicy => {
                let policy = self.admissions.policies().get(&key.name);
                policy.map(|policy| self.targets_left_out(policy)).unwrap_or_default()
            }
            Kind::TrafficPolicy => {
                let policy = self.traffic.policies().get(&key.name);
                policy.map(|policy| self.targets_left_out(policy)).unwrap_or_default()
            }
            Kind::BackendPolicy => {
                let policy = self.backend_policies.policies().get(&key.name);
                policy.map(|policy| self.targets_left_out(policy)).unwrap_or_default()
            }
            Kind::XBackendTrafficPolicy => {
                let policy = self.backend_policies.traffic().get(&key.name);
                policy.map(|policy| self.targets_left_out(policy)).unwrap_or_default()
            }
            kind if kind.is_route() => self.route_problems(key),
            _ => Vec::new(),
        }
    }

    fn gateway_problems(self, name: &ObjectName) -> Vec<String> {
        let gateway = self.objects.gateways.get(name);
        let annotation = parent::ALLOWED_CHILDREN;
        let wrong = gateway.and_then(|gateway| parent::allowed_children(gateway).err());
        let wrong = wrong
            .map(|error| format!("annotation {annotation}: write Same, All or Selector:LABELS; {error}"));
        let key = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let ports = gateway.into_iter().flat_map(|gateway| self.ports_of_no_listener(&key, gateway));
        wrong.into_iter().chain(self.duplicates(&key)).chain(ports).collect()
    }

    /// Ports of `tls.frontend.perPort`: clients of the one that was meant are not asked for what is
    /// written there.
    fn ports_of_no_listener(self, key: &ParentKey, gateway: &Gateway) -> Vec<String> {
        let Some(own) = self.listeners.get(key) else { return Vec::new() };
        let attached = self.hierarchy.children(&key.name).filter_map(|child| self.listeners.get(child));
        let listeners = std::iter::once(own).chain(attached).flat_map(|declared| &declared.listeners);
        let known: BTreeSet<_> = listeners.map(|listener| i32::from(listener.port.number)).collect();
        let unknown = frontend_tls::ports(gateway).filter(|port| !known.contains(port));
        let problem = |port| {
            format!(
                "tls.frontend.perPort: no listener of the Gateway, or of what is attached to it, has port {port}: \
                 what is written for it holds for no client"
            )
        };
        unknown.map(problem).collect()
    }

    /// Endpoints that are names: nothing asks for their addresses yet.
    fn slice_problems(self, name: &ObjectName) -> Vec<String> {
        let slice = self.objects.endpoint_slices.get(name);
        let foreign = slice.filter(|slice| !matches!(slice.address_type.as_str(), "IPv4" | "IPv6"));
        let problem = |slice: &EndpointSlice| {
            format!(
                "addressType {} is not supported, and nothing is sent to its endpoints: use IPv4 or IPv6",
                slice.address_type
            )
        };
        foreign.map(|slice| problem(slice)).into_iter().collect()
    }

    fn duplicates(self, key: &ParentKey) -> impl Iterator<Item = String> {
        let names = self.listeners.get(key).into_iter().flat_map(|declared| &declared.duplicates);
        names.map(|name| format!("listener name {name} is used more than once; only the first counts"))
    }

    /// A parent that does not exist has no controller to write a status for it, and a route without
    /// parents has no place for one.
    fn route_problems(self, key: &ObjectKey) -> Vec<String> {
        let Some(route) = self.parsed.get(key) else { return Vec::new() };
        let is_claimed = self.routes.get(key).is_some_and(|state| !state.verdicts.is_empty());
        if route.named == 0 && !is_claimed && self.parsed.listers(key).next().is_none() {
            let problem = match route.default_scope {
                DefaultScope::None => {
                    "spec.parentRefs: the route names no parent, so nothing serves it: name a Gateway"
                }
                DefaultScope::All => {
                    "spec.useDefaultGateways: no default Gateway takes the route: there is none whose listeners \
                     allow routes of its kind and namespace; name a Gateway, or ask for one with defaultScope"
                }
            };
            return vec![problem.to_owned()];
        }
        let mut problems = Vec::new();
        for (index, reference) in route.parent_refs.iter().enumerate() {
            let Some(parent) = parent_key(reference) else {
                problems.extend(misnamed_parent(reference));
                continue;
            };
            let exists = match parent.kind {
                ParentKind::Gateway => self.objects.gateways.contains_key(&parent.name),
                ParentKind::ListenerSet => self.objects.listener_sets.contains_key(&parent.name),
            };
            if !exists {
                let own = "; without a namespace the route's own is meant";
                let hint = if route.names_namespace.contains(&index) { "" } else { own };
                problems.push(format!("parentRefs: there is no {} {}{hint}", parent.kind(), parent.name));
            }
        }
        problems.dedup();
        problems.extend(self.parents_left_out(key));
        problems
    }
}

/// The problem of a parentRef that names one of our kinds by a wrong group or name. What other
/// groups have is another controller's.
fn misnamed_parent(reference: &ParentReference) -> Option<String> {
    let (group, kind) = (reference.group.as_deref()?, reference.kind.as_deref()?);
    let is_ours = |kind: &str| ["Gateway", "ListenerSet"].contains(&kind);
    if is_ours(kind) {
        return Some(format!("parentRefs: there is no {kind} of group {group:?}: leave group out"));
    }
    (group == GATEWAY_GROUP && !kind.ends_with("Route")).then(|| {
        format!("parentRefs: nothing can be attached to a {kind:?}: name a Gateway or a ListenerSet")
    })
}
