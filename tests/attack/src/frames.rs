//! Frames of HTTP/2, and field blocks whose fields are in no table.

use std::io::{self, Read};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Names and values.
pub(crate) type Fields = Vec<(&'static str, &'static str)>;

/// A frame as it came.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

// === impl Frame ===

impl Frame {
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        let mut payload = vec![0; length];
        from.read_exact(&mut payload)?;
        Ok(Self { kind, stream: u32::from_be_bytes(stream), payload })
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A client's beginning, with settings as given.
pub(crate) fn begin(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()
}

/// Literal fields without indexing (RFC 7541 section 6.2.2).
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// A string literal without Huffman coding (RFC 7541 sections 5.1 and 5.2).
pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut encoded = Vec::new();
    match text.len() {
        length @ ..127 => encoded.push(u8::try_from(length).unwrap_or_default()),
        length => {
            encoded.push(127);
            let mut rest = length - 127;
            while rest >= 128 {
                encoded.push(u8::try_from(rest % 128).unwrap_or_default() | 128);
                rest /= 128;
            }
            encoded.push(u8::try_from(rest).unwrap_or_default());
        }
    }
    encoded.extend_from_slice(text.as_bytes());
    encoded
}
