//! Request bodies on their way to a backend: nothing, or what the client sends, passed on frame by frame.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// Empty uploads are a case of their own: a request without body can be sent again.
pub(crate) enum Upload {
    Empty,
    Client { incoming: Incoming, broken: Broken },
}

/// Whether the client's body broke off; shared with whoever waits for the response.
#[derive(Clone, Default)]
pub(crate) struct Broken(Rc<Cell<bool>>);

// === impl Upload ===

impl Upload {
    pub(crate) fn new(incoming: Incoming) -> Self {
        if incoming.is_end_stream() {
            Self::Empty
        } else {
            Self::Client { incoming, broken: Broken::default() }
        }
    }

    pub(crate) fn broken(&self) -> Option<Broken> {
        match self {
            Self::Empty => None,
            Self::Client { broken, .. } => Some(broken.clone()),
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self::Client { incoming, broken } = &mut *self else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(incoming).poll_frame(cx));
        broken.0.set(matches!(frame, Some(Err(_))));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Client { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Client { incoming, .. } => incoming.size_hint(),
        }
    }
}

// === impl Broken ===

impl Broken {
    pub(crate) fn get(&self) -> bool {
        self.0.get()
    }
}
