//! A connection that many requests share: HTTP/2 to one endpoint. The peer limits how many at once;
//! more would wait in the HTTP library without end, so they are counted here, and the endpoint
//! opens one more connection.

mod body;
mod sending;
mod tunnel;
pub(crate) mod wire;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, Connection, SendRequest};
use http::header::{CONTENT_LENGTH, HOST};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::core::settings::Upstream;
use crate::upstream::extended_connect::Handshake;
use crate::upstream::http2::body::Inboxes;
use crate::upstream::http2::sending::StallLimit;
use crate::upstream::http2::wire::{Metered, Touched, Wire};
use crate::upstream::request::{Outgoing, Upload};
use crate::upstream::stream::BackendStream;

pub(crate) use crate::upstream::http2::body::Http2Body;
pub(crate) use crate::upstream::http2::tunnel::Http2Tunnel;

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
/// Streams of a connection that may be given up before it takes no more requests: some backends end
/// one, with all that others have on it, after some hundreds.
const RESETS: usize = 100;
/// The time that an upload may wait for the backend before its connection takes no more requests.
const STALLED: Duration = Duration::from_millis(100);
/// The size of a head, as HTTP/2 counts it, from which on backends may end a connection for it.
const LARGE_HEAD: usize = 8 << 10;

pub(crate) struct Multiplexed {
    sender: SendRequest<Bytes>,
    wire: Rc<Wire>,
    inboxes: Rc<Inboxes>,
    streams: Cell<usize>,
    state: Rc<State>,
    /// The time that the backend has for its first settings.
    settings_timeout: Duration,
}

/// The state of a connection as its task knows it.
struct State {
    /// SETTINGS_MAX_CONCURRENT_STREAMS.
    limit: Cell<usize>,
    is_closed: Cell<bool>,
    /// The backend has said what it knows.
    is_settled: Cell<bool>,
    settled: Notify,
    /// Uploads that wait for the backend to have room. They may have taken all that it has for the
    /// connection, so that no other one's would get any.
    stalled: Cell<usize>,
    /// The time for which it may have none.
    longest_stall: Duration,
}

/// An upload that waits for room.
struct Stalled<'s>(&'s State);

/// A request's place on a connection, until its response is complete.
pub(crate) struct Stream(Rc<Multiplexed>);

/// The size of a request's head as HTTP/2 counts it (RFC 9113 section 6.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadSize(usize);

/// A request that got no response.
pub(crate) struct Unanswered {
    pub error: Http2Error,
    /// The request, if nothing of it was sent.
    pub unsent: Option<Box<Outgoing>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Http2Error {
    #[error(transparent)]
    Library(#[from] h2::Error),
    #[error("it does not announce SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441)")]
    NoTunnels,
    #[error("the fields have {size} bytes, and it takes {most} (SETTINGS_MAX_HEADER_LIST_SIZE)")]
    TooLarge { size: usize, most: u32 },
    /// Of a request with large fields: the backend may have ended the connection for them.
    #[error("{0}; it may take no fields of such a size")]
    Large(h2::Error),
    #[error("the backend took nothing of the request for too long")]
    Stalled,
}

/// Tells what is left of a connection when its task ends, however that comes.
struct Ending {
    inboxes: Rc<Inboxes>,
    state: Rc<State>,
}

// === impl Multiplexed ===

impl Multiplexed {
    /// The connection runs as a task of its own.
    pub(crate) async fn open(stream: BackendStream, settings: &Upstream) -> io::Result<Rc<Self>> {
        let mut builder = client::Builder::new();
        builder.enable_push(false);
        builder.initial_window_size(LARGEST_WINDOW).initial_connection_window_size(LARGEST_WINDOW);
        builder.max_header_list_size(u32::try_from(settings.header_bytes).unwrap_or(u32::MAX));
        builder.max_send_buffer_size(UNSENT).data_frame_budget(SMALL_FRAMES);
        let wire = Wire::new(stream);
        let (sender, connection) = builder.handshake(wire.metered()).await.map_err(io::Error::other)?;
        let state = Rc::new(State {
            limit: Cell::new(connection.max_concurrent_send_streams()),
            is_closed: Cell::new(false),
            is_settled: Cell::new(false),
            settled: Notify::new(),
            stalled: Cell::new(0),
            longest_stall: settings.stalled,
        });
        let inboxes = Rc::<Inboxes>::default();
        spawn_local(run(connection, wire.clone(), inboxes.clone(), state.clone()));
        let settings_timeout = settings.connect;
        Ok(Rc::new(Self { sender, wire, inboxes, streams: Cell::new(0), state, settings_timeout }))
    }

    /// A place for one more request, if there is one.
    pub(crate) fn stream(self: &Rc<Self>) -> Option<Stream> {
        let has_room = self.streams.get() < self.state.limit.get().max(1);
        let is_held_up = self.state.stalled.get() > 0 || self.is_worn();
        if !has_room || is_held_up || self.is_closed() {
            return None;
        }
        self.streams.set(self.streams.get() + 1);
        Some(Stream(self.clone()))
    }

    /// True once it takes no more requests.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.is_closed.get() || self.refusal().is_some()
    }

    /// True if so many of its streams were given up that it takes no more.
    pub(crate) fn is_worn(&self) -> bool {
        self.wire.resets() >= RESETS
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.streams.get() == 0
    }

    /// Waits for the backend's first frame, its settings, which a new connection may be yet to get.
    async fn settle(&self) {
        let Self { state, settings_timeout, .. } = self;
        let settling = async {
            while !state.is_settled.get() && !state.is_closed.get() {
                state.settled.notified().await;
            }
        };
        let _ = timeout(*settings_timeout, settling).await;
    }

    /// The backend's reason to refuse a head of this size, before it is sent.
    fn too_large(&self, HeadSize(size): HeadSize) -> Option<Http2Error> {
        let most = self.wire.most_head()?;
        (size as u64 > most.into()).then_some(Http2Error::TooLarge { size, most })
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
        if !state.is_settled.get() && wire.is_settled() {
            state.is_settled.set(true);
            state.settled.notify_waiters();
        }
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
    /// Sends the request, whose head is of this size, and waits for the head of the response. One
    /// that opens a tunnel says that the backend switches protocols.
    pub(crate) async fn send(
        &self,
        outgoing: Box<Outgoing>,
        head: HeadSize,
    ) -> Result<Response<Http2Body>, Unanswered> {
        let Multiplexed { sender, wire, inboxes, state, .. } = &*self.0;
        let handshake = Handshake::of(&outgoing.parts);
        // It has had other fields before it was one.
        let head = if handshake.is_some() { HeadSize::of(&outgoing.parts) } else { head };
        if handshake.is_some() || head.is_large() {
            self.0.settle().await;
        }
        if let Some(error) = self.0.refusal() {
            return Err(Unanswered { error: error.into(), unsent: Some(outgoing) });
        }
        if handshake.is_some() && !sender.is_extended_connect_protocol_enabled() {
            return Err(Unanswered { error: Http2Error::NoTunnels, unsent: None });
        }
        if let Some(error) = self.0.too_large(head) {
            return Err(Unanswered { error, unsent: None });
        }
        let Outgoing { mut parts, upload, windows, upload_until, may_stall, .. } = *outgoing;
        let is_empty = matches!(upload, Upload::Empty) && handshake.is_none();
        if is_empty && !matches!(parts.method, Method::GET | Method::HEAD | Method::DELETE) {
            parts.headers.entry(CONTENT_LENGTH).or_insert(HeaderValue::from_static("0"));
        }
        let answered = async {
            let (response, body) = sender.clone().send_request(Request::from_parts(parts, ()), is_empty)?;
            let metering = wire.meter(response.stream_id().as_u32(), &windows);
            if let Some(handshake) = handshake {
                let response = inboxes.receive(response.await?, metering);
                return Ok(tunnel::opened(response, &handshake, body));
            }
            let sending = (!is_empty).then(|| {
                let longest = (!may_stall).then_some(state.longest_stall);
                let limit = StallLimit::new(longest, inboxes.clone(), state.clone());
                let is_over = limit.is_over();
                let sending = sending::send(upload, body, wire.clone(), limit, upload_until);
                (AbortOnDropHandle::new(spawn_local(sending)), is_over)
            });
            let response = match (response.await, sending) {
                (Ok(response), None) => response,
                (Ok(response), Some((sending, _))) => {
                    // The request may go on for longer than the response takes to begin.
                    sending.detach();
                    response
                }
                (Err(_), Some((_, is_over))) if is_over.get() => return Err(Http2Error::Stalled),
                (Err(error), _) => return Err(error.into()),
            };
            Ok(inboxes.receive(response, metering))
        };
        answered.await.map_err(|error| {
            let error = match error {
                Http2Error::Library(error) if head.is_large() => Http2Error::Large(error),
                error => error,
            };
            Unanswered { error, unsent: None }
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}

// === impl HeadSize ===

impl HeadSize {
    /// With the fields that its target becomes, whether or not the head is one of HTTP/2 yet: that
    /// has no `Host`, but an authority.
    pub(crate) fn of(head: &Parts) -> Self {
        const FIELD: usize = 32;
        const OF_TARGET: [&str; 4] = [":method", ":scheme", ":authority", ":path"];
        let names = OF_TARGET.iter().map(|name| name.len() + FIELD).sum::<usize>();
        let path = head.uri.path_and_query().map_or("/".len(), |it| it.as_str().len());
        let authority = head.uri.authority().map_or(0, |it| it.as_str().len());
        let values = head.method.as_str().len() + "https".len() + authority + path;
        let fields = head.headers.iter().map(|(name, value)| {
            let own = if *name == HOST { 0 } else { name.as_str().len() + FIELD };
            own + value.len()
        });
        Self(fields.sum::<usize>() + names + values)
    }

    /// True if a backend may end a connection for it.
    pub(crate) fn is_large(self) -> bool {
        self.0 > LARGE_HEAD
    }
}

// === impl Stalled ===

impl<'s> Stalled<'s> {
    fn new(state: &'s State) -> Self {
        state.stalled.set(state.stalled.get() + 1);
        Self(state)
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        self.0.stalled.set(self.0.stalled.get() - 1);
    }
}

// === impl Ending ===

impl Drop for Ending {
    fn drop(&mut self) {
        self.state.is_closed.set(true);
        self.state.settled.notify_waiters();
        self.inboxes.fill(Touched::All);
    }
}
