use std::collections::VecDeque;

use portcullis_gateway::{Settings, Translator};
use serde_json::{Value, json};

use super::*;

/// Hands on what it was given.
#[derive(Default)]
struct Scripted(VecDeque<Update>);

impl Source for Scripted {
    async fn next(&mut self) -> Update {
        self.0.pop_front().unwrap_or_default()
    }
}

/// A Gateway whose listener refers to a Secret of another namespace, from source to translation.
struct World {
    source: KeptCertificates<Scripted>,
    translator: Translator,
}

impl World {
    fn new() -> Self {
        Self {
            source: KeptCertificates::of(Scripted::default()),
            translator: Translator::new(Settings::default()),
        }
    }

    async fn step(&mut self, changes: Vec<Change>) {
        self.source.source.0.push_back(Update { changes, ..Update::default() });
        let update = self.source.next().await;
        update.observed.into_iter().for_each(|observed| self.translator.observe(observed));
        let outcome = self.translator.apply(update.changes);
        self.source.need(outcome.needs);
    }

    /// The certificate in service, and the listener's `ResolvedRefs`.
    fn served(&self) -> (Option<Certificate>, String) {
        let ports = self.translator.snapshot().frontends.values();
        let listener = ports.flat_map(|port| port.listeners.iter()).next();
        let tls = listener.and_then(|listener| listener.serves.tls());
        let gateway = ObjectKey::new(Kind::Gateway, ObjectName::new("infra", "web"));
        let status = self.translator.status_of(&gateway).unwrap().to_json();
        let conditions = status["listeners"][0]["conditions"].as_array().unwrap().clone();
        let condition = conditions.into_iter().find(|condition| condition["type"] == "ResolvedRefs").unwrap();
        let text = ["reason", "message"].map(|field| condition[field].as_str().unwrap().to_owned());
        (tls.map(|tls| tls.certificates[0].clone()), text.join(": "))
    }
}

fn set(manifest: Value) -> Change {
    Change::Set(Object::from_json(manifest).unwrap().unwrap())
}

fn pair() -> (String, String) {
    let signed = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    (signed.cert.pem(), signed.signing_key.serialize_pem())
}

fn secret(chain: &str, key: &str) -> Change {
    set(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls", "namespace": "certs"},
        "type": "kubernetes.io/tls", "stringData": {"tls.crt": chain, "tls.key": key}}))
}

fn no_secret() -> Change {
    Change::Delete(ObjectKey::new(Kind::Secret, ObjectName::new("certs", "tls")))
}

fn grant() -> Change {
    set(json!({"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
        "metadata": {"name": "tls", "namespace": "certs"},
        "spec": {"from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "infra"}],
            "to": [{"group": "", "kind": "Secret"}]}}))
}

fn gateway() -> Vec<Change> {
    let reference = json!({"certificateRefs": [{"name": "tls", "namespace": "certs"}]});
    vec![
        set(
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "c"},
            "spec": {"controllerName": "portcullis.dev/gateway"}}),
        ),
        set(json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web", "namespace": "infra"},
            "spec": {"gatewayClassName": "c", "addresses": [{"value": "127.0.0.1"}],
                "listeners": [{"name": "https", "port": 443, "protocol": "HTTPS", "tls": reference}]}})),
    ]
}

fn certificate(change: &Change) -> Option<Certificate> {
    let Change::Set(Object::Secret(secret)) = change else { return None };
    read_certificate(secret).ok()
}

#[tokio::test]
async fn the_last_good_pair_of_a_secret_stays_in_service() {
    let (a, b) = (pair(), pair());
    let (good, mixed, other) = (secret(&a.0, &a.1), secret(&a.0, &b.1), secret(&b.0, &b.1));
    let mut world = World::new();
    world.step(gateway().into_iter().chain([grant(), good.clone()]).collect()).await;
    assert_eq!(world.served(), (certificate(&good), "ResolvedRefs: Every reference is resolved.".to_owned()));
    for broken in [&mixed, &secret("no certificate", &a.1)] {
        world.step(vec![broken.clone()]).await;
        let (served, why) = world.served();
        assert_eq!(served, certificate(&good));
        assert!(why.starts_with("InvalidCertificateRef: Secret certs/tls holds "), "{why}");
        let kept = "; the certificate that it held before stays in service until it is corrected, or the agent restarts";
        assert!(why.ends_with(kept), "{why}");
    }
    world.step(vec![other.clone()]).await;
    assert_eq!(
        world.served(),
        (certificate(&other), "ResolvedRefs: Every reference is resolved.".to_owned())
    );
    world.step(vec![mixed.clone()]).await;
    assert_eq!(world.served().0, certificate(&other), "the last, not the first");
}

#[tokio::test]
async fn what_a_secret_held_is_forgotten_with_the_secret() {
    let (a, b) = (pair(), pair());
    let (good, mixed) = (secret(&a.0, &a.1), secret(&a.0, &b.1));
    let mut world = World::new();
    world.step(gateway().into_iter().chain([grant(), good.clone()]).collect()).await;
    world.step(vec![mixed.clone()]).await;
    assert_eq!(world.served().0, certificate(&good));
    world.step(vec![no_secret()]).await;
    assert_eq!(world.served(), (None, "InvalidCertificateRef: Secret certs/tls does not exist".to_owned()));
    world.step(vec![mixed]).await;
    assert_eq!(world.served().0, None);
}

#[tokio::test]
async fn what_a_secret_held_is_forgotten_when_its_grant_is_withdrawn() {
    let (a, b) = (pair(), pair());
    let (good, mixed) = (secret(&a.0, &a.1), secret(&a.0, &b.1));
    let withdrawn = Change::Delete(ObjectKey::new(Kind::ReferenceGrant, ObjectName::new("certs", "tls")));
    let mut world = World::new();
    world.step(gateway().into_iter().chain([grant(), good.clone()]).collect()).await;
    world.step(vec![mixed.clone()]).await;
    world.step(vec![withdrawn.clone()]).await;
    assert_eq!(world.served().0, None);
    world.step(vec![grant()]).await;
    assert_eq!(world.served().0, None, "the grant is for what the Secret holds now");
    // The same of one that breaks while there is no grant.
    world.step(vec![good]).await;
    world.step(vec![withdrawn]).await;
    world.step(vec![mixed]).await;
    world.step(vec![grant()]).await;
    assert_eq!(world.served().0, None);
}
