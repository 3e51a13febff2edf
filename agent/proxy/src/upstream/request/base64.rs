//! Bodies in base64, decoded as they come: in segments of any number, each of which may end with
//! padding, as gRPC-Web clients write them. A segment breaks off anywhere, and goes on in the next
//! frame.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

/// Digits that stand for three bytes.
const QUAD: usize = 4;

#[derive(Debug, thiserror::Error)]
#[error("the request body is not base64")]
pub(crate) struct NotBase64;

#[derive(Default)]
pub(crate) struct Base64 {
    /// The beginning of a quad.
    begun: Vec<u8>,
}

// === impl Base64 ===

impl Base64 {
    /// The bytes of all quads that are whole now; there may be none.
    ///
    /// # Errors
    /// For text that is not base64 (RFC 4648 section 4).
    pub(crate) fn decode(&mut self, text: &[u8]) -> Result<Bytes, NotBase64> {
        let mut decoded = Vec::with_capacity((self.begun.len() + text.len()) / QUAD * 3);
        let missing = (QUAD - self.begun.len()) % QUAD;
        let (first, rest) = text.split_at(missing.min(text.len()));
        self.begun.extend_from_slice(first);
        if self.begun.len() == QUAD {
            decode_segments(&self.begun, &mut decoded)?;
            self.begun.clear();
        }
        let (whole, begun) = rest.split_at(rest.len() / QUAD * QUAD);
        decode_segments(whole, &mut decoded)?;
        self.begun.extend_from_slice(begun);
        Ok(decoded.into())
    }

    /// True between two quads, where a body may end.
    pub(crate) fn is_whole(&self) -> bool {
        self.begun.is_empty()
    }
}

/// Decodes whole quads.
fn decode_segments(mut quads: &[u8], decoded: &mut Vec<u8>) -> Result<(), NotBase64> {
    while !quads.is_empty() {
        let padding = memchr::memchr(b'=', quads);
        let end = padding.map_or(quads.len(), |at| (at / QUAD + 1) * QUAD);
        let (segment, rest) = quads.split_at(end);
        STANDARD.decode_vec(segment, decoded).map_err(|_| NotBase64)?;
        quads = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text in pieces of so many bytes; `None` if it is not base64.
    fn decoded(text: &str, piece: usize) -> Option<Vec<u8>> {
        let (mut base64, mut decoded) = (Base64::default(), Vec::new());
        for piece in text.as_bytes().chunks(piece) {
            decoded.extend(base64.decode(piece).ok()?);
        }
        base64.is_whole().then_some(decoded)
    }

    #[test]
    fn segments_are_decoded_wherever_they_break_off() {
        for (text, expected) in [
            ("", Some(&b""[..])),
            ("AAAAAAI=", Some(&[0, 0, 0, 0, 2])),
            ("YQ==YWI=YWJjYQ==", Some(b"aababca")),
            ("YWJjZGVm", Some(b"abcdef")),
            ("YWJj\r\nZGVm", None),
            ("YWJ", None),
            ("Y", None),
            ("YQ=", None),
            ("YQ", None),
            ("=YQ=", None),
            ("====", None),
            ("YQ=a", None),
            ("YR==", None),
            ("-_-_", None),
        ] {
            for piece in 1..=text.len().max(1) {
                assert_eq!(decoded(text, piece).as_deref(), expected, "{text} by {piece}");
            }
        }
    }
}
