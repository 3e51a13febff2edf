//! Protocol upgrades (WebSocket and others). The tunnel opens only after the backend has answered
//! 101, so no byte of a refused upgrade can pass for a request. Over HTTP/2 the client's side is a
//! stream ([`websocket`](crate::http::websocket)).

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Version};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::client::stream::CheckedStream;
use crate::http::{headers, websocket};
use crate::l4::side::reset_on_close;
use crate::l4::tunnel;
use crate::upstream::endpoint::BackendTunnel;

/// A client's request to switch protocols.
pub(crate) struct Pending {
    client: OnUpgrade,
    pub protocol: HeaderValue,
    pub over: Over,
}

/// The client's side of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The connection.
    Http1,
    /// A stream among others.
    Http2,
}

/// A stream of the client's connection. Nothing is written to it while the connection takes
/// nothing: each of a hundred would be held in full.
struct Stream {
    io: TokioIo<Upgraded>,
    exchange: Exchange,
    reading: Reading,
}

/// The HTTP library reads a stream that was reset with CANCEL or NO_ERROR as one that has ended.
/// That it was reset shows where it is written, once the library's task for that has been polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Open,
    /// Nothing more comes. Tasks that are ready have their turn first.
    Over,
    /// Nothing more comes, and it was not reset.
    Ended,
}

// === impl Pending ===

impl Pending {
    /// `None` if the request does not ask for an upgrade or cannot have one.
    pub(crate) fn take(parts: &mut Parts) -> Option<Self> {
        let over = match parts.version {
            Version::HTTP_11 => Over::Http1,
            _ if websocket::is_extended_connect(parts) => Over::Http2,
            _ => return None,
        };
        let protocol = headers::upgrade(&parts.headers)?;
        Some(Self { client: parts.extensions.remove()?, protocol, over })
    }

    /// Joins both sides once the client has its answer, until nothing has moved for as long as
    /// `idle`.
    pub(crate) async fn join(self, backend: BackendTunnel, counted: Rc<Client>, idle: Duration) {
        match self.over {
            Over::Http1 => {
                // The tunnel counts as the connection that it was.
                let Ok(client) = self.client.await else { return };
                join_connection(client, backend, idle).await;
                drop(counted);
            }
            Over::Http2 => {
                // The connection is not idle as long as it lasts.
                let mut exchange = Exchange::begin(&counted);
                exchange.take_any_time();
                let Ok(client) = self.client.await else { return };
                let client = Stream { io: TokioIo::new(client), exchange, reading: Reading::Open };
                join_stream(client, backend, idle).await;
            }
        }
    }
}

/// The library has no way to reset the stream: its client sees it end.
async fn join_stream(mut client: Stream, mut backend: BackendTunnel, idle: Duration) {
    if tunnel::join(&mut client, &mut backend, idle).await == tunnel::Ending::Broken {
        backend.reset();
    }
}

async fn join_connection(client: Upgraded, mut backend: BackendTunnel, idle: Duration) {
    let Ok(client) = client.downcast::<TokioIo<CheckedStream>>() else { return };
    // Bytes that the client sent before it could know that the backend agrees were written for
    // another reader, perhaps to look like a request.
    if !client.read_buf.is_empty() {
        tracing::debug!("no tunnel: the client sent data before the protocol was switched");
        return;
    }
    // The checks of the client's stream are for HTTP.
    let mut client = client.io.into_inner().into_transport();
    if tunnel::join(&mut client, &mut backend, idle).await == tunnel::Ending::Broken {
        reset_on_close(client.socket());
        backend.reset();
    }
}

// === impl Stream ===

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.reading == Reading::Open {
            ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
            if buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            self.reading = Reading::Over;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.reading == Reading::Over {
            if let Poll::Ready(Err(error)) = Pin::new(&mut self.io).poll_flush(cx) {
                return Poll::Ready(Err(error));
            }
            self.reading = Reading::Ended;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let room = ready!(self.exchange.poll_room(cx)).min(bytes.len());
        Pin::new(&mut self.io).poll_write(cx, &bytes[..room])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
