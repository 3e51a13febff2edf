//! Bodies that are in memory as a whole: of requests of the gateway's own, and of those that a
//! filter had to read.

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName};
use http_body::{Frame, SizeHint};

use crate::core::trailers::restrict_trailers;
use crate::upstream::request::base64::{Base64, NotBase64};

pub(crate) struct WholeBody {
    bytes: Bytes,
    trailers: Option<HeaderMap>,
    /// Lasts as long as the bytes do.
    held: Option<Rc<dyn Held>>,
}

/// Something that bytes in memory are counted by.
pub(crate) trait Held {}

// === impl WholeBody ===

impl WholeBody {
    pub(crate) fn new(bytes: Bytes, trailers: Option<HeaderMap>, held: Option<Rc<dyn Held>>) -> Self {
        Self { bytes, trailers, held }
    }

    /// The body once more, if nothing of it has been sent.
    pub(crate) fn again(&self) -> Self {
        Self { bytes: self.bytes.clone(), trailers: self.trailers.clone(), held: self.held.clone() }
    }

    /// The bytes that are yet to be sent.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// All that is yet to be sent.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame<Bytes>> {
        let data = (!self.bytes.is_empty()).then(|| Frame::data(self.bytes.clone()));
        data.into_iter().chain(self.trailers.clone().map(Frame::trailers))
    }

    pub(super) fn decode_base64(&mut self) -> Result<(), NotBase64> {
        let mut base64 = Base64::default();
        self.bytes = base64.decode(&self.bytes)?;
        if base64.is_whole() { Ok(()) } else { Err(NotBase64) }
    }

    pub(super) fn keep_out(&mut self, names: &[HeaderName]) {
        if let Some(trailers) = &mut self.trailers {
            restrict_trailers(trailers, names);
        }
    }

    pub(super) fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.bytes.is_empty() {
            return self.trailers.take().map(Frame::trailers);
        }
        Some(Frame::data(std::mem::take(&mut self.bytes)))
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.bytes.is_empty() && self.trailers.is_none()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
