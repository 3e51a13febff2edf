//! Protocol upgrades (WebSocket and others). The tunnel opens only after the backend has answered
//! 101, so no byte of a refused upgrade can pass for a request. Over HTTP/2 the client's side is a
//! stream ([`websocket`](crate::http::websocket)).

use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Version};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use crate::client::exchange::Exchange;
use crate::client::stream::CheckedStream;
use crate::http::client_stream::{ClientStream, OpenStream};
use crate::http::tunnels::Registered;
use crate::http::{headers, websocket};
use crate::l4::side::reset_on_close;
use crate::l4::tunnel;
use crate::upstream::endpoint::BackendTunnel;

/// A client's request to switch protocols.
pub(crate) struct Pending {
    client: Switch,
    pub protocol: HeaderValue,
}

/// The client's side of the tunnel, once there is one.
enum Switch {
    /// The connection.
    Http1(OnUpgrade),
    /// A stream among others.
    Http2(oneshot::Receiver<OpenStream>),
}

// === impl Pending ===

impl Pending {
    /// `None` if the request does not ask for an upgrade or cannot have one.
    pub(crate) fn take(parts: &mut Parts) -> Option<Self> {
        let protocol = headers::upgrade(&parts.headers)?;
        let client = match parts.version {
            Version::HTTP_11 => Switch::Http1(parts.extensions.remove()?),
            _ => Switch::Http2(websocket::client_stream(parts)?),
        };
        Some(Self { client, protocol })
    }

    /// True if the client's side is a stream of HTTP/2.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.client, Switch::Http2(_))
    }

    /// Joins both sides once the client has its answer, until nothing has moved for as long as
    /// `idle`, or the listener is gone for too long. Meanwhile a tunnel of HTTP/1 counts as the
    /// connection that it was.
    pub(crate) async fn join(self, backend: BackendTunnel, registered: Registered, idle: Duration) {
        match self.client {
            Switch::Http1(client) => {
                let Ok(client) = client.await else { return };
                join_connection(client, backend, &registered, idle).await;
            }
            Switch::Http2(client) => {
                // The connection is not idle as long as it lasts.
                let mut exchange = Exchange::begin(registered.client());
                exchange.take_any_time();
                let Ok(client) = client.await else { return };
                join_stream(ClientStream::new(client, exchange), backend, &registered, idle).await;
            }
        }
    }
}

async fn join_stream(
    mut client: ClientStream,
    mut backend: BackendTunnel,
    registered: &Registered,
    idle: Duration,
) {
    match tunnel::join(&mut client, &mut backend, idle, registered.withdrawn()).await {
        // A stream that is dropped without its end is reset.
        tunnel::Ending::Closed => client.end(),
        tunnel::Ending::Broken => {
            client.reset();
            backend.reset();
        }
    }
}

async fn join_connection(
    client: Upgraded,
    mut backend: BackendTunnel,
    registered: &Registered,
    idle: Duration,
) {
    let Ok(client) = client.downcast::<TokioIo<CheckedStream>>() else { return };
    // Bytes that the client sent before it could know that the backend agrees were written for
    // another reader, perhaps to look like a request.
    if !client.read_buf.is_empty() {
        tracing::debug!("no tunnel: the client sent data before the protocol was switched");
        return;
    }
    // The checks of the client's stream are for HTTP.
    let mut client = client.io.into_inner().into_transport();
    let ending = tunnel::join(&mut client, &mut backend, idle, registered.withdrawn()).await;
    if ending == tunnel::Ending::Broken {
        reset_on_close(client.socket());
        backend.reset();
    }
}
