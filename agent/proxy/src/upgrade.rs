//! Protocol upgrades (WebSocket and others). The tunnel opens only after the backend has answered 101, so no byte of a
//! refused upgrade can pass for a request.

use std::rc::Rc;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::core::Core;
use crate::headers;

/// A client's wish to switch protocols.
pub(crate) struct Pending {
    client: OnUpgrade,
    protocol: Protocol,
}

pub(crate) struct Protocol(HeaderValue);

// === impl Pending ===

impl Pending {
    /// `None` if the request does not ask for an upgrade or cannot have one.
    pub(crate) fn take(request: &mut Request<Incoming>) -> Option<Self> {
        if request.version() != Version::HTTP_11 {
            return None;
        }
        let protocol = Protocol(headers::upgrade(request.headers())?);
        Some(Self { client: hyper::upgrade::on(request), protocol })
    }

    pub(crate) fn announce(&self, headers: &mut HeaderMap) {
        self.protocol.announce(headers);
    }

    /// Joins both sides once the client has its 101; returns what the response must announce.
    pub(crate) fn tunnel(self, core: &Rc<Core>, response: &mut Response<Incoming>) -> Protocol {
        let backend = hyper::upgrade::on(&mut *response);
        core.connections.spawn_local(join(self.client, backend));
        Protocol(response.headers().get(header::UPGRADE).cloned().unwrap_or(self.protocol.0))
    }
}

// === impl Protocol ===

impl Protocol {
    pub(crate) fn announce(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.0.clone());
    }
}

async fn join(client: OnUpgrade, backend: OnUpgrade) {
    let Ok((client, backend)) = tokio::try_join!(client, backend) else { return };
    let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut backend).await {
        tracing::debug!(%error, "tunnel ended");
    }
}
