//! HTTP/1 connections on their way between the agent's own code and the HTTP library: what
//! [`h1`](crate::http::h1) does not take for certain is served by the library, one request at a
//! time, and the connection comes back behind it.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;

use crate::client::clients::Client;
use crate::client::framing::Framing;
use crate::client::stream::{CheckedStream, OneRequest, ProtocolCheck};
use crate::http::h1::{self, Doubt, Unserved};
use crate::http::library::{http1_builder, note_unreadable};
use crate::http::service::{Response, Service};

/// One request that the library serves.
struct Detour {
    connection: Option<http1::Connection<TokioIo<CheckedStream>, Answering>>,
    client: Rc<Client>,
    /// The library has read all of the request.
    is_read: Arc<AtomicBool>,
    was_asked: Rc<Cell<bool>>,
}

/// The service as the library calls it for that request.
struct Answering {
    service: Rc<Service>,
    client: Rc<Client>,
    was_asked: Rc<Cell<bool>>,
}

/// Serves requests until one comes from which on the connection is the library's. `None`: it has
/// come to its end.
pub(super) async fn serve(
    mut unserved: Unserved,
    client: &Rc<Client>,
    service: &Rc<Service>,
) -> Option<Unserved> {
    loop {
        let served = h1::serve(unserved, client, service);
        let (left, doubt) = client.drive(pin!(served), |_| {}).await??;
        if doubt == Doubt::Connection {
            return Some(left);
        }
        let detour = Detour::new(left, client, service);
        match client.drive(pin!(detour), Detour::finish).await? {
            Ok(back) => unserved = back?,
            Err(error) => {
                note_unreadable(&error, service);
                tracing::debug!(client = %client.peer, %error, "client connection ended");
                return None;
            }
        }
    }
}

// === impl Detour ===

impl Detour {
    fn new(unserved: Unserved, client: &Rc<Client>, service: &Rc<Service>) -> Self {
        let Unserved { transport, unread, has_served } = unserved;
        let framing = if has_served { Framing::behind_requests() } else { Framing::default() };
        let (request, is_read) = OneRequest::new(framing);
        let check = ProtocolCheck::OneRequest(request);
        let stream = CheckedStream::new(transport, unread, check, client.progress.clone());
        let was_asked = Rc::<Cell<bool>>::default();
        let answering =
            Answering { service: service.clone(), client: client.clone(), was_asked: was_asked.clone() };
        let builder = http1_builder(client.limits());
        let connection = Some(builder.serve_connection(TokioIo::new(stream), answering));
        Self { connection, client: client.clone(), is_read, was_asked }
    }

    fn finish(mut self: Pin<&mut Self>) {
        if let Some(connection) = &mut self.connection {
            Pin::new(connection).graceful_shutdown();
        }
    }

    /// True once the request is read, its response written, and nothing else begun.
    fn is_over(&self) -> bool {
        let progress = &self.client.progress;
        self.was_asked.get()
            && self.is_read.load(Relaxed)
            && progress.exchanges() == 0
            && !progress.is_write_blocked()
    }
}

impl Future for Detour {
    type Output = hyper::Result<Option<Unserved>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut connection) = self.connection.take() else { return Poll::Ready(Ok(None)) };
        if let Poll::Ready(ended) = Pin::new(&mut connection).poll(cx) {
            return Poll::Ready(ended.map(|()| None));
        }
        if self.is_over() {
            // It is idle, and ends at once.
            Pin::new(&mut connection).graceful_shutdown();
            if let Poll::Ready(ended) = connection.poll_without_shutdown(cx) {
                ended?;
                let parts = connection.into_parts();
                let (transport, behind) = parts.io.into_inner().into_parts();
                // The library is given nothing that is not of its request.
                let unread = [&parts.read_buf[..], &behind].concat();
                return Poll::Ready(Ok(Some(Unserved { transport, unread, has_served: true })));
            }
        }
        self.connection = Some(connection);
        Poll::Pending
    }
}

// === impl Answering ===

impl hyper::service::Service<Request<Incoming>> for Answering {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.was_asked.set(true);
        Box::pin(self.service.clone().answer(self.client.clone(), request))
    }
}
