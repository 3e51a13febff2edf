//! Response bodies as the HTTP library takes them: nothing, a line of our own, or what the backend
//! sends, passed on frame by frame, [compressed], or as [gRPC-Web](grpc_web).

mod compressed;
pub(crate) mod grpc_web;

use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::client::exchange::{Exchange, Held};
use crate::client::progress::Awaited;
use crate::core::pipe::{Pipe, Pipes};
use crate::http::body::compressed::CompressedBody;
use crate::http::body::grpc_web::GrpcWebBody;
use crate::http::encoder::Encoder;
use crate::http::grpc::{self, Call, EndsBy};
use crate::http::grpc_web::Format;
use crate::log::record::Record;
use crate::upstream::endpoint::{ResponseBody, UpstreamError};

/// Bytes of a body that are not worth counting.
pub(crate) const SMALL: u64 = 4 << 10;

/// The body of an exchange: that lasts until the body is gone, and is logged then.
pub(crate) struct Body {
    content: Content,
    exchange: Exchange,
    record: Option<Box<Record>>,
}

pub(crate) enum Content {
    /// `None` once it is sent, or if there is none.
    Text(Option<Bytes>),
    Upstream(Box<UpstreamBody>),
    Compressed(Box<CompressedBody>),
    GrpcWeb(Box<GrpcWebBody>),
}

pub(crate) struct UpstreamBody {
    /// Until its last byte.
    incoming: Option<ResponseBody>,
    deadline: Option<Deadline>,
    size: Size,
}

/// Bytes of a body in a pipe, which count as held.
pub(crate) struct Piped {
    pub pipe: Pipe,
    held: Held,
}

/// The end of a response that takes too long.
pub(crate) struct Deadline {
    sleep: Pin<Box<Sleep>>,
    ends_by: EndsBy,
}

/// The size of a body, as far as it matters to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// To count its bytes costs more than they do.
    Small,
    Large,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the backend's response broke off: {0}")]
    Upstream(#[from] UpstreamError),
    #[error("the response could not be compressed: {0}")]
    Encoding(#[from] io::Error),
    #[error("the rule's request time-out ended the response")]
    Timeout,
    #[error("a message of the response breaks off before the trailers")]
    Message,
}

// === impl Body ===

impl Body {
    pub(crate) fn new(content: Content, mut exchange: Exchange, record: Option<Box<Record>>) -> Self {
        if let Some(UpstreamBody { incoming: Some(incoming), .. }) = content.counted() {
            incoming.count_unread(|| exchange.unread());
        }
        let mut body = Self { content, exchange, record };
        body.mark(Awaited::Client);
        body.record(0);
        body
    }

    /// Marks the progress: the HTTP library holds a frame until it polls for the next one, which it
    /// does when the client has taken enough.
    fn mark(&mut self, awaited: Awaited) {
        self.exchange.wait(awaited);
        if self.is_end_stream() {
            self.exchange.complete();
        }
    }

    /// Bytes to come that a pipe could take on their way to a connection in plaintext.
    pub(crate) fn unframed(&self) -> Option<u64> {
        match &self.content {
            Content::Upstream(upstream) => upstream.incoming.as_ref()?.unframed(),
            Content::Text(_) | Content::Compressed(_) | Content::GrpcWeb(_) => None,
        }
    }

    /// Has a pipe take what there is of them, and no more than `most`. `None` if they have to be
    /// read.
    pub(crate) fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        pipes: &Pipes,
        most: usize,
    ) -> Poll<Result<Option<Piped>, BodyError>> {
        let Self { content: Content::Upstream(upstream), exchange, .. } = self else {
            return Poll::Ready(Ok(None));
        };
        let piped = match read(exchange, cx, |cx, room| upstream.poll_pipe(cx, pipes, most.min(room))) {
            Ok(piped) => piped?,
            Err(awaited) => {
                self.mark(awaited);
                return Poll::Pending;
            }
        };
        let piped = piped.map(|pipe| Piped { held: exchange.hold_elsewhere(pipe.held()), pipe });
        self.mark(Awaited::Client);
        Poll::Ready(Ok(piped))
    }

    /// Notes that what came last did not reach the client.
    pub(crate) fn note_cut_off(&mut self) {
        if let Some(record) = &mut self.record {
            record.complete = false;
        }
    }

    fn record(&mut self, sent: usize) {
        let complete = self.is_end_stream();
        if let Some(record) = &mut self.record {
            record.sent += sent as u64;
            record.complete = complete;
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { content, exchange, .. } = &mut *self;
        let polled = match content {
            Content::Text(text) => Ok(text.take().map(|text| Ok(Frame::data(text)))),
            Content::Upstream(upstream) => read(exchange, cx, |cx, room| upstream.poll(cx, room)),
            Content::Compressed(body) => read(exchange, cx, |cx, room| body.poll(cx, room)),
            Content::GrpcWeb(body) => read(exchange, cx, |cx, room| body.poll(cx, room)),
        };
        let frame = match polled {
            Ok(frame) => frame,
            Err(awaited) => {
                self.mark(awaited);
                return Poll::Pending;
            }
        };
        let frame = if self.content.counted().is_some() {
            frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.exchange.hold(bytes))))
        } else {
            frame
        };
        self.mark(Awaited::Client);
        if self.record.is_some() {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            self.record(data.map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
            Content::Upstream(upstream) => {
                upstream.incoming.as_ref().map_or(SizeHint::with_exact(0), ResponseBody::size_hint)
            }
            Content::Compressed(_) | Content::GrpcWeb(_) => SizeHint::default(),
        }
    }
}

/// Asks for a frame as long as there is room for it.
fn read<F>(
    exchange: &Exchange,
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>, usize) -> Poll<F>,
) -> Result<F, Awaited> {
    match exchange.poll_room(cx) {
        Poll::Ready(room) => match poll(cx, room) {
            Poll::Ready(frame) => Ok(frame),
            Poll::Pending => Err(Awaited::Backend),
        },
        Poll::Pending => Err(Awaited::Client),
    }
}

// === impl Piped ===

impl Piped {
    /// Some of its bytes were written.
    pub(crate) fn note_written(&mut self, bytes: usize, body: &mut Body) {
        self.held.release(bytes);
        if let Some(record) = &mut body.record {
            record.sent += bytes as u64;
            record.complete = self.pipe.held() == 0 && body.content.is_over();
        }
    }
}

// === impl Content ===

impl Content {
    pub(crate) fn upstream(incoming: ResponseBody, deadline: Option<Deadline>) -> Self {
        if incoming.is_end_stream() {
            incoming.release();
            return Self::Text(None);
        }
        let is_small = incoming.size_hint().exact().is_some_and(|bytes| bytes <= SMALL);
        let size = if is_small { Size::Small } else { Size::Large };
        Self::Upstream(Box::new(UpstreamBody { incoming: Some(incoming), deadline, size }))
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Upstream(upstream) => upstream.incoming.is_none(),
            Self::Compressed(body) => body.is_over(),
            Self::GrpcWeb(body) => body.is_over(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Text(None))
    }

    /// Compresses what the backend sends.
    pub(crate) fn compress(&mut self, encoder: Encoder) {
        *self = match mem::replace(self, Self::Text(None)) {
            Self::Upstream(upstream) => Self::Compressed(Box::new(CompressedBody::new(*upstream, encoder))),
            other => other,
        };
    }

    /// Makes what the backend sends of gRPC one of gRPC-Web.
    pub(crate) fn translate(&mut self, format: Format) {
        *self = match mem::replace(self, Self::Text(None)) {
            Self::Upstream(upstream) => Self::GrpcWeb(Box::new(GrpcWebBody::new(*upstream, format))),
            other => other,
        };
    }

    /// A body whose bytes count as held. What a short one is compressed to may be longer.
    fn counted(&self) -> Option<&UpstreamBody> {
        match self {
            Self::Upstream(upstream) => (upstream.size == Size::Large).then_some(&**upstream),
            Self::Compressed(body) => Some(body.upstream()),
            Self::GrpcWeb(body) => Some(body.upstream()),
            Self::Text(_) => None,
        }
    }
}

impl From<Bytes> for Content {
    fn from(text: Bytes) -> Self {
        Self::Text(Some(text).filter(|text| !text.is_empty()))
    }
}

// === impl Deadline ===

impl Deadline {
    pub(crate) fn new(at: Instant, call: Option<Call>) -> Self {
        let ends_by = call.map_or(EndsBy::Nothing, |call| call.ends_by);
        Self { sleep: Box::pin(sleep_until(at)), ends_by }
    }
}

// === impl UpstreamBody ===

impl UpstreamBody {
    /// `None` when its time is over, too.
    fn poll_pipe(
        &mut self,
        cx: &mut Context<'_>,
        pipes: &Pipes,
        most: usize,
    ) -> Poll<Result<Option<Pipe>, BodyError>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(Ok(None)) };
        if let Some(deadline) = &mut self.deadline
            && deadline.sleep.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Ok(None));
        }
        let pipe = ready!(incoming.poll_pipe(cx, pipes, most))?;
        if incoming.is_end_stream()
            && let Some(incoming) = self.incoming.take()
        {
            incoming.release();
        }
        Poll::Ready(Ok(pipe))
    }

    /// The next frame, which has no more than `most` bytes.
    fn poll(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        if let Some(deadline) = &mut self.deadline
            && deadline.sleep.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(match deadline.ends_by {
                EndsBy::Trailers => {
                    // Gone without its end, the backend's stream is cancelled.
                    self.incoming = None;
                    Ok(grpc::deadline_exceeded())
                }
                EndsBy::Nothing => Err(BodyError::Timeout),
            }));
        }
        let frame = ready!(incoming.poll_frame(cx, most));
        if (frame.is_none() || incoming.is_end_stream())
            && let Some(incoming) = self.incoming.take()
        {
            incoming.release();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }
}
