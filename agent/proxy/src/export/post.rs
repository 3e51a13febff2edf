//! Messages by HTTP/1.1, one after the other on a connection that is kept. What the collector
//! answers may be anything: no more of it is read than an answer can have, no redirect is followed,
//! and all of it has the message's time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::core::crypto;
use crate::core::ordinary_file::read_ordinary_file;
use crate::core::otlp::Collector;
use crate::upstream::tls::system;

/// The time that a message has, with its connection if one is made.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the file with header fields, and of that with certificates of authorities.
const LARGEST: u64 = 64 << 10;
const LARGEST_AUTHORITIES: u64 = 1 << 20;
/// Bytes of an answer.
const ANSWER: usize = 64 << 10;

/// The way of one kind of messages.
pub(super) struct Post {
    collector: Collector,
    /// Below the path of the collector.
    path: String,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// The reason why a message was not taken.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may be taken later; after that time, if the collector says one.
    Again(String, Option<Duration>),
    Refused(String),
}

// === impl Post ===

impl Post {
    pub(super) fn new(collector: Collector, path: &str) -> Self {
        let base = collector.endpoint.path().trim_end_matches('/');
        let path = format!("{base}/{path}");
        Self { collector, path, connection: None }
    }

    /// For the log.
    pub(super) fn url(&self) -> String {
        let endpoint = &self.collector.endpoint;
        let host = endpoint.authority().map_or("", |authority| authority.as_str());
        format!("{}://{host}{}", endpoint.scheme_str().unwrap_or("http"), self.path)
    }

    /// Returns the answer.
    pub(super) async fn send(&mut self, message: Bytes) -> Result<Bytes, Failure> {
        match timeout(TIMEOUT, self.exchange(message)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                self.connection = None;
                Err(Failure::Again(format!("no answer within {TIMEOUT:?}"), None))
            }
        }
    }

    async fn exchange(&mut self, message: Bytes) -> Result<Bytes, Failure> {
        let request = self.request(message).map_err(Failure::Refused)?;
        let kept = self.connection.take().filter(|connection| !connection.is_closed());
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect().await.map_err(|why| Failure::Again(why, None))?,
        };
        let again = |error: hyper::Error| Failure::Again(format!("the connection broke: {error}"), None);
        connection.ready().await.map_err(again)?;
        let response = connection.send_request(request).await.map_err(again)?;
        let (parts, body) = response.into_parts();
        let answer = Limited::new(body, ANSWER).collect().await;
        let answer =
            answer.map_err(|error| Failure::Again(format!("its answer broke off: {error}"), None))?;
        self.connection = Some(connection);
        judge(parts.status, &parts.headers)?;
        Ok(answer.to_bytes())
    }

    fn request(&self, message: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::new(Full::new(message));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.path.parse::<Uri>().map_err(|error| error.to_string())?;
        let fields = request.headers_mut();
        if let Some(file) = &self.collector.headers {
            let text = read_ordinary_file(file, LARGEST);
            let text = text.and_then(|text| String::from_utf8(text).map_err(io::Error::other));
            let text = text.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            *fields = headers(&text).map_err(|problem| format!("{}: {problem}", file.display()))?;
        }
        let host = self.collector.endpoint.authority().map_or("", |authority| authority.as_str());
        let host = HeaderValue::from_str(host).map_err(|error| error.to_string())?;
        fields.insert(header::HOST, host);
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let agent = concat!("portcullis/", env!("CARGO_PKG_VERSION"));
        fields.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        Ok(request)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let endpoint = &self.collector.endpoint;
        let host = endpoint.host().unwrap_or_default();
        let is_tls = endpoint.scheme() == Some(&Scheme::HTTPS);
        let port = endpoint.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((bare, port)).await;
        let stream = stream.map_err(|error| format!("cannot connect to {host}:{port}: {error}"))?;
        if !is_tls {
            return open(stream).await;
        }
        let name = ServerName::try_from(bare.to_owned()).map_err(|_| format!("{bare} is no name for TLS"))?;
        let connector = TlsConnector::from(Arc::new(self.tls()?));
        let stream = connector.connect(name, stream).await;
        open(stream.map_err(|error| format!("no TLS with {host}:{port}: {error}"))?).await
    }

    fn tls(&self) -> Result<ClientConfig, String> {
        let roots = match &self.collector.authorities {
            None => system().clone(),
            Some(file) => {
                authorities(file).map_err(|error| format!("cannot use {}: {error}", file.display()))?
            }
        };
        let config = ClientConfig::builder_with_provider(crypto::provider().into());
        let config = config.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        Ok(config.with_root_certificates(roots).with_no_client_auth())
    }
}

async fn open(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let (connection, driver) = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // It ends with the connection; what became of that, the next message is told.
    spawn_local(async move { drop(driver.await) });
    Ok(connection)
}

/// "The client SHOULD retry" on these alone (OTLP specification).
fn judge(status: StatusCode, fields: &HeaderMap) -> Result<(), Failure> {
    let why = || format!("it answered {}", status.as_u16());
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            let after = fields.get(header::RETRY_AFTER).and_then(|it| it.to_str().ok()?.parse().ok());
            Err(Failure::Again(why(), after.map(Duration::from_secs)))
        }
        _ => Err(Failure::Refused(why())),
    }
}

/// Fields, each in a line as `name: value`; nothing of them is in an error, they may be secret.
fn headers(text: &str) -> Result<HeaderMap, String> {
    let mut fields = HeaderMap::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let field = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
            let mut value = HeaderValue::from_str(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        let (name, value) = field.ok_or_else(|| format!("line {number} is no field: write name: value"))?;
        fields.append(name, value);
    }
    Ok(fields)
}

fn authorities(file: &std::path::Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let pem = read_ordinary_file(file, LARGEST_AUTHORITIES)?;
    for certificate in rustls::pki_types::CertificateDer::pem_slice_iter(&pem) {
        roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    if roots.is_empty() { Err(io::Error::other("it has no certificate")) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_lines() {
        let fields = headers("authorization: Bearer a:b\n\nX-Scope-OrgID:  7 \n").unwrap();
        assert_eq!(fields["authorization"], "Bearer a:b");
        assert_eq!(fields["x-scope-orgid"], "7");
        let problem = headers("a: b\nsecret token\n").unwrap_err();
        assert_eq!(problem, "line 2 is no field: write name: value");
    }
}
