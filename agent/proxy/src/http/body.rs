//! Response bodies: nothing, a line of our own, or what the backend sends, passed on frame by
//! frame.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::client::clients::Exchange;
use crate::client::progress::Awaited;
use crate::log::record::Record;
use crate::upstream::endpoint::Lease;

pub(crate) struct Body {
    kind: Kind,
    exchange: Option<Exchange>,
    record: Option<Box<Record>>,
}

enum Kind {
    Text(Option<Bytes>),
    Upstream(Box<Upstream>),
}

struct Upstream {
    incoming: Incoming,
    /// Goes back to the pool with the last byte; an unfinished body closes its connection instead.
    lease: Option<Lease>,
    deadline: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the backend's response broke off: {0}")]
    Upstream(#[from] hyper::Error),
    #[error("the rule's request time-out ended the response")]
    Timeout,
}

// === impl Body ===

impl Body {
    pub(crate) fn empty() -> Self {
        Kind::Text(None).into()
    }

    pub(crate) fn text(text: Bytes) -> Self {
        Kind::Text(Some(text).filter(|text| !text.is_empty())).into()
    }

    pub(crate) fn upstream(incoming: Incoming, lease: Lease, deadline: Option<Pin<Box<Sleep>>>) -> Self {
        if incoming.is_end_stream() {
            lease.release();
            return Self::empty();
        }
        Kind::Upstream(Box::new(Upstream { incoming, lease: Some(lease), deadline })).into()
    }

    /// Nothing of our own words follows the head of an answer to HEAD.
    pub(crate) fn for_head(self) -> Self {
        match self.kind {
            Kind::Text(_) => Self::empty(),
            Kind::Upstream(_) => self,
        }
    }

    /// The exchange lasts until the body is gone, and is logged then.
    pub(crate) fn during(self, exchange: Exchange, record: Option<Box<Record>>) -> Self {
        let mut body = Self { exchange: Some(exchange), record, ..self };
        body.went_on(Awaited::Client);
        body.note(0);
        body
    }

    /// Marks the progress: a frame is with the HTTP library until it asks for more, which it does
    /// when the client has taken enough.
    fn went_on(&mut self, awaited: Awaited) {
        let complete = self.is_end_stream();
        if let Some(exchange) = &mut self.exchange {
            exchange.wait(awaited);
            if complete {
                exchange.complete();
            }
        }
    }

    fn note(&mut self, sent: usize) {
        let complete = self.is_end_stream();
        if let Some(record) = &mut self.record {
            record.sent += sent as u64;
            record.complete = complete;
        }
    }
}

impl From<Kind> for Body {
    fn from(kind: Kind) -> Self {
        Self { kind, exchange: None, record: None }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match &mut self.kind {
            Kind::Text(text) => text.take().map(|text| Ok(Frame::data(text))),
            Kind::Upstream(upstream) => match upstream.poll(cx) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    self.went_on(Awaited::Backend);
                    return Poll::Pending;
                }
            },
        };
        self.went_on(Awaited::Client);
        if self.record.is_some() {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            self.note(data.map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Text(text) => text.is_none(),
            Kind::Upstream(upstream) => upstream.lease.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Kind::Upstream(upstream) => upstream.incoming.size_hint(),
        }
    }
}

// === impl Upstream ===

impl Upstream {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Err(BodyError::Timeout)));
        }
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        let ended = frame.is_none() || self.incoming.is_end_stream();
        if ended && let Some(lease) = self.lease.take() {
            lease.release();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }
}
