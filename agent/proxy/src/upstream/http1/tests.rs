//! The same bytes to this client and to the HTTP library's: both have to read the same response,
//! but where this one is stricter.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

use super::*;
use crate::core::window::Windows;
use crate::upstream::request::Upload;

const LIMITS: HeadLimits = HeadLimits { bytes: 8 << 10, fields: 100 };
const CASES: u64 = 3000;

/// A response as a client reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Read {
    status: StatusCode,
    fields: HeaderMap,
    body: Vec<u8>,
    trailers: HeaderMap,
    /// It came to its end.
    is_whole: bool,
}

const RESPONSES: [&str; 14] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "HTTP/1.0 200 OK\r\n\r\nuntil the end",
    "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"1\"\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
    "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
    "HTTP/1.1 200 OK\nContent-Length: 3\n\nabc",
    "HTTP/1.1 500\r\nSet-Cookie: a=b\r\nset-cookie: c\r\nX: \u{e9}\r\nContent-Length: 0000000004\r\n\r\nfour",
];

#[test]
fn this_client_reads_what_the_library_reads() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for seed in 0..CASES {
            let mut random = fastrand::Rng::with_seed(seed);
            let method = random.choice([Method::GET, Method::GET, Method::HEAD]).unwrap();
            let bytes = response(&mut random, seed);
            let piece = random.choice([1, 7, 4096]).unwrap();
            let serving = serve(&listener, &bytes, piece);
            let own = async { own(TcpStream::connect(address(&listener)).await.unwrap(), &method).await };
            let (own, ()) = tokio::join!(own, serving);
            let library = async { library(address(&listener), &method).await };
            let (library, ()) = tokio::join!(library, serve(&listener, &bytes, piece));
            let agree = own == library || is_stricter(own.as_ref(), library.as_ref(), &bytes);
            let text = String::from_utf8_lossy(&bytes);
            assert!(agree, "case {seed}: {method} {text:?}\n    own: {own:?}\nlibrary: {library:?}");
        }
    });
}

/// This client reads no response with a transfer coding other than `chunked`, and no end of one
/// with bare line feeds between its chunks.
fn is_stricter(own: Option<&Read>, library: Option<&Read>, bytes: &[u8]) -> bool {
    match (own, library) {
        (None, Some(library)) => {
            let mut codings = library.fields.get_all(TRANSFER_ENCODING).iter();
            codings.next().is_some_and(|coding| coding != "chunked" || codings.next().is_some())
        }
        (Some(own), Some(library)) => {
            let has_bare_line_feed = bytes.windows(2).any(|pair| pair[0] != b'\r' && pair[1] == b'\n');
            let expected = Read { is_whole: false, trailers: HeaderMap::new(), ..library.clone() };
            has_bare_line_feed && *own == expected
        }
        (Some(_) | None, None) => false,
    }
}

/// One of the responses; all but the first few have up to three bytes changed.
fn response(random: &mut fastrand::Rng, seed: u64) -> Vec<u8> {
    const BYTES: &[u8] = b"\r\n\t :;,0159afxX\"=-\0\x7f\xff";
    let mut bytes = match usize::try_from(seed).ok().and_then(|seed| RESPONSES.get(seed)) {
        Some(response) => return response.as_bytes().to_vec(),
        None => random.choice(RESPONSES).unwrap().as_bytes().to_vec(),
    };
    for _ in 0..random.usize(1..=3) {
        if bytes.len() < 2 {
            break;
        }
        let at = random.usize(..bytes.len());
        let byte = BYTES[random.usize(..BYTES.len())];
        match random.u8(..4) {
            0 => bytes[at] = byte,
            1 => bytes.insert(at, byte),
            2 => drop(bytes.remove(at)),
            _ => bytes.truncate(at.max(1)),
        }
    }
    bytes
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().unwrap()
}

/// Reads the request's head, answers with the bytes, and closes.
async fn serve(listener: &TcpListener, bytes: &[u8], piece: usize) {
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_buf(&mut request).await.unwrap();
    }
    for piece in bytes.chunks(piece) {
        if stream.write_all(piece).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn own(stream: TcpStream, method: &Method) -> Option<Read> {
    let request = Request::builder().method(method).uri("/").body(Upload::Empty).unwrap();
    let mut outgoing = Outgoing::of(request, &Windows::http1());
    let response = Http1::new(BackendStream::Plain(stream)).send(&mut outgoing, LIMITS, None).await.ok()?;
    let (parts, mut body) = response.into_parts();
    let mut frames = Vec::new();
    let is_whole = loop {
        match poll_fn(|cx| body.poll_frame(cx, usize::MAX)).await {
            Some(Ok(frame)) => frames.push(frame),
            Some(Err(_)) => break false,
            None => break true,
        }
    };
    Some(read(parts, frames, is_whole))
}

async fn library(to: SocketAddr, method: &Method) -> Option<Read> {
    let stream = TokioIo::new(TcpStream::connect(to).await.unwrap());
    let opening = hyper::client::conn::http1::Builder::new().max_buf_size(8 << 10).handshake(stream).await;
    let (mut sender, connection) = opening.unwrap();
    spawn_local(connection);
    let request =
        Request::builder().method(method).uri("/").body(http_body_util::Empty::<Bytes>::new()).unwrap();
    let (parts, mut body) = sender.send_request(request).await.ok()?.into_parts();
    let mut frames = Vec::new();
    let is_whole = loop {
        match body.frame().await {
            Some(Ok(frame)) => frames.push(frame),
            Some(Err(_)) => break false,
            None => break true,
        }
    };
    Some(read(parts, frames, is_whole))
}

fn read(mut parts: http::response::Parts, frames: Vec<Frame<Bytes>>, is_whole: bool) -> Read {
    // Lengths that say the same are passed on as one; what they say shows in the body.
    parts.headers.remove(CONTENT_LENGTH);
    let (mut body, mut trailers) = (Vec::new(), HeaderMap::new());
    for frame in frames {
        match frame.into_data() {
            Ok(data) => body.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    Read { status: parts.status, fields: parts.headers, body, trailers, is_whole }
}
