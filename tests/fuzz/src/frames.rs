//! Frames of HTTP/2 (RFC 9113 section 4.1), read in the plainest way.

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) struct Frame<'b> {
    /// As the head says; the payload of the last one may have less.
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: &'b [u8],
}

impl Frame<'_> {
    pub(crate) fn is_whole(&self) -> bool {
        self.payload.len() == self.length
    }
}

/// All whose heads are whole.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while let Some((&[a, b, c, kind, flags, ref stream @ ..], rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let (payload, rest) = rest.split_at(length.min(rest.len()));
        let stream = u32::from_be_bytes(*stream) & (u32::MAX >> 1);
        frames.push(Frame { length, kind, flags, stream, payload });
        bytes = rest;
    }
    frames
}
