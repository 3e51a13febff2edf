//! Auth services: real servers that note what they are asked, and answer as a test says. Over HTTP,
//! and in Envoy's protocol; its messages are written down here once more, so that no mistake of the
//! data plane's is repeated by a test that shares its types.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portcullis_model::{AuthProtocol, ExternalAuth, FieldNames, Filter, HttpAuth};
use prost::Message;
use tokio::net::TcpListener;

use super::origin::Body;
use super::rules::backend_name;

pub struct HttpAuthService {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Request<Bytes>>>>,
    task: tokio::task::JoinHandle<()>,
}

pub struct GrpcAuthService {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<(HeaderMap, CheckRequest)>>>,
    task: tokio::task::JoinHandle<()>,
}

/// The answer of a gRPC service.
#[derive(Clone)]
pub enum GrpcAnswer {
    Message(CheckResponse),
    /// Bytes of a body, and `grpc-status`, if there is one.
    Raw(Bytes, Option<&'static str>),
}

// === impl HttpAuthService ===

impl HttpAuthService {
    /// Over HTTP/1.1.
    pub async fn start<F>(answer: F) -> Self
    where
        F: Fn(&Request<Bytes>) -> Response<Bytes> + Clone + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, noted) = (answer.clone(), noted.clone());
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let (answer, noted) = (answer.clone(), noted.clone());
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await.unwrap().to_bytes();
                        let request = Request::from_parts(parts, body);
                        let response = answer(&request);
                        noted.lock().unwrap().push(request);
                        Ok::<_, Infallible>(response.map(Full::new))
                    }
                });
                let builder = hyper::server::conn::http1::Builder::new();
                open.spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, asked, task }
    }

    /// The questions since the last look.
    pub fn asked(&self) -> Vec<Request<Bytes>> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

impl Drop for HttpAuthService {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl GrpcAuthService ===

impl GrpcAuthService {
    pub async fn start<F>(answer: F) -> Self
    where
        F: Fn(&CheckRequest) -> GrpcAnswer + Clone + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, noted) = (answer.clone(), noted.clone());
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let (answer, noted) = (answer.clone(), noted.clone());
                    async move {
                        let (parts, body) = request.into_parts();
                        assert_eq!(parts.uri.path(), "/envoy.service.auth.v3.Authorization/Check");
                        assert_eq!(parts.headers["content-type"], "application/grpc");
                        let mut body = body.collect().await.unwrap().to_bytes();
                        assert_eq!(body.get_u8(), 0, "it is not compressed");
                        assert_eq!(body.get_u32() as usize, body.len());
                        let request = CheckRequest::decode(body).unwrap();
                        let said = answer(&request);
                        noted.lock().unwrap().push((parts.headers, request));
                        Ok::<_, Infallible>(said.response())
                    }
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                open.spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, asked, task }
    }

    /// The questions since the last look.
    pub fn asked(&self) -> Vec<(HeaderMap, CheckRequest)> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

impl Drop for GrpcAuthService {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl GrpcAnswer ===

impl GrpcAnswer {
    fn response(self) -> Response<Body> {
        let (bytes, status) = match self {
            Self::Message(message) => {
                let message = message.encode_to_vec();
                let mut bytes = BytesMut::new();
                bytes.put_u8(0);
                bytes.put_u32(message.len() as u32);
                bytes.put_slice(&message);
                (bytes.freeze(), Some("0"))
            }
            Self::Raw(bytes, status) => (bytes, status),
        };
        let mut frames = vec![Frame::data(bytes)];
        if let Some(status) = status {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static(status));
            frames.push(Frame::trailers(trailers));
        }
        let body = Body::Frames(frames.into_iter());
        Response::builder().header("content-type", "application/grpc").body(body).unwrap()
    }
}

// === filters ===

/// A filter that asks the backend `auth` over HTTP.
pub fn over_http(change: impl FnOnce(&mut HttpAuth)) -> ExternalAuth {
    let mut http = HttpAuth { prefix: "".into(), request: Vec::new(), response: FieldNames::All };
    change(&mut http);
    ExternalAuth { backend: backend_name("auth"), protocol: AuthProtocol::Http(http), body: None }
}

/// A filter that asks the backend `auth` in Envoy's protocol.
pub fn over_grpc(request: FieldNames) -> ExternalAuth {
    ExternalAuth { backend: backend_name("auth"), protocol: AuthProtocol::Grpc { request }, body: None }
}

pub fn filter(auth: ExternalAuth) -> Filter {
    Filter::ExternalAuth(Box::new(auth))
}

pub fn only(names: &[&'static str]) -> FieldNames {
    FieldNames::Only(names.iter().map(|name| name.parse().unwrap()).collect())
}

// === envoy/service/auth/v3/external_auth.proto, and what it includes ===

#[derive(Clone, PartialEq, Message)]
pub struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub attributes: Option<AttributeContext>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub source: Option<Peer>,
    #[prost(message, optional, tag = "2")]
    pub destination: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    pub request: Option<AttributeRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Peer {
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Address {
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SocketAddress {
    #[prost(string, tag = "2")]
    pub address: String,
    #[prost(uint32, tag = "3")]
    pub port_value: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct AttributeRequest {
    #[prost(message, optional, tag = "1")]
    pub time: Option<Timestamp>,
    #[prost(message, optional, tag = "2")]
    pub http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct HttpRequest {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(map = "string, string", tag = "3")]
    pub headers: HashMap<String, String>,
    #[prost(string, tag = "4")]
    pub path: String,
    #[prost(string, tag = "5")]
    pub host: String,
    #[prost(string, tag = "6")]
    pub scheme: String,
    #[prost(string, tag = "7")]
    pub query: String,
    #[prost(int64, tag = "9")]
    pub size: i64,
    #[prost(string, tag = "10")]
    pub protocol: String,
    #[prost(string, tag = "11")]
    pub body: String,
    #[prost(bytes = "vec", tag = "12")]
    pub raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<RpcStatus>,
    #[prost(oneof = "HttpResponse", tags = "2, 3")]
    pub http_response: Option<HttpResponse>,
    /// `dynamic_metadata`, a message that is of no use here.
    #[prost(bytes = "vec", tag = "4")]
    pub metadata: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum HttpResponse {
    #[prost(message, tag = "2")]
    Denied(DeniedHttpResponse),
    #[prost(message, tag = "3")]
    Ok(OkHttpResponse),
}

#[derive(Clone, PartialEq, Message)]
pub struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    #[prost(string, tag = "3")]
    pub body: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct OkHttpResponse {
    #[prost(message, repeated, tag = "2")]
    pub headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "5")]
    pub headers_to_remove: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub response_headers_to_add: Vec<HeaderValueOption>,
    #[prost(message, repeated, tag = "7")]
    pub query_parameters_to_set: Vec<QueryParameter>,
    #[prost(string, repeated, tag = "8")]
    pub query_parameters_to_remove: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub header: Option<EnvoyHeaderValue>,
    #[prost(message, optional, tag = "2")]
    pub append: Option<BoolValue>,
    #[prost(int32, tag = "3")]
    pub append_action: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct EnvoyHeaderValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BoolValue {
    #[prost(bool, tag = "1")]
    pub value: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct QueryParameter {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A field of an answer.
pub fn field(key: &str, value: &str) -> HeaderValueOption {
    let header = EnvoyHeaderValue { key: key.to_owned(), value: value.to_owned(), raw_value: Vec::new() };
    HeaderValueOption { header: Some(header), append: None, append_action: 0 }
}

pub fn allowed(ok: OkHttpResponse) -> GrpcAnswer {
    let status = Some(RpcStatus::default());
    GrpcAnswer::Message(CheckResponse {
        status,
        http_response: Some(HttpResponse::Ok(ok)),
        metadata: Vec::new(),
    })
}

pub fn denied(status: i32, denied: DeniedHttpResponse) -> GrpcAnswer {
    let http_response =
        HttpResponse::Denied(DeniedHttpResponse { status: Some(HttpStatus { code: status }), ..denied });
    let status = Some(RpcStatus { code: 7, message: "no".to_owned() });
    GrpcAnswer::Message(CheckResponse { status, http_response: Some(http_response), metadata: Vec::new() })
}
