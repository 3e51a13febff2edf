//! The framing of HTTP/1 requests, read along with the bytes before the HTTP library sees them. The
//! library is lenient where another hop may read the same bytes differently: it takes a bare LF for
//! a line end, lets Transfer-Encoding override Content-Length and repeats of Content-Length pass.
//! All of these are request smuggling in waiting, and none is visible in the parsed request any
//! more, so they are caught here (RFC 9112 sections 2.2, 6.3 and 7.1).
//!
//! This is not a parser: it follows lines and body lengths only, and leaves every other judgement
//! to the library.

use memchr::memchr;

/// A chunk-size line with its extensions.
const CHUNK_LINE: usize = 4 << 10;
/// More than the library buffers of a head; it has answered 431 by then.
const HEAD_LINE: usize = 128 << 10;

/// Follows the requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    state: State,
    head: Head,
    /// A head has ended.
    begun: bool,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
}

/// Bytes that do not frame a request unambiguously.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Of a head: the byte at this index ends the offending line, and with a NUL in its place the
    /// library answers 400.
    Head(usize),
    /// Of a body: what precedes this index is fine, nothing after it can be read.
    Body(usize),
    /// Of the connection: what it begins with is no request line of any version of HTTP.
    NotHttp,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// The connection is lost, or carries another protocol.
    Stopped,
}

/// The part of a head that determines the length of the body, as far as it is read.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    started: bool,
    length: Option<u64>,
    coding: Option<Coding>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Chunked,
    Other,
}

enum Malformed {
    Line,
    NotHttp,
}

// === impl Framing ===

impl Framing {
    /// Of a connection on which there have been requests.
    pub(crate) fn behind_requests() -> Self {
        Self { begun: true, ..Self::default() }
    }

    /// In the body behind a head that was read elsewhere, of this length; `None` if it is chunked.
    pub(crate) fn of_body(length: Option<u64>) -> Self {
        let state = match length {
            Some(0) => State::Head,
            Some(bytes) => State::Body(bytes),
            None => State::ChunkSize,
        };
        Self { state, begun: true, ..Self::default() }
    }

    /// True once a request head has begun, until it ends; the first one begins with the connection,
    /// whatever empty lines precede it.
    pub(crate) fn in_head(&self) -> bool {
        self.state == State::Head && (!self.begun || self.head.started || !self.line.is_empty())
    }

    /// True once a request body has begun, until it ends.
    pub(crate) fn in_body(&self) -> bool {
        !matches!(self.state, State::Head | State::Stopped)
    }

    /// True while bytes of a body are to come that a length announced, of all or of a chunk.
    pub(crate) fn owes_body(&self) -> bool {
        matches!(self.state, State::Body(_) | State::Chunk(_))
    }

    /// Reads on. After a violation nothing more is looked at.
    pub(crate) fn follow(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Stopped {
            at += self.step(bytes, at)?;
        }
        Ok(())
    }

    /// Reads on to the end of the request. Returns how many of the bytes are its own, and whether
    /// they are the last ones.
    pub(crate) fn follow_request(&mut self, bytes: &[u8]) -> Result<(usize, bool), Violation> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Stopped {
            let was_in_request = self.in_request();
            at += self.step(bytes, at)?;
            if was_in_request && !self.in_request() && self.state == State::Head {
                return Ok((at, true));
            }
        }
        Ok((bytes.len(), false))
    }

    fn in_request(&self) -> bool {
        self.in_body() || self.head.started
    }

    /// Reads a line, or what there is of a body, from there on. Returns its length.
    fn step(&mut self, bytes: &[u8], at: usize) -> Result<usize, Violation> {
        let rest = &bytes[at..];
        if let State::Body(left) | State::Chunk(left) = self.state {
            return Ok(self.skip(left, rest.len()));
        }
        match memchr(b'\n', rest) {
            Some(end) => {
                self.end_line(&rest[..=end]).map_err(|why| self.stop(why, at, at + end))?;
                Ok(end + 1)
            }
            None => {
                self.keep(rest).map_err(|why| self.stop(why, at, bytes.len()))?;
                Ok(rest.len())
            }
        }
    }

    /// Counts body bytes; returns how many.
    fn skip(&mut self, left: u64, available: usize) -> usize {
        let skipped = usize::try_from(left).map_or(available, |left| left.min(available));
        let left = left - skipped as u64;
        self.state = match self.state {
            State::Chunk(_) if left == 0 => State::ChunkEnd,
            State::Chunk(_) => State::Chunk(left),
            _ if left == 0 => State::Head,
            _ => State::Body(left),
        };
        skipped
    }

    fn end_line(&mut self, end: &[u8]) -> Result<(), Malformed> {
        if self.line.is_empty() {
            return self.take_line(end);
        }
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(end);
        let taken = self.take_line(&line);
        line.clear();
        self.line = line;
        taken
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), Malformed> {
        self.line.extend_from_slice(part);
        match self.state {
            State::Head if self.line.len() > HEAD_LINE => {
                self.state = State::Stopped;
                Ok(())
            }
            State::Head if self.is_first_line() && !may_begin(&self.line) => Err(Malformed::NotHttp),
            State::Head => Ok(()),
            _ if self.line.len() > CHUNK_LINE => Err(Malformed::Line),
            _ => Ok(()),
        }
    }

    fn stop(&mut self, why: Malformed, start: usize, end: usize) -> Violation {
        let violation = match why {
            Malformed::NotHttp => Violation::NotHttp,
            Malformed::Line if self.state == State::Head => Violation::Head(end),
            Malformed::Line => Violation::Body(start),
        };
        self.state = State::Stopped;
        violation
    }

    fn is_first_line(&self) -> bool {
        self.state == State::Head && !self.begun && !self.head.started
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), Malformed> {
        if self.is_first_line() && !may_begin(line) {
            return Err(Malformed::NotHttp);
        }
        let line = line.strip_suffix(b"\r\n").ok_or(Malformed::Line)?;
        if self.state != State::Head && line.len() > CHUNK_LINE {
            return Err(Malformed::Line);
        }
        match self.state {
            State::Head if line.is_empty() => {
                let head = std::mem::take(&mut self.head);
                // An empty line before the request line is no head (RFC 9112 section 2.2).
                self.begun |= head.started;
                self.state = match (head.coding, head.length) {
                    (Some(Coding::Chunked), _) => State::ChunkSize,
                    (_, Some(length)) if length > 0 => State::Body(length),
                    _ => State::Head,
                };
            }
            State::Head if self.is_first_line() && !is_http(line) => return Err(Malformed::NotHttp),
            State::Head => return self.head.take_line(line),
            State::ChunkSize => {
                let size = line.split(|byte| *byte == b';').next().unwrap_or_default();
                self.state = match number(size, 16)? {
                    0 => State::Trailers,
                    size => State::Chunk(size),
                };
            }
            State::ChunkEnd if line.is_empty() => self.state = State::ChunkSize,
            State::Trailers if line.is_empty() => self.state = State::Head,
            State::Trailers => {}
            State::ChunkEnd | State::Body(_) | State::Chunk(_) | State::Stopped => {
                return Err(Malformed::Line);
            }
        }
        Ok(())
    }
}

// === impl Head ===

impl Head {
    fn take_line(&mut self, line: &[u8]) -> Result<(), Malformed> {
        if !self.started {
            self.started = true;
            // A fragment is no part of a request target; the library drops it silently.
            return if memchr(b'#', line).is_some() { Err(Malformed::Line) } else { Ok(()) };
        }
        let has_length = self.length.is_some() || self.coding.is_some();
        match line[0] | 0x20 {
            b'c' => {
                let Some(value) = value_of(line, b"content-length:") else { return Ok(()) };
                self.length = Some(number(value, 10)?);
            }
            b't' => {
                let Some(value) = value_of(line, b"transfer-encoding:") else { return Ok(()) };
                let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
                let is_chunked = last.eq_ignore_ascii_case(b"chunked");
                self.coding = Some(if is_chunked { Coding::Chunked } else { Coding::Other });
            }
            _ => return Ok(()),
        }
        if has_length { Err(Malformed::Line) } else { Ok(()) }
    }
}

fn value_of<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

/// True for anything that may be a request line, good or bad: its version says so, or there is no
/// place for one.
fn is_http(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == b' ');
    let version = words.nth(2);
    version
        .is_none_or(|version| version.starts_with(b"HTTP/") || words.any(|word| word.starts_with(b"HTTP/")))
}

/// True for what a method or an empty line may begin with; a TLS record, for one, does not.
fn may_begin(line: &[u8]) -> bool {
    line.first().is_none_or(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace())
}

/// Digits only: no sign, no prefix, no space.
fn number(digits: &[u8], radix: u32) -> Result<u64, Malformed> {
    let text = std::str::from_utf8(digits).map_err(|_| Malformed::Line)?;
    if !text.chars().all(|digit| digit.is_digit(radix)) {
        return Err(Malformed::Line);
    }
    u64::from_str_radix(text, radix).map_err(|_| Malformed::Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict must not depend on how the bytes are cut.
    fn follow(bytes: &str) -> (Result<(), Violation>, bool) {
        let whole = follow_in_pieces(bytes, bytes.len().max(1));
        for size in [1, 2, 7] {
            let pieces = follow_in_pieces(bytes, size);
            assert_eq!((pieces.0.is_ok(), pieces.1), (whole.0.is_ok(), whole.1), "{bytes:?} by {size}");
        }
        whole
    }

    fn follow_in_pieces(bytes: &str, size: usize) -> (Result<(), Violation>, bool) {
        let mut framing = Framing::default();
        let verdict = bytes.as_bytes().chunks(size).try_for_each(|piece| framing.follow(piece));
        (verdict, verdict.is_ok() && framing.in_head())
    }

    #[test]
    fn well_framed_requests_pass() {
        for bytes in [
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length:  3 \r\n\r\na\nbGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n2;x=y\r\n\n\n\r\n0\r\nt: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 0\r\ncontent-type: a\r\n\r\n",
        ] {
            assert_eq!(follow(bytes), (Ok(()), false), "{bytes:?}");
        }
    }

    #[test]
    fn a_head_is_under_way_from_its_first_byte_to_its_empty_line() {
        let after = |bytes| format!("GET / HTTP/1.1\r\n\r\n{bytes}");
        for (bytes, in_head) in [("", false), ("\r", true), ("\r\n", false), ("\r\n\r\nG", true)] {
            assert_eq!(follow(&after(bytes)), (Ok(()), in_head), "{bytes:?}");
        }
    }

    #[test]
    fn the_first_head_is_under_way_from_the_beginning() {
        for (bytes, in_head) in [
            ("", true),
            ("\r\n", true),
            ("\r\n\r\n", true),
            ("G", true),
            ("GET / HTTP/1.1\r\n", true),
            ("GET / HTTP/1.1\r\nhost: a\r\n\r", true),
            ("\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", false),
        ] {
            assert_eq!(follow(bytes), (Ok(()), in_head), "{bytes:?}");
        }
    }

    #[test]
    fn a_request_ends_where_the_next_one_may_begin() {
        for (request, of_body) in [
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", None),
            ("\r\nGET / HTTP/1.1\r\n\r\n", None),
            ("POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\na\nb", None),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\nt: 1\r\n\r\n", None),
            ("abc", Some(Some(3))),
            ("1\r\na\r\n0\r\n\r\n", Some(None)),
        ] {
            let bytes = format!("{request}GET / HTTP/1.1\r\n");
            for size in [1, 2, 7, bytes.len()] {
                let mut framing = of_body.map_or_else(Framing::behind_requests, Framing::of_body);
                let (mut own, mut is_whole) = (0, false);
                for piece in bytes.as_bytes().chunks(size) {
                    let (of_piece, ended) = framing.follow_request(piece).unwrap();
                    own += of_piece;
                    is_whole = ended;
                    if ended {
                        break;
                    }
                }
                assert_eq!((own, is_whole), (request.len(), true), "{request:?} by {size}");
            }
        }
    }

    #[test]
    fn ambiguous_heads_are_stopped_at_the_offending_line() {
        for bytes in [
            "GET / HTTP/1.1\n",
            "GET / HTTP/1.1\r\nhost: a\n",
            "GET / HTTP/1.1\r\nhost: a\r\n\n",
            "GET /#x HTTP/1.1\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3\r\nContent-Length: 3\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 3, 3\r\n",
            "POST / HTTP/1.1\r\ncontent-length: +3\r\n",
        ] {
            assert_eq!(follow(bytes).0, Err(Violation::Head(bytes.len() - 1)), "{bytes:?}");
        }
    }

    #[test]
    fn what_begins_with_no_request_line_is_not_http() {
        let verdict = |bytes| follow(bytes).0;
        assert_eq!(verdict("INVALID CONNECTION PREFACE\r\n\r\n"), Err(Violation::NotHttp));
        assert_eq!(verdict("\r\nUSER a b\r\n"), Err(Violation::NotHttp));
        for tls in ["\x16", "\x16\x03\x01\x02\0\x01", "\x16\x03\x01\n\0", "\r\n\x16\x03\r\n"] {
            assert_eq!(verdict(tls), Err(Violation::NotHttp), "{tls:?}");
        }
        for bad in ["GET /\r\n", "GET / HTTP/2.0\r\n", "GET  / HTTP/1.1\r\n", "GET /a b HTTP/1.1\r\n"] {
            assert_eq!(verdict(bad), Ok(()), "{bad:?} is for the library to refuse");
        }
        assert_eq!(verdict("GET / HTTP/1.1\r\n\r\nA B C\r\n"), Ok(()));
    }

    #[test]
    fn ambiguous_bodies_break_the_connection() {
        let head = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        for body in ["2\nab\r\n", "2;x\nab", "0x2\r\n", "2\r\nabX\r\n", "2 \r\n", "0\r\nt: 1\n", "\r\n"] {
            let verdict = follow(&format!("{head}{body}")).0;
            assert!(matches!(verdict, Err(Violation::Body(at)) if at >= head.len()), "{body:?}: {verdict:?}");
        }
        let extension = format!("{head}2;{}", "x".repeat(CHUNK_LINE));
        for end in ["", "\r\n"] {
            assert_eq!(follow(&format!("{extension}{end}")).0, Err(Violation::Body(head.len())), "{end:?}");
        }
    }
}
