//! Protocol upgrades (WebSocket and others). The tunnel opens only after the backend has answered
//! 101, so no byte of a refused upgrade can pass for a request. Over HTTP/2 the client's side is a
//! stream ([`websocket`](crate::http::websocket)).

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{HeaderValue, Version};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::client::stream::CheckedStream;
use crate::http::{headers, websocket};
use crate::l4::tunnel;

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

    /// Joins both sides once the client has its answer.
    pub(crate) async fn join(self, backend: impl AsyncRead + AsyncWrite + Unpin, counted: Rc<Client>) {
        match self.over {
            Over::Http1 => {
                // The tunnel counts as the connection that it was.
                let Ok(client) = self.client.await else { return };
                join_connection(client, backend).await;
                drop(counted);
            }
            Over::Http2 => {
                // The connection is not idle as long as it lasts.
                let mut exchange = Exchange::begin(&counted);
                exchange.take_any_time();
                let Ok(client) = self.client.await else { return };
                tunnel::join(Stream { io: TokioIo::new(client), exchange }, backend).await;
            }
        }
    }
}

async fn join_connection(client: Upgraded, backend: impl AsyncRead + AsyncWrite + Unpin) {
    let Ok(client) = client.downcast::<TokioIo<CheckedStream>>() else { return };
    // Bytes that the client sent before it could know that the backend agrees were written for
    // another reader, perhaps to look like a request.
    if !client.read_buf.is_empty() {
        tracing::debug!("no tunnel: the client sent data before the protocol was switched");
        return;
    }
    // The checks of the client's stream are for HTTP.
    tunnel::join(client.io.into_inner().into_transport(), backend).await;
}

// === impl Stream ===

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
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
