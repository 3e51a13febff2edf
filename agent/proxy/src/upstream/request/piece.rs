//! Frames of bodies as they are when they have to wait: copies, because a frame as it came is a
//! part of something larger; and the room that there is for them.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

/// Bytes that a piece counts for, however small it is.
const LEAST: usize = 64;

#[derive(Clone)]
pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

/// Bytes that pieces of a core's bodies may have together.
pub(crate) struct Room(Cell<usize>);

// === impl Piece ===

impl Piece {
    /// `None` for a frame that is neither data nor trailers.
    pub(super) fn copy(frame: &Frame<Bytes>) -> Option<Self> {
        let data = frame.data_ref().map(|data| Self::Data(Bytes::copy_from_slice(data)));
        data.or_else(|| frame.trailers_ref().map(|trailers| Self::Trailers(trailers.clone())))
    }

    pub(super) fn cost(&self) -> usize {
        let bytes = match self {
            Self::Data(data) => data.len(),
            Self::Trailers(trailers) => {
                trailers.iter().map(|(name, value)| LEAST + name.as_str().len() + value.len()).sum()
            }
        };
        bytes.max(LEAST)
    }

    pub(super) fn into_frame(self) -> Frame<Bytes> {
        match self {
            Self::Data(data) => Frame::data(data),
            Self::Trailers(trailers) => Frame::trailers(trailers),
        }
    }
}

// === impl Room ===

impl Room {
    pub(crate) fn new(bytes: usize) -> Rc<Self> {
        Rc::new(Self(Cell::new(bytes)))
    }

    /// False if there is less left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.unwrap_or(self.0.get()));
        left.is_some()
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes);
    }
}
