//! No byte is lost: what came is compared with what was sent, in full. And an end in one direction
//! leaves the other one open: clients end theirs first, and then get back all that they sent.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::backend::pattern;
use super::site::{ECHO, ONE_NAME, Site, TCP};
use super::workload::Length;
use crate::random::Random;

const CONNECTIONS: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most that a half-closed connection sends.
const HALF: usize = 256 << 10;

#[derive(Clone, Copy, Debug)]
pub(super) struct Integrity {
    /// Bytes that were sent, and those of them that did not come as they were.
    pub(super) sent: u64,
    pub(super) lost: u64,
    /// Connections whose client ended its direction first, and those that were answered in full.
    pub(super) half_closed: usize,
    pub(super) answered: usize,
}

impl Integrity {
    pub(super) fn check(address: &str, site: &Site, length: Length) -> Result<Self> {
        let ports = [TCP, ONE_NAME];
        let addresses = ports.map(|port| address.parse().map(|ip| SocketAddr::new(ip, port)));
        let addresses = addresses.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (pattern, each) = (pattern(), length.bytes() / CONNECTIONS as u64);
        let request = site.request(0, each);
        let good: u64 = thread::scope(|scope| {
            let download = |at: usize| good_bytes(addresses[at % ports.len()], &request, &pattern);
            let clients: Vec<_> =
                (0..CONNECTIONS).map(|at| scope.spawn(move || download(at).unwrap_or_default())).collect();
            clients.into_iter().map(|client| client.join().unwrap_or_default().min(each)).sum()
        });
        let mut random = Random::new();
        let half_closed = length.half_closed();
        let answered = (0..half_closed).filter(|number| {
            let sent = &pattern[..random.below(HALF) + 1];
            is_answered(addresses[number % ports.len()], &site.request(0, ECHO), sent).unwrap_or_default()
        });
        let answered = answered.count();
        let sent = each * CONNECTIONS as u64;
        Ok(Self { sent, lost: sent - good, half_closed, answered })
    }
}

/// The number of bytes until the end, or until one is not what was sent.
fn good_bytes(address: SocketAddr, request: &[u8], pattern: &[u8]) -> io::Result<u64> {
    let mut stream = connect(address)?;
    stream.write_all(request)?;
    let (mut buffer, mut good, mut at) = (vec![0; 1 << 18], 0, 0);
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(good);
        }
        let mut came = &buffer[..length];
        while !came.is_empty() {
            let part = came.len().min(pattern.len() - at);
            if came[..part] != pattern[at..at + part] {
                return Ok(good);
            }
            came = &came[part..];
            good += part as u64;
            at = (at + part) % pattern.len();
        }
    }
}

fn is_answered(address: SocketAddr, request: &[u8], sent: &[u8]) -> io::Result<bool> {
    let mut stream = connect(address)?;
    stream.write_all(request)?;
    stream.write_all(sent)?;
    stream.shutdown(Shutdown::Write)?;
    let mut got = Vec::new();
    stream.read_to_end(&mut got)?;
    Ok(got == sent)
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}
