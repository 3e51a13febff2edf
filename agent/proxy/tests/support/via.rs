//! Clients: the same request over HTTP/1.1 and HTTP/2, with and without TLS; and raw bytes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::client::tls;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    Http1,
    H2c,
    Http1Tls,
    Http2Tls,
}

pub struct Client {
    sender: Sender,
    via: Via,
}

enum Sender {
    Http1(http1::SendRequest<BoxBody<Bytes, Infallible>>),
    Http2(http2::SendRequest<BoxBody<Bytes, Infallible>>),
}

/// A body that does not say how long it is.
struct Unsized(Full<Bytes>);

#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: String,
    pub trailers: HeaderMap,
}

// === impl Via ===

impl Via {
    pub const ALL: [Self; 4] = [Self::Http1, Self::H2c, Self::Http1Tls, Self::Http2Tls];

    fn is_http2(self) -> bool {
        matches!(self, Self::H2c | Self::Http2Tls)
    }
}

// === impl Client ===

impl Client {
    pub async fn connect(via: Via, address: SocketAddr, server_name: &str) -> Self {
        let sender = match via {
            Via::Http1 | Via::H2c => {
                let stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                handshake(via, stream).await
            }
            Via::Http1Tls | Via::Http2Tls => {
                let alpn: &[u8] = if via.is_http2() { b"h2" } else { b"http/1.1" };
                handshake(
                    via,
                    tls(TcpStream::connect(address).await.unwrap(), Some(server_name), alpn).await.unwrap(),
                )
                .await
            }
        };
        Self { sender, via }
    }

    /// Sends a request written as text: request line, header lines, empty line, body.
    pub async fn send(&mut self, text: &str) -> Reply {
        self.try_send(text).await.unwrap()
    }

    pub async fn try_send(&mut self, text: &str) -> hyper::Result<Reply> {
        Reply::read(self.start(text).await?).await
    }

    /// The response head; its body is yet to be read.
    pub async fn start(&mut self, text: &str) -> hyper::Result<Response<Incoming>> {
        self.begin(parse(text, self.via).map(BodyExt::boxed)).await
    }

    /// As [`Self::send`], without a length of the body.
    pub async fn send_unsized(&mut self, text: &str) -> Reply {
        let request = parse(text, self.via).map(|body| Unsized(body).boxed());
        Reply::read(self.begin(request).await.unwrap()).await.unwrap()
    }

    async fn begin(
        &mut self,
        request: Request<BoxBody<Bytes, Infallible>>,
    ) -> hyper::Result<Response<Incoming>> {
        match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => sender.send_request(request).await,
        }
    }

    /// As [`Self::send`], with a `host` field beside HTTP/2's authority.
    pub async fn send_with_host(&mut self, text: &str, host: &str) -> Reply {
        let mut request = parse(text, self.via);
        request.headers_mut().insert("host", host.parse().unwrap());
        let Sender::Http2(sender) = &mut self.sender else { panic!("HTTP/1 has no authority") };
        Reply::read(sender.send_request(request.map(BodyExt::boxed)).await.unwrap()).await.unwrap()
    }

    pub async fn closed(&mut self) -> bool {
        match &mut self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }
}

// === impl Reply ===

impl Reply {
    pub async fn read(response: Response<Incoming>) -> hyper::Result<Self> {
        let (parts, body) = response.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        Ok(Self { status: parts.status, headers: parts.headers, body, trailers })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

// === impl Unsized ===

impl Body for Unsized {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }
}

async fn handshake<S>(via: Via, stream: S) -> Sender
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    if via.is_http2() {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        Sender::Http2(sender)
    } else {
        let (sender, connection) = http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        Sender::Http1(sender)
    }
}

fn parse(text: &str, via: Via) -> Request<Full<Bytes>> {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let (method, target) = lines.next().unwrap().split_once(' ').unwrap();
    let mut request = Request::builder().method(method);
    let mut named = None;
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        if name == "host" {
            named = Some(value);
        }
        if name != "host" || !via.is_http2() {
            request = request.header(name, value);
        }
    }
    let host = named.unwrap_or("any.test");
    if via.is_http2() {
        let scheme = if via == Via::H2c { "http" } else { "https" };
        request = request.uri(format!("{scheme}://{host}{target}"));
    } else {
        request = request.uri(target);
        if named.is_none() {
            request = request.header("host", host);
        }
    }
    request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap()
}
