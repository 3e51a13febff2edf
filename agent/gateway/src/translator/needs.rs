//! Stage: the objects whose contents translation needs. Everything else is given to it whole; of
//! these, an API server is asked for one after the other, and for no others: what nothing of ours
//! refers to with permission is not read.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::Reading;
use portcullis_api::admission::is_subdomain;
use portcullis_model::{ObjectName, ParentKind};

use super::generated::Sources;
use crate::api::gateways::GatewayTls;
use crate::{AgentRole, Grants, Kind, ObjectKey};

/// By the Gateway that they are for, with everything that is attached to it.
#[derive(Debug, Default)]
pub(super) struct Needs(BTreeMap<ObjectName, BTreeSet<ObjectKey>>);

/// A reference as it is written, with the defaults of its field.
struct Reference<'r> {
    group: &'r str,
    kind: &'r str,
    namespace: Option<&'r str>,
    name: &'r str,
}

// === impl Needs ===

impl Needs {
    /// All of them, if different from before.
    pub(super) fn update(
        &mut self,
        affected: &BTreeSet<ObjectName>,
        sources: Sources<'_>,
    ) -> Option<BTreeSet<ObjectKey>> {
        let mut changed = false;
        for gateway in affected {
            let now = sources.needs(gateway);
            let before = match now.is_empty() {
                true => self.0.remove(gateway),
                false => self.0.insert(gateway.clone(), now.clone()),
            };
            changed |= before.unwrap_or_default() != now;
        }
        changed.then(|| self.0.values().flatten().cloned().collect())
    }
}

impl Sources<'_> {
    fn needs(self, gateway: &ObjectName) -> BTreeSet<ObjectKey> {
        if self.gateways.get(gateway).is_none() {
            return BTreeSet::new();
        }
        let secrets = || self.secrets(gateway).into_iter().map(|name| ObjectKey { kind: Kind::Secret, name });
        let of_tls = || self.with_attached(gateway).flat_map(move |name| self.references_of_tls(name));
        // A pod has rights to what its own listeners refer to, and to nothing else.
        let (secrets, of_tls) = match &self.settings.role {
            AgentRole::Node => (Some(secrets()), Some(of_tls())),
            AgentRole::Dedicated(only) => ((only == gateway).then(secrets), None),
        };
        let keys = secrets.into_iter().flatten().chain(of_tls.into_iter().flatten());
        // The CRDs take any text; nothing is called what no object can be called.
        let has_name = |key: &ObjectKey| is_subdomain(&key.name.name) && is_subdomain(&key.name.namespace);
        keys.filter(has_name).collect()
    }

    /// A Gateway, and those that are attached to it.
    fn with_attached<'g>(self, gateway: &'g ObjectName) -> impl Iterator<Item = &'g ObjectName>
    where
        Self: 'g,
    {
        let children = self.hierarchy.children(gateway);
        let gateways = children.filter(|key| key.kind == ParentKind::Gateway).map(|key| &key.name);
        std::iter::once(gateway).chain(gateways)
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
    use serde_json::{Value, json};

    use super::*;
    use crate::{Change, Object, Settings, Translator};

    fn needs(manifests: &[(&str, &str, Value)], role: AgentRole) -> Vec<String> {
        let set = |(kind, name, spec): &(&str, &str, Value)| {
            let manifest = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
                "metadata": {"name": name, "namespace": "edge"}, "spec": spec});
            Change::Set(Object::from_json(manifest).unwrap().unwrap())
        };
        let settings = Settings { controller_name: "c".to_owned(), role, ..Settings::default() };
        let outcome = Translator::new(settings).apply(manifests.iter().map(set).collect());
        outcome.needs.iter().flatten().map(ToString::to_string).collect()
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
        assert_eq!(needs(&objects, only("a")), all[..2]);
        assert!(needs(&objects, only("other")).is_empty());
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
}
