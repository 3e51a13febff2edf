//! Clients. [`send`] asks the same over three transports; [`raw`] writes bytes as they are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Http1,
    Https1,
    Https2,
}

pub type Text = Response<String>;

/// One request on a connection of its own; the server name is the URI's host.
pub async fn send(transport: Transport, to: SocketAddr, request: Request<Bytes>) -> Text {
    let name = request.uri().host().unwrap_or("a.example.com").to_owned();
    let stream = TcpStream::connect(to).await.unwrap();
    match transport {
        Transport::Http1 => http1(stream, request).await,
        Transport::Https1 => http1(tls(stream, Some(&name), b"http/1.1").await.unwrap(), request).await,
        Transport::Https2 => http2(tls(stream, Some(&name), b"h2").await.unwrap(), request).await,
    }
}

pub async fn http1<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    mut request: Request<Bytes>,
) -> Text {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    if let Some(authority) = request.uri().authority().cloned() {
        let host = authority.as_str().parse().unwrap();
        request.headers_mut().entry("host").or_insert(host);
        *request.uri_mut() = request.uri().path_and_query().cloned().unwrap().into();
    }
    text(sender.send_request(request.map(Full::new)).await.unwrap()).await
}

pub async fn http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    mut request: Request<Bytes>,
) -> Text {
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    *request.version_mut() = Version::HTTP_2;
    text(sender.send_request(request.map(Full::new)).await.unwrap()).await
}

async fn text(response: Response<hyper::body::Incoming>) -> Text {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, String::from_utf8_lossy(&body).into_owned())
}

pub async fn tls(
    stream: TcpStream,
    name: Option<&str>,
    alpn: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut config = client_config();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_sni = name.is_some();
    let name = ServerName::try_from(name.unwrap_or("none.invalid").to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// A configuration whose connections resume each other's sessions.
pub fn resuming() -> Arc<ClientConfig> {
    Arc::new(client_config())
}

/// The same, for one version of TLS.
pub fn resuming_by(version: &'static rustls::SupportedProtocolVersion) -> Arc<ClientConfig> {
    Arc::new(showing(&[version], None))
}

/// One request; whether its connection resumed a session.
pub async fn exchange_resuming(config: &Arc<ClientConfig>, to: SocketAddr, name: &'static str) -> bool {
    let stream = TcpStream::connect(to).await.unwrap();
    let mut stream = TlsConnector::from(config.clone())
        .connect(ServerName::try_from(name).unwrap(), stream)
        .await
        .unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
}

/// Writes bytes and reads until the server closes, or falls silent for a moment after whole
/// answers.
pub async fn raw(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&answer);
        let quiet = if are_whole(&text) { Duration::from_millis(200) } else { Duration::from_secs(20) };
        match tokio::time::timeout(quiet, stream.read(&mut buffer)).await {
            Ok(Ok(count)) if count > 0 => answer.extend_from_slice(&buffer[..count]),
            _ => return text.into_owned(),
        }
    }
}

/// True if these are final responses to their ends, perhaps after others. One whose end is that of
/// its connection is not whole before, and what is no HTTP/1 is as whole as it gets.
fn are_whole(mut text: &str) -> bool {
    let mut is_final = false;
    while text.starts_with("HTTP/1") {
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { return false };
        let head = head.to_ascii_lowercase();
        is_final = head.split(' ').nth(1).is_some_and(|status| !status.starts_with('1'));
        let length = head.split_once("\r\ncontent-length: ").map(|(_, rest)| rest.lines().next().unwrap());
        let end = if head.contains("\r\ntransfer-encoding: chunked") {
            // The last chunk, and trailers.
            let last =
                if rest.starts_with("0\r\n") { Some(0) } else { rest.find("\r\n0\r\n").map(|at| at + 2) };
            last.and_then(|last| rest[last..].find("\r\n\r\n").map(|at| last + at + 4))
        } else if is_final {
            length.map(|length| length.parse().unwrap())
        } else {
            Some(0)
        };
        match end.and_then(|end| rest.get(end..)) {
            Some(rest) => text = rest,
            None => return false,
        }
    }
    is_final || !text.is_empty()
}

/// A handshake of a client that takes these signatures only.
pub async fn tls_taking(
    schemes: &[rustls::SignatureScheme],
    version: &'static rustls::SupportedProtocolVersion,
    stream: TcpStream,
    name: &'static str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let verifier = Arc::new(AnyCertificate(schemes.to_vec()));
    let config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(name).unwrap(), stream).await
}

/// A connection whose ClientHello is yet to be written.
pub fn connection(name: &str) -> rustls::ClientConnection {
    let name = ServerName::try_from(name.to_lowercase()).unwrap();
    rustls::ClientConnection::new(Arc::new(client_config()), name).unwrap()
}

fn client_config() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(schemes)))
        .with_no_client_auth()
}

/// Tests look at the certificate themselves.
#[derive(Debug)]
struct AnyCertificate(Vec<rustls::SignatureScheme>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.clone()
    }
}

/// A certificate with those that vouch for it, and its key, as clients show it.
pub type Identity = (Vec<CertificateDer<'static>>, rustls_pki_types::PrivateKeyDer<'static>);

/// A connection of a client that shows this certificate if it is asked for one.
pub async fn tls_showing(
    stream: TcpStream,
    name: &'static str,
    alpn: &[u8],
    identity: Option<&Identity>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut config = showing(rustls::ALL_VERSIONS, identity);
    config.alpn_protocols = vec![alpn.to_vec()];
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(name).unwrap(), stream).await
}

/// A connection of a client that speaks one version.
pub async fn tls_by(
    stream: TcpStream,
    name: &'static str,
    version: &'static rustls::SupportedProtocolVersion,
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = Arc::new(showing(&[version], None));
    TlsConnector::from(config).connect(ServerName::try_from(name).unwrap(), stream).await
}

fn showing(
    versions: &[&'static rustls::SupportedProtocolVersion],
    identity: Option<&Identity>,
) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(schemes)));
    match identity {
        Some((chain, key)) => config.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap(),
        None => config.with_no_client_auth(),
    }
}

/// The first bytes of the answer to a request over TLS 1.2 or 1.3, of a client that shows this
/// certificate if it is asked for one: clients of TLS 1.3 learn of a refusal only then.
pub async fn asked_for_certificate(
    to: SocketAddr,
    name: &'static str,
    version: &'static rustls::SupportedProtocolVersion,
    identity: Option<&Identity>,
) -> std::io::Result<String> {
    let config = showing(&[version], identity);
    let connector = TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(to).await?;
    let mut stream = connector.connect(ServerName::try_from(name).unwrap(), stream).await?;
    let request = format!("GET / HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut status = [0; 12];
    stream.read_exact(&mut status).await?;
    Ok(String::from_utf8_lossy(&status).into_owned())
}
