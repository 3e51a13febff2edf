//! Malformed requests of HTTP/2, by their frames: each is refused, by a status that finds fault
//! with it, a stream error or a connection error (RFC 9113 section 8.1.1), and no backend hears of
//! it.

use std::io::Write;

use anyhow::Result;

use crate::Size;
use crate::frames::{
    DATA, END_HEADERS, END_STREAM, Fields, Frame, GOAWAY, HEADERS, RST_STREAM, begin, block, frame, text,
};
use crate::report::{Passed, Report};
use crate::wire;
use crate::world::{HOST, World};

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    BadRequest,
    /// A status that is not in HPACK's table: 405, 414, 431 or 501.
    OtherStatus,
    /// One that finds no fault with the request.
    WrongStatus,
    StreamError,
    ConnectionError,
    /// Closed without a word.
    Closed,
    Silent,
}

pub(crate) fn run(world: &World, _: Size, report: &mut Report) -> Result<()> {
    for (name, fields, body) in controls() {
        let (outcome, asked) = try_out(world, &block(&fields), body)?;
        let happened = format!("{outcome:?}; the backend was asked {asked} times");
        report.add(
            format!("HTTP/2: {name}"),
            happened,
            (outcome == Outcome::Ok && asked == 1).then_some(Passed),
        );
    }
    let blocks = requests().into_iter().map(|(name, fields, body)| (name, block(&fields), body));
    let blocks = blocks.chain([("a field that is repeated by its index", bomb(), &b""[..])]);
    for (name, block, body) in blocks {
        let (outcome, asked) = try_out(world, &block, body)?;
        let is_refused = match outcome {
            Outcome::BadRequest | Outcome::OtherStatus => true,
            Outcome::StreamError | Outcome::ConnectionError | Outcome::Closed => true,
            Outcome::Ok | Outcome::WrongStatus | Outcome::Silent => false,
        };
        let happened = format!("{outcome:?}; the backend was asked {asked} times");
        report.add(format!("HTTP/2: {name}"), happened, (is_refused && asked == 0).then_some(Passed));
    }
    Ok(())
}

/// Also returns how often the backend was asked.
fn try_out(world: &World, block: &[u8], body: &[u8]) -> Result<(Outcome, usize)> {
    let flags = END_HEADERS | if body.is_empty() { END_STREAM } else { 0 };
    let mut bytes = [begin(&[]), frame(HEADERS, flags, 1, block)].concat();
    if !body.is_empty() {
        bytes.extend(frame(DATA, END_STREAM, 1, body));
    }
    let count = || world.asked.count(" /probe http/1.1");
    let before = count();
    let mut stream = wire::connect(world.plain)?;
    let _ = stream.write_all(&bytes);
    let outcome = loop {
        match Frame::read(&mut stream) {
            Ok(Frame { kind: GOAWAY, .. }) => break Outcome::ConnectionError,
            Ok(Frame { kind: RST_STREAM, stream: 1, .. }) => break Outcome::StreamError,
            Ok(Frame { kind: HEADERS, stream: 1, payload, .. }) => {
                break Outcome::of(payload.first().copied());
            }
            Ok(_) => {}
            Err(error) if wire::is_late(&error) => break Outcome::Silent,
            Err(_) => break Outcome::Closed,
        }
    };
    Ok((outcome, count() - before))
}

// === impl Outcome ===

impl Outcome {
    /// By the first byte of the response's fields (RFC 7541 section 6 and appendix A).
    fn of(field: Option<u8>) -> Self {
        match field {
            // `:status` 200 and 400, by their index.
            Some(0x88) => Self::Ok,
            Some(0x8c) => Self::BadRequest,
            // A literal with the name of the first `:status`, to be indexed or not.
            Some(0x48 | 0x08 | 0x18) => Self::OtherStatus,
            _ => Self::WrongStatus,
        }
    }
}

fn with(more: &[(&'static str, &'static str)]) -> Fields {
    let request = [(":method", "GET"), (":scheme", "http"), (":path", "/probe"), (":authority", HOST)];
    [&request, more].concat()
}

fn with_path(path: &'static str) -> Fields {
    vec![(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", HOST)]
}

/// The parts of probes, when nothing is wrong with them.
fn controls() -> Vec<(&'static str, Fields, &'static [u8])> {
    vec![
        ("nothing wrong", with(&[("x", "y"), ("te", "trailers")]), b""),
        ("nothing wrong with host", with(&[("host", HOST)]), b""),
        ("nothing wrong with a length", with(&[("content-length", "3")]), b"abc"),
        // The HTTP library drops it before anything can be said of it.
        ("a fragment in :path, which goes no further", with_path("/probe#x"), b""),
    ]
}

/// Name, fields and body of requests that are malformed.
fn requests() -> Vec<(&'static str, Fields, &'static [u8])> {
    let get = [(":method", "GET"), (":scheme", "http")];
    let get = |more: &[(&'static str, &'static str)]| [&get, more].concat();
    vec![
        ("host unlike :authority", with(&[("host", "b.test")]), b""),
        ("neither host nor :authority", get(&[(":path", "/probe")]), b""),
        ("userinfo in :authority", get(&[(":path", "/probe"), (":authority", "x@a.test")]), b""),
        ("no :path", get(&[(":authority", HOST)]), b""),
        ("an empty :path", with_path(""), b""),
        ("two of :path", with(&[(":path", "/probe")]), b""),
        ("two of :authority", with(&[(":authority", HOST)]), b""),
        ("a pseudo-header behind fields", get(&[(":path", "/probe"), ("x", "y"), (":authority", HOST)]), b""),
        ("an unknown pseudo-header", with(&[(":smuggled", "y")]), b""),
        (":status in a request", with(&[(":status", "200")]), b""),
        (":protocol without CONNECT", with(&[(":protocol", "websocket")]), b""),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")]), b""),
        ("connection", with(&[("connection", "close")]), b""),
        ("upgrade", with(&[("upgrade", "h2c")]), b""),
        ("te that is not trailers", with(&[("te", "gzip")]), b""),
        ("upper case in a name", with(&[("X-Upper", "y")]), b""),
        ("a colon in a name", with(&[("x:y", "z")]), b""),
        ("a name that is empty", with(&[("", "z")]), b""),
        ("a line break in a value", with(&[("x", "y\r\nsmuggled: z")]), b""),
        ("a line break in a name", with(&[("x\r\ny", "z")]), b""),
        ("NUL in a value", with(&[("x", "y\0z")]), b""),
        ("a line break in :path", with_path("/probe HTTP/1.1\r\nx: y"), b""),
        ("a space in :path", with_path("/probe x"), b""),
        ("an encoded slash in :path", with_path("/probe/..%2fx"), b""),
        ("NUL in :path", with_path("/probe%00"), b""),
        ("a :path that is not absolute", with_path("probe"), b""),
        ("less body than content-length", with(&[("content-length", "9")]), b"abc"),
        ("more body than content-length", with(&[("content-length", "1")]), b"abc"),
        ("two lengths", with(&[("content-length", "3"), ("content-length", "4")]), b"abc"),
        ("a length that is no number", with(&[("content-length", "+3")]), b"abc"),
        ("CONNECT", vec![(":method", "CONNECT"), (":authority", "a.test:80")], b""),
        ("TRACE", [&[(":method", "TRACE")], &with(&[])[1..]].concat(), b""),
    ]
}

/// 8 MB of fields in 6 KB: one that the dynamic table takes, and then its index again and again
/// (CVE-2016-6581).
fn bomb() -> Vec<u8> {
    let indexed = [vec![0x40], text("x"), text(&"y".repeat(4000))].concat();
    // The first entry behind the 61 of the static table.
    [block(&with(&[])), indexed, [0x80 | 62].repeat(2000)].concat()
}
