//! A connection that many requests share: HTTP/2 to one endpoint. The peer limits how many at once;
//! more would wait in the HTTP library without end, so they are counted here, and the endpoint
//! opens one more connection.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use crate::core::task::LocalExecutor;
use crate::upstream::request::Upload;

/// Bytes of a response that a backend may send before its client has taken them.
const STREAM_WINDOW: u32 = 128 << 10;
/// The largest there is: responses of clients that do not read must not use up what the responses
/// of others come by.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

pub(crate) struct Multiplexed {
    sender: RefCell<SendRequest<Upload>>,
    streams: Cell<usize>,
    /// SETTINGS_MAX_CONCURRENT_STREAMS, as of the last request.
    limit: Rc<Cell<usize>>,
}

/// A request's place on a connection, until its response is complete.
pub(crate) struct Stream(Rc<Multiplexed>);

// === impl Multiplexed ===

impl Multiplexed {
    /// The connection runs as a task of its own. Heads of responses have so many bytes at most, as
    /// HTTP/2 counts them.
    pub(crate) async fn open(stream: TcpStream, header_bytes: usize) -> io::Result<Rc<Self>> {
        let mut builder = http2::Builder::new(LocalExecutor);
        builder.timer(TokioTimer::new());
        builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        builder.max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX));
        let opening = builder.handshake(TokioIo::new(stream)).await;
        let (sender, mut connection) = opening.map_err(io::Error::other)?;
        let limit = Rc::new(Cell::new(connection.current_max_send_streams()));
        let opened = Self { sender: RefCell::new(sender), streams: Cell::new(0), limit: limit.clone() };
        tokio::task::spawn_local(async move {
            let ended = poll_fn(|cx| {
                let ended = Pin::new(&mut connection).poll(cx);
                limit.set(connection.current_max_send_streams());
                ended
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "backend connection ended");
            }
        });
        Ok(Rc::new(opened))
    }

    /// A place for one more request, if there is one.
    pub(crate) fn stream(self: &Rc<Self>) -> Option<Stream> {
        let has_room = self.streams.get() < self.limit.get().max(1);
        if !has_room || !self.sender.borrow().is_ready() {
            return None;
        }
        self.streams.set(self.streams.get() + 1);
        Some(Stream(self.clone()))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.borrow().is_closed()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.streams.get() == 0
    }
}

// === impl Stream ===

impl Stream {
    pub(crate) async fn send(
        &self,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Upload>>> {
        let sent = self.0.sender.borrow_mut().try_send_request(request);
        sent.await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}
