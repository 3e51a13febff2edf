//! The body of a response of gRPC as gRPC-Web has it: the trailers as the last message, and base64
//! for clients that want it. Messages pass as they come; all that is kept of them is up to two
//! bytes, in base64, until the message that they are part of goes on.

use std::task::{Context, Poll, ready};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;

use crate::http::body::{BodyError, UpstreamBody};
use crate::http::grpc::EndsBy;
use crate::http::grpc_web::Format;

/// Bytes in front of a message: a flag, and the length.
const PREFIX: usize = 5;
/// "8th (MSB) bit of the 1st gRPC frame byte": trailers.
const TRAILERS: u8 = 0x80;
/// Bytes that four digits stand for.
const GROUP: usize = 3;

pub(crate) struct GrpcWebBody {
    upstream: UpstreamBody,
    translation: Translation,
}

/// The way from frames to bytes for the client, wherever the frames come from.
pub(crate) struct Translation {
    messages: Messages,
    /// `None` for the binary format.
    base64: Option<Base64>,
    is_over: bool,
}

/// The place in a stream of messages.
#[derive(Default)]
struct Messages {
    /// Of the prefix, while one is read.
    prefix: usize,
    length: u32,
    /// Of the message.
    left: usize,
}

/// Bytes that are to be encoded.
#[derive(Default)]
struct Base64(BytesMut);

// === impl GrpcWebBody ===

impl GrpcWebBody {
    pub(super) fn new(mut upstream: UpstreamBody, format: Format) -> Self {
        // Between two messages there is a place for them.
        if let Some(deadline) = &mut upstream.deadline {
            deadline.ends_by = EndsBy::Trailers;
        }
        Self { upstream, translation: Translation::to(format) }
    }

    pub(super) fn upstream(&self) -> &UpstreamBody {
        &self.upstream
    }

    pub(super) fn is_over(&self) -> bool {
        self.translation.is_over
    }

    /// The next frame, which has no more than `most` bytes unless it is trailers.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let most = if self.translation.base64.is_some() { (most / 4 * GROUP).max(GROUP) } else { most };
        while !self.translation.is_over {
            let made = match ready!(self.upstream.poll(cx, most)) {
                Some(Ok(frame)) => self.translation.pass(Some(frame)),
                Some(Err(error)) => Err(error),
                None => self.translation.pass(None),
            };
            match made {
                Ok(made) if made.is_empty() => {}
                Ok(made) => return Poll::Ready(Some(Ok(Frame::data(made)))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        Poll::Ready(None)
    }
}

// === impl Translation ===

impl Translation {
    pub(crate) fn to(format: Format) -> Self {
        let base64 = match format {
            Format::Binary => None,
            Format::Text => Some(Base64::default()),
        };
        Self { messages: Messages::default(), base64, is_over: false }
    }

    /// The bytes that the client gets next, if any: after a frame, or at the end of the body.
    ///
    /// # Errors
    /// When trailers come within a message.
    pub(crate) fn pass(&mut self, frame: Option<Frame<Bytes>>) -> Result<Bytes, BodyError> {
        let bytes = match frame.map(Frame::into_data) {
            Some(Ok(bytes)) => {
                self.messages.pass(&bytes);
                bytes
            }
            // A client would take them for part of the message.
            Some(Err(_)) if !self.messages.is_between() => return Err(BodyError::Message),
            Some(Err(frame)) => {
                self.is_over = true;
                frame.into_trailers().map(|trailers| message(&trailers)).unwrap_or_default()
            }
            None => {
                self.is_over = true;
                Bytes::new()
            }
        };
        let Some(base64) = &mut self.base64 else { return Ok(bytes) };
        base64.0.extend_from_slice(&bytes);
        // The client gets a message at once, and cannot do anything with part of one.
        let is_whole = self.is_over || self.messages.is_between();
        Ok(if is_whole { base64.all() } else { base64.groups() })
    }
}

/// "Key-value pairs encoded as a HTTP/1 headers block (without the terminating newline)", names in
/// lower case, as a message.
fn message(trailers: &HeaderMap) -> Bytes {
    let block = trailers.iter().map(|(name, value)| name.as_str().len() + value.len() + ":\r\n".len());
    let length = block.sum::<usize>();
    let mut message = BytesMut::with_capacity(PREFIX + length);
    message.put_u8(TRAILERS);
    // Trailers are no longer than heads of responses may be.
    message.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    for (name, value) in trailers {
        message.put_slice(name.as_str().as_bytes());
        message.put_u8(b':');
        message.put_slice(value.as_bytes());
        message.put_slice(b"\r\n");
    }
    message.freeze()
}

// === impl Messages ===

impl Messages {
    fn pass(&mut self, mut bytes: &[u8]) {
        while let [first, rest @ ..] = bytes {
            if self.left > 0 {
                let passed = self.left.min(bytes.len());
                self.left -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            if self.prefix > 0 {
                self.length = self.length << 8 | u32::from(*first);
            }
            self.prefix += 1;
            if self.prefix == PREFIX {
                self.left = self.length as usize;
                (self.prefix, self.length) = (0, 0);
            }
            bytes = rest;
        }
    }

    fn is_between(&self) -> bool {
        self.prefix == 0 && self.left == 0
    }
}

// === impl Base64 ===

impl Base64 {
    /// The digits of all groups that are whole; the rest waits for more.
    fn groups(&mut self) -> Bytes {
        STANDARD.encode(self.0.split_to(self.0.len() / GROUP * GROUP)).into()
    }

    /// The digits of all bytes, with padding.
    fn all(&mut self) -> Bytes {
        STANDARD.encode(self.0.split()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_are_a_message() {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "5".parse().unwrap());
        trailers.append("x-a", "1".parse().unwrap());
        trailers.append("x-a", "2".parse().unwrap());
        assert_eq!(message(&trailers), &b"\x80\0\0\0\x1dgrpc-status:5\r\nx-a:1\r\nx-a:2\r\n"[..]);
        assert_eq!(message(&HeaderMap::new()), &b"\x80\0\0\0\0"[..]);
    }

    #[test]
    fn places_between_messages_are_known_however_they_come() {
        let stream = [&b"\0\0\0\0\x02ab"[..], b"\0\0\0\0\0", b"\x01\0\0\x01\x00", &[7; 256]].concat();
        let ends = [7, 12, stream.len()];
        for piece in 1..=stream.len() {
            let mut messages = Messages::default();
            assert!(messages.is_between());
            let mut passed = 0;
            for bytes in stream.chunks(piece) {
                messages.pass(bytes);
                passed += bytes.len();
                assert_eq!(messages.is_between(), ends.contains(&passed), "{passed} by {piece}");
            }
        }
    }

    #[test]
    fn padding_is_at_the_end_of_messages_only() {
        let mut base64 = Base64::default();
        base64.0.extend_from_slice(b"abcd");
        assert_eq!(base64.groups(), "YWJj");
        base64.0.extend_from_slice(b"e");
        assert_eq!((base64.groups(), base64.all()), ("".into(), "ZGU=".into()));
        base64.0.extend_from_slice(b"abc");
        assert_eq!((base64.all(), base64.all()), ("YWJj".into(), "".into()));
    }
}
