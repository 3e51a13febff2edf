//! The HTTP library, as it reads requests of HTTP/1 from bytes that are all there.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) version: Version,
    pub(crate) target: String,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// The body came to its end.
    pub(crate) is_whole: bool,
}

/// A connection that ends behind these bytes, and takes whatever is answered.
struct Connection<'b>(&'b [u8]);

/// More than any connection of some thousand bytes needs.
const POLLS: usize = 1 << 16;

/// The requests that the library takes these bytes for, in their order.
pub(crate) fn requests(bytes: &[u8]) -> Vec<Seen> {
    // The connection may outlive what it borrows as far as the library is concerned.
    let seen = Rc::new(RefCell::new(Vec::new()));
    let told = Rc::clone(&seen);
    let service = service_fn(move |request| note(request, Rc::clone(&told)));
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).half_close(true);
    {
        let mut connection = pin!(builder.serve_connection(Connection(bytes), service));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..POLLS {
            if connection.as_mut().poll(&mut cx).is_ready() {
                break;
            }
        }
    }
    seen.take()
}

async fn note(
    request: Request<Incoming>,
    seen: Rc<RefCell<Vec<Seen>>>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (parts, mut body) = request.into_parts();
    let at = seen.borrow().len();
    seen.borrow_mut().push(Seen {
        method: parts.method,
        version: parts.version,
        target: parts.uri.to_string(),
        fields: parts.headers,
        body: Vec::new(),
        is_whole: false,
    });
    let is_whole = loop {
        match body.frame().await {
            None => break true,
            Some(Ok(frame)) => {
                if let (Ok(data), Some(seen)) = (frame.into_data(), seen.borrow_mut().get_mut(at)) {
                    seen.body.extend(data);
                }
            }
            Some(Err(_)) => break false,
        }
    };
    if let Some(seen) = seen.borrow_mut().get_mut(at) {
        seen.is_whole = is_whole;
    }
    Ok(Response::new(Empty::new()))
}

impl Read for Connection<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Self(rest) = &mut *self;
        let (now, later) = rest.split_at(rest.len().min(buffer.remaining()));
        buffer.put_slice(now);
        *rest = later;
        Poll::Ready(Ok(()))
    }
}

impl Write for Connection<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
