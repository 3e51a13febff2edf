//! Backends that speak TLS, and the authorities that issue their certificates.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use portcullis_model::{Authorities, BackendTls, Certificate, ClientIdentity, Encryption, PeerIdentity};
use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{HandshakeKind, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::origin::{Count, serve};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// An echo backend behind TLS.
pub struct TlsOrigin {
    pub address: SocketAddr,
    pub requests: Count,
    /// Connections that got through their handshake.
    pub handshakes: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

/// A handshake as the backend saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub server_name: Option<String>,
    pub protocol: Option<String>,
    pub resumed: bool,
    pub client: Option<CertificateDer<'static>>,
}

/// The makings of a backend of TLS.
pub struct Setup {
    pub certificate: Certificate,
    pub protocols: Vec<&'static str>,
    /// By whose certificate clients have to show who they are.
    pub clients: Option<CertificateDer<'static>>,
    /// HTTP/2 to who asks for nothing.
    pub is_http2: bool,
}

// === impl Authority ===

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("authority {}", fastrand::u64(..)));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    pub fn authorities(&self) -> Authorities {
        let mut store = RootCertStore::empty();
        store.add(self.certificate()).unwrap();
        Authorities::Given(store.roots.into())
    }

    /// A certificate for these names; those with a colon are URIs.
    pub fn issue(&self, names: &[&str]) -> Certificate {
        self.issue_with(names, |_| {})
    }

    pub fn issue_with(&self, names: &[&str], edit: impl FnOnce(&mut CertificateParams)) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let mut params = params(names);
        edit(&mut params);
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        with_key(vec![signed.der().clone()], &key)
    }

    /// The TLS that a policy asks for with this authority.
    pub fn policy(&self, server_name: &str, identities: &[&str]) -> Encryption {
        let names = if identities.is_empty() { &[server_name] } else { identities };
        let identity = |name: &&str| match name.contains(':') {
            true => PeerIdentity::Uri((*name).into()),
            false => PeerIdentity::Dns((*name).into()),
        };
        let identities = names.iter().map(identity).collect();
        let (server_name, authorities) = (server_name.into(), self.authorities());
        Encryption::Tls(Arc::new(BackendTls {
            server_name,
            identities,
            authorities,
            client: ClientIdentity::default(),
        }))
    }
}

pub fn self_signed(names: &[&str]) -> Certificate {
    let key = KeyPair::generate().unwrap();
    let signed = params(names).self_signed(&key).unwrap();
    with_key(vec![signed.der().clone()], &key)
}

fn params(names: &[&str]) -> CertificateParams {
    let (uris, dns): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.contains(':'));
    let mut params = CertificateParams::new(dns.into_iter().map(str::to_owned).collect::<Vec<_>>()).unwrap();
    let uris = uris.into_iter().map(|uri| SanType::URI(Ia5String::try_from(uri).unwrap()));
    params.subject_alt_names.extend(uris);
    params
}

fn with_key(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> Certificate {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
    let fingerprint = std::array::from_fn(|_| fastrand::u8(..));
    let key = Arc::new(CertifiedKey::new(chain, key));
    Certificate { fingerprint, names: [].into(), not_after: i64::MAX, key }
}

// === impl Setup ===

impl Setup {
    pub fn new(certificate: Certificate, protocols: &[&'static str]) -> Self {
        Self { certificate, protocols: protocols.to_vec(), clients: None, is_http2: false }
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::new(self.config()))
    }

    fn config(&self) -> ServerConfig {
        let builder = ServerConfig::builder();
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone()).unwrap();
                builder
                    .with_client_cert_verifier(WebPkiClientVerifier::builder(roots.into()).build().unwrap())
            }
        };
        let key = CertifiedKey::clone(&self.certificate.key);
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = self.protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        config
    }
}

// === impl TlsOrigin ===

impl TlsOrigin {
    pub async fn new(setup: Setup) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = setup.acceptor();
        let (requests, handshakes) = (Count::default(), Arc::<Mutex<Vec<Seen>>>::default());
        let (counted, noted) = (requests.clone(), handshakes.clone());
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let (acceptor, counted, noted) = (acceptor.clone(), counted.clone(), noted.clone());
                open.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let session = stream.get_ref().1;
                    let protocol = session.alpn_protocol().map(|it| String::from_utf8_lossy(it).into_owned());
                    let http2 = setup.is_http2 || protocol.as_deref() == Some("h2");
                    noted.lock().unwrap().push(Seen {
                        server_name: session.server_name().map(str::to_owned),
                        protocol,
                        resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
                        client: session.peer_certificates().and_then(|chain| chain.first()).cloned(),
                    });
                    serve(stream, http2.then_some(200), (counted, Count::default())).await;
                });
            }
        });
        Self { address, requests, handshakes, task }
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.handshakes.lock().unwrap().clone()
    }
}

impl Drop for TlsOrigin {
    fn drop(&mut self) {
        self.task.abort();
    }
}
