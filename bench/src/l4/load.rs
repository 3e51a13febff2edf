//! Clients. They discard what they get, in the kernel: how much it was is enough here.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::net::{RecvFlags, recv};

use super::site::{MANY_NAMES, NAMES, ONE_NAME, Site, TCP, UDP};
use super::workload::{Kind, Length};

/// Clients at a time, of connections and of datagrams.
const CLIENTS: usize = 16;
/// Bytes of an answer, and of a datagram.
const ANSWER: u64 = 100;
const DATAGRAM: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(30);
/// After which a datagram counts as lost.
const LOST: Duration = Duration::from_secs(1);
/// Bytes that are discarded at once.
const DISCARD: usize = 1 << 20;

/// Counts of a measurement, and its time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Bytes, connections or answers.
    pub(super) done: u64,
    pub(super) failed: u64,
    pub(super) seconds: f64,
}

/// One connection or datagram of the kind.
pub(super) fn probe(kind: Kind, address: &str, site: &Site) -> Result<()> {
    if kind == Kind::Datagrams {
        return Ok(ask(&client(socket(kind, address)?)?)?);
    }
    let request = site.request(name(kind, NAMES - 1), ANSWER);
    let got = exchange(socket(kind, address)?, &request, &mut [0; 1024])?;
    ensure!(got == ANSWER, "{got} bytes instead of {ANSWER}");
    Ok(())
}

/// Rounds choose different names.
pub(super) fn run(kind: Kind, address: &str, site: &Site, length: Length, round: usize) -> Result<Seen> {
    let address = socket(kind, address)?;
    let begun = Instant::now();
    let (done, failed) = match kind {
        Kind::Bulk(connections) | Kind::BulkTls(connections) => {
            let each = length.bytes() / connections as u64;
            let (done, failed) = in_parallel(connections, connections, |_, buffer| {
                exchange(address, &site.request(0, each), buffer).is_ok_and(|got| got == each)
            });
            (done * each, failed)
        }
        Kind::Connections | Kind::OneName | Kind::ManyNames => {
            // A step that is no divisor: neighbours are far apart in any table.
            const STRIDE: usize = 7_919;
            let count = length.connections();
            in_parallel(CLIENTS, count, |number, buffer| {
                let name = name(kind, (round * count + number) * STRIDE % NAMES);
                exchange(address, &site.request(name, ANSWER), buffer).is_ok_and(|got| got == ANSWER)
            })
        }
        Kind::Datagrams => {
            let each = length.datagrams() / CLIENTS;
            let results = thread::scope(|scope| {
                let client =
                    || client(address).map(|client| (0..each).filter(|_| ask(&client).is_ok()).count());
                let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
                clients.into_iter().map(|client| client.join().map_or(0, io::Result::unwrap_or_default)).sum()
            });
            let answered: usize = results;
            (answered as u64, (each * CLIENTS - answered) as u64)
        }
    };
    Ok(Seen { done, failed, seconds: begun.elapsed().as_secs_f64() })
}

/// Makes all of them, so many at a time, each with its client's buffer. Returns how many were done,
/// and how many failed.
fn in_parallel(clients: usize, count: usize, make: impl Fn(usize, &mut [u8]) -> bool + Sync) -> (u64, u64) {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut buffer = vec![0; DISCARD];
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    if make(number, &mut buffer) {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let done = done.into_inner();
    (done as u64, (count - done) as u64)
}

fn socket(kind: Kind, address: &str) -> Result<SocketAddr> {
    let port = match kind {
        Kind::Bulk(_) | Kind::Connections => TCP,
        Kind::BulkTls(_) | Kind::OneName => ONE_NAME,
        Kind::ManyNames => MANY_NAMES,
        Kind::Datagrams => UDP,
    };
    Ok(SocketAddr::new(address.parse()?, port))
}

fn name(kind: Kind, number: usize) -> usize {
    if kind == Kind::ManyNames { number } else { 0 }
}

/// The number of bytes that came.
fn exchange(address: SocketAddr, request: &[u8], buffer: &mut [u8]) -> io::Result<u64> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request)?;
    let mut got = 0;
    loop {
        match recv(&stream, &mut *buffer, RecvFlags::TRUNC)? {
            (_, 0) => return Ok(got),
            (_, length) => got += length as u64,
        }
    }
}

fn client(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(LOST))?;
    Ok(socket)
}

/// Sends a datagram and waits for its answer.
fn ask(client: &UdpSocket) -> io::Result<()> {
    client.send(&[1; DATAGRAM])?;
    let mut buffer = [0; DATAGRAM * 2];
    match client.recv(&mut buffer)? {
        DATAGRAM => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
