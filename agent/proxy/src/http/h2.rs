//! HTTP/2 on a client connection, by the `h2` crate, which has frames, flow control and the
//! compression of fields. Each stream is a task of its own; those whose request is plain are
//! answered in the way of [`h1`](crate::http::h1), without a copy of either head but the one that
//! the other protocol needs.

mod keep_alive;
mod plain;
mod response;
mod stream;

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;
use h2::server::{Builder, Connection, Handshake};
use portcullis_model::Limits;
use tokio::task::spawn_local;

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::client::stream::CheckedStream;
use crate::client::write_buffer::WriteBuffer;
use crate::core::clock;
use crate::http::h2::keep_alive::KeepAlive;
use crate::http::library::head_bytes;
use crate::http::service::Service;

/// Bytes that HTTP/2 counts for a field besides its own (RFC 9113 section 6.5.2).
const FIELD: u32 = 32;
/// Flow control: bytes that a client may send before we have passed them on.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of a response that wait for the client.
const UNSENT: usize = 64 << 10;
/// Resets a client may have pending, and those it may provoke, before the connection ends
/// (CVE-2023-44487, CVE-2025-8671); those of requests under way are counted in
/// [`FrameBudget`](crate::client::frame_budget::FrameBudget).
const PENDING_RESETS: usize = 20;
const PROVOKED_RESETS: usize = 200;
/// Ticks for which streams are taken whose client may not have heard that its listener is gone.
const UNHEARD: u32 = 2 * clock::PER_SECOND;

type Stream = WriteBuffer<CheckedStream>;

/// A client connection, until either side ends it.
pub(super) struct Http2 {
    state: State,
    client: Rc<Client>,
    service: Rc<Service>,
    /// The time at which it was to end behind what has begun.
    finishing_since: Option<u32>,
}

enum State {
    /// The client's preface is yet to come.
    Opening(Handshake<Stream, Bytes>),
    Open(Connection<Stream, Bytes>, KeepAlive),
}

// === impl Http2 ===

impl Http2 {
    /// With at most so many streams at a time.
    pub(super) fn new(stream: Stream, streams: u32, client: Rc<Client>, service: Rc<Service>) -> Self {
        let opening = builder(client.limits(), streams).handshake(stream);
        Self { state: State::Opening(opening), client, service, finishing_since: None }
    }

    /// Takes no more streams, and ends behind those that there are.
    pub(super) fn finish(&mut self) {
        self.finishing_since = Some(clock::now());
        if let State::Open(connection, _) = &mut self.state {
            connection.graceful_shutdown();
        }
    }
}

impl Future for Http2 {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { state, client, service, finishing_since } = &mut *self;
        loop {
            match state {
                State::Opening(handshake) => {
                    let mut connection = ready!(Pin::new(handshake).poll(cx)).map_err(io::Error::other)?;
                    if finishing_since.is_some() {
                        connection.graceful_shutdown();
                    }
                    let pings = connection.ping_pong().ok_or(io::ErrorKind::Unsupported)?;
                    *state = State::Open(connection, KeepAlive::new(pings));
                }
                State::Open(connection, keep_alive) => {
                    keep_alive.poll(cx, &client.progress)?;
                    client.wake_at(keep_alive.due());
                    while let Some(accepted) = ready!(connection.poll_accept(cx)) {
                        let (request, mut respond) = accepted.map_err(io::Error::other)?;
                        if finishing_since.is_some_and(|since| clock::now() - since > UNHEARD)
                            && client.is_withdrawn(&service.snapshot.load())
                        {
                            // As behind the last GOAWAY, which a client can keep from being sent:
                            // it may try again elsewhere (RFC 9113 section 8.7).
                            respond.send_reset(Reason::REFUSED_STREAM);
                            continue;
                        }
                        let exchange = Exchange::begin(client);
                        let (client, service) = (client.clone(), service.clone());
                        spawn_local(stream::serve(request, respond, exchange, client, service));
                    }
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

fn builder(limits: &Limits, streams: u32) -> Builder {
    let mut builder = Builder::new();
    builder.max_concurrent_streams(streams).enable_connect_protocol();
    let fields = limits.header_fields * FIELD;
    let head = u32::try_from(head_bytes(limits)).unwrap_or(u32::MAX);
    builder.max_header_list_size(head.saturating_add(fields));
    builder.max_pending_accept_reset_streams(PENDING_RESETS);
    builder.max_local_error_reset_streams(Some(PROVOKED_RESETS));
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    builder.max_send_buffer_size(UNSENT);
    builder
}
