//! A connection that many requests share: HTTP/2 to one endpoint. The peer limits how many at once;
//! more would wait in the HTTP library without end, so they are counted here, and the endpoint
//! opens one more connection.

mod body;
mod sending;
mod wire;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{self, Connection, SendRequest};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, Request, Response};
use tokio::task::spawn_local;
use tokio_util::task::AbortOnDropHandle;

use crate::upstream::http2::body::Inboxes;
use crate::upstream::http2::wire::{Metered, Touched, Wire};
use crate::upstream::request::{Outgoing, Upload};
use crate::upstream::stream::BackendStream;

pub(crate) use crate::upstream::http2::body::Http2Body;

/// The largest window there is. A stream's own is the wire's business, and for all of a connection
/// together there is none: responses of clients that do not read must not use up what the responses
/// of others come by.
const LARGEST_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of a request that wait for the socket.
const UNSENT: usize = 32 << 10;
/// The cost of small DATA frames that come at once, as the library counts it: 256 bytes for each,
/// less what it carries. All are taken as soon as they came, so it says nothing of clients that do
/// not read.
const SMALL_FRAMES: usize = 8 << 20;

pub(crate) struct Multiplexed {
    sender: SendRequest<Bytes>,
    wire: Rc<Wire>,
    inboxes: Rc<Inboxes>,
    streams: Cell<usize>,
    state: Rc<State>,
}

/// The state of a connection as its task knows it.
struct State {
    /// SETTINGS_MAX_CONCURRENT_STREAMS.
    limit: Cell<usize>,
    is_closed: Cell<bool>,
}

/// A request's place on a connection, until its response is complete.
pub(crate) struct Stream(Rc<Multiplexed>);

/// A request that got no response.
pub(crate) struct Unanswered {
    pub error: h2::Error,
    /// The request, if nothing of it was sent.
    pub unsent: Option<Box<Outgoing>>,
}

/// Tells what is left of a connection when its task ends, however that comes.
struct Ending {
    inboxes: Rc<Inboxes>,
    state: Rc<State>,
}

// === impl Multiplexed ===

impl Multiplexed {
    /// The connection runs as a task of its own. Heads of responses have so many bytes at most, as
    /// HTTP/2 counts them.
    pub(crate) async fn open(stream: BackendStream, header_bytes: usize) -> io::Result<Rc<Self>> {
        let mut builder = client::Builder::new();
        builder.enable_push(false);
        builder.initial_window_size(LARGEST_WINDOW).initial_connection_window_size(LARGEST_WINDOW);
        builder.max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX));
        builder.max_send_buffer_size(UNSENT).data_frame_budget(SMALL_FRAMES);
        let wire = Wire::new(stream);
        let (sender, connection) = builder.handshake(wire.metered()).await.map_err(io::Error::other)?;
        let limit = Cell::new(connection.max_concurrent_send_streams());
        let state = Rc::new(State { limit, is_closed: Cell::new(false) });
        let inboxes = Rc::<Inboxes>::default();
        spawn_local(run(connection, wire.clone(), inboxes.clone(), state.clone()));
        Ok(Rc::new(Self { sender, wire, inboxes, streams: Cell::new(0), state }))
    }

    /// A place for one more request, if there is one.
    pub(crate) fn stream(self: &Rc<Self>) -> Option<Stream> {
        let has_room = self.streams.get() < self.state.limit.get().max(1);
        if !has_room || self.is_closed() {
            return None;
        }
        self.streams.set(self.streams.get() + 1);
        Some(Stream(self.clone()))
    }

    /// True once it takes no more requests.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.is_closed.get() || self.refusal().is_some()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.streams.get() == 0
    }

    /// The reason why nothing more can be sent. A sender that has sent nothing waits for nothing.
    fn refusal(&self) -> Option<h2::Error> {
        match self.sender.clone().poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => Some(error),
            Poll::Ready(Ok(())) | Poll::Pending => None,
        }
    }
}

/// Its task ends once there is no sender.
impl Drop for Multiplexed {
    fn drop(&mut self) {
        self.wire.wake();
    }
}

async fn run(connection: Connection<Metered, Bytes>, wire: Rc<Wire>, inboxes: Rc<Inboxes>, state: Rc<State>) {
    let _ending = Ending { inboxes: inboxes.clone(), state: state.clone() };
    let mut connection = connection;
    let ended = poll_fn(|cx| {
        let ended = Pin::new(&mut connection).poll(cx).map_err(io::Error::other);
        state.limit.set(connection.max_concurrent_send_streams());
        inboxes.fill(wire.take_touched());
        match (ended, wire.poll_send(cx)) {
            (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            (ended, _) => ended,
        }
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "backend connection ended");
    }
}

// === impl Stream ===

impl Stream {
    /// Sends the request, and waits for the head of the response.
    pub(crate) async fn send(&self, outgoing: Box<Outgoing>) -> Result<Response<Http2Body>, Unanswered> {
        let Multiplexed { sender, wire, inboxes, .. } = &*self.0;
        if let Some(error) = self.0.refusal() {
            return Err(Unanswered { error, unsent: Some(outgoing) });
        }
        let Outgoing { mut parts, upload, windows, upload_until, .. } = *outgoing;
        let is_empty = matches!(upload, Upload::Empty);
        if is_empty && !matches!(parts.method, Method::GET | Method::HEAD | Method::DELETE) {
            parts.headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from_static("0"));
        }
        let answered = async {
            let (response, body) = sender.clone().send_request(Request::from_parts(parts, ()), is_empty)?;
            let metering = wire.meter(response.stream_id().as_u32(), &windows);
            let sending = (!is_empty).then(|| {
                let sending = sending::send(upload, body, wire.clone(), upload_until);
                AbortOnDropHandle::new(spawn_local(sending))
            });
            let response = response.await?;
            // The request may go on for longer than the response takes to begin.
            sending.map(AbortOnDropHandle::detach);
            Ok(inboxes.receive(response, metering))
        };
        answered.await.map_err(|error| Unanswered { error, unsent: None })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}

// === impl Ending ===

impl Drop for Ending {
    fn drop(&mut self) {
        self.state.is_closed.set(true);
        self.inboxes.fill(Touched::All);
    }
}
