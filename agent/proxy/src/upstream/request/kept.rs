//! Bodies that are kept while they are sent, so that they can be sent again from their beginning:
//! as long as everything that came of one is kept. There is room for a part of each, and for a
//! number of bytes of all that a core keeps, which namespaces share.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;

use crate::core::shares::Share;
use crate::upstream::request::Upload;
use crate::upstream::request::client::{ClientUpload, SharedFault, UploadError};
use crate::upstream::request::copies::Copies;
use crate::upstream::request::piece::Piece;

/// A body of which the beginning is kept.
#[derive(Clone)]
pub(crate) struct KeptBody(Rc<RefCell<Kept>>);

/// The body from its first byte on. Only the last one that was begun goes on: those before it break
/// off.
pub(crate) struct Reading {
    body: KeptBody,
    number: u32,
    /// The position of the next piece among those that are kept.
    next: usize,
}

struct Kept {
    source: Box<ClientUpload>,
    /// All that came of it, or nothing.
    pieces: Vec<Piece>,
    bytes: usize,
    /// Bytes to keep.
    most: usize,
    /// False once more came than is kept.
    is_whole: bool,
    /// The source has no more.
    is_over: bool,
    /// The reading that may go on.
    reading: u32,
    room: Share,
}

// === impl KeptBody ===

impl KeptBody {
    /// Keeps up to so many bytes of the body from now on. `None` if there is no body, or none of a
    /// client's: what is not there can be sent again as it is.
    pub(crate) fn keep(upload: &mut Upload, most: usize, room: Share) -> Option<Self> {
        let source = match std::mem::replace(upload, Upload::Empty) {
            Upload::Client(source) => source,
            Upload::Kept(reading) => {
                let body = reading.body.clone();
                *upload = Upload::Kept(reading);
                let mut kept = body.0.borrow_mut();
                kept.most = kept.most.max(most);
                drop(kept);
                return Some(body);
            }
            other @ (Upload::Empty | Upload::Copied(_) | Upload::Whole(_)) => {
                *upload = other;
                return None;
            }
        };
        let body = Self(Rc::new(RefCell::new(Kept {
            source,
            pieces: Vec::new(),
            bytes: 0,
            most,
            is_whole: true,
            is_over: false,
            reading: 0,
            room,
        })));
        *upload = Upload::Kept(Box::new(Reading { body: body.clone(), number: 0, next: 0 }));
        Some(body)
    }

    /// The body from its beginning once more; `None` if not all that came of it is kept.
    pub(crate) fn again(&self) -> Option<Upload> {
        let mut kept = self.0.borrow_mut();
        if !kept.is_whole {
            return None;
        }
        kept.reading += 1;
        Some(Upload::Kept(Box::new(Reading { body: self.clone(), number: kept.reading, next: 0 })))
    }
}

// === impl Reading ===

impl Reading {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let mut kept = self.body.0.borrow_mut();
        if kept.reading != self.number {
            return Poll::Ready(Some(Err(UploadError::SentAgain)));
        }
        if let Some(frame) = kept.frame(self.next) {
            self.next += 1;
            return Poll::Ready(Some(Ok(frame)));
        }
        if kept.is_over {
            return Poll::Ready(None);
        }
        let frame = ready!(kept.source.poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => kept.keep(frame),
            Some(Err(_)) => kept.forget(),
            None => kept.is_over = true,
        }
        self.next = kept.pieces.len();
        Poll::Ready(frame)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let kept = self.body.0.borrow();
        kept.reading == self.number
            && self.next == kept.pieces.len()
            && (kept.is_over || kept.source.is_end_stream())
    }

    /// Has copies made of the whole body.
    pub(super) fn copy_to(&self, copies: Copies) {
        let mut kept = self.body.0.borrow_mut();
        kept.pieces.iter().for_each(|piece| copies.push_piece(piece));
        if kept.is_over {
            copies.complete();
        }
        kept.source.copy_to(copies);
    }

    pub(super) fn fault(&self) -> SharedFault {
        self.body.0.borrow().source.fault()
    }

    pub(super) fn with_source<T>(&self, look: impl FnOnce(&mut ClientUpload) -> T) -> T {
        look(&mut self.body.0.borrow_mut().source)
    }
}

/// The client is not waited for any more.
impl Drop for Reading {
    fn drop(&mut self) {
        let kept = self.body.0.borrow();
        if kept.reading == self.number {
            kept.source.pause();
        }
    }
}

// === impl Kept ===

impl Kept {
    fn frame(&self, at: usize) -> Option<Frame<Bytes>> {
        let mut frame = self.pieces.get(at)?.clone().into_frame();
        if let Some(trailers) = frame.trailers_mut() {
            self.source.restrict(trailers);
        }
        Some(frame)
    }

    /// Keeps a copy if there is room.
    fn keep(&mut self, frame: &Frame<Bytes>) {
        if !self.is_whole {
            return;
        }
        let Some(piece) = Piece::copy(frame) else { return };
        if self.bytes + piece.cost() > self.most || !self.room.take(piece.cost()) {
            return self.forget();
        }
        self.bytes += piece.cost();
        self.pieces.push(piece);
    }

    /// Keeps nothing from now on.
    fn forget(&mut self) {
        self.is_whole = false;
        self.pieces = Vec::new();
        self.room.give_back(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.room.give_back(self.bytes);
    }
}
