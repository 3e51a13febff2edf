//! The bytes that the gateway sent to its backend, read again by other servers: each request has to
//! be the same for all of them, or one of them could be had to see a request that no client sent.
//! Made of thousands of requests that are a little wrong.

mod server;

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::Size;
use crate::backend::Stream;
use crate::report::{Passed, Report};
use crate::wire;
use crate::world::{HOST, World};
use server::{END, Server};

/// Requests at a time.
const AT_ONCE: usize = 8;
/// A request that takes longer to be answered is left alone; no verdict depends on it.
const PAUSE: Duration = Duration::from_millis(200);
/// Connections that a server may close without a word, one after the other.
const TRIES: usize = 5;
/// Numbers at random, and the same in each run.
const SEED: u64 = 7;

struct Random(u64);

pub(crate) fn run(world: &World, size: Size, report: &mut Report) -> Result<()> {
    let mut random = Random(SEED);
    let requests: Vec<_> = (0..size.of(10_000)).map(|_| request(&mut random)).collect();
    let share = requests.len().div_ceil(AT_ONCE);
    thread::scope(|scope| {
        for requests in requests.chunks(share) {
            scope.spawn(move || requests.iter().for_each(|request| send(world, request)));
        }
    });
    let streams = world.asked.streams();
    let all = || streams.iter().flat_map(|stream| &stream.requests);
    let sent = all().count();
    let wrong = all().filter(|request| !request.head.contains("/witness")).count();
    let malformed: Vec<_> = streams.iter().filter_map(|stream| stream.malformed.clone()).collect();
    report.add(
        format!("smuggling: {} requests that are a little wrong", requests.len()),
        format!("{wrong} were sent on, malformed: {malformed:?}"),
        (malformed.is_empty() && wrong > 0).then_some(Passed),
    );
    for server in server::installed()? {
        let compared: Vec<_> = streams.iter().map(|stream| compare(&server, stream)).collect();
        let refused: usize = compared.iter().flatten().sum();
        let differing: Vec<_> = compared.iter().filter_map(|compared| compared.as_ref().err()).collect();
        let happened = match differing.first() {
            None => format!("{sent} requests are the same to it, but for {refused} that it refused"),
            Some(difference) => format!("{} connections differ; {difference:#}", differing.len()),
        };
        report.add(
            format!("smuggling: as {} reads it", server.name),
            happened,
            differing.is_empty().then_some(Passed),
        );
    }
    Ok(())
}

/// Some are never complete, and not waited for.
fn send(world: &World, request: &[u8]) {
    let Ok(mut stream) = wire::connect(world.plain) else { return };
    let _ = stream.set_read_timeout(Some(PAUSE));
    let _ = stream.write_all(request);
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
}

/// Fails if the server reads other requests in the stream than those that were sent. A server may
/// refuse one, or close the connection behind one: the rest is read on another. Returns the number
/// of those that it refused.
fn compare(server: &Server, stream: &Stream) -> Result<usize> {
    let (mut rest, mut from, mut refused, mut tries) = (&stream.requests[..], 0, 0, TRIES);
    while !rest.is_empty() {
        let ended = rest.iter().position(|sent| server.ends_behind(sent));
        let now = &rest[..ended.map_or(rest.len(), |at| at + 1)];
        let seen = server.read(&stream.bytes[from..now.last().map_or(from, |last| last.end)])?;
        let end = ended.is_none().then(|| END.to_owned());
        let expected: Vec<_> = now.iter().map(|sent| server.line(sent)).chain(end).collect();
        let alike = expected.iter().zip(&seen).take_while(|(expected, seen)| expected == seen).count();
        let sent = now.get(alike).map_or(END, |sent| &sent.head);
        let read = match &seen[alike..] {
            [] if alike == expected.len() => now.len(),
            [] => alike.min(now.len() - 1),
            [status] if status.starts_with('4') && alike < now.len() => alike + 1,
            other => bail!("{sent:?} is {other:?} to it"),
        };
        tries = if read > 0 { TRIES } else { tries - 1 };
        ensure!(tries > 0, "{sent:?} is nothing to it");
        refused += read.saturating_sub(alike);
        from = rest[..read].last().map_or(from, |read| read.end);
        rest = &rest[read..];
    }
    Ok(refused)
}

/// A request line, fields, a body and another request behind it, each of them right or a little
/// wrong, and some bytes that are.
fn request(random: &mut Random) -> Vec<u8> {
    const LINES: &[&str] = &[
        "GET /probe HTTP/1.1",
        "POST /probe HTTP/1.1",
        "PUT /probe?a=b HTTP/1.1",
        "HEAD /probe HTTP/1.1",
        "POST http://a.test/probe HTTP/1.1",
        "OPTIONS /probe/../x HTTP/1.1",
        "DELETE /probe/%7e HTTP/1.1",
        "POST /probe HTTP/1.0",
    ];
    const FIELDS: &[&str] = &[
        "X: y",
        "Connection: close",
        "Connection: keep-alive",
        "Connection: x, close",
        "Expect: 100-continue",
        "TE: trailers",
        "Trailer: x",
        "Upgrade: websocket\r\nConnection: upgrade",
        "Cookie: a=b",
        "Range: bytes=0-",
        "Content-Length: 5",
        "Content-Length: 0",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: Chunked",
        "Transfer-Encoding:\tchunked ",
        "Transfer_Encoding: chunked",
        "X-Content-Length: 3",
        "Content-Length: 5 ",
        "X: \u{e9}",
        "X:",
        "Content-Type: text/plain",
    ];
    const BODIES: &[&str] =
        &["", "abcde", "5\r\nabcde\r\n0\r\n\r\n", "5;a=b\r\nabcde\r\n0\r\nX: y\r\n\r\n", "0\r\n\r\n"];
    const BYTES: &[u8] = b"\r\n\t\0 :;,\"\x0b\x7f\x80 0a";
    let mut head = format!("{}\r\nHost: {HOST}\r\n", random.pick(LINES));
    for _ in 0..random.below(4) {
        head += random.pick(FIELDS);
        head += "\r\n";
    }
    let mut bytes = format!("{head}\r\n{}", random.pick(BODIES)).into_bytes();
    for _ in 0..random.below(3) {
        let at = random.below(bytes.len());
        match random.below(3) {
            0 => drop(bytes.remove(at)),
            1 => bytes.insert(at, random.byte(BYTES)),
            _ => bytes[at] = random.byte(BYTES),
        }
    }
    bytes.extend_from_slice(
        format!("GET /behind HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n").as_bytes(),
    );
    bytes
}

// === impl Random ===

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit.max(1) as u64).unwrap_or_default()
    }

    fn pick<'list>(&mut self, list: &[&'list str]) -> &'list str {
        list[self.below(list.len())]
    }

    fn byte(&mut self, list: &[u8]) -> u8 {
        list[self.below(list.len())]
    }
}
