//! Protocol upgrades (WebSocket and others). The tunnel opens only after the backend has answered
//! 101, so no byte of a refused upgrade can pass for a request.

use std::rc::Rc;

use http::request::Parts;
use http::{HeaderValue, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::client::clients::Client;
use crate::client::stream::CheckedStream;
use crate::http::headers;
use crate::l4::tunnel;

/// A client's request to switch protocols.
pub(crate) struct Pending {
    client: OnUpgrade,
    pub protocol: HeaderValue,
}

// === impl Pending ===

impl Pending {
    /// `None` if the request does not ask for an upgrade or cannot have one.
    pub(crate) fn take(parts: &mut Parts) -> Option<Self> {
        if parts.version != Version::HTTP_11 {
            return None;
        }
        let protocol = headers::upgrade(&parts.headers)?;
        Some(Self { client: parts.extensions.remove()?, protocol })
    }

    /// Joins both sides once the client has its 101. The tunnel counts as the connection that it
    /// was.
    pub(crate) async fn join(self, backend: impl AsyncRead + AsyncWrite + Unpin, _counted: Rc<Client>) {
        let Ok(client) = self.client.await else { return };
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
}
