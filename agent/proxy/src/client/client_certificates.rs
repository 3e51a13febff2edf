//! Certificates of clients: who is asked for one, and whose authorities vouch for it. What is asked
//! for and cannot be verified lets no client in.

use std::sync::Arc;

use portcullis_model::ClientCertificates;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};

/// `None` if clients are not asked for certificates.
pub(crate) fn verifier(
    certificates: &ClientCertificates,
    provider: &Arc<CryptoProvider>,
) -> Option<Arc<dyn ClientCertVerifier>> {
    match certificates {
        ClientCertificates::NotAsked => None,
        ClientCertificates::Any => Some(Arc::new(Anyone(provider.clone()))),
        ClientCertificates::Required(sets) => {
            let verifiers = sets.iter().map(|set| of_one(set, provider)).collect();
            Some(Arc::new(Everyone { verifiers, provider: provider.clone() }))
        }
    }
}

/// `None` for a set without authorities, which vouches for no client.
fn of_one(
    set: &[TrustAnchor<'static>],
    provider: &Arc<CryptoProvider>,
) -> Option<Arc<dyn ClientCertVerifier>> {
    let roots = RootCertStore { roots: set.to_vec() };
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    builder.build().inspect_err(|error| tracing::error!(%error, "no client certificate can be verified")).ok()
}

/// Clients whose certificate an authority of every set vouches for.
#[derive(Debug)]
struct Everyone {
    verifiers: Box<[Option<Arc<dyn ClientCertVerifier>>]>,
    provider: Arc<CryptoProvider>,
}

/// Clients with whatever certificate, as long as they have its key, or without one.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ClientCertVerifier for Everyone {
    /// Names one set only: a client that has a certificate of another authority is to show it where
    /// there are several.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        match &*self.verifiers {
            [Some(only)] => only.root_hint_subjects(),
            _ => &[],
        }
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let unknown = || Error::InvalidCertificate(CertificateError::UnknownIssuer);
        if self.verifiers.is_empty() {
            return Err(unknown());
        }
        for verifier in &self.verifiers {
            let verifier = verifier.as_ref().ok_or_else(unknown)?;
            let _: ClientCertVerified = verifier.verify_client_cert(end_entity, intermediates, now)?;
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12_signature(&self.provider, message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13_signature(&self.provider, message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Anyone {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12_signature(&self.0, message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13_signature(&self.0, message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn tls12_signature(
    provider: &CryptoProvider,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls12_signature(message, certificate, signature, &provider.signature_verification_algorithms)
}

fn tls13_signature(
    provider: &CryptoProvider,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls13_signature(message, certificate, signature, &provider.signature_verification_algorithms)
}
