//! Stage: the objects whose contents translation needs. Everything else is given to it whole; of
//! these, an API server is asked for one after the other, and for no others: what nothing of ours
//! refers to with permission is not read.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::Reading;
use portcullis_api::admission::is_subdomain;
use portcullis_api::types::gateways::GatewayTls;
use portcullis_api::{Kind, ObjectKey};
use portcullis_model::{ObjectName, ParentKind};

use super::changes::ChangedObjects;
use super::counts::Counts;
use super::hierarchy::ChangedHierarchy;
use super::listeners::ChangedListeners;
use super::relation::{Relation, only_in};
use super::view::View;
use crate::listener::ParentKey;
use crate::{AgentRole, Grants};

#[derive(Debug, Default)]
pub(super) struct Needs {
    /// By Gateway and ListenerSet that is served, what it refers to, in order.
    by_parent: BTreeMap<ParentKey, Box<[ObjectKey]>>,
    /// By BackendTLSPolicy that is heeded.
    by_policy: BTreeMap<ObjectName, Heeded>,
    /// The policies that each Gateway heeds.
    heeding: Relation<ObjectName, ObjectName>,
    /// By TrafficPolicy with effect, the objects that credentials are checked against, in order.
    by_traffic: BTreeMap<ObjectName, Box<[ObjectKey]>>,
    /// By XBackend in use, the objects with its authorities and its client certificate, in order.
    by_external: BTreeMap<ObjectName, Box<[ObjectKey]>>,
    /// By Service with endpoints of nodes, the pods that may prove them, in order.
    by_service: BTreeMap<ObjectName, Box<[ObjectKey]>>,
    /// The number of objects that refer to each object.
    references: Counts<ObjectKey>,
}

/// A policy with authorities that have to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Heeded {
    /// The objects with its authorities, in order.
    holders: Box<[ObjectKey]>,
    gateways: BTreeSet<ObjectName>,
}

/// The difference that a change made to what is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedNeeds {
    pub added: BTreeSet<ObjectKey>,
    pub removed: BTreeSet<ObjectKey>,
}

/// The changes that needs follow from.
pub(super) struct Changes<'c> {
    pub objects: &'c ChangedObjects,
    pub listeners: &'c ChangedListeners,
    pub hierarchy: &'c ChangedHierarchy,
    /// BackendTLSPolicies that are about something else now.
    pub targeted: &'c BTreeSet<ObjectName>,
    /// BackendTLSPolicies of Services that routes and filters of listeners refer to, or did.
    pub referred: &'c BTreeSet<ObjectName>,
    /// TrafficPolicies that changed, or that have effect now, or none any more.
    pub traffic: &'c BTreeSet<ObjectName>,
    /// XBackends that changed, and those that changed routes refer to, or did.
    pub externals: &'c BTreeSet<ObjectName>,
    /// Services whose endpoints are to be proved by other pods.
    pub services: &'c BTreeSet<ObjectName>,
}

/// A reference as it is written, with the defaults of its field.
struct Reference<'r> {
    group: &'r str,
    kind: &'r str,
    namespace: Option<&'r str>,
    name: &'r str,
}

// === impl Needs ===

impl Needs {
    /// Returns the Gateways that need something else, too.
    pub(super) fn update(
        &mut self,
        changes: &Changes<'_>,
        view: View<'_>,
    ) -> (ChangedNeeds, BTreeSet<ObjectName>) {
        let (judged, attached) = (changes.listeners, changes.hierarchy);
        let mut affected: BTreeSet<_> = judged.parents.union(&attached.moved).cloned().collect();
        if changes.objects.any_of(Kind::ReferenceGrant) {
            // Rare, so there is no list of who refers to what namespace.
            let gateways = view.objects.gateways.iter();
            let with_tls = gateways.filter(|(_, gateway)| gateway.spec.tls.is_some());
            affected.extend(
                with_tls.map(|(name, _)| ParentKey { kind: ParentKind::Gateway, name: name.clone() }),
            );
        }
        let (mut now_changed, mut gateways) = (ChangedNeeds::default(), BTreeSet::new());
        for parent in affected {
            let now = view.needs_of(&parent);
            let gateway = view.hierarchy.gateway_of(&parent);
            let before = replace(&mut self.by_parent, parent.clone(), &now);
            if before != now {
                gateways.extend(gateway.cloned());
            }
            self.count(&before, &now, &mut now_changed);
        }
        for policy in changes.targeted.union(changes.referred) {
            let now = view.heeded(policy);
            let before = match now.holders.is_empty() {
                true => self.by_policy.remove(policy),
                false => self.by_policy.insert(policy.clone(), now.clone()),
            };
            let before = before.unwrap_or_default();
            self.heeding.update(policy, &before.gateways, &now.gateways);
            self.count(&before.holders, &now.holders, &mut now_changed);
            if before != now {
                gateways.extend(before.gateways);
                gateways.extend(now.gateways);
            }
        }
        for policy in changes.traffic {
            let now = view.credentials_of(policy);
            let before = replace(&mut self.by_traffic, policy.clone(), &now);
            self.count(&before, &now, &mut now_changed);
        }
        for backend in changes.externals {
            let now = view.holders_of_external(backend);
            let before = replace(&mut self.by_external, backend.clone(), &now);
            self.count(&before, &now, &mut now_changed);
        }
        for service in changes.services {
            let now: Box<[_]> = view.backends.pods_of(service).collect();
            let before = replace(&mut self.by_service, service.clone(), &now);
            self.count(&before, &now, &mut now_changed);
        }
        (now_changed, gateways)
    }

    /// The Secrets and ConfigMaps that a Gateway is served with: those that it and what is attached
    /// to it refer to with permission, and those of the policies that it heeds.
    pub(super) fn of_gateway(&self, gateway: &ObjectName, view: View<'_>) -> BTreeSet<ObjectKey> {
        let own = ParentKey { kind: ParentKind::Gateway, name: gateway.clone() };
        let members = std::iter::once(&own).chain(view.hierarchy.children(gateway));
        let referred = members.filter_map(|key| self.by_parent.get(key)).flatten();
        let policies = self.heeding.of(gateway).filter_map(|policy| self.by_policy.get(policy));
        let holders = policies.flat_map(|heeded| &heeded.holders).filter(|key| may_hold(key, gateway));
        let needs = referred.chain(holders);
        needs.filter(|key| matches!(key.kind, Kind::Secret | Kind::ConfigMap)).cloned().collect()
    }

    fn count(&mut self, before: &[ObjectKey], now: &[ObjectKey], changed: &mut ChangedNeeds) {
        for key in only_in(now, before).filter(|key| self.references.add(key)) {
            changed.add(key);
        }
        for key in only_in(before, now).filter(|key| self.references.remove(key)) {
            changed.remove(key);
        }
    }
}

/// True of an object with a policy's authorities that the pods of a Gateway in mode Dedicated may
/// read. A Secret may have an authority's key, too, which is not for the tenant of another
/// namespace: users who may run pods in the Gateway's can read what its pods can.
fn may_hold(holder: &ObjectKey, gateway: &ObjectName) -> bool {
    holder.kind != Kind::Secret || holder.name.namespace == gateway.namespace
}

/// Puts what is needed in the place of what was, which is returned.
fn replace<K: Ord>(by: &mut BTreeMap<K, Box<[ObjectKey]>>, key: K, now: &[ObjectKey]) -> Box<[ObjectKey]> {
    let before = if now.is_empty() { by.remove(&key) } else { by.insert(key, now.into()) };
    before.unwrap_or_default()
}

impl View<'_> {
    /// Nothing if no agent of ours follows the policy.
    fn heeded(self, policy: &ObjectName) -> Heeded {
        let holders = self.policies.get(policy).map(|declared| declared.holders.clone()).unwrap_or_default();
        if holders.is_empty() {
            return Heeded::default();
        }
        let gateways: BTreeSet<_> = self.heeding_gateways(policy).into_iter().cloned().collect();
        let is_ours = |key: &ObjectKey| match &self.settings.role {
            AgentRole::Node => !gateways.is_empty(),
            AgentRole::Dedicated(only) => gateways.contains(only) && may_hold(key, only),
        };
        let holders: Box<[_]> = holders.into_iter().filter(|key| is_ours(key) && can_exist(key)).collect();
        if holders.is_empty() { Heeded::default() } else { Heeded { holders, gateways } }
    }

    /// The objects that the credentials of a TrafficPolicy are checked against, in order, and those
    /// with the authorities of the Services that its key sets are fetched from, and that it has
    /// asked. Nothing if it is without effect: no request needs them. Those of one that comes next
    /// are read beforehand, or its targets would be closed until they are. A pod of mode Dedicated
    /// has no right to read any: there, its targets are closed.
    fn credentials_of(self, policy: &ObjectName) -> Box<[ObjectKey]> {
        let is_read =
            self.settings.role == AgentRole::Node && self.is_in_line(policy, self.traffic.policies());
        let holders: BTreeSet<_> =
            self.holders_of_traffic(policy).filter(|key| is_read && can_exist(key)).collect();
        holders.into_iter().cloned().collect()
    }

    /// The same of an XBackend. Pods of a single Gateway have no rights to any.
    fn holders_of_external(self, backend: &ObjectName) -> Box<[ObjectKey]> {
        let holders =
            self.externals.get(backend).map(|declared| declared.holders.clone()).unwrap_or_default();
        let is_used = !holders.is_empty()
            && self.settings.role == AgentRole::Node
            && !self.gateways_of_external(backend).is_empty();
        holders.into_iter().filter(|key| is_used && can_exist(key)).collect()
    }

    /// References of a Gateway or a ListenerSet, with permission, in order.
    fn needs_of(self, parent: &ParentKey) -> Box<[ObjectKey]> {
        let gateway = self.hierarchy.gateway_of(parent);
        let Some((gateway, declared)) = gateway.zip(self.listeners.get(parent)) else {
            return Box::default();
        };
        let secrets = declared.secrets.iter();
        let mut needs: BTreeSet<_> =
            secrets.map(|name| ObjectKey { kind: Kind::Secret, name: name.clone() }).collect();
        match &self.settings.role {
            // A pod has rights to what its own Gateway is served with, and to nothing else.
            AgentRole::Dedicated(only) if only != gateway => return Box::default(),
            AgentRole::Node | AgentRole::Dedicated(_) => {}
        }
        if parent.kind == ParentKind::Gateway {
            needs.extend(self.references_of_tls(&parent.name));
        }
        // The CRDs take any text; nothing is called what no object can be called.
        needs.retain(can_exist);
        needs.into_iter().collect()
    }

    fn references_of_tls(self, name: &ObjectName) -> Vec<ObjectKey> {
        let gateway = self.objects.gateways.get(name);
        let tls = gateway.and_then(|gateway| gateway.spec.tls.as_ref());
        let grants = Grants::new(self.objects);
        let permitted = |reference: Reference<'_>| {
            let kind = Kind::of(reference.group, reference.kind)?;
            let namespace = reference.namespace.unwrap_or(&name.namespace);
            let target = ObjectName::new(namespace, reference.name);
            let granted = grants.check(Kind::Gateway, &name.namespace, kind, target)?;
            Some(ObjectKey { kind, name: ObjectName::clone(&granted) })
        };
        let keys = tls.into_iter().flat_map(references).filter_map(permitted);
        keys.filter(|key| key.kind.reading() == Reading::OnDemand).collect()
    }
}

fn can_exist(key: &ObjectKey) -> bool {
    is_subdomain(&key.name.name) && is_subdomain(&key.name.namespace)
}

// === impl ChangedNeeds ===

impl ChangedNeeds {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    /// One that another object referred to before the same change is nothing new.
    fn add(&mut self, key: &ObjectKey) {
        if !self.removed.remove(key) {
            self.added.insert(key.clone());
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        if !self.added.remove(key) {
            self.removed.insert(key.clone());
        }
    }
}

/// The client certificate for backends, and the authorities by which clients are validated.
fn references(tls: &GatewayTls) -> Vec<Reference<'_>> {
    let client = tls.backend.iter().filter_map(|backend| backend.client_certificate_ref.as_ref());
    let client = client.map(|reference| Reference {
        group: reference.group.as_deref().unwrap_or_default(),
        kind: reference.kind.as_deref().unwrap_or("Secret"),
        namespace: reference.namespace.as_deref(),
        name: &reference.name,
    });
    let frontends = tls.frontend.iter().flat_map(|frontend| {
        std::iter::once(&frontend.default).chain(frontend.per_port.iter().flatten().map(|port| &port.tls))
    });
    let authorities = frontends.flat_map(|frontend| &frontend.validation);
    let authorities = authorities.flat_map(|validation| &validation.ca_certificate_refs);
    let authorities = authorities.map(|reference| Reference {
        group: &reference.group,
        kind: &reference.kind,
        namespace: reference.namespace.as_deref(),
        name: &reference.name,
    });
    client.chain(authorities).collect()
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Change, Object};
    use serde_json::{Value, json};

    use super::*;
    use crate::{Settings, Translator};

    fn needs(manifests: &[(&str, &str, Value)], role: AgentRole) -> Vec<String> {
        let set = |(kind, name, spec): &(&str, &str, Value)| {
            let manifest = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
                "metadata": {"name": name, "namespace": "edge"}, "spec": spec});
            Change::Set(Object::from_json(manifest).unwrap().unwrap())
        };
        let settings = Settings { controller_name: "c".to_owned(), role, ..Settings::default() };
        let outcome = Translator::new(settings).apply(manifests.iter().map(set).collect());
        outcome.needs.added.iter().map(ToString::to_string).collect()
    }

    fn tls(secret: &str) -> Value {
        json!([{"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": secret}]}}])
    }

    #[test]
    fn only_what_our_gateways_refer_to_is_read() {
        let objects = [
            ("GatewayClass", "ours", json!({"controllerName": "c"})),
            ("GatewayClass", "theirs", json!({"controllerName": "d"})),
            (
                "Gateway",
                "a",
                json!({"gatewayClassName": "ours", "listeners": tls("one"),
                "allowedListeners": {"namespaces": {"from": "Same"}}, "tls": {"frontend": {
                "default": {"validation": {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}}}}}),
            ),
            ("Gateway", "b", json!({"gatewayClassName": "theirs", "listeners": tls("two")})),
            ("ListenerSet", "s", json!({"parentRef": {"name": "a"}, "listeners": tls("three")})),
            ("ListenerSet", "t", json!({"parentRef": {"name": "b"}, "listeners": tls("four")})),
        ];
        let all = ["Secret edge/one", "Secret edge/three", "ConfigMap edge/ca"];
        assert_eq!(needs(&objects, AgentRole::Node), all);
        let only = |name: &str| AgentRole::Dedicated(ObjectName::new("edge", name));
        assert_eq!(needs(&objects, only("a")), all);
        assert!(needs(&objects, only("other")).is_empty());
    }

    #[test]
    fn agents_read_what_credentials_are_checked_against() {
        let spec = json!({
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "a"}],
            "jwt": {"providers": [
                {"name": "a", "issuer": "a", "jwks": {"kind": "ConfigMap", "name": "keys"}},
                {"name": "b", "issuer": "b", "jwks": {"kind": "Secret", "name": "secret-keys"}},
                {"name": "c", "issuer": "c", "remoteJwks": {"backendRef": {"name": "login", "port": 443}, "path": "/"}}]},
            "apiKeys": {"secretRefs": [{"name": "../../other/secrets/key"}, {"name": "clients"}]},
            "basic": {"secretRef": {"name": "users"}},
            "externalAuth": {"protocol": "HTTP", "backendRef": {"name": "sign-in", "port": 443}}});
        let policy = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "TrafficPolicy",
            "metadata": {"name": "p", "namespace": "edge"}, "spec": spec});
        let tls = |service: &str, ca: &str| {
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
                "metadata": {"name": service, "namespace": "edge"},
                "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": service}], "validation":
                    {"hostname": "a.b", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": ca}]}}})
        };
        let class = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "ours"}, "spec": {"controllerName": "c"}});
        let gateway = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "a", "namespace": "edge"},
            "spec": {"gatewayClassName": "ours", "listeners": []}});
        let set = |manifest: &Value| Change::Set(Object::from_json(manifest.clone()).unwrap().unwrap());
        let needs = |role| {
            let settings = Settings { controller_name: "c".to_owned(), role, ..Settings::default() };
            let mut translator = Translator::new(settings);
            translator.apply(vec![set(&class), set(&gateway)]);
            let mut added = translator.apply(vec![set(&policy)]).needs.added;
            for tls in [tls("login", "ca"), tls("sign-in", "ca-of-auth")] {
                added.extend(translator.apply(vec![set(&tls)]).needs.added);
            }
            let gone = Change::Delete(ObjectKey::new(Kind::TrafficPolicy, ObjectName::new("edge", "p")));
            assert_eq!(translator.apply(vec![gone]).needs.removed, added);
            added.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let mut read = needs(AgentRole::Node);
        read.sort();
        // With the authorities of the Service that has keys, and of the one that is asked.
        let all = [
            "ConfigMap edge/ca",
            "ConfigMap edge/ca-of-auth",
            "ConfigMap edge/keys",
            "Secret edge/clients",
            "Secret edge/secret-keys",
            "Secret edge/users",
        ];
        assert_eq!(read, all);
        // It has no right to.
        assert!(needs(AgentRole::Dedicated(ObjectName::new("edge", "a"))).is_empty());
    }

    /// Secrets are read as long as a policy that refers to them is in force for something of ours,
    /// or comes next there.
    #[test]
    fn policies_without_effect_have_nothing_read() {
        let set = |kind: &str, name: &str, spec: Value| {
            let version = match kind {
                "TrafficPolicy" => "portcullis.dev/v1alpha1",
                _ => "gateway.networking.k8s.io/v1",
            };
            let manifest = json!({"apiVersion": version, "kind": kind,
                "metadata": {"name": name, "namespace": "edge"}, "spec": spec});
            Change::Set(Object::from_json(manifest).unwrap().unwrap())
        };
        let delete = |kind, name: &str| Change::Delete(ObjectKey::new(kind, ObjectName::new("edge", name)));
        let policy = |name: &str, kind: &str, section: &str| {
            let target = json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": "a",
                "sectionName": section});
            let users = json!({"secretRef": {"name": format!("of-{name}")}});
            set("TrafficPolicy", name, json!({"targetRefs": [target], "basic": users}))
        };
        let gateway = |class: &str| {
            let listeners = json!([{"name": "l", "port": 80, "protocol": "HTTP"}]);
            set("Gateway", "a", json!({"gatewayClassName": class, "listeners": listeners}))
        };
        let route = |rule: &str| {
            set("HTTPRoute", "a", json!({"parentRefs": [{"name": "a"}], "rules": [{"name": rule}]}))
        };
        let class =
            |name: &str, controller: &str| set("GatewayClass", name, json!({"controllerName": controller}));
        let mut translator =
            Translator::new(Settings { controller_name: "c".to_owned(), ..Settings::default() });
        let mut read = BTreeSet::<String>::new();
        for (change, expected) in [
            (class("ours", "c"), ""),
            (class("theirs", "d"), ""),
            (policy("p", "Gateway", "l"), ""),
            (gateway("theirs"), ""),
            (gateway("ours"), "of-p"),
            // The first by name is in force, and the second comes next.
            (policy("q", "Gateway", "l"), "of-p of-q"),
            (policy("r", "Gateway", "l"), "of-p of-q"),
            (delete(Kind::TrafficPolicy, "p"), "of-q of-r"),
            (policy("q", "Gateway", "other"), "of-r"),
            (policy("r", "HTTPRoute", "rule"), ""),
            (route("other"), ""),
            (route("rule"), "of-r"),
            (gateway("theirs"), ""),
            (gateway("ours"), "of-r"),
            (delete(Kind::HttpRoute, "a"), ""),
        ] {
            let needs = translator.apply(vec![change]).needs;
            assert!(needs.removed.iter().all(|key| read.remove(&*key.name.name)), "{needs:?}");
            assert!(needs.added.iter().all(|key| read.insert(key.name.name.to_string())), "{needs:?}");
            let read: Vec<_> = read.iter().map(String::as_str).collect();
            assert_eq!(read.join(" "), expected);
        }
    }

    /// The ConfigMap is read, and the policy has a status, as long as a listener asks the Service.
    #[test]
    fn services_that_filters_of_listeners_ask_are_spoken_to_as_policies_say() {
        let manifest = |kind, name, spec| {
            let manifest = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
                "metadata": {"name": name, "namespace": "edge"}, "spec": spec});
            Change::Set(Object::from_json(manifest).unwrap().unwrap())
        };
        let set = |gateway, service| {
            let auth = json!({"protocol": "HTTP", "backendRef": {"name": service, "port": 443}, "http": {}});
            let filters = json!({"requests": [{"type": "ExternalAuth", "externalAuth": auth}]});
            let listeners = json!([{"name": "l", "port": 80, "protocol": "HTTP", "filters": filters}]);
            manifest("ListenerSet", "s", json!({"parentRef": {"name": gateway}, "listeners": listeners}))
        };
        let tls = json!({"targetRefs": [{"group": "", "kind": "Service", "name": "sign-in"}], "validation":
            {"hostname": "a.b", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}});
        let gateway = json!({"gatewayClassName": "ours", "listeners": [],
            "allowedListeners": {"namespaces": {"from": "Same"}}});
        let settings = Settings { controller_name: "c".to_owned(), ..Settings::default() };
        let mut translator = Translator::new(settings);
        let (policy, ca) = (ObjectName::new("edge", "tls"), ObjectName::new("edge", "ca"));
        let (policy, ca) =
            (ObjectKey::new(Kind::BackendTlsPolicy, policy), ObjectKey::new(Kind::ConfigMap, ca));
        translator.apply(vec![
            manifest("GatewayClass", "ours", json!({"controllerName": "c"})),
            manifest("Gateway", "a", gateway.clone()),
            set("a", "other"),
            manifest("BackendTLSPolicy", "tls", tls),
        ]);
        for (change, is_asked) in [
            (set("a", "sign-in"), true),
            (set("a", "other"), false),
            (set("a", "sign-in"), true),
            (set("nowhere", "sign-in"), false),
            (manifest("Gateway", "nowhere", gateway), true),
        ] {
            let outcome = translator.apply(vec![change]);
            let needed = if is_asked { &outcome.needs.added } else { &outcome.needs.removed };
            assert!(needed.contains(&ca), "{needed:?}");
            assert_eq!(outcome.statuses.contains_key(&policy), is_asked);
            assert_eq!(outcome.forgotten.contains(&policy), !is_asked);
        }
    }

    #[test]
    fn names_that_no_object_can_have_are_not_asked_for() {
        let names = ["a b", "../../other/secrets/key", "key?watch=1", "Upper", "..", "", "a.b-c"];
        let references = names.map(|name| json!({"name": name}));
        let tls =
            json!([{"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": references}}]);
        let objects = [
            ("GatewayClass", "ours", json!({"controllerName": "c"})),
            ("Gateway", "a", json!({"gatewayClassName": "ours", "listeners": tls})),
        ];
        assert_eq!(needs(&objects, AgentRole::Node), ["Secret edge/a.b-c"]);
    }

    #[test]
    fn what_is_referred_to_without_permission_is_not_read() {
        let references = json!([{"name": "key", "namespace": "elsewhere"}]);
        let tls =
            json!([{"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": references}}]);
        let objects = [
            ("GatewayClass", "ours", json!({"controllerName": "c"})),
            ("Gateway", "a", json!({"gatewayClassName": "ours", "listeners": tls})),
        ];
        assert!(needs(&objects, AgentRole::Node).is_empty());
    }

    #[test]
    fn authorities_of_services_that_a_policy_may_not_ask_are_not_read() {
        let object = |kind: &str, group: &str, namespace: &str, name: &str, spec: Value| {
            let manifest = json!({"apiVersion": group, "kind": kind,
                "metadata": {"name": name, "namespace": namespace}, "spec": spec});
            Change::Set(Object::from_json(manifest).unwrap().unwrap())
        };
        let stable = "gateway.networking.k8s.io/v1";
        let listeners = json!([{"name": "l", "port": 80, "protocol": "HTTP"}]);
        let target = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "a"}]);
        let auth =
            json!({"protocol": "HTTP", "backendRef": {"name": "login", "namespace": "theirs", "port": 80}});
        let validation = json!({"hostname": "a.example",
            "caCertificateRefs": [{"group": "", "kind": "Secret", "name": "ca"}]});
        let of_service = json!([{"group": "", "kind": "Service", "name": "login"}]);
        let objects = [
            object("GatewayClass", stable, "", "ours", json!({"controllerName": "c"})),
            object(
                "Gateway",
                stable,
                "edge",
                "a",
                json!({"gatewayClassName": "ours", "listeners": listeners}),
            ),
            object(
                "TrafficPolicy",
                "portcullis.dev/v1alpha1",
                "edge",
                "p",
                json!({"targetRefs": target, "externalAuth": auth}),
            ),
            object("Service", "v1", "theirs", "login", json!({"ports": [{"port": 80}]})),
            object(
                "BackendTLSPolicy",
                stable,
                "theirs",
                "t",
                json!({"targetRefs": of_service, "validation": validation}),
            ),
        ];
        let grant = json!({"from": [{"group": "portcullis.dev", "kind": "TrafficPolicy", "namespace": "edge"}],
            "to": [{"group": "", "kind": "Service"}]});
        let grant = object("ReferenceGrant", stable, "theirs", "g", grant);
        let settings = Settings { controller_name: "c".to_owned(), ..Settings::default() };
        let mut translator = Translator::new(settings);
        let ca = |keys: &BTreeSet<ObjectKey>| keys.iter().any(|key| &*key.name.name == "ca");
        assert!(!ca(&translator.apply(objects.to_vec()).needs.added));
        assert!(ca(&translator.apply(vec![grant.clone()]).needs.added));
        let Change::Set(grant) = grant else { unreachable!() };
        assert!(ca(&translator.apply(vec![Change::Delete(grant.key())]).needs.removed));
    }
}
