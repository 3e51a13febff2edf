//! The bodies of responses that come on one connection. What a backend sends is copied out of the
//! HTTP library as it comes: the library's buffers are those of the connection, so that a few bytes
//! for a client that does not read would hold what came for others beside them, and every frame, if
//! it is of one byte, would cost hundreds.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use foldhash::fast::RandomState;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Frame, SizeHint};

use crate::core::head::is_padded;
use crate::core::window::Window;
use crate::upstream::http2::wire::{Metering, Touched};

/// Bytes of a piece: at least, however small the frames are, and at most. From 16 KiB on the
/// allocator adds a page to each.
const SMALL: usize = 1 << 10;
const LARGE: usize = 8 << 10;

/// By stream, those that are being received.
#[derive(Default)]
pub(super) struct Inboxes(RefCell<HashMap<u32, Rc<RefCell<Inbox>>, RandomState>>);

/// The body of a response.
pub(crate) struct Http2Body {
    inbox: Rc<RefCell<Inbox>>,
    inboxes: Rc<Inboxes>,
    metering: Metering,
    /// Bytes to come, if the backend announced them.
    left: Option<u64>,
    /// The other way of a tunnel. Boxed: few streams are one.
    tunnel: Option<Box<SendStream<Bytes>>>,
}

/// A body as far as it came and was not asked for.
struct Inbox {
    incoming: RecvStream,
    pieces: VecDeque<BytesMut>,
    /// Bytes that were taken of the first one.
    begun: usize,
    window: Rc<Window>,
    end: End,
    /// Of a client that waits for more.
    waker: Option<Waker>,
}

/// A response that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// The client waits for more behind this mark of its window.
    Awaited((Option<u64>, u32)),
    /// The client has yet to take what came.
    Held,
}

enum End {
    /// There may be more.
    Open,
    Trailers(HeaderMap),
    Complete,
    Broken(h2::Error),
}

// === impl Inboxes ===

impl Inboxes {
    pub(super) fn receive(
        self: &Rc<Self>,
        mut response: Response<RecvStream>,
        metering: Metering,
    ) -> Response<Http2Body> {
        trim(response.headers_mut());
        let length = response.headers().get(header::CONTENT_LENGTH);
        let left = length.and_then(|length| length.to_str().ok()?.parse().ok());
        response.map(|incoming| {
            let window = metering.window().clone();
            window.announce(left);
            let end = if incoming.is_end_stream() { End::Complete } else { End::Open };
            let mut inbox = Inbox { incoming, pieces: VecDeque::new(), begun: 0, window, end, waker: None };
            // Some of it may have come with the head.
            inbox.fill();
            let inbox = Rc::new(RefCell::new(inbox));
            self.0.borrow_mut().insert(metering.window().stream(), inbox.clone());
            Http2Body { inbox, inboxes: self.clone(), metering, left, tunnel: None }
        })
    }

    /// The response on a stream. `None` before it begins, and once its client is done with it.
    pub(super) fn begun(&self, stream: u32) -> Option<Begun> {
        let inboxes = self.0.borrow();
        let inbox = inboxes.get(&stream)?.borrow();
        let mark = inbox.window.mark().filter(|_| inbox.waker.is_some());
        Some(mark.map_or(Begun::Held, Begun::Awaited))
    }

    /// Takes what came.
    pub(super) fn fill(&self, touched: Touched) {
        let inboxes = self.0.borrow();
        match touched {
            Touched::All => inboxes.values().for_each(|inbox| inbox.borrow_mut().fill()),
            Touched::Some(ids) => {
                let touched = ids.iter().filter_map(|id| inboxes.get(id));
                touched.for_each(|inbox| inbox.borrow_mut().fill());
            }
        }
    }
}

// === impl Http2Body ===

impl Http2Body {
    pub(crate) fn is_end_stream(&self) -> bool {
        let inbox = self.inbox.borrow();
        matches!(inbox.end, End::Complete) && inbox.pieces.is_empty()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    /// Renews the window: what was taken of it is gone.
    pub(super) fn renew(&self) {
        self.metering.window().renew();
    }

    pub(super) fn open_tunnel(&mut self, outgoing: SendStream<Bytes>) {
        self.tunnel = Some(Box::new(outgoing));
    }

    /// The other way, if the stream is a tunnel.
    pub(super) fn take_tunnel(&mut self) -> Option<SendStream<Bytes>> {
        self.tunnel.take().map(|outgoing| *outgoing)
    }

    /// Has bytes count against its window that the HTTP library is yet to write.
    pub(crate) fn count_unread(&self, unread: Arc<AtomicUsize>) {
        self.metering.window().count_unread(unread);
    }

    /// The next frame, which has no more than `most` bytes.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let mut inbox = self.inbox.borrow_mut();
        let bytes = inbox.take(most);
        if !bytes.is_empty() {
            self.left = self.left.map(|left| left.saturating_sub(bytes.len() as u64));
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match std::mem::replace(&mut inbox.end, End::Complete) {
            End::Open => {
                inbox.end = End::Open;
                if !inbox.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    inbox.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            End::Trailers(trailers) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            End::Complete => Poll::Ready(None),
            // "a server MAY request that the client abort transmission of a request without error
            // by sending a RST_STREAM with an error code of NO_ERROR after sending a complete
            // response" (RFC 9113 section 8.1). Proxies break others off with it, too.
            End::Broken(error)
                if error.reason() == Some(Reason::NO_ERROR) && self.metering.window().is_complete() =>
            {
                Poll::Ready(None)
            }
            End::Broken(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        self.inboxes.0.borrow_mut().remove(&self.metering.window().stream());
    }
}

// === impl Inbox ===

impl Inbox {
    /// Takes what the library has, and wakes the client that waits for it.
    fn fill(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut has_more = false;
        while let End::Open = self.end {
            match self.incoming.poll_data(&mut cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    let _ = self.incoming.flow_control().release_capacity(bytes.len());
                    if !bytes.is_empty() {
                        bytes.chunks(LARGE).for_each(|piece| self.hold(piece));
                        has_more = true;
                    }
                }
                Poll::Ready(Some(Err(error))) => self.end = End::Broken(error),
                Poll::Ready(None) => match self.incoming.poll_trailers(&mut cx) {
                    Poll::Ready(Ok(Some(mut trailers))) => {
                        trim(&mut trailers);
                        self.end = End::Trailers(trailers);
                    }
                    Poll::Ready(Ok(None)) => self.end = End::Complete,
                    Poll::Ready(Err(error)) => self.end = End::Broken(error),
                    Poll::Pending => break,
                },
                Poll::Pending => break,
            }
        }
        if (has_more || !matches!(self.end, End::Open))
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// Small frames become one piece.
    fn hold(&mut self, bytes: &[u8]) {
        self.window.hold(bytes.len());
        match self.pieces.back_mut() {
            Some(last) if last.capacity() - last.len() >= bytes.len() => last.extend_from_slice(bytes),
            _ => {
                let mut piece = BytesMut::with_capacity(bytes.len().max(SMALL));
                piece.extend_from_slice(bytes);
                self.pieces.push_back(piece);
            }
        }
    }

    /// Bytes with no more memory than they need: part of a piece is copied, so that it does not
    /// keep the rest, and the piece is held until its end is taken.
    fn take(&mut self, most: usize) -> Bytes {
        let Some(mut piece) = self.pieces.pop_front() else { return Bytes::new() };
        if self.begun == 0 && piece.len() <= most && piece.len() >= piece.capacity() / 2 {
            self.window.taken(piece.len());
            return piece.freeze();
        }
        let part = Bytes::copy_from_slice(&piece[..most.min(piece.len())]);
        piece.advance(part.len());
        self.begun += part.len();
        if piece.is_empty() {
            self.window.taken(std::mem::take(&mut self.begun));
        } else {
            self.pieces.push_front(piece);
        }
        part
    }
}

/// Takes white space off the ends of values, as HTTP/1 does: the library lets it pass, and clients
/// of HTTP/2 may take a response that has it for malformed (RFC 9113 section 8.2.1). It is rather
/// taken off than refused, as values may, of gRPC's metadata.
fn trim(fields: &mut HeaderMap) {
    for value in fields.values_mut().filter(|value| is_padded(value.as_bytes())) {
        if let Ok(trimmed) = HeaderValue::from_bytes(value.as_bytes().trim_ascii()) {
            *value = trimmed;
        }
    }
}
