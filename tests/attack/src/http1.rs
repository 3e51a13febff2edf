//! Requests of HTTP/1 that two hops could read differently: each is refused, the connection ends,
//! no backend hears of it, and behind none of them is another request to be found.

use anyhow::Result;

use crate::Size;
use crate::report::{Passed, Report};
use crate::wire::{self, Ended};
use crate::world::{HOST, World};

/// Behind each probe, and for the backend none of the gateway's requests.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n";
/// Statuses that find fault with the request; 404 or 502 would mean that it was taken.
const REFUSALS: &[u16] = &[400, 405, 413, 414, 431, 501, 505];

struct Probe {
    name: &'static str,
    bytes: Vec<u8>,
    expected: Expected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Refused,
    /// Without it a refusal would prove nothing.
    Served,
}

pub(crate) fn run(world: &World, _: Size, report: &mut Report) -> Result<()> {
    for Probe { name, bytes, expected } in probes() {
        let asked = || world.asked.count(" /probe") + world.asked.count(" /smuggled");
        let before = asked();
        let (answer, ended) = wire::exchange(world.plain, &bytes)?;
        let reached = asked() - before;
        let statuses = wire::statuses(&answer);
        let is_refused = matches!(&statuses[..], [] | [_]) && statuses.iter().all(|it| REFUSALS.contains(it));
        let happened = match (&statuses[..], ended) {
            ([], Ended::Closed) => "closed".to_owned(),
            (_, Ended::Closed) => format!("{statuses:?}, closed"),
            (_, Ended::Open) => format!("{statuses:?}, open"),
        };
        let happened = format!("{happened}; the backend was asked {reached} times");
        let holds = match expected {
            Expected::Refused => is_refused && reached == 0,
            Expected::Served => statuses == [200] && reached == 1,
        };
        report.add(format!("HTTP/1: {name}"), happened, (holds && ended == Ended::Closed).then_some(Passed));
    }
    Ok(())
}

fn probes() -> Vec<Probe> {
    let mut probes = controls();
    let mut add = |name, bytes: String| {
        probes.push(Probe { name, bytes: bytes.into_bytes(), expected: Expected::Refused });
    };
    for (name, fields, body) in BODIES {
        add(name, format!("POST /probe HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n{body}{SMUGGLED}"));
    }
    for (name, head) in HEADS {
        add(name, format!("{head}{SMUGGLED}"));
    }
    for (name, target) in TARGETS {
        add(name, get(target, ""));
    }
    let long = |count: usize| "x".repeat(count);
    add("a field of 70 KB", get("/probe", &format!("X: {}\r\n", long(70_000))));
    add("a field of 40 KB", get("/probe", &format!("X: {}\r\n", long(40_000))));
    add("1000 fields", get("/probe", &"X: y\r\n".repeat(1000)));
    add("101 fields", get("/probe", &"X: y\r\n".repeat(99)));
    add("65 cookies", get("/probe", &"Cookie: a=b\r\n".repeat(65)));
    add("a target of 9 KB", get(&format!("/probe/{}", long(9000)), ""));
    let chunked = format!("POST /probe HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
    add("a chunk extension of 20 KB", format!("{chunked}3;{}\r\nabc\r\n0\r\n\r\n{SMUGGLED}", long(20_000)));
    probes
}

/// The parts of probes, when nothing is wrong with them.
fn controls() -> Vec<Probe> {
    let post = |fields: &str, body: &str| {
        let fields = format!("{fields}Connection: close\r\n");
        format!("POST /probe HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n{body}")
    };
    let served = |name, bytes: String| Probe { name, bytes: bytes.into_bytes(), expected: Expected::Served };
    vec![
        served("nothing wrong", get("/probe", "")),
        served("nothing wrong with an absolute target", get(&format!("http://{HOST}/probe"), "")),
        served("nothing wrong with a length", post("Content-Length: 3\r\n", "abc")),
        served(
            "nothing wrong with chunks",
            post("Transfer-Encoding: chunked\r\n", "3;a=b\r\nabc\r\n0\r\n\r\n"),
        ),
        served("98 fields", get("/probe", &"X: y\r\n".repeat(96))),
        served("a field of 20 KB", get("/probe", &format!("X: {}\r\n", "x".repeat(20_000)))),
    ]
}

/// The connection might go on, so it is told to end.
fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n{fields}Connection: close\r\n\r\n")
}

/// Name, fields and body.
const BODIES: &[(&str, &str, &str)] = &[
    (
        "Content-Length and Transfer-Encoding",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "0\r\n\r\n",
    ),
    (
        "Transfer-Encoding and Content-Length",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "0\r\n\r\n",
    ),
    ("TE identity, chunked", "Transfer-Encoding: identity, chunked\r\n", "0\r\n\r\n"),
    ("TE chunked, identity", "Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
    ("TE xchunked", "Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
    ("TE in quotes", "Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"),
    ("TE behind a vertical tab", "Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"),
    ("TE with space before the colon", "Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
    ("TE twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n"),
    ("TE chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
    ("TE folded", "Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"),
    ("two lengths", "Content-Length: 3\r\nContent-Length: 4\r\n", "abc"),
    ("the same length twice", "Content-Length: 3\r\nContent-Length: 3\r\n", "abc"),
    ("a list of lengths", "Content-Length: 3, 3\r\n", "abc"),
    ("length +3", "Content-Length: +3\r\n", "abc"),
    ("length 0x3", "Content-Length: 0x3\r\n", "abc"),
    ("length -3", "Content-Length: -3\r\n", "abc"),
    ("length 3 x", "Content-Length: 3 x\r\n", "abc"),
    ("length of 30 digits", "Content-Length: 999999999999999999999999999999\r\n", "abc"),
    ("length with space before the colon", "Content-Length : 3\r\n", "abc"),
    ("chunk size overflow", "Transfer-Encoding: chunked\r\n", "10000000000000003\r\nabc\r\n0\r\n\r\n"),
    ("chunk size 0x3", "Transfer-Encoding: chunked\r\n", "0x3\r\nabc\r\n0\r\n\r\n"),
    ("chunk size +3", "Transfer-Encoding: chunked\r\n", "+3\r\nabc\r\n0\r\n\r\n"),
    ("chunk size with space", "Transfer-Encoding: chunked\r\n", "3 \t;\nabc\r\n0\r\n\r\n"),
    ("chunk with a bad end", "Transfer-Encoding: chunked\r\n", "3\r\nabcXX0\r\n\r\n"),
    ("chunk line that LF ends", "Transfer-Encoding: chunked\r\n", "3\nabc\r\n0\r\n\r\n"),
    ("LF in a chunk extension", "Transfer-Encoding: chunked\r\n", "3;a\nb\r\nabc\r\n0\r\n\r\n"),
    ("chunk data that LF ends", "Transfer-Encoding: chunked\r\n", "3\r\nabc\n0\r\n\r\n"),
    ("a trailer without colon", "Transfer-Encoding: chunked\r\n", "0\r\nhost\r\n\r\n"),
];

/// Name and whole head.
const HEADS: &[(&str, &str)] = &[
    ("TE in HTTP/1.0", "POST /probe HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("lines that LF ends", "GET /probe HTTP/1.1\nHost: a.test\n\n"),
    ("a line that LF ends", "GET /probe HTTP/1.1\r\nHost: a.test\r\nX: y\nZ: 1\r\n\r\n"),
    ("CR in a value", "GET /probe HTTP/1.1\r\nHost: a.test\r\nX: a\rb\r\n\r\n"),
    ("NUL in a value", "GET /probe HTTP/1.1\r\nHost: a.test\r\nX: a\0b\r\n\r\n"),
    ("a folded field", "GET /probe HTTP/1.1\r\nHost: a.test\r\nX: a\r\n b\r\n\r\n"),
    ("a first field that is folded", "GET /probe HTTP/1.1\r\n X: a\r\nHost: a.test\r\n\r\n"),
    ("a field without colon", "GET /probe HTTP/1.1\r\nHost: a.test\r\nX\r\n\r\n"),
    ("a field without name", "GET /probe HTTP/1.1\r\nHost: a.test\r\n: x\r\n\r\n"),
    ("no Host", "GET /probe HTTP/1.1\r\n\r\n"),
    ("two Hosts", "GET /probe HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n"),
    ("the same Host twice", "GET /probe HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n"),
    ("Host with userinfo", "GET /probe HTTP/1.1\r\nHost: a@a.test\r\n\r\n"),
    ("Host with a path", "GET /probe HTTP/1.1\r\nHost: a.test/x\r\n\r\n"),
    ("Host with a space", "GET /probe HTTP/1.1\r\nHost: a.test b\r\n\r\n"),
    ("Host with a port that is none", "GET /probe HTTP/1.1\r\nHost: a.test:x\r\n\r\n"),
    ("absolute target without Host", "GET http://a.test/probe HTTP/1.1\r\n\r\n"),
    ("userinfo in the target", "GET http://x@a.test/probe HTTP/1.1\r\nHost: a.test\r\n\r\n"),
    ("two spaces in the request line", "GET  /probe HTTP/1.1\r\nHost: a.test\r\n\r\n"),
    ("a tab in the request line", "GET\t/probe HTTP/1.1\r\nHost: a.test\r\n\r\n"),
    ("HTTP/2.0", "GET /probe HTTP/2.0\r\nHost: a.test\r\n\r\n"),
    ("HTTP/0.9", "GET /probe\r\n"),
    ("a version of many digits", "GET /probe HTTP/1.11\r\nHost: a.test\r\n\r\n"),
    ("a fragment", "GET /probe#x HTTP/1.1\r\nHost: a.test\r\n\r\n"),
    ("a method that is no token", "GE(T /probe HTTP/1.1\r\nHost: a.test\r\n\r\n"),
    ("Connection: host", "GET /probe HTTP/1.1\r\nHost: a.test\r\nConnection: host\r\n\r\n"),
    (
        "Connection: authorization",
        "GET /probe HTTP/1.1\r\nHost: a.test\r\nAuthorization: x\r\nConnection: authorization\r\n\r\n",
    ),
    (
        "Connection: content-length",
        "POST /probe HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\nConnection: content-length\r\n\r\nabc",
    ),
    (
        "Connection: x-forwarded-for",
        "GET /probe HTTP/1.1\r\nHost: a.test\r\nConnection: x-forwarded-for\r\n\r\n",
    ),
];

/// Name and target.
const TARGETS: &[(&str, &str)] = &[
    ("%00 in the path", "/probe%00"),
    ("a backslash in the path", "/probe\\..\\x"),
    ("an encoded slash", "/probe/..%2fx"),
    ("an encoded backslash", "/probe/..%5cx"),
    ("a parameter on a dot segment", "/probe/..;/x"),
    ("an encoded parameter on a dot segment", "/probe/%2e%2e;a=b/x"),
    ("a malformed escape", "/probe%zz"),
    ("an escape that is cut off", "/probe%2"),
    ("a path that is not absolute", "probe"),
];
