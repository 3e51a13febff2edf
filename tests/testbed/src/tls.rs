//! An HTTPS client of our own: it holds connections open, and tells what a handshake failed of,
//! where a command cannot.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
};

use crate::Authority;
use crate::connection::Connection;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Trusts one authority; every connection is a full handshake.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

/// The stream of an HTTPS connection.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Reasons for a handshake to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server has no listener of the name.
    UnknownName,
    /// The server's certificate has expired.
    Expired,
}

impl TlsClient {
    pub fn new(authority: &Authority) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// The same client, offering one application protocol (ALPN).
    pub fn speaking(mut self, protocol: &[u8]) -> Self {
        Arc::make_mut(&mut self.0).alpn_protocols = vec![protocol.to_vec()];
        self
    }

    /// Connects and shakes hands. [`refusal`] reads the error.
    pub fn connect(&self, address: SocketAddr, host: &str) -> Result<Connection<TlsStream>> {
        self.connect_within(TIMEOUT, address, host)
    }

    /// The same with a time limit of its own, which also holds for each read.
    pub fn connect_within(
        &self,
        limit: Duration,
        address: SocketAddr,
        host: &str,
    ) -> Result<Connection<TlsStream>> {
        let mut tcp = TcpStream::connect_timeout(&address, limit)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(limit))?;
        let mut tls = ClientConnection::new(self.0.clone(), host.to_owned().try_into()?)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp).with_context(|| format!("no handshake for {host}"))?;
        }
        Ok(Connection::new(StreamOwned::new(tls, tcp), host))
    }
}

impl Connection<TlsStream> {
    /// The certificate that the server showed.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.stream.get_ref().conn.peer_certificates()?.first().map(|certificate| &**certificate)
    }
}

/// The reason of TLS for an error, if it has one.
pub fn refusal(error: &anyhow::Error) -> Option<Refusal> {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>())?;
    match io.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(AlertDescription::UnrecognisedName) => Some(Refusal::UnknownName),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => Some(Refusal::Expired),
        _ => None,
    }
}
