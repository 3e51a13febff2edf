//! Requests of HTTP/1 that two hops could read differently: none may be answered with success, the
//! connection ends, and behind none of them is another request to be found.

use anyhow::Result;

use crate::Size;
use crate::report::Report;
use crate::wire::{self, Ended};
use crate::world::{HOST, World};

/// Behind each probe, and for the backend none of the gateway's requests.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n";

struct Probe {
    name: &'static str,
    bytes: Vec<u8>,
}

pub(crate) fn run(world: &World, _: Size, report: &mut Report) -> Result<()> {
    for Probe { name, bytes } in probes() {
        let before = world.asked.count("/probe") + world.asked.count("/smuggled");
        let (answer, ended) = wire::exchange(world.plain, &bytes)?;
        let after = world.asked.count("/probe") + world.asked.count("/smuggled");
        let statuses = wire::statuses(&answer);
        let refused = statuses.iter().all(|status| (400..600).contains(status));
        let happened = match (&statuses[..], ended) {
            ([], Ended::Closed) => "closed".to_owned(),
            ([], Ended::Open) => "no answer".to_owned(),
            (_, Ended::Closed) => format!("{statuses:?}, closed"),
            (_, Ended::Open) => format!("{statuses:?}, open"),
        };
        let passed = refused && statuses.len() <= 1 && ended == Ended::Closed && before == after;
        let reached = if before == after { "" } else { ", and a backend was asked" };
        report.add(format!("HTTP/1: {name}"), happened + reached, passed);
    }
    Ok(())
}

fn probes() -> Vec<Probe> {
    let mut probes = Vec::new();
    let mut add = |name, bytes: Vec<u8>| probes.push(Probe { name, bytes });
    for (name, fields, body) in BODIES {
        let head = format!("POST /probe HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n{body}");
        add(name, [head.as_bytes(), SMUGGLED.as_bytes()].concat());
    }
    for (name, head) in HEADS {
        add(name, [head.as_bytes(), SMUGGLED.as_bytes()].concat());
    }
    for (name, path) in PATHS {
        // The connection may go on, so it is told to end.
        let request = format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
        add(name, request.into_bytes());
    }
    let long = |count: usize| "x".repeat(count);
    let get =
        |rest: String| format!("GET /probe HTTP/1.1\r\nHost: {HOST}\r\n{rest}Connection: close\r\n\r\n");
    add("a field of 70 KB", get(format!("X: {}\r\n", long(70_000))).into_bytes());
    add("a field of 40 KB", get(format!("X: {}\r\n", long(40_000))).into_bytes());
    add("1000 fields", get("X: y\r\n".repeat(1000)).into_bytes());
    add("150 fields", get("X: y\r\n".repeat(150)).into_bytes());
    add("100 crumbs of a cookie", get("Cookie: a=b\r\n".repeat(90)).into_bytes());
    add(
        "a target of 9 KB",
        format!("GET /probe{} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n", long(9000))
            .into_bytes(),
    );
    let head = format!("POST /probe HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
    add("a chunk extension of 20 KB", format!("{head}3;{}\r\nabc\r\n0\r\n\r\n", long(20_000)).into_bytes());
    add("a truncated head", b"GET /probe HTTP/1.1\r\nHost: a.test\r\nX: \0\r\n\r\n".to_vec());
    probes
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
    ("HTTP/1.2", "GET /probe HTTP/1.2\r\nHost: a.test\r\n\r\n"),
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
const PATHS: &[(&str, &str)] = &[
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
