//! Backends that answer what no server should: a client gets an error or an answer that breaks off,
//! and no byte of it is ever taken for another response.

use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result};

use crate::report::{Passed, Report};
use crate::wire::{self, Ended, Response};
use crate::world::{HOST, HOSTILE, World};
use crate::{Size, backend};

const OK: &str = "HTTP/1.1 200 OK\r\n";
/// Behind what is the whole answer.
const SECOND: &str = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled";

/// A client of the gateway may see this of a hostile answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// 502.
    Error,
    /// A response that is not whole, or 502.
    Broken,
    /// The response, and nothing of what is behind it.
    First,
}

struct Answer {
    name: &'static str,
    bytes: Vec<u8>,
    expected: Expected,
}

/// Serves until the process ends: the answer of the number that the path ends with, and what it was
/// asked for if that is no number.
pub(crate) fn start(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot bind {address}"))?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A peer that goes away is no error.
            thread::spawn(move || serve(stream).ok());
        }
    });
    Ok(())
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let answers = answers();
    while let Some(head) = backend::head(&mut reader)? {
        let number = backend::path(&head).rsplit('/').next().and_then(|number| number.parse::<usize>().ok());
        let Some(answer) = number.and_then(|number| answers.get(number)) else {
            stream.write_all(backend::answer(&head).as_bytes())?;
            continue;
        };
        stream.write_all(&answer.bytes)?;
        if answer.expected == Expected::Broken {
            return Ok(());
        }
    }
    Ok(())
}

pub(crate) fn run(world: &World, _: Size, report: &mut Report) -> Result<()> {
    for (number, Answer { name, expected, .. }) in answers().into_iter().enumerate() {
        let requests = format!(
            "GET {HOSTILE}/{number} HTTP/1.1\r\nHost: {HOST}\r\n\r\n\
             GET {HOSTILE}/own HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
        );
        let (answer, ended) = wire::exchange(world.plain, requests.as_bytes())?;
        let leaked = String::from_utf8_lossy(&answer).contains("smuggled");
        let responses = wire::responses(&answer);
        let passed = ended == Ended::Closed && !leaked && expected.holds(&responses);
        let seen = responses.iter().map(Response::outline);
        let seen: Vec<_> = seen.chain(leaked.then(|| "bytes of another".to_owned())).collect();
        let happened = if seen.is_empty() { "closed".to_owned() } else { seen.join(", ") };
        report.add(format!("hostile backend: {name}"), happened, passed.then_some(Passed));
    }
    Ok(())
}

// === impl Expected ===

impl Expected {
    /// The responses to two requests on a connection: the second one is the client's own.
    fn holds(self, responses: &[Response]) -> bool {
        let Some((first, rest)) = responses.split_first() else { return self == Self::Broken };
        let is_own = matches!(rest, [own] if own.is_whole && own.body.ends_with(b"/own\n"));
        let is_refused = first.status == 502 && is_own;
        match self {
            Self::Error => is_refused,
            Self::Broken => is_refused || !first.is_whole && rest.is_empty(),
            Self::First => is_refused || first.is_whole && [200, 204].contains(&first.status) && is_own,
        }
    }
}

// === impl Response ===

impl Response {
    fn outline(&self) -> String {
        format!("{}{}", self.status, if self.is_whole { "" } else { " broken off" })
    }
}

fn answers() -> Vec<Answer> {
    heads().into_iter().chain(bodies()).collect()
}

fn heads() -> Vec<Answer> {
    let answer = |name, bytes: Vec<u8>| Answer { name, bytes, expected: Expected::Error };
    let ok = |name, fields: &str| answer(name, format!("{OK}{fields}\r\nabc").into_bytes());
    let text = |name, text: &str| answer(name, text.as_bytes().to_vec());
    vec![
        text("no HTTP", "SSH-2.0-OpenSSH\r\n\r\n"),
        answer("binary", vec![0xff; 64 << 10]),
        text("a status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"),
        text("a status of four digits", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"),
        text("HTTP/2.0 in a status line", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n"),
        text("101 unasked", "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
        ok("two lengths", "Content-Length: 3\r\nContent-Length: 4\r\n"),
        ok("a list of lengths", "Content-Length: 3, 4\r\n"),
        ok("length +3", "Content-Length: +3\r\n"),
        ok("length of 30 digits", "Content-Length: 999999999999999999999999999999\r\n"),
        ok("NUL in a field", "X: a\0b\r\nContent-Length: 3\r\n"),
        ok("CR in a field", "X: a\rb\r\nContent-Length: 3\r\n"),
        ok("a field without colon", "X\r\nContent-Length: 3\r\n"),
        ok("a space before the colon", "Content-Length : 3\r\n"),
        ok("an unknown transfer coding", "Transfer-Encoding: gzip, chunked\r\n"),
        ok("chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        ok("a field of 100 KB", &format!("X: {}\r\nContent-Length: 3\r\n", "x".repeat(100_000))),
        ok("1000 fields", &format!("{}Content-Length: 3\r\n", "X: y\r\n".repeat(1000))),
    ]
}

fn bodies() -> Vec<Answer> {
    let answer = |name, text: String, expected| Answer { name, bytes: text.into_bytes(), expected };
    let chunked = format!("{OK}Transfer-Encoding: chunked\r\n\r\n");
    let broken = |name, text: String| answer(name, text, Expected::Broken);
    let first = |name, text: String| answer(name, text + SECOND, Expected::First);
    vec![
        broken("nothing but 103", "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000)),
        broken("a head that breaks off", format!("{OK}X: y\r\n")),
        broken("a body that breaks off", format!("{OK}Content-Length: 100\r\n\r\nabc")),
        broken("chunks that break off", format!("{chunked}5\r\nab")),
        broken("chunks without a last one", format!("{chunked}3\r\nabc\r\n")),
        broken("a chunk size that is none", format!("{chunked}xyz\r\nabc\r\n0\r\n\r\n")),
        broken("a chunk size that overflows", format!("{chunked}10000000000000003\r\nabc\r\n0\r\n\r\n")),
        broken("a chunk that is longer than it says", format!("{chunked}3\r\nabcXX0\r\n\r\n")),
        broken("trailers of 100 KB", format!("{chunked}0\r\nX: {}\r\n\r\n", "x".repeat(100_000))),
        first("another response behind", format!("{OK}Content-Length: 3\r\n\r\nabc")),
        first("another behind chunks", format!("{chunked}3\r\nabc\r\n0\r\n\r\n")),
        first("another behind 204", "HTTP/1.1 204 No Content\r\n\r\n".to_owned()),
        first("another behind 204 with a length", "HTTP/1.1 204 No\r\nContent-Length: 3\r\n\r\n".to_owned()),
    ]
}
