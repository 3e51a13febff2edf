//! The body of a request on its way in. Bytes are read when the backend takes them, held to the
//! framing that the library's are held to, and handed over frame by frame.

use bytes::{Bytes, BytesMut};
use http_body::Frame;

use crate::client::framing::{Framing, Violation};
use crate::http::h1::head::RequestBody;
use crate::upstream::http1::{BodyLength, Decoded, Decoder};
use crate::upstream::request::{Broken, FedBody, Feed};

pub(crate) struct Intake {
    pub feed: Feed,
    framing: Framing,
    decoder: Decoder,
    /// Bytes that were read and not decoded.
    bytes: Bytes,
    /// Bytes came that are of no body.
    is_malformed: bool,
}

/// The next of a body.
pub(crate) enum Next {
    Frame(Frame<Bytes>),
    End,
    /// More has to be read.
    More,
}

// === impl Intake ===

impl Intake {
    pub(crate) fn new(body: RequestBody) -> (Self, FedBody) {
        let (length, until) = match body {
            RequestBody::Bytes(bytes) => (Some(bytes), BodyLength::Bytes(bytes)),
            RequestBody::Chunked => (None, BodyLength::Chunked),
        };
        let (feed, fed) = Feed::new(length);
        let (framing, decoder) = (Framing::of_body(length), Decoder::new(until));
        (Self { feed, framing, decoder, bytes: Bytes::new(), is_malformed: false }, fed)
    }

    /// Takes bytes that were read, as far as they are the body's. Returns how many they are.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> usize {
        let (taken, usable) = match self.framing.follow_request(bytes) {
            Ok((taken, _)) => (taken, taken),
            Err(violation) => {
                self.is_malformed = true;
                (bytes.len(), if let Violation::Body(at) = violation { at } else { 0 })
            }
        };
        let usable = &bytes[..usable];
        self.bytes = if self.bytes.is_empty() {
            Bytes::copy_from_slice(usable)
        } else {
            let mut all = BytesMut::with_capacity(self.bytes.len() + usable.len());
            all.extend_from_slice(&self.bytes);
            all.extend_from_slice(usable);
            all.freeze()
        };
        taken
    }

    pub(crate) fn next(&mut self) -> Result<Next, Broken> {
        match self.decoder.decode(&mut self.bytes) {
            Ok(Decoded::Data(data)) => Ok(Next::Frame(Frame::data(data))),
            Ok(Decoded::Trailers(fields)) => Ok(Next::Frame(Frame::trailers(fields))),
            Ok(Decoded::End) => Ok(Next::End),
            // Framing and decoder do not agree on anything but a body that is well-formed.
            Ok(Decoded::More) if self.is_malformed || !self.framing.in_body() => Err(Broken::Malformed),
            Ok(Decoded::More) => Ok(Next::More),
            Err(_) => Err(Broken::Malformed),
        }
    }

    /// True once nothing is to come behind the last frame.
    pub(crate) fn is_over(&self) -> bool {
        self.decoder.is_end()
    }

    /// True while bytes of the body are to come that a length announced, of all or of a chunk.
    pub(crate) fn is_owed(&self) -> bool {
        self.framing.owes_body()
    }
}
