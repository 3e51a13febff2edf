//! Which Secrets and ConfigMaps the Gateways of our classes refer to: the only ones whose contents are ever read.

use std::collections::BTreeSet;

use portcullis_api::admission::is_subdomain;
use portcullis_gateway::api::gateways::{Gateway, GatewayTls};
use portcullis_gateway::api::shared::{FrontendTls, ListenerSpec, ObjectReference};
use portcullis_gateway::{Kind, ObjectKey, Objects, secrets_of};
use portcullis_model::ObjectName;

/// Whether objects of the kind can change what is referred to.
pub(super) fn is_referrer(kind: Kind, only: Option<&ObjectName>) -> bool {
    match kind {
        Kind::GatewayClass | Kind::Gateway | Kind::ListenerSet => true,
        // What permission depends on.
        Kind::ReferenceGrant | Kind::Namespace => only.is_some(),
        _ => false,
    }
}

/// With `only`, what that Gateway is served with: a pod has no use for others' keys, and no right to read more.
pub(super) fn referred(
    objects: &Objects,
    controller_name: &str,
    only: Option<&ObjectName>,
) -> BTreeSet<ObjectKey> {
    let keys = match only {
        Some(gateway) => of_pod(gateway, objects),
        None => of_all(objects, controller_name),
    };
    // The CRDs take any text; nothing is called what no object can be called.
    keys.into_iter().filter(|key| is_subdomain(&key.name.name) && is_subdomain(&key.name.namespace)).collect()
}

fn of_pod(gateway: &ObjectName, objects: &Objects) -> BTreeSet<ObjectKey> {
    let secrets = secrets_of(gateway, objects).into_iter();
    secrets.map(|name| ObjectKey::new(Kind::Secret, name)).collect()
}

fn of_all(objects: &Objects, controller_name: &str) -> BTreeSet<ObjectKey> {
    let is_ours = |gateway: &Gateway| {
        let class = ObjectName::new("", gateway.spec.gateway_class_name.as_str());
        objects.gateway_classes.get(&class).is_some_and(|class| class.spec.controller_name == controller_name)
    };
    let gateways = objects.gateways.iter().filter(|(_, gateway)| is_ours(gateway));
    let mut keys: BTreeSet<ObjectKey> =
        gateways.flat_map(|(name, gateway)| of_gateway(name, gateway)).collect();
    for (name, set) in &objects.listener_sets {
        let parent = &set.spec.parent_ref;
        let namespace = parent.namespace.as_deref().unwrap_or(&name.namespace);
        let parent = objects.gateways.get(&ObjectName::new(namespace, parent.name.as_str()));
        if parent.is_some_and(|gateway| is_ours(gateway)) {
            keys.extend(of_listeners(name, &set.spec.listeners));
        }
    }
    keys
}

fn of_gateway(name: &ObjectName, gateway: &Gateway) -> Vec<ObjectKey> {
    let listeners = gateway.spec.listeners.as_deref().unwrap_or_default();
    let own = of_listeners(name, listeners);
    let tls = gateway.spec.tls.iter().flat_map(|tls| of_tls(name, tls));
    own.chain(tls).collect()
}

fn of_listeners<'l>(
    name: &'l ObjectName,
    listeners: &'l [ListenerSpec],
) -> impl Iterator<Item = ObjectKey> + 'l {
    let certificates = listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let certificates = certificates.flat_map(|tls| tls.certificate_refs.iter().flatten());
    certificates.filter_map(|reference| of_certificate(name, reference))
}

fn of_tls<'l>(name: &'l ObjectName, tls: &'l GatewayTls) -> impl Iterator<Item = ObjectKey> + 'l {
    let client = tls.backend.iter().filter_map(|backend| backend.client_certificate_ref.as_ref());
    let client = client.filter_map(|reference| of_certificate(name, reference));
    let frontends = tls.frontend.iter().flat_map(|frontend| {
        std::iter::once(&frontend.default).chain(frontend.per_port.iter().flatten().map(|port| &port.tls))
    });
    client.chain(frontends.flat_map(|frontend| of_validation(name, frontend)))
}

fn of_validation<'l>(name: &'l ObjectName, tls: &'l FrontendTls) -> impl Iterator<Item = ObjectKey> + 'l {
    let references = tls.validation.iter().flat_map(|validation| &validation.ca_certificate_refs);
    references.filter_map(|reference| {
        key(name, &reference.group, &reference.kind, reference.namespace.as_deref(), &reference.name)
    })
}

fn of_certificate(name: &ObjectName, reference: &ObjectReference) -> Option<ObjectKey> {
    let group = reference.group.as_deref().unwrap_or_default();
    let kind = reference.kind.as_deref().unwrap_or("Secret");
    key(name, group, kind, reference.namespace.as_deref(), &reference.name)
}

fn key(from: &ObjectName, group: &str, kind: &str, namespace: Option<&str>, name: &str) -> Option<ObjectKey> {
    let kind = Kind::of(group, kind).filter(|kind| matches!(kind, Kind::Secret | Kind::ConfigMap))?;
    Some(ObjectKey::new(kind, ObjectName::new(namespace.unwrap_or(&from.namespace), name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_gateway::{Change, Object};
    use serde_json::{Value, json};

    fn objects(manifests: &[(&str, &str, Value)]) -> Objects {
        let mut objects = Objects::default();
        for (kind, name, spec) in manifests {
            let manifest = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
                "metadata": {"name": name, "namespace": "edge"}, "spec": spec});
            objects.apply(Change::Set(Object::from_json(manifest).unwrap().unwrap()));
        }
        objects
    }

    #[test]
    fn only_what_our_gateways_refer_to_is_read() {
        let tls = |secret: &str| json!([{"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": secret}]}}]);
        let objects = objects(&[
            ("GatewayClass", "ours", json!({"controllerName": "c"})),
            ("GatewayClass", "theirs", json!({"controllerName": "d"})),
            (
                "Gateway",
                "a",
                json!({"gatewayClassName": "ours", "listeners": tls("one"), "tls": {"frontend": {
                "default": {"validation": {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}}}}}),
            ),
            ("Gateway", "b", json!({"gatewayClassName": "theirs", "listeners": tls("two")})),
            ("ListenerSet", "s", json!({"parentRef": {"name": "a"}, "listeners": tls("three")})),
            ("ListenerSet", "t", json!({"parentRef": {"name": "b"}, "listeners": tls("four")})),
        ]);
        let keys: Vec<_> = referred(&objects, "c", None).iter().map(ToString::to_string).collect();
        assert_eq!(keys, ["Secret edge/one", "Secret edge/three", "ConfigMap edge/ca"]);
        assert!(referred(&objects, "c", Some(&ObjectName::new("edge", "other"))).is_empty());
    }
    #[test]
    fn names_that_no_object_can_have_are_not_asked_for() {
        let names = ["a b", "../../other/secrets/key", "key?watch=1", "Upper", "..", "", "a.b-c"];
        let references = names.map(|name| json!({"name": name}));
        let tls =
            json!([{"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": references}}]);
        let objects = objects(&[
            ("GatewayClass", "ours", json!({"controllerName": "c"})),
            ("Gateway", "a", json!({"gatewayClassName": "ours", "listeners": tls})),
        ]);
        let keys: Vec<_> = referred(&objects, "c", None).iter().map(ToString::to_string).collect();
        assert_eq!(keys, ["Secret edge/a.b-c"]);
    }
}
