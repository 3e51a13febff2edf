//! HTTP/2 by its frames: malformed requests, none of which may be answered with success, and floods
//! of frames that cost the sender nothing, each of which has to end the connection early.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use anyhow::Result;

use crate::Size;
use crate::report::Report;
use crate::wire::{self, Ended};
use crate::world::{HOST, World};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The field `:status: 200` of HPACK's static table.
const STATUS_200: u8 = 0x88;

/// What is sent again and again on a connection.
struct Flood {
    name: &'static str,
    frames: usize,
    begin: Vec<u8>,
    frame: fn(u32) -> Vec<u8>,
}

pub(crate) fn run(world: &World, size: Size, report: &mut Report) -> Result<()> {
    for (name, fields, body) in requests() {
        let flags = END_HEADERS | if body.is_empty() { END_STREAM } else { 0 };
        let mut bytes =
            [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, flags, 1, &block(&fields))].concat();
        if !body.is_empty() {
            bytes.extend(frame(DATA, END_STREAM, 1, body));
        }
        // So that the end of what is answered is seen at once.
        bytes.extend(frame(GOAWAY, 0, 0, &[0; 8]));
        let before = world.asked.count("/probe");
        let (answer, _) = wire::exchange(world.plain, &bytes)?;
        let is_accepted = accepted(&answer) > 0 || world.asked.count("/probe") > before;
        let happened = if is_accepted { "accepted" } else { "refused" };
        report.add(format!("HTTP/2: {name}"), happened, !is_accepted);
    }
    for flood in floods(size) {
        let stopped = flood.run(world)?;
        let happened = match stopped {
            Some(frames) => format!("closed after some {frames} of {} frames", flood.frames),
            None => format!("open after {} frames", flood.frames),
        };
        report.add(format!("HTTP/2 flood: {}", flood.name), happened, stopped.is_some());
    }
    Ok(())
}

/// Names and values.
type Fields = Vec<(&'static str, &'static str)>;

/// Name, fields and body of requests that are malformed.
fn requests() -> Vec<(&'static str, Fields, &'static [u8])> {
    let with = |more: &[(&'static str, &'static str)]| {
        let request = [(":method", "GET"), (":scheme", "http"), (":path", "/probe"), (":authority", HOST)];
        request.iter().chain(more).copied().collect::<Vec<_>>()
    };
    let plain = |fields: &[(&'static str, &'static str)]| fields.to_vec();
    vec![
        ("host unlike :authority", with(&[("host", "b.test")]), b""),
        (
            "neither host nor :authority",
            plain(&[(":method", "GET"), (":scheme", "http"), (":path", "/probe")]),
            b"",
        ),
        (
            "userinfo in :authority",
            plain(&[
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "/probe"),
                (":authority", "x@a.test"),
            ]),
            b"",
        ),
        ("no :path", plain(&[(":method", "GET"), (":scheme", "http"), (":authority", HOST)]), b""),
        (
            "an empty :path",
            plain(&[(":method", "GET"), (":scheme", "http"), (":path", ""), (":authority", HOST)]),
            b"",
        ),
        ("two of :path", with(&[(":path", "/probe")]), b""),
        ("a pseudo-header behind fields", with(&[("x", "y"), (":authority", HOST)]), b""),
        ("an unknown pseudo-header", with(&[(":smuggled", "y")]), b""),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")]), b""),
        ("connection", with(&[("connection", "close")]), b""),
        ("te that is not trailers", with(&[("te", "gzip")]), b""),
        ("upper case in a name", with(&[("X-Upper", "y")]), b""),
        ("a colon in a name", with(&[("x:y", "z")]), b""),
        ("a line break in a value", with(&[("x", "y\r\nsmuggled: z")]), b""),
        ("a line break in a name", with(&[("x\r\ny", "z")]), b""),
        ("NUL in a value", with(&[("x", "y\0z")]), b""),
        ("a space in :path", with_path("/probe HTTP/1.1\r\nx: y"), b""),
        ("a fragment in :path", with_path("/probe#x"), b""),
        ("an encoded slash in :path", with_path("/probe/..%2fx"), b""),
        ("NUL in :path", with_path("/probe%00"), b""),
        ("less body than content-length", with(&[("content-length", "9")]), b"abc"),
        ("more body than content-length", with(&[("content-length", "1")]), b"abc"),
        ("two lengths", with(&[("content-length", "3"), ("content-length", "4")]), b"abc"),
        ("CONNECT", plain(&[(":method", "CONNECT"), (":authority", "a.test:80")]), b""),
    ]
}

fn with_path(path: &'static str) -> Fields {
    vec![(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", HOST)]
}

fn floods(size: Size) -> Vec<Flood> {
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    // No window: responses cannot end.
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let unread = [PREFACE, &no_window].concat();
    let one_open = [&begin[..], &frame(HEADERS, END_HEADERS, 1, &block(&post()))].concat();
    let unended = [&begin[..], &frame(HEADERS, 0, 1, &block(&get()))].concat();
    let flood = |name, frames, begin: &[u8], frame| Flood { name, frames, begin: begin.to_vec(), frame };
    vec![
        flood("rapid reset", size.of(40_000), &begin, |number| {
            let stream = 2 * number + 1;
            [request(stream), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        }),
        flood("resets that the server is made to send", size.of(40_000), &begin, |number| {
            let stream = 2 * number + 1;
            [request(stream), frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat()
        }),
        flood("streams without window", size.of(40_000), &unread, |number| {
            let stream = 2 * number + 1;
            [request(stream), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        }),
        flood("CONTINUATION", size.of(20_000), &unended, |_| {
            frame(CONTINUATION, 0, 1, &block(&[("x", "continued")]))
        }),
        flood("empty CONTINUATION", size.of(100_000), &unended, |_| frame(CONTINUATION, 0, 1, &[])),
        flood("SETTINGS", size.of(50_000), &begin, |_| frame(SETTINGS, 0, 0, &[])),
        flood("windows that change", size.of(50_000), &begin, |number| {
            frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, if number % 2 == 0 { 1 } else { 0 }])
        }),
        flood("PING", size.of(50_000), &begin, |_| frame(PING, 0, 0, &[7; 8])),
        flood("PRIORITY", size.of(50_000), &begin, |number| {
            frame(PRIORITY, 0, 2 * number + 1, &[0, 0, 0, 0, 1])
        }),
        flood("empty DATA", size.of(50_000), &one_open, |_| frame(DATA, 0, 1, &[])),
        flood("windows that overflow", size.of(1000), &begin, |_| {
            frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])
        }),
    ]
}

impl Flood {
    /// The number of frames after which the connection was closed; `None` if it was not.
    fn run(&self, world: &World) -> Result<Option<usize>> {
        /// Sent at once.
        const BATCH: usize = 20;
        let mut stream = wire::connect(world.plain)?;
        if stream.write_all(&self.begin).is_err() {
            return Ok(Some(0));
        }
        let mut reading = stream.try_clone()?;
        // What is answered is read: an attacker that does not would be slowed down.
        let reader = thread::spawn(move || until_goaway(&mut reading));
        let mut number = 0;
        while number < self.frames && !reader.is_finished() {
            let upto = (number + BATCH).min(self.frames);
            let bytes: Vec<u8> =
                (number..upto).flat_map(|it| (self.frame)(u32::try_from(it).unwrap_or_default())).collect();
            if stream.write_all(&bytes).is_err() {
                break;
            }
            number = upto;
        }
        let ended = reader.join().unwrap_or(Ended::Open);
        Ok((ended == Ended::Closed).then_some(number))
    }
}

/// Reads until the server says that it closes the connection, or does, or nothing comes any more.
fn until_goaway(stream: &mut TcpStream) -> Ended {
    let mut head = [0; 9];
    loop {
        if let Err(error) = stream.read_exact(&mut head) {
            let is_slow =
                matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            return if is_slow { Ended::Open } else { Ended::Closed };
        }
        if head[3] == GOAWAY {
            return Ended::Closed;
        }
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if stream.read_exact(&mut vec![0; length]).is_err() {
            return Ended::Closed;
        }
    }
}

/// The number of responses with status 200 among these frames.
fn accepted(mut bytes: &[u8]) -> usize {
    let mut found = 0;
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = bytes {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        let payload = &rest[..length.min(rest.len())];
        found += usize::from(*kind == HEADERS && payload.first() == Some(&STATUS_200));
        bytes = &rest[payload.len()..];
    }
    found
}

fn request(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&get()))
}

fn get() -> [(&'static str, &'static str); 4] {
    [(":method", "GET"), (":scheme", "http"), (":path", "/flood"), (":authority", HOST)]
}

fn post() -> [(&'static str, &'static str); 4] {
    [(":method", "POST"), (":scheme", "http"), (":path", "/flood"), (":authority", HOST)]
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as HPACK has them that are in no table; all are shorter than 127 bytes.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap_or_default()], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}
