//! ClusterTrustBundles of a real API server, in the version that it serves: what they hold is what
//! backends are verified by, until they are gone.

use portcullis_api::Kind;
use portcullis_control::applier::State;
use portcullis_model::{Authorities, Encryption};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

use crate::agent::{Agent, until};
use crate::fixture::{Fixture, condition};

/// The certificate of an authority with a name.
fn authority(name: &str) -> String {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

/// True if the only backend is spoken to in TLS, and verified by these authorities alone.
fn believes(state: &State, names: &[&str]) -> bool {
    let mut backends = state.snapshot.backends.iter().map(|(_, backend)| &backend.encryption);
    let Some(Encryption::Tls(tls)) = backends.next() else { return false };
    let Authorities::Given(anchors) = &tls.authorities else { return false };
    let is_of = |subject: &[u8], name: &str| subject.ends_with(name.as_bytes());
    anchors.len() == names.len()
        && names.iter().all(|name| anchors.iter().any(|anchor| is_of(&anchor.subject, name)))
}

/// True if nothing is sent to any backend.
fn sends_nothing(state: &State) -> bool {
    state.snapshot.backends.iter().all(|(_, backend)| backend.encryption == Encryption::Unavailable)
}

/// One that belongs to no signer, and one that belongs to one: the API server has rules of its own
/// for the names of both.
#[tokio::test]
#[ignore = "needs a cluster: cargo xtask cluster exec"]
async fn backends_are_verified_by_what_trust_bundles_hold() {
    let fixture = Fixture::new().await;
    let (free, signed) = (fixture.name.clone(), format!("{}.example.com:ca:one", fixture.name));
    let bundle = |pem: String| json!({"spec": {"trustBundle": pem}});
    fixture.create("ClusterTrustBundle", &free, bundle(authority("authority-1"))).await;
    let mut of_signer = bundle(authority("authority-2"));
    of_signer["spec"]["signerName"] = format!("{}.example.com/ca", fixture.name).into();
    fixture.create("ClusterTrustBundle", &signed, of_signer).await;

    fixture.gateway("web", json!({})).await;
    fixture.create("Service", "app", json!({"spec": {"ports": [{"port": 80}]}})).await;
    let rule = json!({"backendRefs": [{"name": "app", "port": 80}]});
    let route = json!({"spec": {"parentRefs": [{"name": "web"}], "rules": [rule]}});
    fixture.create("HTTPRoute", "app", route).await;
    let reference =
        |name: &str| json!({"group": "certificates.k8s.io", "kind": "ClusterTrustBundle", "name": name});
    let validation =
        json!({"hostname": "app.example", "caCertificateRefs": [reference(&free), reference(&signed)]});
    let target = json!({"group": "", "kind": "Service", "name": "app"});
    let policy = json!({"spec": {"targetRefs": [target], "validation": validation}});
    fixture.create("BackendTLSPolicy", "app", policy).await;

    let agent = Agent::start(&fixture, "a");
    let state = || agent.state.clone();
    until(state(), |state| believes(state, &["authority-1", "authority-2"])).await;
    fixture.patch("ClusterTrustBundle", &free, bundle(authority("authority-3"))).await;
    until(state(), |state| believes(state, &["authority-3", "authority-2"])).await;

    fixture.delete("ClusterTrustBundle", &signed).await;
    until(state(), |state| believes(state, &["authority-3"])).await;
    let tells = |policy: &Value, r#type: &str, reason: &str| {
        let condition = condition(&policy["status"]["ancestors"][0], r#type);
        condition["reason"] == reason
    };
    let lost = |policy: &Value| tells(policy, "ResolvedRefs", "InvalidCACertificateRef");
    fixture.until("BackendTLSPolicy", "app", lost).await;

    fixture.delete("ClusterTrustBundle", &free).await;
    until(state(), sends_nothing).await;
    let refused = |policy: &Value| tells(policy, "Accepted", "NoValidCACertificate");
    fixture.until("BackendTLSPolicy", "app", refused).await;
    agent.at_rest(&fixture, Kind::BackendTlsPolicy, "app").await;

    fixture.create("ClusterTrustBundle", &free, bundle(authority("authority-4"))).await;
    until(state(), |state| believes(state, &["authority-4"])).await;
    drop(agent);
    fixture.remove().await;
}
