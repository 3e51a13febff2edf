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
    let demand = match certificates {
        ClientCertificates::NotAsked => return None,
        ClientCertificates::Any => Demand::Any,
        ClientCertificates::Required(sets) => {
            Demand::Each(sets.iter().map(|set| of_one(set, provider)).collect())
        }
    };
    Some(Arc::new(Verifier { demand, provider: provider.clone() }))
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

/// In any case the client has to have the key of a certificate that it shows.
#[derive(Debug)]
struct Verifier {
    demand: Demand,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Demand {
    /// Whatever certificate, or none.
    Any,
    /// One that an authority of every set vouches for.
    Each(Box<[Option<Arc<dyn ClientCertVerifier>>]>),
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        matches!(self.demand, Demand::Each(_))
    }

    /// Names one set only: a client that has a certificate of another authority is to show it where
    /// there are several.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        match &self.demand {
            Demand::Each(sets) if let [Some(only)] = &**sets => only.root_hint_subjects(),
            Demand::Each(_) | Demand::Any => &[],
        }
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let Demand::Each(sets) = &self.demand else { return Ok(ClientCertVerified::assertion()) };
        let mut verified = Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        for set in sets {
            let set = set.as_ref().ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
            verified = Ok(set.verify_client_cert(end_entity, intermediates, now)?);
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
