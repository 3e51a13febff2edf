//! From a Secret of type `kubernetes.io/tls` to a certificate that can be served. Whatever is wrong
//! is found here, once per Secret, and reported to the owners of what refers to it; it never
//! reaches the data plane.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use k8s_openapi::api::core::v1::Secret;
use portcullis_model::Certificate;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::public_key::PublicKey;

const TLS_SECRET: &str = "kubernetes.io/tls";

/// The minimum of clients, and of the library that signs (CA/Browser Forum, 6.1.5).
const SHORTEST_RSA_KEY: usize = 2048;

/// The reason why a Secret is no certificate. The texts complete "Secret ns/name …" and never quote
/// what the Secret holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("is of type {0:?}; type kubernetes.io/tls is needed")]
    WrongType(String),
    #[error("has no {0}")]
    Missing(&'static str),
    #[error("holds no PEM certificate in tls.crt")]
    NoCertificate,
    #[error("holds a certificate in tls.crt that cannot be read")]
    UnreadableCertificate,
    #[error(
        "holds a chain in tls.crt of which certificate {0} cannot be read; the first one is the server's"
    )]
    BrokenChain(usize),
    #[error("holds an RSA key of {0} bits; use one of 2048 or more, or ECDSA")]
    ShortKey(usize),
    #[error("holds no PEM private key in tls.key")]
    NoKey,
    #[error(
        "holds a private key of a kind that is not supported; use RSA, ECDSA P-256/P-384/P-521 or Ed25519"
    )]
    UnsupportedKey,
    #[error("holds a private key in tls.key that does not belong to the certificate in tls.crt")]
    Mismatch,
}

/// Reads the certificate chain and key. An expired certificate is served nevertheless: translation
/// has no clock, and a listener that vanishes helps less than a warning in the client.
///
/// # Errors
/// When the Secret holds no pair that can be served.
pub fn read(secret: &Secret) -> Result<Certificate, CertificateError> {
    let r#type = secret.type_.as_deref().unwrap_or("Opaque");
    if r#type != TLS_SECRET {
        return Err(CertificateError::WrongType(r#type.to_owned()));
    }
    let (chain_pem, key_pem) = (entry(secret, "tls.crt")?, entry(secret, "tls.key")?);
    let chain = chain(chain_pem)?;
    let leaf = chain.first().ok_or(CertificateError::NoCertificate)?;
    let leaf = Leaf::read(leaf)?;
    let mut not_after = leaf.not_after;
    for (at, issuer) in chain.iter().enumerate().skip(1) {
        let issuer = X509Certificate::from_der(issuer).map_err(|_| CertificateError::BrokenChain(at + 1))?;
        not_after = not_after.min(issuer.1.validity().not_after.timestamp());
    }
    if let Some(bits) = leaf.rsa_bits.filter(|bits| *bits < SHORTEST_RSA_KEY) {
        return Err(CertificateError::ShortKey(bits));
    }
    let key = private_key(key_pem)?;
    if key.public_key().is_none_or(|public| public.as_ref() != leaf.public_key) {
        return Err(CertificateError::Mismatch);
    }
    Ok(Certificate {
        fingerprint: fingerprint(chain_pem, key_pem),
        names: leaf.names,
        not_after,
        key: Arc::new(CertifiedKey::new(chain, key)),
    })
}

fn entry<'s>(secret: &'s Secret, name: &'static str) -> Result<&'s [u8], CertificateError> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(name)).map(|bytes| bytes.0.as_slice());
    bytes.filter(|bytes| !bytes.is_empty()).ok_or(CertificateError::Missing(name))
}

fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let mut chain = Vec::new();
    for block in CertificateDer::pem_slice_iter(pem) {
        match (block, chain.len()) {
            (Ok(certificate), _) => chain.push(certificate),
            (Err(_), 0) => return Err(CertificateError::UnreadableCertificate),
            (Err(_), read) => return Err(CertificateError::BrokenChain(read + 1)),
        }
    }
    if chain.is_empty() { Err(CertificateError::NoCertificate) } else { Ok(chain) }
}

fn private_key(pem: &[u8]) -> Result<Arc<dyn SigningKey>, CertificateError> {
    let der = PrivateKeyDer::from_pem_slice(pem).map_err(|_| CertificateError::NoKey)?;
    any_supported_type(&der).map_err(|_| CertificateError::UnsupportedKey)
}

fn fingerprint(chain: &[u8], key: &[u8]) -> [u8; 32] {
    let digests = [digest(&SHA256, chain), digest(&SHA256, key)];
    let both: Vec<u8> = digests.iter().flat_map(|digest| digest.as_ref()).copied().collect();
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(digest(&SHA256, &both).as_ref());
    fingerprint
}

/// The fields needed of the first certificate of a chain.
struct Leaf {
    public_key: Vec<u8>,
    /// `None` for keys of other kinds.
    rsa_bits: Option<usize>,
    names: Arc<[Box<str>]>,
    not_after: i64,
}

impl Leaf {
    fn read(der: &[u8]) -> Result<Self, CertificateError> {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|_| CertificateError::UnreadableCertificate)?;
        Ok(Self {
            public_key: certificate.public_key().raw.to_vec(),
            rsa_bits: match certificate.public_key().parsed() {
                Ok(PublicKey::RSA(key)) => Some(key.key_size()),
                _ => None,
            },
            names: names(&certificate),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }
}

fn names(certificate: &X509Certificate<'_>) -> Arc<[Box<str>]> {
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let dns = names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase().into()),
        _ => None,
    });
    dns.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;

    use super::*;

    /// `openssl req -x509 -newkey rsa:1024 -nodes -subj /CN=short.example -days 36500`
    const SHORT_RSA: &str = "\
-----BEGIN CERTIFICATE-----
MIICDjCCAXegAwIBAgIUdinqplfDrkMn5WdJ4qEEss4W0PgwDQYJKoZIhvcNAQEL
BQAwGDEWMBQGA1UEAwwNc2hvcnQuZXhhbXBsZTAgFw0yNjExMjIxNDAwMjNaGA8y
MTI2MTAyOTE0MDAyM1owGDEWMBQGA1UEAwwNc2hvcnQuZXhhbXBsZTCBnzANBgkq
hkiG9w0BAQEFAAOBjQAwgYkCgYEAwS6xg2g0tXgfwQ3jJuRf5+l11AZZPvccIAMY
FuCau9ceL01ZE3ixAV1a943bzDR6dgUYNDmIqfODLY5MtMj3KWa5kiDXB9z2hoTF
ZnFN8+L9bSDR1mxMW0cb6+r+jh/FgKfKkbH+mbmqbYQRmpFPSlJkPzB/SD/38lKF
Ql/fMI8CAwEAAaNTMFEwHQYDVR0OBBYEFDFn5uUyX2x3WMuF9TvZh+6m02tLMB8G
A1UdIwQYMBaAFDFn5uUyX2x3WMuF9TvZh+6m02tLMA8GA1UdEwEB/wQFMAMBAf8w
DQYJKoZIhvcNAQELBQADgYEACbkNzQsCvnSV05bJAL91an53e1UBPiMp9pHZJmiU
M8XOiBC+X3a8jqhXml/CLgslsuAI+CgLxBHX9D3AqvZGNRn5eycwMv1HVEUPZYpU
uJn1pAGb3GvzC6Wd28X0C1G1hJiPFU1zWTNqiMM0r8Jt7sSI2NdDlDtH01b9x+dq
Ags=
-----END CERTIFICATE-----
";

    fn pair() -> (String, String) {
        let signed =
            rcgen::generate_simple_self_signed(["A.Example".to_owned(), "*.b.example".to_owned()]).unwrap();
        (signed.cert.pem(), signed.signing_key.serialize_pem())
    }

    fn secret(chain: &str, key: &str) -> Secret {
        let data = [("tls.crt", chain), ("tls.key", key)];
        Secret {
            type_: Some(TLS_SECRET.to_owned()),
            data: Some(
                data.map(|(name, text)| (name.to_owned(), ByteString(text.into()))).into_iter().collect(),
            ),
            ..Secret::default()
        }
    }

    #[test]
    fn a_tls_secret_becomes_a_certificate() {
        let (chain, key) = pair();
        let certificate = read(&secret(&chain, &key)).unwrap();
        assert_eq!(certificate.names.as_ref(), ["a.example".into(), "*.b.example".into()] as [Box<str>; 2]);
        assert!(certificate.not_after > 0);
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(2001, 9, 9);
        let issuer = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
        let with_issuer = read(&secret(&format!("{chain}{issuer}"), &key)).unwrap();
        assert_eq!(with_issuer.not_after, 999_993_600, "a chain ends with the first that does");
        assert_eq!(certificate, read(&secret(&chain, &key)).unwrap());
    }

    #[test]
    fn whatever_is_wrong_has_a_name() {
        let ((chain, key), (_, other_key)) = (pair(), pair());
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let cut = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        for (chain, key, error) in [
            (chain.as_str(), other_key.as_str(), CertificateError::Mismatch),
            ("Hello world\n", &key, CertificateError::NoCertificate),
            (&key, &key, CertificateError::NoCertificate),
            (broken, &key, CertificateError::UnreadableCertificate),
            (cut, &key, CertificateError::UnreadableCertificate),
            (&chain, "Hello world\n", CertificateError::NoKey),
            (&chain, &chain, CertificateError::NoKey),
            ("", &key, CertificateError::Missing("tls.crt")),
            (&format!("{chain}{broken}"), &key, CertificateError::BrokenChain(2)),
            (&format!("{chain}{chain}{cut}"), &key, CertificateError::BrokenChain(3)),
            (SHORT_RSA, &key, CertificateError::ShortKey(1024)),
        ] {
            assert_eq!(read(&secret(chain, key)), Err(error));
        }
        let opaque = Secret { type_: None, ..secret(&chain, &key) };
        assert_eq!(read(&opaque), Err(CertificateError::WrongType("Opaque".to_owned())));
        let empty = Secret { data: Some(BTreeMap::new()), ..secret(&chain, &key) };
        assert_eq!(read(&empty), Err(CertificateError::Missing("tls.crt")));
    }
}
