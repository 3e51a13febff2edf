use portcullis_api::{Change, Object};
use serde_json::{Value, json};

use super::*;
use crate::policy::authorities::TrustBundles;

const SHOP: &str = "shop";

fn objects(manifests: &[Value]) -> Objects {
    let mut objects = Objects::default();
    for manifest in manifests {
        objects.apply(Change::Set(Object::from_json(manifest.clone()).unwrap().unwrap()));
    }
    objects
}

fn authority(namespace: &str, name: &str) -> Value {
    let pem = rcgen::generate_simple_self_signed([format!("{name}.example")]).unwrap().cert.pem();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace},
        "data": {"ca.crt": pem}})
}

fn gateway(namespace: &str, validation: &Value) -> Gateway {
    serde_json::from_value(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"gatewayClassName": "c", "tls": {"frontend": {"default": {"validation": validation}}}}}))
    .unwrap()
}

fn refer_to(names: &[&str]) -> Value {
    let refer = |name: &&str| json!({"group": "", "kind": "ConfigMap", "name": name});
    json!({"caCertificateRefs": names.iter().map(refer).collect::<Vec<_>>()})
}

fn clients(gateways: &[&Gateway], objects: &Objects) -> Clients {
    let [parent, definer @ ..] = gateways else { panic!("a parent at least") };
    let sources = Holders { objects, bundles: &TrustBundles::of(objects) };
    Clients::of(&Policies::of(parent, definer.first().copied(), 443), SHOP, sources)
}

/// The numbers of authorities in the sets.
fn sets(clients: &Clients) -> Vec<usize> {
    match &clients.certificates {
        ClientCertificates::Required(sets) => sets.iter().map(|set| set.len()).collect(),
        ClientCertificates::Any | ClientCertificates::NotAsked => Vec::new(),
    }
}

fn reasons(clients: &Clients) -> (Vec<Reason>, Option<Reason>) {
    let unresolved = clients.unresolved.iter().map(|fault| fault.reason).collect();
    (unresolved, clients.refusal.as_ref().map(|fault| fault.reason))
}

#[test]
fn authorities_of_one_gateway_are_alternatives_and_those_of_two_add_up() {
    let objects = objects(&[authority(SHOP, "a"), authority(SHOP, "b"), authority("edge", "c")]);
    let own = gateway(SHOP, &refer_to(&["a", "b"]));
    assert_eq!(sets(&clients(&[&own], &objects)), [2]);
    let parent = gateway("edge", &refer_to(&["c"]));
    assert_eq!(sets(&clients(&[&parent, &own], &objects)), [1, 2]);
}

#[test]
fn a_child_loosens_nothing() {
    let objects = objects(&[authority(SHOP, "a"), authority("edge", "c")]);
    let mut loose = refer_to(&["a"]);
    loose["mode"] = json!("AllowInsecureFallback");
    let loose = gateway(SHOP, &loose);
    assert!(is_insecure(&loose));
    assert_eq!(clients(&[&loose], &objects).certificates, ClientCertificates::Any);
    let strict = gateway("edge", &refer_to(&["c"]));
    assert!(!is_insecure(&strict));
    assert_eq!(sets(&clients(&[&strict, &loose], &objects)), [1]);
}

#[test]
fn what_is_left_of_the_references_serves() {
    let objects = objects(&[authority(SHOP, "a")]);
    let partly = clients(&[&gateway(SHOP, &refer_to(&["gone", "a"]))], &objects);
    assert_eq!((sets(&partly), reasons(&partly)), (vec![1], (vec![Reason::InvalidCACertificateRef], None)));
    let not_at_all = clients(&[&gateway(SHOP, &refer_to(&["gone"]))], &objects);
    let expected = (vec![Reason::InvalidCACertificateRef], Some(Reason::NoValidCACertificate));
    assert_eq!(reasons(&not_at_all), expected);
    assert_eq!(
        not_at_all.unresolved[0].message,
        "tls.frontend: caCertificateRefs: ConfigMap shop/gone does not exist"
    );
}

#[test]
fn a_kind_that_holds_no_certificates_and_another_namespace_have_reasons_of_their_own() {
    let objects = objects(&[authority("edge", "a")]);
    let of_kind = json!({"caCertificateRefs": [{"group": "", "kind": "Service", "name": "a"}]});
    let (unresolved, _) = reasons(&clients(&[&gateway(SHOP, &of_kind)], &objects));
    assert_eq!(unresolved, [Reason::InvalidCACertificateKind]);
    let elsewhere = json!({"caCertificateRefs":
        [{"group": "", "kind": "ConfigMap", "name": "a", "namespace": "edge"}]});
    let (unresolved, refusal) = reasons(&clients(&[&gateway(SHOP, &elsewhere)], &objects));
    assert_eq!((unresolved, refusal), (vec![Reason::RefNotPermitted], Some(Reason::NoValidCACertificate)));
}

#[test]
fn an_unknown_mode_lets_nobody_in() {
    let mut validation = refer_to(&["a"]);
    validation["mode"] = json!("AllowSome");
    let clients = clients(&[&gateway(SHOP, &validation)], &objects(&[authority(SHOP, "a")]));
    assert_eq!(sets(&clients), [1]);
    assert_eq!(reasons(&clients), (Vec::new(), Some(Reason::UnsupportedValue)));
}

#[test]
fn others_learn_that_the_gateway_cannot_be_followed_and_no_more() {
    let parent = gateway("edge", &refer_to(&["secret-authority"]));
    let clients = clients(&[&parent], &Objects::default());
    let faults: Vec<_> = clients.unresolved.iter().chain(&clients.refusal).collect();
    assert!(faults.iter().all(|fault| !fault.message.contains("secret-authority")), "{faults:?}");
    assert_eq!(reasons(&clients).1, Some(Reason::NoValidCACertificate));
}
