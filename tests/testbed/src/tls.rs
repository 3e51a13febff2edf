//! An HTTPS client of our own: it holds connections open, and tells what a handshake failed of,
//! where a command cannot.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
};

use crate::Authority;

const PATIENCE: Duration = Duration::from_secs(10);

/// Trusts one authority; every connection is a full handshake.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

/// A connection that stays open until it is dropped, or fails.
pub struct Connection {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
    host: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and fields, names in lower case.
    pub head: String,
    pub body: String,
}

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
    pub fn connect(&self, address: SocketAddr, host: &str) -> Result<Connection> {
        self.connect_within(PATIENCE, address, host)
    }

    /// The same with a time limit of its own, which also holds for each read.
    pub fn connect_within(&self, limit: Duration, address: SocketAddr, host: &str) -> Result<Connection> {
        let mut tcp = TcpStream::connect_timeout(&address, limit)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(limit))?;
        let mut tls = ClientConnection::new(self.0.clone(), host.to_owned().try_into()?)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp).with_context(|| format!("no handshake for {host}"))?;
        }
        Ok(Connection { stream: BufReader::new(StreamOwned::new(tls, tcp)), host: host.to_owned() })
    }
}

impl Connection {
    pub fn get(&mut self, path: &str) -> Result<Answer> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(self.stream.read_line(&mut head)? > 0, "the connection was closed after {head:?}");
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.context("an answer without length")?.trim().parse()?];
        self.stream.read_exact(&mut body)?;
        let status = head.split_whitespace().nth(1).context("an answer without status")?.parse()?;
        Ok(Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// The bytes within TLS, for a protocol of the caller's.
    pub fn into_stream(self) -> impl Read + Write {
        self.stream.into_inner()
    }

    /// The certificate that the server showed.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.stream.get_ref().conn.peer_certificates()?.first().map(|certificate| &**certificate)
    }
}

/// Why there was no connection, if TLS is what prevented it.
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
