//! Clients that begin and do not go on: heads, bodies and ClientHellos, a byte now and then. Each
//! has to be closed in time, whatever it sends. All of them are there at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::Size;
use crate::report::{Passed, Report};
use crate::wire;
use crate::world::{HEAD_TIMEOUT, HOST, World};

/// Between two bytes of a client.
const PAUSE: Duration = Duration::from_millis(250);
/// For a machine that has other things to do. With it the limit still is less than the 60 s after
/// which a connection that has begun nothing is closed.
const SLACK: Duration = Duration::from_secs(35);

/// Clients of a kind.
struct Clients {
    name: &'static str,
    open: Vec<TcpStream>,
    count: usize,
    more: &'static [u8],
    begun: Instant,
    took: Duration,
}

pub(crate) fn run(world: &World, size: Size, report: &mut Report) -> Result<()> {
    let mut kinds = begin(world, size.of(300))?;
    let begun = Instant::now();
    while kinds.iter().any(|clients| !clients.open.is_empty()) && begun.elapsed() < HEAD_TIMEOUT + SLACK {
        thread::sleep(PAUSE);
        kinds.iter_mut().for_each(Clients::go_on);
    }
    for Clients { name, open, count, took, .. } in kinds {
        let (left, took) = (open.len(), took.as_secs_f64());
        let happened = match left {
            0 => format!("{count} closed within {took:.1} s"),
            left => format!("{left} of {count} open after {took:.1} s"),
        };
        report.add(format!("slow: {name}"), happened, (left == 0).then_some(Passed));
    }
    Ok(())
}

fn begin(world: &World, count: usize) -> Result<Vec<Clients>> {
    let post = |fields: &str| format!("POST /slow HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n").into_bytes();
    let chunked = [&post("Transfer-Encoding: chunked\r\n")[..], b"fffff\r\n"].concat();
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    // The beginning of a frame of HEADERS, of 16 KiB.
    let head_of_2 = [&preface[..], &[0, 64, 0, 1, 4, 0, 0, 0, 1]].concat();
    let hello = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let kinds = [
        ("nothing at all", world.plain, vec![], &[][..]),
        ("a head", world.plain, b"GET /slow HTTP/1.1\r\nX: ".to_vec(), b"y"),
        ("empty lines", world.plain, b"\r\n".to_vec(), b"\r\n"),
        ("half of the preface of HTTP/2", world.plain, b"PRI * HTTP".to_vec(), b""),
        ("a head of HTTP/2", world.plain, head_of_2, &[0]),
        ("a body", world.plain, post("Content-Length: 1000000\r\n"), b"x"),
        ("a chunk", world.plain, chunked, b"x"),
        ("nothing before TLS", world.tls, vec![], &[][..]),
        ("a ClientHello", world.tls, hello, &[0]),
    ];
    kinds.iter().map(|(name, at, bytes, more)| Clients::begin(name, count, *at, bytes, more)).collect()
}

// === impl Clients ===

impl Clients {
    fn begin(
        name: &'static str,
        count: usize,
        at: SocketAddr,
        bytes: &[u8],
        more: &'static [u8],
    ) -> Result<Self> {
        let begin = |_| {
            let mut stream = wire::connect(at)?;
            stream.write_all(bytes)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let open = (0..count).map(begin).collect::<Result<_>>()?;
        Ok(Self { name, open, count, more, begun: Instant::now(), took: Duration::ZERO })
    }

    fn go_on(&mut self) {
        if self.open.is_empty() {
            return;
        }
        self.open.retain_mut(|stream| is_open(stream, self.more));
        self.took = self.begun.elapsed();
    }
}

/// Goes on; false if the connection has ended.
fn is_open(stream: &mut TcpStream, more: &'static [u8]) -> bool {
    let is_blocked = |kind| kind == ErrorKind::WouldBlock;
    if !more.is_empty() && stream.write(more).is_err_and(|error| !is_blocked(error.kind())) {
        return false;
    }
    match stream.read(&mut [0; 1024]) {
        // An answer comes before the end.
        Ok(count) => count > 0,
        Err(error) => is_blocked(error.kind()),
    }
}
