//! Frames of bodies as they are when they have to wait: copies, because a frame as it came is a
//! part of something larger.

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
