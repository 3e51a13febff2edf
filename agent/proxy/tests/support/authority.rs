//! Authorities, and certificates of clients that they vouch for.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls_pki_types::{PrivateKeyDer, TrustAnchor};

use super::client::Identity;

pub type Authority = CertifiedIssuer<'static, KeyPair>;

pub fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

pub fn anchors(authority: &Authority) -> Arc<[TrustAnchor<'static>]> {
    let mut store = rustls::RootCertStore::empty();
    store.add(authority.der().clone()).unwrap();
    store.roots.into()
}

pub fn identity(authority: &Authority, edit: impl FnOnce(&mut CertificateParams)) -> Identity {
    let mut params = CertificateParams::new(vec!["client.example".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    edit(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    (vec![certificate.der().clone()], key)
}
