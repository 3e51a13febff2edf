//! Stage: statuses, planned from the state of all other stages.

use std::collections::{BTreeMap, BTreeSet};

use super::admissions::ChangedAdmissions;
use super::backend_policies::ChangedBackendPolicies;
use super::changes::ChangedObjects;
use super::conflicts::ChangedConflicts;
use super::default_gateways::ChangedDefaults;
use super::frontends::ChangedFrontends;
use super::gateways::ChangedGateways;
use super::hierarchy::{ChangedHierarchy, Hierarchy};
use super::listener_filters::ChangedFilters;
use super::listeners::{ChangedListeners, changed_classes};
use super::policies::ChangedPolicies;
use super::published::Published;
use super::traffic_policies::ChangedTraffic;
use super::view::View;
use crate::listener::ParentKey;
use crate::status::Status;

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::{ObjectName, ParentKind};

#[derive(Debug, Default)]
pub(super) struct Statuses {
    published: Published,
    problems: BTreeMap<ObjectKey, Vec<String>>,
}

/// The statuses and problems that are different from before.
#[derive(Debug, Default)]
pub(super) struct ChangedStatuses {
    pub(super) statuses: BTreeMap<ObjectKey, Status>,
    pub(super) forgotten: BTreeSet<ObjectKey>,
    pub(super) orphaned: BTreeMap<ObjectKey, Status>,
    pub(super) problems: BTreeMap<ObjectKey, Vec<String>>,
    /// TrafficPolicies that changed, or whose targets may be there now, or not any more.
    pub(super) traffic: BTreeSet<ObjectName>,
}

/// The changes of the other stages that statuses report on.
pub(super) struct Changes<'c> {
    pub(super) objects: &'c ChangedObjects,
    pub(super) listeners: &'c ChangedListeners,
    pub(super) hierarchy: &'c ChangedHierarchy,
    pub(super) gateways: &'c ChangedGateways,
    pub(super) admissions: &'c ChangedAdmissions,
    pub(super) traffic: &'c ChangedTraffic,
    pub(super) filters: &'c ChangedFilters,
    pub(super) defaults: &'c ChangedDefaults,
    pub(super) routes: BTreeSet<ObjectKey>,
    /// Policies on what changed routes and filters of listeners refer to.
    pub(super) policies: &'c BTreeSet<ObjectName>,
    pub(super) targeted: &'c ChangedPolicies,
    pub(super) respoken: &'c ChangedBackendPolicies,
    /// Services that changed routes and filters refer to, or did.
    pub(super) referred: &'c BTreeSet<ObjectName>,
    /// RouteFilters that are something else now.
    pub(super) route_filters: &'c BTreeSet<ObjectName>,
    /// XBackends of which something else is to be said.
    pub(super) externals: &'c BTreeSet<ObjectName>,
    /// Services of which other endpoints are refused.
    pub(super) services: &'c BTreeSet<ObjectName>,
    /// Gateways and ListenerSets with another number of attached routes.
    pub(super) parents: &'c BTreeSet<ParentKey>,
    pub(super) conflicts: &'c ChangedConflicts,
    /// Routes that may take other names from other namespaces' than before.
    pub(super) sharing: &'c BTreeSet<ObjectKey>,
    /// Routes that came to be the oldest at a listener, or are it no longer.
    pub(super) oldest: &'c BTreeSet<ObjectKey>,
    pub(super) frontends: &'c ChangedFrontends,
    /// Gateways with a port of which policies on its listeners say something else.
    pub(super) retold: &'c BTreeSet<ObjectName>,
    /// Gateways of which something else was observed.
    pub(super) observed: &'c BTreeSet<ObjectName>,
}

// === impl Statuses ===

impl Statuses {
    /// The objects that have a status.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.published.keys()
    }

    pub(super) fn problems(&self) -> &BTreeMap<ObjectKey, Vec<String>> {
        &self.problems
    }

    pub(super) fn update(&mut self, changes: Changes<'_>, view: View<'_>) -> ChangedStatuses {
        let mut changed = ChangedStatuses::default();
        for key in changes.affected(view) {
            if key.kind == Kind::TrafficPolicy {
                changed.traffic.insert(key.name.clone());
            }
            self.update_status(&key, view, &mut changed);
            self.update_problems(key, view, &mut changed);
        }
        changed
    }

    fn update_status(&mut self, key: &ObjectKey, view: View<'_>, changed: &mut ChangedStatuses) {
        if let Some(now) = view.status_of(key) {
            if self.published.replace(key, &now) {
                changed.statuses.insert(key.clone(), now);
            }
            return;
        }
        // What never had a status of ours has none to be taken back.
        let has_ours = self.published.contains(key);
        if let Some(last) = view.orphan_status(key).filter(|_| has_ours || view.was_ours(key)) {
            if self.published.replace(key, &last) {
                changed.orphaned.insert(key.clone(), last);
            }
        } else if has_ours {
            self.published.remove(key);
            changed.forgotten.insert(key.clone());
        }
    }

    fn update_problems(&mut self, key: ObjectKey, view: View<'_>, changed: &mut ChangedStatuses) {
        let now = view.problems_of(&key);
        let before = self.problems.get(&key).map(Vec::as_slice).unwrap_or_default();
        if before == now {
            return;
        }
        changed.problems.insert(key.clone(), now.clone());
        if now.is_empty() {
            self.problems.remove(&key);
        } else {
            self.problems.insert(key, now);
        }
    }
}

// === impl Changes ===

impl Changes<'_> {
    /// The objects whose statuses may be others.
    fn affected(self, view: View<'_>) -> BTreeSet<ObjectKey> {
        let classes = self.classes(view);
        let mut affected = self.routes;
        affected.extend(classes);
        let policies = self.targeted.policies.iter().chain(self.policies);
        affected.extend(policies.map(|name| ObjectKey::new(Kind::BackendTlsPolicy, name.clone())));
        let referred = self.referred.iter().flat_map(|service| view.backend_policies.on(service));
        affected.extend(self.respoken.policies.iter().cloned().chain(referred));
        for service in self.objects.of(Kind::Service) {
            affected.extend(view.backend_policies.on(service));
            let policies = view.policies.on(service);
            affected.extend(policies.map(|name| ObjectKey::new(Kind::BackendTlsPolicy, name.clone())));
        }
        affected.extend(self.externals.iter().map(|name| ObjectKey::new(Kind::XBackend, name.clone())));
        let policies = self.admissions.policies.iter();
        affected.extend(policies.map(|name| ObjectKey::new(Kind::ListenerPolicy, name.clone())));
        let policies = self.traffic.policies.iter();
        affected.extend(policies.map(|name| ObjectKey::new(Kind::TrafficPolicy, name.clone())));
        let filters = self.route_filters.iter();
        affected.extend(filters.map(|name| ObjectKey::new(Kind::RouteFilter, name.clone())));
        let refusing = self.services.iter().flat_map(|service| view.routes.referring_to(service));
        affected.extend(refusing.map(|(route, _)| route.clone()));
        let slices = self.objects.of(Kind::EndpointSlice);
        affected.extend(slices.map(|name| ObjectKey::new(Kind::EndpointSlice, name.clone())));
        affected.extend(self.sharing.iter().chain(self.oldest).cloned());
        for route in self.conflicts.routes.iter().chain(&self.traffic.routes) {
            affected.insert(route.clone());
            // Its children are served where it is, and nowhere else; and held to its policies.
            let family = view.routes.get(route).and_then(|state| state.family.as_ref());
            let children = family.into_iter().flat_map(|bound| &bound.family.children);
            affected.extend(children.map(|report| report.child.clone()));
        }
        let parents = self.listeners.parents.iter().chain(&self.hierarchy.moved);
        let parents = parents.chain(&self.hierarchy.candidates);
        let parents = parents.chain(&self.gateways.acceptances).chain(&self.gateways.overlaps);
        let parents =
            parents.chain(&self.admissions.parents).chain(&self.traffic.parents).chain(&self.filters.parents);
        let attached = self.parents.iter();
        let attached = attached.chain(self.conflicts.listeners.keys().map(|(parent, _)| parent));
        affected.extend(parents.chain(attached).map(ParentKey::object));
        affected.extend(self.gateways.merged.iter().chain(&self.defaults.gateways).map(gateway_key));
        let gateways = self.gateways.whole.iter().chain(&self.frontends.lost);
        let gateways = gateways.chain(self.retold).chain(self.observed);
        affected.extend(gateways.flat_map(|gateway| members(gateway, view.hierarchy)));
        let policies: Vec<_> = affected.iter().flat_map(|key| policies_on(key, view)).collect();
        affected.extend(policies);
        let asked = asked_at(&affected, view);
        for service in asked.iter().chain(&self.traffic.asked) {
            let policies = view.policies.on(service);
            affected.extend(policies.map(|name| ObjectKey::new(Kind::BackendTlsPolicy, name.clone())));
            affected.extend(view.backend_policies.on(service));
        }
        affected
    }

    /// Every GatewayClass says whether the installed release is a known one.
    fn classes(&self, view: View<'_>) -> BTreeSet<ObjectKey> {
        let mut classes = changed_classes(self.objects, view.objects);
        if self.objects.any_of(Kind::CustomResourceDefinition) {
            classes.extend(view.objects.gateway_classes.keys().cloned());
        }
        classes.into_iter().map(|name| ObjectKey { kind: Kind::GatewayClass, name }).collect()
    }
}

/// A Gateway and its children.
fn members(gateway: &ObjectName, hierarchy: &Hierarchy) -> impl Iterator<Item = ObjectKey> {
    std::iter::once(gateway_key(gateway)).chain(hierarchy.children(gateway).map(ParentKey::object))
}

/// The policies on an object with listeners, and on the Gateway that has those: they say whether
/// some of them are programmed. Those on a route say whether it is accepted.
fn policies_on(key: &ObjectKey, view: View<'_>) -> Vec<ObjectKey> {
    let parent = ParentKey::of(key);
    let above = parent.as_ref().and_then(|parent| view.hierarchy.gateway_of(parent)).map(gateway_key);
    let mut policies = Vec::new();
    for holder in above.iter().chain([key]) {
        let admitting = view.admissions.policies().policies_on(holder);
        policies.extend(admitting.map(|name| ObjectKey::new(Kind::ListenerPolicy, name.clone())));
        let protecting = view.traffic.policies().policies_on(holder);
        policies.extend(protecting.map(|name| ObjectKey::new(Kind::TrafficPolicy, name.clone())));
    }
    policies
}

/// The Services that TrafficPolicies among these objects ask, or those on children of the routes
/// among them, which are attached where these are.
fn asked_at(affected: &BTreeSet<ObjectKey>, view: View<'_>) -> BTreeSet<ObjectName> {
    let policies = affected.iter().filter(|key| key.kind == Kind::TrafficPolicy).map(|key| &key.name);
    let families = affected.iter().filter_map(|key| view.routes.get(key)?.family.as_ref());
    let children = families.flat_map(|bound| &bound.family.children).map(|report| &report.child);
    let on_children = children.flat_map(|child| view.traffic.policies().policies_on(child));
    policies.chain(on_children).flat_map(|policy| view.traffic.asked_by(policy)).cloned().collect()
}

fn gateway_key(name: &ObjectName) -> ObjectKey {
    ParentKey { kind: ParentKind::Gateway, name: name.clone() }.object()
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Change, Object, StatusUse};
    use serde_json::json;

    use super::*;
    use crate::{Settings, Translator};

    /// No route has to do with it, so that nothing else changes.
    #[test]
    fn a_problem_of_a_policy_ends_when_its_target_comes() {
        let object = |kind: Kind, spec: serde_json::Value| {
            let manifest = json!({"apiVersion": kind.api_version(), "kind": kind.as_str(),
                "metadata": {"name": "object", "namespace": "shop"}, "spec": spec});
            Object::from_json(manifest).unwrap().unwrap()
        };
        let policy = object(
            Kind::BackendTlsPolicy,
            json!({"targetRefs": [{"group": "", "kind": "Service", "name": "object"}],
                "validation": {"hostname": "a.example", "wellKnownCACertificates": "System"}}),
        );
        let service = object(Kind::Service, json!({"ports": [{"port": 443}]}));
        let mut translator = Translator::new(Settings::default());
        let told = translator.apply(vec![Change::Set(policy.clone())]).problems;
        assert!(told[&policy.key()][0].starts_with("targetRefs: Service shop/object does not exist; until"));
        let told = translator.apply(vec![Change::Set(service.clone())]).problems;
        assert_eq!(told, [(policy.key(), Vec::new())].into());
        let told = translator.apply(vec![Change::Delete(service.key())]).problems;
        assert_eq!(told[&policy.key()].len(), 1);
    }

    #[test]
    fn every_kind_whose_status_is_ours_gets_one() {
        // Whatever a kind does not know is ignored.
        let target = |group: &str, kind: &str| json!({"group": group, "kind": kind, "name": "object"});
        let targets = [target("", "Service"), target("gateway.networking.k8s.io", "Gateway")];
        let spec = json!({"controllerName": "c", "gatewayClassName": "object", "hostnames": [],
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
            "port": {}, "rules": [{"backendRefs": [{"name": "object", "port": 80},
            {"name": "object", "group": "gateway.networking.x-k8s.io", "kind": "XBackend"}]}], "targetRefs": targets, "deny": [],
            "validation": {"hostname": "a.example", "wellKnownCACertificates": "System"},
            "parentRef": {"name": "object"}, "parentRefs": [{"name": "object"}], "type": "PathRewrite"});
        for kind in Kind::ALL.iter().copied().filter(|kind| kind.status() == StatusUse::Written) {
            let kinds = BTreeSet::from([Kind::GatewayClass, Kind::Gateway, Kind::HttpRoute, kind]);
            let objects = kinds.iter().map(|kind| {
                let manifest = json!({"apiVersion": kind.api_version(), "kind": kind.as_str(),
                    "metadata": {"name": "object"}, "spec": spec});
                Change::Set(Object::from_json(manifest).unwrap().unwrap())
            });
            let settings = Settings { controller_name: "c".to_owned(), ..Settings::default() };
            let outcome = Translator::new(settings).apply(objects.collect());
            assert!(outcome.statuses.keys().any(|key| key.kind == kind), "{kind}");
        }
    }
}
