use portcullis_api::{Change, Object, Objects};
use serde_json::{Value, json};

use super::*;
use crate::policy::authorities::TrustBundles;

fn object(api_version: &str, kind: &str, name: &str, content: Value) -> Object {
    let mut manifest = content;
    manifest["apiVersion"] = api_version.into();
    manifest["kind"] = kind.into();
    manifest["metadata"] = json!({"name": name, "namespace": "shop"});
    Object::from_json(manifest).unwrap().unwrap()
}

/// With an authority in ConfigMap and Secret `ca`.
fn declared(spec: &Value) -> Declared {
    let certificate = rcgen::generate_simple_self_signed(["ca.example".to_owned()]).unwrap().cert.pem();
    let mut objects = Objects::default();
    let data = json!({"ca.crt": certificate});
    objects.apply(Change::Set(object("v1", "ConfigMap", "ca", json!({"data": data}))));
    objects.apply(Change::Set(object("v1", "Secret", "ca", json!({"stringData": data}))));
    let mut spec = spec.clone();
    spec["targetRefs"] = json!([{"group": "", "kind": "Service", "name": "a"}]);
    let name = ObjectName::new("shop", "p");
    objects.apply(Change::Set(object(
        "gateway.networking.k8s.io/v1",
        "BackendTLSPolicy",
        "p",
        json!({"spec": spec}),
    )));
    let sources = Holders { objects: &objects, bundles: &TrustBundles::default() };
    Declared::of(&name, &objects.backend_tls_policies[&name], sources)
}

fn validated(validation: &Value) -> Result<BackendTls, Fault> {
    declared(&json!({"validation": validation})).tls.map(|tls| (*tls).clone())
}

#[test]
fn targets_are_services_of_the_policys_namespace_or_their_ports() {
    let references = json!([{"group": "", "kind": "Service", "name": "a"},
        {"group": "", "kind": "Service", "name": "b", "sectionName": "https"},
        {"group": "example.com", "kind": "Service", "name": "c"},
        {"group": "", "kind": "Secret", "name": "d"}, {"group": "core", "kind": "Service", "name": "e"},
        {"group": "", "kind": "service", "name": "f"}, {"group": "apps", "kind": "Deployment", "name": "g"},
        {"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "h"}]);
    let validation = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
    let policy = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
        "metadata": {"name": "p"}, "spec": {"targetRefs": references, "validation": validation}});
    let policy = serde_json::from_value(policy).unwrap();
    let found = targets(&ObjectName::new("shop", "p"), &policy);
    let service = |name| ObjectName::new("shop", name);
    assert_eq!(
        *found,
        [
            Target { service: service("a"), section: None },
            Target { service: service("b"), section: Some("https".into()) }
        ]
    );
    assert!(found[0].covers(None) && found[0].covers(Some("http")));
    assert!(found[1].covers(Some("https")) && !found[1].covers(Some("http")) && !found[1].covers(None));
    let told = misnamed(&policy).into_iter().map(|fault| fault.message).collect::<Vec<_>>();
    let expected = |kind: &str, group: &str| {
        format!("targetRefs: {kind:?} of group {group:?} is no target: name a Service of group \"\"")
    };
    assert_eq!(
        told,
        [
            expected("Secret", ""),
            expected("Service", "core"),
            expected("service", ""),
            expected("Deployment", "apps"),
            expected("XBackend", "gateway.networking.x-k8s.io")
        ],
        "example.com may be another implementation's"
    );
}

#[test]
fn the_certificate_is_the_hostnames_unless_there_are_alternative_names() {
    let dns = |name: &str| PeerIdentity::Dns(name.into());
    let tls = |names: Value| {
        validated(
            &json!({"hostname": "A.example", "wellKnownCACertificates": "System", "subjectAltNames": names}),
        )
        .unwrap()
    };
    let plain = tls(json!([]));
    assert_eq!((&*plain.server_name, &*plain.identities), ("a.example", &[dns("a.example")][..]));
    let other = tls(
        json!([{"type": "URI", "uri": "spiffe://d/NS"}, {"type": "Hostname", "hostname": "*.B.example"}]),
    );
    assert_eq!(&*other.server_name, "a.example");
    assert_eq!(*other.identities, [PeerIdentity::Uri("spiffe://d/NS".into()), dns("*.b.example")]);
}

#[test]
fn authorities_come_from_config_maps_and_secrets_or_are_the_systems() {
    let of = |field: Value| {
        let mut validation = field;
        validation["hostname"] = "a.example".into();
        validated(&validation).map(|tls| tls.authorities)
    };
    let reference = |kind: &str, name: &str| json!({"group": "", "kind": kind, "name": name});
    for kind in ["ConfigMap", "Secret"] {
        let Ok(Authorities::Given(given)) = of(json!({"caCertificateRefs": [reference(kind, "ca")]})) else {
            panic!()
        };
        assert_eq!(given.len(), 1);
    }
    // The same one twice, and one that is not there.
    let several = ["ca", "ca", "none"].map(|name| reference("ConfigMap", name));
    let Ok(Authorities::Given(given)) = of(json!({"caCertificateRefs": several})) else { panic!() };
    assert_eq!(given.len(), 1);
    for system in [json!({}), json!({"caCertificateRefs": []})] {
        let mut system = system;
        system["wellKnownCACertificates"] = "System".into();
        assert_eq!(of(system).unwrap(), Authorities::System);
    }
}

#[test]
fn some_references_may_lead_nowhere_but_not_all() {
    let reference = |group: &str, kind: &str, name: &str| json!({"group": group, "kind": kind, "name": name});
    let (good, none) = (reference("", "ConfigMap", "ca"), reference("", "ConfigMap", "none"));
    let other = reference("example.com", "Bundle", "ca");
    let reasons = |references: Value| {
        let declared =
            declared(&json!({"validation": {"hostname": "a.example", "caCertificateRefs": references}}));
        (declared.tls.err().map(|fault| fault.reason), declared.unresolved.map(|fault| fault.reason))
    };
    assert_eq!(reasons(json!([good])), (None, None));
    assert_eq!(reasons(json!([good, none])), (None, Some(Reason::InvalidCACertificateRef)));
    let nothing = Some(Reason::NoValidCACertificate);
    assert_eq!(reasons(json!([none])), (nothing, Some(Reason::InvalidCACertificateRef)));
    assert_eq!(reasons(json!([other])), (nothing, Some(Reason::InvalidKind)));
}

#[test]
fn what_cannot_be_meant_sends_nothing() {
    let system = |field: &str, value: Value| {
        let mut validation = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
        validation[field] = value;
        validation
    };
    let ca = json!([{"group": "", "kind": "ConfigMap", "name": "ca"}]);
    for (validation, told) in [
        (system("hostname", json!("10.0.0.1")), "validation.hostname: \"10.0.0.1\" is no DNS name"),
        (system("hostname", json!("a example")), "\"a example\" is no DNS name"),
        (system("hostname", json!("")), "\"\" is no DNS name"),
        (system("hostname", json!("*.a.example")), "\"*.a.example\" is no DNS name"),
        (system("hostname", json!("a.example.")), "\"a.example.\" is no DNS name"),
        (
            system("wellKnownCACertificates", json!("example.com/ours")),
            "is \"example.com/ours\": write System",
        ),
        (
            system("wellKnownCACertificates", json!("")),
            "write one of caCertificateRefs and wellKnownCACertificates",
        ),
        (system("caCertificateRefs", ca), "write one of caCertificateRefs and wellKnownCACertificates"),
        (system("subjectAltNames", json!([{"type": "IP"}])), "there is no type \"IP\""),
        (system("subjectAltNames", json!([{"type": "URI"}])), "an entry of type URI has no uri"),
        (system("subjectAltNames", json!([{"type": "URI", "uri": "a/b"}])), "\"a/b\" is no absolute URI"),
        (
            system("subjectAltNames", json!([{"type": "Hostname"}])),
            "an entry of type Hostname has no hostname",
        ),
        (
            system("subjectAltNames", json!([{"type": "Hostname", "hostname": "*.*.a"}])),
            "\"*.a\" is no DNS name",
        ),
    ] {
        let fault = validated(&validation).unwrap_err();
        assert_eq!(fault.reason, Reason::Invalid);
        assert!(
            fault.message.contains(told) && fault.message.contains("nothing is sent"),
            "{}",
            fault.message
        );
    }
}

#[test]
fn options_that_are_not_known_send_nothing_unless_they_are_anothers() {
    let with = |option: &str| {
        let validation = json!({"hostname": "a.example", "wellKnownCACertificates": "System"});
        declared(&json!({"validation": validation, "options": {option: "1.3"}}))
    };
    let foreign = with("example.com/minimum");
    assert!(foreign.tls.is_ok() && foreign.ignored == ["options example.com/minimum"]);
    for unknown in ["minimum", "portcullis.dev/minimum", "tls.portcullis.dev/minimum"] {
        let fault = with(unknown).tls.unwrap_err();
        assert!(fault.reason == Reason::Invalid && fault.message.contains(unknown), "{}", fault.message);
    }
}

#[test]
fn a_policys_fault_is_for_its_namespace() {
    let (policy, service) = (ObjectName::new("shop", "p"), ObjectName::new("shop", "s"));
    let fault = invalid("secret".to_owned());
    let told = |reader| unserved((&policy, &fault), &service, 443, reader).message;
    assert!(told("shop").starts_with("BackendTLSPolicy shop/p is not valid (secret)"));
    let foreign = told("edge");
    assert!(foreign.starts_with(
        "a BackendTLSPolicy in namespace shop is not valid; nothing is sent to Service shop/s port 443"
    ));
    assert!(!foreign.contains("secret"));
}
