//! Certificates of authorities, as ConfigMaps and Secrets hold them under `ca.crt`. Whatever is
//! wrong is found here, and reported to the owners of what refers to it; the data plane gets trust
//! anchors only. Nothing here knows who is to be verified by them.

use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::ObjectName;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, TrustAnchor};

use crate::{Fault, Reason};

const ENTRY: &str = "ca.crt";

/// The object that a reference names.
///
/// # Errors
/// When it is of a kind that holds no certificates of authorities.
pub(crate) fn holder(group: &str, kind: &str, holder: ObjectName) -> Result<ObjectKey, Fault> {
    match Kind::of(group, kind) {
        Some(kind @ (Kind::ConfigMap | Kind::Secret)) => Ok(ObjectKey { kind, name: holder }),
        _ => {
            let message = format!(
                "caCertificateRefs: {} is of kind {kind:?} in group {group:?}; only ConfigMap and Secret of group \"\" \
                 are supported",
                holder.name
            );
            Err(Fault::unresolved(Reason::InvalidKind, message))
        }
    }
}

/// The certificates that an object holds; at least one.
///
/// # Errors
/// When it does not exist, or one of them cannot be read.
pub(crate) fn read(holder: &ObjectKey, objects: &Objects) -> Result<Vec<TrustAnchor<'static>>, Fault> {
    let invalid = |what: &str| {
        Fault::unresolved(Reason::InvalidCACertificateRef, format!("caCertificateRefs: {holder} {what}"))
    };
    let pem = match holder.kind {
        Kind::ConfigMap => {
            let map = objects.config_maps.get(&holder.name).ok_or_else(|| invalid("does not exist"))?;
            map.data.as_ref().and_then(|data| data.get(ENTRY)).map(String::as_bytes)
        }
        _ => {
            let secret = objects.secrets.get(&holder.name).ok_or_else(|| invalid("does not exist"))?;
            secret.data.as_ref().and_then(|data| data.get(ENTRY)).map(|bytes| bytes.0.as_slice())
        }
    };
    let pem = pem.ok_or_else(|| invalid("has no ca.crt"))?;
    let mut store = RootCertStore::empty();
    for (at, block) in CertificateDer::pem_slice_iter(pem).enumerate() {
        let read = block.is_ok_and(|certificate| store.add(certificate).is_ok());
        if !read {
            return Err(invalid(&format!(
                "holds a certificate in ca.crt that cannot be read: number {}",
                at + 1
            )));
        }
    }
    if store.is_empty() {
        return Err(invalid("holds no PEM certificate in ca.crt"));
    }
    Ok(store.roots)
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Change, Object};
    use serde_json::{Value, json};

    use super::*;

    fn read_from(kind: &str, data: Value) -> Result<usize, String> {
        let mut objects = Objects::default();
        let field = if kind == "Secret" { "stringData" } else { "data" };
        let manifest = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "ca", "namespace": "shop"}, field: data});
        objects.apply(Change::Set(Object::from_json(manifest).unwrap().unwrap()));
        let holder = holder("", kind, ObjectName::new("shop", "ca")).unwrap();
        read(&holder, &objects).map(|anchors| anchors.len()).map_err(|fault| fault.message)
    }

    fn certificate() -> String {
        rcgen::generate_simple_self_signed(["ca.example".to_owned()]).unwrap().cert.pem()
    }

    #[test]
    fn config_maps_and_secrets_hold_certificates() {
        let both = format!("# The old one\n{}# The new one\n{}", certificate(), certificate());
        for kind in ["ConfigMap", "Secret"] {
            assert_eq!(read_from(kind, json!({"ca.crt": certificate()})), Ok(1));
            assert_eq!(read_from(kind, json!({"ca.crt": both})), Ok(2));
        }
    }

    #[test]
    fn whatever_is_wrong_has_a_name() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (data, told) in [
            (json!({}), "has no ca.crt"),
            (json!({"tls.crt": certificate()}), "has no ca.crt"),
            (json!({"ca.crt": ""}), "holds no PEM certificate in ca.crt"),
            (json!({"ca.crt": "certificate"}), "holds no PEM certificate in ca.crt"),
            (json!({"ca.crt": broken}), "cannot be read: number 1"),
            (json!({"ca.crt": certificate() + broken}), "cannot be read: number 2"),
            (
                json!({"ca.crt": certificate() + "-----BEGIN CERTIFICATE-----\nAAAA\n"}),
                "cannot be read: number 2",
            ),
        ] {
            let message = read_from("ConfigMap", data).unwrap_err();
            assert!(
                message.starts_with("caCertificateRefs: ConfigMap shop/ca ") && message.ends_with(told),
                "{message}"
            );
        }
    }

    #[test]
    fn other_kinds_hold_none() {
        for (group, kind) in
            [("", "Service"), ("example.com", "ConfigMap"), ("certificates.k8s.io", "ClusterTrustBundle")]
        {
            let fault = holder(group, kind, ObjectName::new("shop", "ca")).unwrap_err();
            assert_eq!(fault.reason, Reason::InvalidKind);
        }
        let missing = ObjectKey { kind: Kind::Secret, name: ObjectName::new("shop", "ca") };
        let fault = read(&missing, &Objects::default()).unwrap_err();
        assert_eq!(fault.message, "caCertificateRefs: Secret shop/ca does not exist");
    }
}
