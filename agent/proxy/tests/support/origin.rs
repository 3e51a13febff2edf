//! Backends that answer with what they saw. Query parameters choose how they behave: `status`,
//! `delay` (milliseconds before the response head), `stall` (head at once, body never), `trailers`,
//! `size` (bytes of body), `cookie`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

const LOOPBACK: &str = "127.0.0.1";

pub(super) type Count = Arc<AtomicUsize>;

pub struct Origin {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    pub requests: Arc<AtomicUsize>,
    /// Bytes of `size` bodies that were taken.
    pub produced: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

/// A response body in pieces.
pub enum Body {
    Frames(std::vec::IntoIter<Frame<Bytes>>),
    /// So many bytes, in pieces of 16 KiB; counted as they are taken.
    Zeros(usize, Arc<AtomicUsize>),
    Never,
}

// === impl Origin ===

impl Origin {
    pub async fn http1() -> Self {
        Self::start(LOOPBACK, None).await
    }

    pub async fn h2c() -> Self {
        Self::h2c_with(200).await
    }

    /// HTTP/2 with so many streams at once.
    pub async fn h2c_with(streams: u32) -> Self {
        Self::start(LOOPBACK, Some(streams)).await
    }

    pub async fn http1_at(address: &str) -> Self {
        Self::start(address, None).await
    }

    pub async fn h2c_at(address: &str) -> Self {
        Self::start(address, Some(200)).await
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    async fn start(address: &str, http2: Option<u32>) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, requests, produced) = <(Count, Count, Count)>::default();
        let (connection_count, counts) = (connections.clone(), (requests.clone(), produced.clone()));
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connection_count.fetch_add(1, Ordering::SeqCst);
                stream.set_nodelay(true).unwrap();
                open.spawn(serve(stream, http2, counts.clone()));
            }
        });
        Self { address, connections, requests, produced, task }
    }
}

/// The port closes, and open connections break.
impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A backend that reads one request head per connection and writes these bytes.
pub async fn serve_raw(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                let _ = stream.write_all(answer).await;
            });
        }
    });
    address
}

/// The same with a pause before each piece but the first.
pub async fn serve_pieces(pieces: Vec<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let pieces = pieces.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                for (index, piece) in pieces.iter().enumerate() {
                    tokio::time::sleep(Duration::from_millis(if index == 0 { 0 } else { 20 })).await;
                    let _ = stream.write_all(piece.as_bytes()).await;
                }
                // What else came is read, lest the kernel reset the connection.
                let _ = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut buffer)).await;
            });
        }
    });
    address
}

pub(super) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    http2: Option<u32>,
    (requests, produced): (Count, Count),
) {
    let service = hyper::service::service_fn(move |request| {
        requests.fetch_add(1, Ordering::SeqCst);
        answer(request, produced.clone())
    });
    let io = TokioIo::new(stream);
    let _ = if let Some(streams) = http2 {
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.enable_connect_protocol();
        builder.max_concurrent_streams(streams).serve_connection(io, service).await
    } else {
        hyper::server::conn::http1::Builder::new().serve_connection(io, service).with_upgrades().await
    };
}

async fn answer(
    mut request: Request<Incoming>,
    produced: Arc<AtomicUsize>,
) -> Result<Response<Body>, Infallible> {
    if request.headers().contains_key("upgrade") || request.method() == Method::CONNECT {
        return Ok(upgrade(&mut request));
    }
    let seen = seen_head(&request);
    let query = request.uri().query().unwrap_or_default().to_owned();
    let (_, body) = request.into_parts();
    let parameter = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('=').or(Some((pair, ""))));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
    };
    if let Some(delay) = parameter("delay") {
        tokio::time::sleep(Duration::from_millis(delay.parse().unwrap())).await;
    }
    let mut response = Response::new(Body::Never);
    if let Some(status) = parameter("status") {
        *response.status_mut() = StatusCode::from_bytes(status.as_bytes()).unwrap();
    }
    response.headers_mut().insert("x-backend", HeaderValue::from_static("echo"));
    if seen.starts_with("HEAD ") {
        *response.body_mut() = Body::Frames(Vec::new().into_iter());
        return Ok(response);
    }
    if parameter("stall").is_some() {
        return Ok(response);
    }
    if let Some(size) = parameter("size") {
        *response.body_mut() = Body::Zeros(size.parse().unwrap(), produced);
        return Ok(response);
    }
    let mut frames = Vec::new();
    let text = match body.collect().await {
        Ok(body) => {
            let trailers = body.trailers().map(lines).unwrap_or_default();
            format!("{seen}\n{}{trailers}", String::from_utf8_lossy(&body.to_bytes()))
        }
        Err(error) => format!("{seen}\nbroken body: {error}"),
    };
    frames.push(Frame::data(Bytes::from(text)));
    if parameter("trailers").is_some() {
        response.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
        frames.push(Frame::trailers(HeaderMap::from_iter([(
            http::HeaderName::from_static("x-sum"),
            HeaderValue::from_static("42"),
        )])));
    }
    *response.body_mut() = Body::Frames(frames.into_iter());
    Ok(response)
}

/// Accepts any protocol and echoes bytes, unless the query says `refuse`.
fn upgrade(request: &mut Request<Incoming>) -> Response<Body> {
    let mut response = Response::new(Body::Frames(Vec::new().into_iter()));
    if request.uri().query() == Some("refuse") {
        return response;
    }
    let protocol = request.headers().get("upgrade").cloned();
    let upgraded = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let stream = TokioIo::new(upgraded.await.unwrap());
        let (mut from, mut to) = tokio::io::split(stream);
        let _ = tokio::io::copy(&mut from, &mut to).await;
        let _ = to.shutdown().await;
    });
    // An extended CONNECT needs no more than the status.
    if let Some(protocol) = protocol {
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
        response.headers_mut().insert("upgrade", protocol);
    }
    response
}

/// Request line and header lines; the authority of HTTP/2 is shown as `host`.
fn seen_head(request: &Request<Incoming>) -> String {
    let target = request.uri().path_and_query().map_or("", |target| target.as_str());
    let authority = request.uri().authority().map(|it| format!("host: {it}\n")).unwrap_or_default();
    format!("{} {target}\n{authority}{}", request.method(), lines(request.headers()))
}

fn lines(headers: &HeaderMap) -> String {
    headers.iter().map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap_or("?"))).collect()
}

// === impl Body ===

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Frames(frames) => Poll::Ready(frames.next().map(Ok)),
            Self::Zeros(0, _) => Poll::Ready(None),
            Self::Zeros(left, produced) => {
                let piece = (*left).min(16 << 10);
                *left -= piece;
                produced.fetch_add(piece, Ordering::SeqCst);
                Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; piece])))))
            }
            Self::Never => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Frames(frames) if frames.len() == 0)
    }
}
