//! One check of an endpoint. What it sends may be anything: no more is read than a bit, nothing is
//! followed, and all of it has the check's time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode, header};
use portcullis_model::{Backend, BackendProtocol, HttpProbe, Probe, ProxyHeader};
use prost::Message;
use rustls::crypto::CryptoProvider;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::upstream::dial::Dial;
use crate::upstream::proxy_header::own_header;
use crate::upstream::stream::BackendStream;
use crate::upstream::tls::{Offer, Security};

/// Bytes of a response that are read.
const MOST: usize = 16 << 10;
const FIELDS: usize = 256;
/// Bytes of gRPC's frame before its message.
const GRPC_PREFIX: usize = 5;
const GRPC_STATUS: &str = "grpc-status";
const AGENT: &str = "portcullis-health-check";

/// Asks the endpoints of a backend.
pub(super) struct Prober {
    probe: Probe,
    /// Requests are HTTP/2.
    is_http2: bool,
    security: Security,
    /// Before all else.
    header: Option<ProxyHeader>,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

// === impl Prober ===

impl Prober {
    /// By the backend's protocol, and its TLS; no certificate of ours is shown, as no Gateway asks.
    pub(super) fn new(backend: &Backend, probe: &Probe, provider: &Arc<CryptoProvider>) -> Self {
        let is_http2 = matches!(probe, Probe::Grpc { .. }) || backend.protocol == BackendProtocol::H2c;
        let protocol = if is_http2 { BackendProtocol::H2c } else { BackendProtocol::Http1 };
        let security = Security::new(&backend.encryption, protocol, None, provider);
        Self { probe: probe.clone(), is_http2, security, header: backend.proxy_header }
    }

    /// # Errors
    /// The endpoint's fault, in words.
    pub(super) async fn probe(&self, address: SocketAddr) -> Result<(), String> {
        let dialing = async {
            let mut socket = Dial::begin(address)?.finish().await?;
            if let Some(version) = self.header {
                socket.write_all(&own_header(version)?).await?;
            }
            io::Result::Ok(socket)
        };
        let socket = dialing.await.map_err(|error| format!("it cannot be connected to: {error}"))?;
        if self.probe == Probe::Tcp {
            return Ok(());
        }
        let stream = match &self.security {
            Security::Plain => BackendStream::Plain(socket),
            Security::Tls(tls) => {
                let connecting = tls.connect(socket, Offer::Requests).await;
                BackendStream::Tls(Box::new(connecting.map_err(|error| format!("no TLS: {error}"))?))
            }
            Security::Refused => return Err("its BackendTLSPolicy cannot be followed".to_owned()),
        };
        match &self.probe {
            Probe::Tcp => Ok(()),
            Probe::Http(probe) => {
                let status = match self.is_http2 {
                    true => {
                        over_http2(stream, self.request(probe, address)?, Bytes::new(), status_of).await?
                    }
                    false => over_http1(stream, probe, address).await?,
                };
                let why = || format!("it answered {}", status.as_u16());
                if probe.passes(status) { Ok(()) } else { Err(why()) }
            }
            Probe::Grpc { service } => {
                let message = HealthCheckRequest { service: service.to_string() }.encode_to_vec();
                let mut body = BytesMut::with_capacity(GRPC_PREFIX + message.len());
                body.put_u8(0);
                body.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
                body.extend_from_slice(&message);
                over_http2(stream, self.call(address)?, body.freeze(), serving_status).await
            }
        }
    }

    fn request(&self, probe: &HttpProbe, address: SocketAddr) -> Result<Request<()>, String> {
        let host = probe.host.as_deref().map_or_else(|| address.to_string(), str::to_owned);
        let request = Request::get(format!("{}://{host}{}", self.scheme(), probe.path));
        request.header(header::USER_AGENT, AGENT).body(()).map_err(|error| error.to_string())
    }

    fn call(&self, address: SocketAddr) -> Result<Request<()>, String> {
        let request = Request::post(format!("{}://{address}/grpc.health.v1.Health/Check", self.scheme()));
        let request = request.header(header::CONTENT_TYPE, "application/grpc").header(header::TE, "trailers");
        request.header(header::USER_AGENT, AGENT).body(()).map_err(|error| error.to_string())
    }

    fn scheme(&self) -> &'static str {
        if matches!(self.security, Security::Tls(_)) { "https" } else { "http" }
    }
}

/// The status of the final response. Its body is not read.
async fn over_http1(
    mut stream: BackendStream,
    probe: &HttpProbe,
    address: SocketAddr,
) -> Result<StatusCode, String> {
    let host = probe.host.as_deref().map_or_else(|| address.to_string(), str::to_owned);
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: {host}\r\nuser-agent: {AGENT}\r\nconnection: close\r\n\r\n",
        probe.path
    );
    let sending = stream.write_all(request.as_bytes()).await;
    sending.map_err(|error| format!("it does not take a request: {error}"))?;
    let (mut read, mut seen) = (BytesMut::new(), 0);
    while seen < MOST {
        let count = stream.read_buf(&mut read).await.map_err(|error| format!("it broke: {error}"))?;
        if count == 0 {
            return Err("it closed the connection without an answer".to_owned());
        }
        seen += count;
        while let Some((size, status)) = head(&read)? {
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(status);
            }
            let _ = read.split_to(size);
        }
    }
    Err(format!("its answer does not begin within {MOST} bytes"))
}

/// The size of a response's head, and its status; `None` if there is more of it to come.
pub(crate) fn head(bytes: &[u8]) -> Result<Option<(usize, StatusCode)>, String> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(bytes).map_err(|error| format!("it sent no HTTP: {error}"))?;
    let httparse::Status::Complete(size) = parsed else { return Ok(None) };
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
    status.map(|status| Some((size, status))).ok_or_else(|| "it sent no status".to_owned())
}

async fn over_http2<T>(
    stream: BackendStream,
    request: Request<()>,
    body: Bytes,
    read: impl AsyncFnOnce(Response<h2::RecvStream>) -> Result<T, String>,
) -> Result<T, String> {
    let failed = |error: h2::Error| format!("it breaks HTTP/2: {error}");
    let mut builder = h2::client::Builder::new();
    builder.enable_push(false).max_header_list_size(MOST as u32).initial_window_size(MOST as u32);
    let (client, connection) = builder.handshake::<_, Bytes>(stream).await.map_err(failed)?;
    let exchange = async {
        let mut client = client.ready().await.map_err(failed)?;
        let (response, mut upload) = client.send_request(request, body.is_empty()).map_err(failed)?;
        if !body.is_empty() {
            upload.send_data(body, true).map_err(failed)?;
        }
        read(response.await.map_err(failed)?).await
    };
    tokio::select! {
        biased;
        outcome = exchange => outcome,
        ended = connection => Err(ended.map_or_else(failed, |()| "it closed the connection".to_owned())),
    }
}

async fn status_of(response: Response<h2::RecvStream>) -> Result<StatusCode, String> {
    Ok(response.status())
}

/// An error is in the head where there is no message ("Trailers-Only").
async fn serving_status(response: Response<h2::RecvStream>) -> Result<(), String> {
    if response.status() != StatusCode::OK {
        return Err(format!("it answered {}", response.status().as_u16()));
    }
    check_status(response.headers())?;
    let mut body = response.into_body();
    let mut read = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(|error| format!("it breaks HTTP/2: {error}"))?;
        let _ = body.flow_control().release_capacity(data.len());
        read.extend_from_slice(&data);
        if read.len() > MOST {
            return Err(format!("its message has more than {MOST} bytes"));
        }
    }
    if let Ok(Some(trailers)) = body.trailers().await {
        check_status(&trailers)?;
    }
    judge(&read)
}

/// The word of the one message of a body.
pub(crate) fn judge(body: &[u8]) -> Result<(), String> {
    let message = body.get(GRPC_PREFIX..).map(HealthCheckResponse::decode);
    match message {
        Some(Ok(message)) if message.status() == ServingStatus::Serving => Ok(()),
        Some(Ok(message)) => Err(format!("it says {:?}", message.status())),
        Some(Err(_)) | None => Err("it sent no message".to_owned()),
    }
}

fn check_status(fields: &HeaderMap) -> Result<(), String> {
    match fields.get(GRPC_STATUS) {
        Some(status) if status != "0" => Err(format!("its gRPC status is {status:?}")),
        _ => Ok(()),
    }
}
