//! Clients that begin and do not go on: heads, bodies and ClientHellos, a byte now and then. Each
//! has to be closed in time, whatever it sends.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::Size;
use crate::report::Report;
use crate::wire;
use crate::world::{HEAD_TIMEOUT, HOST, RATE_GRACE, World};

/// Between two bytes of a client.
const PAUSE: Duration = Duration::from_millis(250);
/// For the sweep of connections, and for a machine that has other things to do.
const SLACK: Duration = Duration::from_secs(5);

pub(crate) fn run(world: &World, size: Size, report: &mut Report) -> Result<()> {
    let clients = size.of(300);
    let body = format!("POST /slow HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1000000\r\n\r\n");
    let chunked =
        format!("POST /slow HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n");
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    // The beginning of a frame of HEADERS, of 16 KiB.
    let head_of_2 = [&preface[..], &[0, 64, 0, 1, 4, 0, 0, 0, 1]].concat();
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    for (name, at, begin, byte, limit) in [
        ("nothing at all", world.plain, &b""[..], None, HEAD_TIMEOUT),
        ("a head", world.plain, b"GET /slow HTTP/1.1\r\nX: ", Some(b'y'), HEAD_TIMEOUT),
        ("empty lines", world.plain, b"\r\n", Some(b'\n'), HEAD_TIMEOUT),
        ("half of the preface of HTTP/2", world.plain, b"PRI * HTTP", None, HEAD_TIMEOUT),
        ("a head of HTTP/2", world.plain, &head_of_2, Some(0), HEAD_TIMEOUT),
        ("a body", world.plain, body.as_bytes(), Some(b'x'), RATE_GRACE),
        ("a chunk", world.plain, chunked.as_bytes(), Some(b'x'), RATE_GRACE),
        ("nothing before TLS", world.tls, b"", None, HEAD_TIMEOUT),
        ("a ClientHello", world.tls, &hello, Some(0), HEAD_TIMEOUT),
    ] {
        let mut streams = Vec::new();
        for _ in 0..clients {
            let mut stream = wire::connect(at)?;
            stream.write_all(begin)?;
            stream.set_nonblocking(true)?;
            streams.push(stream);
        }
        let begun = Instant::now();
        while !streams.is_empty() && begun.elapsed() < limit + SLACK {
            thread::sleep(PAUSE);
            streams.retain_mut(|stream| is_open(stream, byte));
        }
        let (left, took) = (streams.len(), begun.elapsed().as_secs_f64());
        let happened = match left {
            0 => format!("{clients} closed within {took:.1} s"),
            left => format!("{left} of {clients} open after {took:.1} s"),
        };
        report.add(format!("slow: {name}"), happened, left == 0);
    }
    Ok(())
}

/// Goes on with a byte; false if the connection has ended.
fn is_open(stream: &mut TcpStream, byte: Option<u8>) -> bool {
    use std::io::{ErrorKind, Read};
    let mut buffer = [0; 1024];
    let is_blocked = |kind| kind == ErrorKind::WouldBlock;
    if let Some(byte) = byte
        && stream.write(&[byte]).is_err_and(|error| !is_blocked(error.kind()))
    {
        return false;
    }
    match stream.read(&mut buffer) {
        // An answer comes before the end.
        Ok(count) => count > 0,
        Err(error) => is_blocked(error.kind()),
    }
}
