//! Bodies of responses: bytes as they were read in, frames out.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::SizeHint;

use crate::upstream::http1::head::{self, BodyLength, HeadError};

/// Bytes of a line that says how large a chunk is, with its extensions.
const CHUNK_LINE: usize = 4 << 10;
/// Bytes of a chunk that is not worth a frame.
const SMALL_CHUNK: usize = 1 << 10;
/// Bytes and number of trailer fields.
const TRAILER_BYTES: usize = 8 << 10;
const TRAILER_FIELDS: usize = 64;

/// The place in a body up to which it has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoder {
    /// So many bytes are to come.
    Bytes(u64),
    Chunk(Chunk),
    UntilClose,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    Line,
    Data(u64),
    /// The line break after its data.
    Break,
    Trailers,
}

/// The next of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Data(Bytes),
    Trailers(HeaderMap),
    /// Nothing can be said without more bytes.
    More,
    End,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BodyError {
    #[error("a malformed chunk")]
    Chunk,
    #[error("trailers that are malformed, or of more than 8 KiB or 64 fields")]
    Trailers,
    #[error("a body that ends too early")]
    Truncated,
}

// === impl Decoder ===

impl Decoder {
    pub(crate) fn new(length: BodyLength) -> Self {
        match length {
            BodyLength::Bytes(0) => Self::End,
            BodyLength::Bytes(bytes) => Self::Bytes(bytes),
            BodyLength::Chunked => Self::Chunk(Chunk::Line),
            BodyLength::UntilClose => Self::UntilClose,
        }
    }

    pub(crate) fn is_end(self) -> bool {
        self == Self::End
    }

    /// Bytes of the body went another way.
    pub(crate) fn skip(&mut self, bytes: usize) {
        if let Self::Bytes(left) = self {
            *left = left.saturating_sub(bytes as u64);
            if *left == 0 {
                *self = Self::End;
            }
        }
    }

    pub(crate) fn size_hint(self) -> SizeHint {
        match self {
            Self::Bytes(left) => SizeHint::with_exact(left),
            Self::End => SizeHint::with_exact(0),
            Self::Chunk(_) | Self::UntilClose => SizeHint::default(),
        }
    }

    /// Takes the next frame from the front of `bytes`. Small chunks that came together make one,
    /// since every frame takes memory until the client has it.
    pub(crate) fn decode(&mut self, bytes: &mut Bytes) -> Result<Decoded, BodyError> {
        let data = match self.decode_part(bytes)? {
            Decoded::Data(data) if data.len() < SMALL_CHUNK && self.reach_data(bytes) => data,
            decoded => return Ok(decoded),
        };
        let mut gathered = BytesMut::from(data);
        while gathered.len() < SMALL_CHUNK
            && self.reach_data(bytes)
            && let Decoded::Data(data) = self.decode_part(bytes)?
        {
            gathered.extend_from_slice(&data);
        }
        Ok(Decoded::Data(gathered.freeze()))
    }

    fn decode_part(&mut self, bytes: &mut Bytes) -> Result<Decoded, BodyError> {
        self.skip_framing(bytes)?;
        match self {
            Self::End => Ok(Decoded::End),
            _ if bytes.is_empty() => Ok(Decoded::More),
            Self::UntilClose => Ok(Decoded::Data(std::mem::take(bytes))),
            Self::Bytes(left) => {
                let data = take(bytes, left);
                if *left == 0 {
                    *self = Self::End;
                }
                Ok(Decoded::Data(data))
            }
            Self::Chunk(Chunk::Data(left)) => {
                let data = take(bytes, left);
                if *left == 0 {
                    *self = Self::Chunk(Chunk::Break);
                    self.skip_end(bytes);
                }
                Ok(Decoded::Data(data))
            }
            Self::Chunk(Chunk::Break | Chunk::Line) => Ok(Decoded::More),
            Self::Chunk(Chunk::Trailers) => self.trailers(bytes),
        }
    }

    /// Takes what stands between the data of two chunks, as far as it has come.
    fn skip_framing(&mut self, bytes: &mut Bytes) -> Result<(), BodyError> {
        loop {
            match self {
                Self::Chunk(_) if bytes.is_empty() => return Ok(()),
                Self::Chunk(Chunk::Break) => match bytes.as_ref() {
                    [b'\r', b'\n', ..] => {
                        bytes.advance(2);
                        *self = Self::Chunk(Chunk::Line);
                    }
                    b"\r" => return Ok(()),
                    _ => return Err(BodyError::Chunk),
                },
                Self::Chunk(Chunk::Line) => {
                    let Some((line, size)) = chunk_line(bytes)? else { return Ok(()) };
                    bytes.advance(line);
                    *self = Self::Chunk(if size == 0 { Chunk::Trailers } else { Chunk::Data(size) });
                }
                Self::Chunk(Chunk::Data(_) | Chunk::Trailers)
                | Self::Bytes(_)
                | Self::UntilClose
                | Self::End => {
                    return Ok(());
                }
            }
        }
    }

    /// Goes on to the data of another chunk, if some of it has come. Errors are the next call's.
    fn reach_data(&mut self, bytes: &mut Bytes) -> bool {
        let skipped = self.skip_framing(bytes);
        skipped.is_ok() && matches!(self, Self::Chunk(Chunk::Data(_))) && !bytes.is_empty()
    }

    /// The backend closed the connection.
    pub(crate) fn close(&mut self) -> Result<(), BodyError> {
        if !matches!(self, Self::UntilClose | Self::End) {
            return Err(BodyError::Truncated);
        }
        *self = Self::End;
        Ok(())
    }

    /// Takes the usual end of a body, if it follows: then the last frame is known to be the last.
    fn skip_end(&mut self, bytes: &mut Bytes) {
        const END: &[u8] = b"\r\n0\r\n\r\n";
        if bytes.starts_with(END) {
            bytes.advance(END.len());
            *self = Self::End;
        }
    }

    fn trailers(&mut self, bytes: &mut Bytes) -> Result<Decoded, BodyError> {
        let mut fields = [httparse::EMPTY_HEADER; TRAILER_FIELDS];
        let (size, fields) = match httparse::parse_headers(bytes, &mut fields) {
            Ok(httparse::Status::Complete(parsed)) => parsed,
            Ok(httparse::Status::Partial) if bytes.len() < TRAILER_BYTES => return Ok(Decoded::More),
            Ok(httparse::Status::Partial) | Err(_) => return Err(BodyError::Trailers),
        };
        if has_bare_line_feed(&bytes[..size]) {
            return Err(BodyError::Trailers);
        }
        let fields = head::to_map(bytes, fields).map_err(|_: HeadError| BodyError::Trailers)?;
        bytes.advance(size);
        *self = Self::End;
        Ok(if fields.is_empty() { Decoded::End } else { Decoded::Trailers(fields) })
    }
}

/// The length of the line that announces a chunk, and the chunk's; `None` if the line goes on. The
/// parser takes an empty line for a chunk without bytes, and any byte for part of an extension.
fn chunk_line(bytes: &[u8]) -> Result<Option<(usize, u64)>, BodyError> {
    let (line, size) = match httparse::parse_chunk_size(bytes) {
        Ok(httparse::Status::Complete((line, size))) => (&bytes[..line], Some(size)),
        Ok(httparse::Status::Partial) => (bytes, None),
        Err(_) => return Err(BodyError::Chunk),
    };
    let begins = line.first().is_some_and(u8::is_ascii_hexdigit);
    if !begins || line.len() > CHUNK_LINE || has_bare_line_feed(line) {
        return Err(BodyError::Chunk);
    }
    Ok(size.map(|size| (line.len(), size)))
}

fn has_bare_line_feed(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', bytes).any(|at| !bytes[..at].ends_with(b"\r"))
}

/// As many of the bytes as there are left of a length.
fn take(bytes: &mut Bytes, left: &mut u64) -> Bytes {
    let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= taken as u64;
    bytes.split_to(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body that comes out, with its trailers as text, and what is left behind it.
    fn decode(length: BodyLength, body: &[u8], piece: usize) -> Result<(String, usize), BodyError> {
        let (mut decoder, mut out, mut bytes) = (Decoder::new(length), Vec::new(), Bytes::new());
        let mut pieces = body.chunks(piece);
        loop {
            match decoder.decode(&mut bytes)? {
                Decoded::Data(data) => out.extend_from_slice(&data),
                Decoded::Trailers(fields) => head::write_section(&fields, &mut out),
                Decoded::End => {
                    return Ok((String::from_utf8(out).unwrap(), bytes.len() + pieces.flatten().count()));
                }
                Decoded::More => match pieces.next() {
                    Some(piece) => bytes = [&bytes, piece].concat().into(),
                    None => decoder.close()?,
                },
            }
        }
    }

    #[test]
    fn bodies_end_where_their_heads_say() {
        let chunked = BodyLength::Chunked;
        let cases = [
            (BodyLength::Bytes(0), "HTTP/1.1", Ok(("", 8))),
            (BodyLength::Bytes(3), "abcHTTP", Ok(("abc", 4))),
            (BodyLength::Bytes(9), "abc", Err(BodyError::Truncated)),
            (BodyLength::UntilClose, "abc", Ok(("abc", 0))),
            (chunked, "0\r\n\r\n", Ok(("", 0))),
            (chunked, "3\r\nabc\r\n0\r\n\r\nHTTP", Ok(("abc", 4))),
            (chunked, "1;x=\"y\"\r\na\r\n0002\r\nbc\r\n0\r\n\r\n", Ok(("abc", 0))),
            (chunked, "3\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n!", Ok(("abcx-sum: 1\r\n\r\n", 1))),
            (chunked, "3\r\nabc\r\n", Err(BodyError::Truncated)),
            (chunked, "3\r\nabc\r\n0\r\n", Err(BodyError::Truncated)),
            (chunked, "3\r\nabcd\r\n0\r\n\r\n", Err(BodyError::Chunk)),
            (chunked, "3\nabc\r\n0\r\n\r\n", Err(BodyError::Chunk)),
            (chunked, "-3\r\nabc\r\n0\r\n\r\n", Err(BodyError::Chunk)),
            (chunked, "0x3\r\nabc\r\n0\r\n\r\n", Err(BodyError::Chunk)),
            (chunked, "10000000000000003\r\nabc\r\n0\r\n\r\n", Err(BodyError::Chunk)),
            (chunked, "\r\n0\r\n\r\n", Err(BodyError::Chunk)),
            (chunked, "1;x\ny\r\na\r\n0\r\n\r\n", Err(BodyError::Chunk)),
            (chunked, "0\r\nno colon\r\n\r\n", Err(BodyError::Trailers)),
        ];
        for (length, body, expected) in cases {
            let expected = expected.map(|(body, left): (&str, _)| (body.to_owned(), left));
            for piece in [1, 2, 3, usize::MAX] {
                assert_eq!(decode(length, body.as_bytes(), piece), expected, "{body:?} by {piece}");
            }
        }
    }

    #[test]
    fn lines_and_trailers_without_end_are_refused() {
        let line = format!("1;{}", "x".repeat(CHUNK_LINE));
        assert_eq!(decode(BodyLength::Chunked, line.as_bytes(), 100), Err(BodyError::Chunk));
        let trailers = format!("0\r\nx: {}", "x".repeat(TRAILER_BYTES));
        assert_eq!(decode(BodyLength::Chunked, trailers.as_bytes(), 100), Err(BodyError::Trailers));
    }

    #[test]
    fn small_chunks_make_one_frame() {
        let mut decoder = Decoder::new(BodyLength::Chunked);
        let mut bytes = Bytes::from(format!("{}0\r\nx: 1\r\n\r\n", "1\r\na\r\n".repeat(3000)));
        let mut frames = Vec::new();
        while let Decoded::Data(data) = decoder.decode(&mut bytes).unwrap() {
            frames.push(data.len());
        }
        assert_eq!(frames, [1024, 1024, 952]);
        assert!(decoder.is_end() && bytes.is_empty());
    }

    #[test]
    fn data_before_a_malformed_chunk_is_not_lost() {
        let mut decoder = Decoder::new(BodyLength::Chunked);
        let mut bytes = Bytes::from_static(b"1\r\na\r\n1\r\nb\r\nx\r\n");
        assert_eq!(decoder.decode(&mut bytes), Ok(Decoded::Data(Bytes::from_static(b"ab"))));
        assert_eq!(decoder.decode(&mut bytes), Err(BodyError::Chunk));
    }

    #[test]
    fn the_last_frame_is_known_to_be_the_last() {
        let mut decoder = Decoder::new(BodyLength::Chunked);
        let mut bytes = Bytes::from_static(b"3\r\nabc\r\n0\r\n\r\n");
        assert_eq!(decoder.decode(&mut bytes), Ok(Decoded::Data(Bytes::from_static(b"abc"))));
        assert!(decoder.is_end() && bytes.is_empty());
    }
}
