//! TLS to the endpoints of one backend, as its policy wants it: what is asked for, and what the
//! other side has to prove. Sessions are remembered here, so that one that was verified by other
//! terms, or with another certificate of ours, is never resumed.

use std::io;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use portcullis_model::{Authorities, BackendProtocol, BackendTls, Certificate, Encryption, PeerIdentity};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use webpki::EndEntityCert;

/// Server names whose sessions are remembered: a backend has one.
const NAMES: usize = 1;

/// The way to the endpoints of a backend.
#[derive(Clone)]
pub(crate) enum Security {
    Plain,
    Tls(Rc<TlsClient>),
    /// Nothing may be sent.
    Refused,
}

/// The protocols inside TLS that a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Those of the backend's requests.
    Requests,
    /// The one that has upgrades.
    Http1,
    /// Whatever the client speaks, which is unknown.
    Nothing,
}

pub(crate) struct TlsClient {
    server_name: ServerName<'static>,
    requests: TlsConnector,
    http1: TlsConnector,
    any: TlsConnector,
}

/// Takes certificates by names other than the one that was asked for. Everything else about them is
/// the library's to verify.
#[derive(Debug)]
struct IdentityVerifier {
    identities: Box<[PeerIdentity]>,
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

// === impl Security ===

impl Security {
    /// A backend to which TLS cannot be spoken as it is wanted gets nothing.
    pub(crate) fn new(
        encryption: &Encryption,
        protocol: BackendProtocol,
        certificate: Option<&Certificate>,
        provider: &Arc<CryptoProvider>,
    ) -> Self {
        let tls = match encryption {
            Encryption::None => return Self::Plain,
            Encryption::Unavailable => return Self::Refused,
            Encryption::Tls(tls) => TlsClient::new(tls, protocol, certificate, provider),
        };
        match tls {
            Ok(client) => Self::Tls(Rc::new(client)),
            Err(error) => {
                tracing::warn!(%error, "no TLS to a backend, which gets nothing therefore");
                Self::Refused
            }
        }
    }
}

// === impl TlsClient ===

impl TlsClient {
    fn new(
        tls: &BackendTls,
        protocol: BackendProtocol,
        certificate: Option<&Certificate>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, rustls::Error> {
        let server_name = ServerName::try_from(String::from(&*tls.server_name));
        let server_name =
            server_name.map_err(|_| rustls::Error::General(format!("{} is no name", tls.server_name)))?;
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let verified = builder.dangerous().with_custom_certificate_verifier(verifier(tls, provider)?);
        let mut config = match certificate {
            Some(Certificate { key, .. }) => {
                verified.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(CertifiedKey::clone(key))))
            }
            None => verified.with_no_client_auth(),
        };
        config.resumption = Resumption::in_memory_sessions(NAMES);
        let offering = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        let requests: &[&[u8]] = match protocol {
            BackendProtocol::Http1 => &[b"http/1.1"],
            BackendProtocol::H2c => &[b"h2"],
            BackendProtocol::Negotiated => &[b"h2", b"http/1.1"],
        };
        let (requests, http1, any) = (offering(requests), offering(&[b"http/1.1"]), offering(&[]));
        Ok(Self { server_name, requests, http1, any })
    }

    pub(crate) async fn connect(&self, stream: TcpStream, offer: Offer) -> io::Result<TlsStream<TcpStream>> {
        let connector = match offer {
            Offer::Requests => &self.requests,
            Offer::Http1 => &self.http1,
            Offer::Nothing => &self.any,
        };
        connector.connect(self.server_name.clone(), stream).await
    }
}

/// True if a connection failed in TLS: the other side is not who it has to be, or speaks no TLS.
pub(crate) fn is_tls_failure(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

fn verifier(
    tls: &BackendTls,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, rustls::Error> {
    let roots = match &tls.authorities {
        Authorities::System => system().clone(),
        Authorities::Given(anchors) => RootCertStore { roots: anchors.to_vec() },
    };
    if roots.is_empty() {
        return Err(rustls::Error::General("the system has no certificates of authorities".to_owned()));
    }
    let algorithms = provider.signature_verification_algorithms;
    if let [PeerIdentity::Dns(name)] = &*tls.identities
        && *name == tls.server_name
    {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        return Ok(verifier.map_err(|error| rustls::Error::General(error.to_string()))?);
    }
    Ok(Arc::new(IdentityVerifier { identities: tls.identities.clone(), roots, algorithms }))
}

/// The authorities of the system that the agent runs on; of its image, in a container. They are
/// read when they are first asked for.
pub(crate) fn system() -> &'static RootCertStore {
    static SYSTEM: OnceLock<RootCertStore> = OnceLock::new();
    SYSTEM.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "cannot read certificates of the system's authorities");
        }
        let mut store = RootCertStore::empty();
        let (_, ignored) = store.add_parsable_certificates(found.certs);
        tracing::debug!(read = store.len(), ignored, "certificates of the system's authorities");
        store
    })
}

// === impl IdentityVerifier ===

impl IdentityVerifier {
    fn has(&self, certificate: &CertificateDer<'_>, wanted: &PeerIdentity) -> bool {
        let Ok(parsed) = EndEntityCert::try_from(certificate) else { return false };
        match wanted {
            PeerIdentity::Uri(uri) => parsed.valid_uri_names().any(|name| *name == **uri),
            PeerIdentity::Dns(name) => match name.strip_prefix("*.") {
                Some(parent) => parsed.valid_dns_names().any(|name| is_below(name, parent)),
                None => ServerName::try_from(&**name)
                    .is_ok_and(|name| parsed.verify_is_valid_for_subject_name(&name).is_ok()),
            },
        }
    }
}

/// True for `*.parent`, and for names that have one label more than the parent.
fn is_below(name: &str, parent: &str) -> bool {
    let one_up = name.split_once('.');
    one_up.is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(parent))
}

impl ServerCertVerifier for IdentityVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        if self.identities.iter().any(|wanted| self.has(end_entity, wanted)) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
