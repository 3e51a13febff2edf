//! Certificates of authorities, as ConfigMaps and Secrets hold them under `ca.crt`, and
//! ClusterTrustBundles as a whole. Whatever is wrong is found here, and reported to the owners of
//! what refers to it; the data plane gets trust anchors only. Nothing here knows who is to be
//! verified by them.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey, Objects, Scope};
use portcullis_model::ObjectName;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, TrustAnchor};

use crate::{Fault, Reason};

/// The kinds of objects that hold certificates of authorities.
pub(crate) const HOLDERS: [Kind; 3] = [Kind::ConfigMap, Kind::Secret, Kind::ClusterTrustBundle];

const ENTRY: &str = "ca.crt";

pub(crate) type Anchors = Arc<[TrustAnchor<'static>]>;

/// The certificates of ClusterTrustBundles. Each bundle is parsed once: it may have hundreds, and
/// any number of policies and listeners may refer to it.
#[derive(Debug, Default)]
pub(crate) struct TrustBundles {
    /// With what is wrong with one.
    parsed: BTreeMap<ObjectName, Result<Anchors, String>>,
}

/// The objects that certificates are read from.
#[derive(Clone, Copy)]
pub(crate) struct Holders<'h> {
    pub(crate) objects: &'h Objects,
    pub(crate) bundles: &'h TrustBundles,
}

/// The object that a reference names; the namespace of one that is of the cluster is of no
/// importance.
///
/// # Errors
/// When it is of a kind that holds no certificates of authorities.
pub(crate) fn holder(group: &str, kind: &str, holder: ObjectName) -> Result<ObjectKey, Fault> {
    match Kind::of(group, kind).filter(|kind| HOLDERS.contains(kind)) {
        Some(kind) if kind.scope() == Scope::Cluster => {
            Ok(ObjectKey { kind, name: ObjectName::new("", holder.name) })
        }
        Some(kind) => Ok(ObjectKey { kind, name: holder }),
        None => {
            let message = format!(
                "caCertificateRefs: {} is of kind {kind:?} in group {group:?}; only ConfigMap and Secret of group \"\" \
                 are supported, and ClusterTrustBundle of group \"certificates.k8s.io\"",
                holder.name
            );
            Err(Fault::unresolved(Reason::InvalidKind, message))
        }
    }
}

/// The certificates of several holders as one set.
pub(crate) fn union(sets: &[Anchors]) -> Anchors {
    if let [only] = sets {
        return only.clone();
    }
    let mut all = Vec::new();
    for anchor in sets.iter().flat_map(|set| set.iter()) {
        if !all.contains(anchor) {
            all.push(anchor.clone());
        }
    }
    all.into()
}

/// At least one certificate, or what is wrong with the text.
fn parse(pem: &[u8], field: &str) -> Result<Anchors, String> {
    let mut store = RootCertStore::empty();
    for (at, block) in CertificateDer::pem_slice_iter(pem).enumerate() {
        let read = block.is_ok_and(|certificate| store.add(certificate).is_ok());
        if !read {
            return Err(format!("holds a certificate in {field} that cannot be read: number {}", at + 1));
        }
    }
    if store.is_empty() {
        return Err(format!("holds no PEM certificate in {field}"));
    }
    Ok(store.roots.into())
}

// === impl TrustBundles ===

impl TrustBundles {
    /// Takes note of the bundles that changed.
    pub(crate) fn update<'n>(&mut self, changed: impl Iterator<Item = &'n ObjectName>, objects: &Objects) {
        for name in changed {
            match objects.trust_bundles.get(name) {
                Some(bundle) => {
                    let parsed = parse(bundle.spec.trust_bundle.as_bytes(), "spec.trustBundle");
                    self.parsed.insert(name.clone(), parsed);
                }
                None => {
                    self.parsed.remove(name);
                }
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn of(objects: &Objects) -> Self {
        let mut bundles = Self::default();
        bundles.update(objects.trust_bundles.keys(), objects);
        bundles
    }
}

// === impl Holders ===

impl Holders<'_> {
    /// The certificates that an object holds; at least one.
    ///
    /// # Errors
    /// When it does not exist, or one of them cannot be read.
    pub(crate) fn read(self, holder: &ObjectKey) -> Result<Anchors, Fault> {
        let read = match holder.kind {
            Kind::ConfigMap => self.of_config_map(&holder.name),
            Kind::Secret => self.of_secret(&holder.name),
            kind => self.bundles.parsed.get(&holder.name).cloned().unwrap_or_else(|| {
                Err(format!(
                    "does not exist, or the API server has its kind in none of the versions {}",
                    kind.versions().join(", ")
                ))
            }),
        };
        read.map_err(|problem| {
            let message = format!("caCertificateRefs: {holder} {problem}");
            Fault::unresolved(Reason::InvalidCACertificateRef, message)
        })
    }

    fn of_config_map(self, name: &ObjectName) -> Result<Anchors, String> {
        let map = self.objects.config_maps.get(name).ok_or("does not exist")?;
        let entry = map.data.as_ref().and_then(|data| data.get(ENTRY)).ok_or("has no ca.crt")?;
        parse(entry.as_bytes(), ENTRY)
    }

    fn of_secret(self, name: &ObjectName) -> Result<Anchors, String> {
        let secret = self.objects.secrets.get(name).ok_or("does not exist")?;
        let entry = secret.data.as_ref().and_then(|data| data.get(ENTRY)).ok_or("has no ca.crt")?;
        parse(&entry.0, ENTRY)
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Change, Object};
    use serde_json::{Value, json};

    use super::*;

    fn read_all(holder: &ObjectKey, objects: &Objects) -> Result<Anchors, Fault> {
        Holders { objects, bundles: &TrustBundles::of(objects) }.read(holder)
    }

    fn read_from(kind: &str, data: Value) -> Result<usize, String> {
        let mut objects = Objects::default();
        let field = if kind == "Secret" { "stringData" } else { "data" };
        let manifest = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "ca", "namespace": "shop"}, field: data});
        objects.apply(Change::Set(Object::from_json(manifest).unwrap().unwrap()));
        let holder = holder("", kind, ObjectName::new("shop", "ca")).unwrap();
        read_all(&holder, &objects).map(|anchors| anchors.len()).map_err(|fault| fault.message)
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
        for (group, kind) in [
            ("", "Service"),
            ("example.com", "ConfigMap"),
            ("", "ClusterTrustBundle"),
            ("certificates.k8s.io", "Secret"),
        ] {
            let fault = holder(group, kind, ObjectName::new("shop", "ca")).unwrap_err();
            assert_eq!(fault.reason, Reason::InvalidKind);
        }
        let missing = ObjectKey { kind: Kind::Secret, name: ObjectName::new("shop", "ca") };
        let fault = read_all(&missing, &Objects::default()).unwrap_err();
        assert_eq!(fault.message, "caCertificateRefs: Secret shop/ca does not exist");
    }

    fn bundle(name: &str, text: &str) -> Change {
        let manifest = json!({"apiVersion": "certificates.k8s.io/v1alpha1", "kind": "ClusterTrustBundle",
            "metadata": {"name": name}, "spec": {"signerName": "a.example/b", "trustBundle": text}});
        Change::Set(Object::from_json(manifest).unwrap().unwrap())
    }

    #[test]
    fn trust_bundles_are_of_the_cluster_and_hold_nothing_else() {
        let mut objects = Objects::default();
        objects.apply(bundle("a.example:b:c", &(certificate() + &certificate())));
        objects.apply(bundle("empty", "# none"));
        let key = |name| {
            holder("certificates.k8s.io", "ClusterTrustBundle", ObjectName::new("shop", name)).unwrap()
        };
        assert_eq!(read_all(&key("a.example:b:c"), &objects).unwrap().len(), 2);
        let told = |name| read_all(&key(name), &objects).unwrap_err();
        assert_eq!(told("gone").reason, Reason::InvalidCACertificateRef);
        assert_eq!(
            told("gone").message,
            "caCertificateRefs: ClusterTrustBundle gone does not exist, or the API server has its kind in none of the \
             versions v1beta1, v1alpha1, v1"
        );
        assert_eq!(
            told("empty").message,
            "caCertificateRefs: ClusterTrustBundle empty holds no PEM certificate in spec.trustBundle"
        );
    }

    #[test]
    fn a_bundle_is_parsed_when_it_changes_and_shared_by_all_that_refer_to_it() {
        let (mut objects, mut bundles) = (Objects::default(), TrustBundles::default());
        let key = ObjectKey { kind: Kind::ClusterTrustBundle, name: ObjectName::new("", "a") };
        objects.apply(bundle("a", &certificate()));
        bundles.update([&key.name].into_iter(), &objects);
        let read = |objects: &Objects, bundles: &TrustBundles| Holders { objects, bundles }.read(&key).ok();
        let first = read(&objects, &bundles).unwrap();
        assert!(Arc::ptr_eq(&first, &union(&[read(&objects, &bundles).unwrap()])));
        let both = union(&[first.clone(), first.clone(), parse(certificate().as_bytes(), "").unwrap()]);
        assert_eq!(both.len(), 2);
        objects.apply(bundle("a", &certificate()));
        bundles.update([&key.name].into_iter(), &objects);
        assert_ne!(read(&objects, &bundles).unwrap(), first);
        objects.apply(Change::Delete(key.clone()));
        bundles.update([&key.name].into_iter(), &objects);
        assert!(read(&objects, &bundles).is_none());
    }
}
