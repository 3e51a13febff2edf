//! Cases at random: requests and responses that are fine, put together, and then broken.

use fastrand::Rng;

use super::case::{Answer, Case};

const TARGETS: [&str; 12] = [
    "/a",
    "/a/x?y=z",
    "/a/",
    "/b",
    "/b/x",
    "/none",
    "/a/%41",
    "/a/../a/x",
    "*",
    "/a//b",
    "http://a.test/a/x",
    "/a?x=%00",
];
const METHODS: [&str; 9] = ["GET", "GET", "GET", "POST", "POST", "PUT", "HEAD", "DELETE", "OPTIONS"];
const FIELDS: [&str; 24] = [
    "Accept: */*",
    "X-A: b",
    "x-a: c",
    "Cookie: a=b",
    "Connection: close",
    "Connection: keep-alive",
    "Connection: x-a",
    "Keep-Alive: timeout=5",
    "TE: trailers",
    "Expect: 100-continue",
    "X-Forwarded-For: 9.9.9.9",
    "X_Forwarded_For: 9.9.9.9",
    "Forwarded: for=9.9.9.9",
    "X-Empty:",
    "X-Tab:\ta\t",
    "Trailer: x-sum",
    "Content-Type: text/plain",
    "User-Agent: some/1.0",
    "Accept-Encoding: gzip",
    "X-Colon: a:b:c",
    "X-Request-Id: given",
    "If-None-Match: \"1\"",
    "Upgrade: websocket",
    "Proxy-Connection: keep-alive",
];
/// Bytes that change what a message is.
const PIECES: [&str; 38] = [
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    "\n\n",
    " ",
    "\t",
    ":",
    "0",
    "00",
    "5",
    "a",
    ",",
    ";",
    "\0",
    "\u{b}",
    "\u{e9}",
    "\u{7f}",
    "#",
    "%",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 05\r\n",
    "content-length:5\r\n",
    "Content-Length: +5\r\n",
    "Content-Length: 5, 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "transfer-encoding:\tCHUNKED \r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Host: a.test\r\n",
    "Host: b.test\r\n",
    " folded\r\n",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "5;x=\"\r\n\"\r\nhello\r\n",
    "GET /a/smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "HTTP/1.0",
];

/// The request that ends every case: if it is answered, everything before it was read in the same
/// way.
const LAST: &str = "GET /a/last HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";

pub(crate) fn case(seed: u64) -> Case {
    let mut random = Rng::with_seed(seed);
    let random = &mut random;
    let requests = random.usize(1..4);
    let mut client = Vec::new();
    for _ in 0..requests {
        client.extend(request(random));
    }
    if random.u8(..4) != 0 {
        mangle(random, &mut client);
    }
    client.extend(LAST.as_bytes());
    let answers = (0..random.usize(0..4)).map(|_| answer(random)).collect();
    let piece = if random.bool() { usize::MAX } else { random.usize(1..200) };
    Case { client, piece, answers }
}

fn request(random: &mut Rng) -> Vec<u8> {
    let (method, target) = (pick(random, &METHODS), pick(random, &TARGETS));
    let version = if random.u8(..16) == 0 { "HTTP/1.0" } else { "HTTP/1.1" };
    let mut bytes = format!("{method} {target} {version}\r\nHost: a.test\r\n").into_bytes();
    add_fields(random, &mut bytes);
    let has_body = random.u8(..3) == 0 || matches!(method, "POST" | "PUT");
    add_body(random, &mut bytes, has_body);
    bytes
}

fn answer(random: &mut Rng) -> Answer {
    let status = pick(
        random,
        &[
            "200 OK",
            "200 OK",
            "200 OK",
            "204 No Content",
            "304 Not Modified",
            "404 Not Found",
            "500",
            "299 Odd",
        ],
    );
    let version = if random.u8(..12) == 0 { "HTTP/1.0" } else { "HTTP/1.1" };
    let mut bytes = Vec::new();
    if random.u8(..12) == 0 {
        bytes.extend(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
    }
    bytes.extend(format!("{version} {status}\r\n").bytes());
    add_fields(random, &mut bytes);
    let closes = random.u8(..6) == 0;
    if closes && random.bool() {
        bytes.extend(b"\r\nuntil the end");
    } else {
        let has_body = !status.starts_with("204") && !status.starts_with("304") && random.u8(..4) != 0;
        if !has_body && random.bool() {
            bytes.extend(b"Content-Length: 0\r\n");
        }
        add_body(random, &mut bytes, has_body);
    }
    if random.u8(..3) == 0 {
        mangle(random, &mut bytes);
    }
    Answer { bytes, closes: closes || random.u8(..4) == 0 }
}

fn add_fields(random: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(0..5) {
        // What switches protocols, and what waits, is rare.
        let field = pick(random, &FIELDS);
        let is_rare = field.starts_with("Upgrade") || field.starts_with("Expect");
        if !is_rare || random.u8(..4) == 0 {
            bytes.extend(field.bytes().chain("\r\n".bytes()));
        }
    }
}

/// The fields of a body, the end of the head, and the body.
fn add_body(random: &mut Rng, bytes: &mut Vec<u8>, has_body: bool) {
    if !has_body {
        return bytes.extend(b"\r\n");
    }
    let size = pick(random, &[0, 1, 5, 5, 300, 5000, 40_000]);
    let body: Vec<u8> = (0..size).map(|_| random.u8(b' '..b'~')).collect();
    if random.bool() {
        bytes.extend(format!("Content-Length: {size}\r\n\r\n").bytes().chain(body));
        return;
    }
    bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
    let mut rest = &body[..];
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(random.usize(1..=rest.len()));
        let extension = if random.u8(..8) == 0 { ";a=b" } else { "" };
        bytes.extend(format!("{:x}{extension}\r\n", chunk.len()).bytes());
        bytes.extend(chunk.iter().copied().chain(*b"\r\n"));
        rest = after;
    }
    let trailers = if random.u8(..4) == 0 { "x-sum: 1\r\nx-other: 2\r\n" } else { "" };
    bytes.extend(format!("0\r\n{trailers}\r\n").bytes());
}

/// Breaks bytes in one to three places, more often in a head than in a long body.
fn mangle(random: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(1..4) {
        if bytes.is_empty() {
            return;
        }
        let at =
            if random.bool() { random.usize(..bytes.len()) } else { random.usize(..bytes.len().min(200)) };
        // Where a line ends is where readers differ.
        let at = match bytes[at..].iter().position(|byte| *byte == b'\n') {
            Some(end) if random.bool() => (at + end + 1).min(bytes.len() - 1),
            _ => at,
        };
        match random.u8(..6) {
            0 => drop(bytes.remove(at)),
            1 => bytes[at] = random.u8(..),
            2 => bytes[at] ^= 1 << random.u8(..8),
            3 => {
                let end = (at + random.usize(1..20)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            _ => drop(bytes.splice(at..at, pick(random, &PIECES).bytes())),
        }
    }
}

fn pick<T: Copy>(random: &mut Rng, all: &[T]) -> T {
    all[random.usize(..all.len())]
}
