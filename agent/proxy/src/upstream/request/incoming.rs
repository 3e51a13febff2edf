//! The frames of a client's request body, from whichever code reads its connection: the HTTP
//! library, the crate for HTTP/2, or code of the agent's own, which hands over a frame when it is
//! asked for one.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;

pub(crate) enum IncomingBody {
    Library(Incoming),
    Stream(StreamBody),
    Own(FedBody),
}

/// The body of a request on a stream of HTTP/2.
pub(crate) struct StreamBody {
    incoming: RecvStream,
    /// Bytes that were announced, and not taken.
    left: Option<u64>,
    /// There may be trailers yet.
    is_all_data: bool,
}

/// The end of a body that a connection feeds.
pub(crate) struct Feed(Rc<RefCell<State>>);

/// The end that its reader has.
pub(crate) struct FedBody(Rc<RefCell<State>>);

/// The reason why a body came to no end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IncomingError {
    #[error(transparent)]
    Library(#[from] hyper::Error),
    #[error(transparent)]
    Stream(#[from] h2::Error),
    #[error(transparent)]
    Own(#[from] Broken),
}

/// The same, of a body that a connection feeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the chunked body is malformed")]
    Malformed,
    #[error("the client closed the connection in the middle of its request")]
    Closed,
}

struct State {
    /// At most one: what the backend does not take is not read.
    frame: Option<Frame<Bytes>>,
    /// Bytes that were announced, and not taken. `None` if it is chunked.
    left: Option<u64>,
    end: Option<Result<(), Broken>>,
    is_wanted: bool,
    /// False once the reader is gone.
    has_reader: bool,
    reader: Option<Waker>,
    feeder: Option<Waker>,
}

// === impl IncomingBody ===

impl IncomingBody {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncomingError>>> {
        match self {
            Self::Library(incoming) => Pin::new(incoming).poll_frame(cx).map_err(IncomingError::from),
            Self::Stream(body) => body.poll_frame(cx).map_err(IncomingError::from),
            Self::Own(fed) => fed.poll_frame(cx).map_err(IncomingError::from),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Library(incoming) => incoming.is_end_stream(),
            Self::Stream(body) => body.incoming.is_end_stream(),
            Self::Own(fed) => fed.0.borrow().is_over(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Library(incoming) => incoming.size_hint(),
            Self::Stream(body) => body.left.map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Own(fed) => fed.0.borrow().left.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

// === impl StreamBody ===

impl StreamBody {
    /// With the length that its head announces.
    pub(crate) fn new(incoming: RecvStream, length: Option<u64>) -> Self {
        let left = if incoming.is_end_stream() { Some(0) } else { length };
        Self { incoming, left, is_all_data: false }
    }

    /// A reset is no end, whatever its reason: proxies give up requests with NO_ERROR, too.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.is_all_data
            && let Some(data) = ready!(self.incoming.poll_data(cx))
        {
            return Poll::Ready(Some(data.map(|data| self.taken(data))));
        }
        self.is_all_data = true;
        let trailers = ready!(self.incoming.poll_trailers(cx));
        Poll::Ready(trailers.map(|trailers| trailers.map(Frame::trailers)).transpose())
    }

    /// The client may send as much again. A stream that is gone needs no room.
    fn taken(&mut self, data: Bytes) -> Frame<Bytes> {
        let _ = self.incoming.flow_control().release_capacity(data.len());
        self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
        Frame::data(data)
    }
}

// === impl Feed ===

impl Feed {
    /// Of a body of this length; `None` if its chunks will say.
    pub(crate) fn new(length: Option<u64>) -> (Self, FedBody) {
        let state = Rc::new(RefCell::new(State {
            frame: None,
            left: length,
            end: None,
            is_wanted: false,
            has_reader: true,
            reader: None,
            feeder: None,
        }));
        (Self(state.clone()), FedBody(state))
    }

    /// Ready when a frame is wanted, or when there is no reader any more.
    pub(crate) fn poll_wanted(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.borrow_mut();
        // Kept while a frame is wanted, too: the reader may go before there is one.
        if !state.feeder.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            state.feeder = Some(cx.waker().clone());
        }
        if state.is_wanted || !state.has_reader { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(crate) fn has_reader(&self) -> bool {
        self.0.borrow().has_reader
    }

    /// Hands over a frame that is wanted.
    pub(crate) fn push(&self, frame: Frame<Bytes>, cx: &Context<'_>) {
        let mut state = self.0.borrow_mut();
        state.frame = Some(frame);
        state.wake_reader(cx);
    }

    /// There are no more frames.
    pub(crate) fn end(&self, end: Result<(), Broken>, cx: &Context<'_>) {
        let mut state = self.0.borrow_mut();
        state.end.get_or_insert(end);
        state.wake_reader(cx);
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.end.get_or_insert(Err(Broken::Closed));
        state.is_wanted = false;
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }
}

// === impl FedBody ===

impl FedBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut state = self.0.borrow_mut();
        if let Some(frame) = state.frame.take() {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            state.left = state.left.map(|left| left.saturating_sub(bytes));
            return Poll::Ready(Some(Ok(frame)));
        }
        match state.end {
            Some(Ok(())) => return Poll::Ready(None),
            Some(Err(broken)) => return Poll::Ready(Some(Err(broken))),
            None => {}
        }
        state.is_wanted = true;
        if !state.reader.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            state.reader = Some(cx.waker().clone());
        }
        state.wake_feeder(cx);
        Poll::Pending
    }
}

impl Drop for FedBody {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        (state.has_reader, state.frame, state.reader) = (false, None, None);
        if let Some(feeder) = state.feeder.take() {
            feeder.wake();
        }
    }
}

// === impl State ===

impl State {
    fn is_over(&self) -> bool {
        self.frame.is_none() && (self.end == Some(Ok(())) || self.left == Some(0))
    }

    /// The task that feeds looks for itself what its own part of it wants.
    fn wake_feeder(&mut self, cx: &Context<'_>) {
        if let Some(feeder) = self.feeder.take_if(|feeder| !feeder.will_wake(cx.waker())) {
            feeder.wake();
        }
    }

    /// The same the other way round.
    fn wake_reader(&mut self, cx: &Context<'_>) {
        self.is_wanted = false;
        if let Some(reader) = self.reader.take()
            && !reader.will_wake(cx.waker())
        {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    fn poll(body: &mut FedBody) -> Poll<Option<Result<usize, Broken>>> {
        let frame = body.poll_frame(&mut Context::from_waker(Waker::noop()));
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.data_ref().map_or(0, Bytes::len))))
    }

    #[test]
    fn a_frame_is_handed_over_when_it_is_wanted() {
        let cx = Context::from_waker(Waker::noop());
        let (feed, mut body) = Feed::new(Some(3));
        assert!(feed.poll_wanted(&cx).is_pending());
        assert_eq!(poll(&mut body), Poll::Pending);
        assert!(feed.poll_wanted(&cx).is_ready());
        feed.push(Frame::data(Bytes::from_static(b"abc")), &cx);
        assert!(feed.poll_wanted(&cx).is_pending() && !body.0.borrow().is_over());
        assert_eq!(poll(&mut body), Poll::Ready(Some(Ok(3))));
        assert!(body.0.borrow().is_over());
        feed.end(Ok(()), &cx);
        assert_eq!(poll(&mut body), Poll::Ready(None));
    }

    #[test]
    fn a_feeder_learns_that_the_reader_of_a_wanted_frame_is_gone() {
        struct Noted(AtomicBool);
        impl Wake for Noted {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Relaxed);
            }
        }
        let noted = Arc::new(Noted(AtomicBool::new(false)));
        let waker = Waker::from(noted.clone());
        // The reader is in a task of its own, or in the feeder's.
        for reader in [Waker::noop(), &waker] {
            let (feed, mut body) = Feed::new(None);
            assert!(feed.poll_wanted(&Context::from_waker(&waker)).is_pending());
            assert!(body.poll_frame(&mut Context::from_waker(reader)).is_pending());
            assert!(feed.poll_wanted(&Context::from_waker(&waker)).is_ready());
            noted.0.store(false, Relaxed);
            drop(body);
            assert!(noted.0.load(Relaxed));
        }
    }

    #[test]
    fn a_body_that_breaks_off_has_no_end() {
        let cx = Context::from_waker(Waker::noop());
        let (feed, mut body) = Feed::new(None);
        drop(feed);
        assert_eq!(poll(&mut body), Poll::Ready(Some(Err(Broken::Closed))));
        let (feed, body) = Feed::new(None);
        drop(body);
        assert!(feed.poll_wanted(&cx).is_ready() && !feed.has_reader());
    }
}
