//! Bytes to the agent and back, without a library that would put them right.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;

/// The time in which an answer has to begin, or to go on.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// An attacker's connection.
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// All that comes until the end, and whether there was one.
pub(crate) fn read_all(stream: &mut TcpStream) -> (Vec<u8>, Ended) {
    let (mut read, mut buffer) = (Vec::new(), [0; 16 << 10]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (read, Ended::Closed),
            Ok(count) => read.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return (read, Ended::Open);
            }
            Err(_) => return (read, Ended::Closed),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Closed,
    /// Nothing came any more.
    Open,
}

/// Sends the bytes, and returns what is answered. What cannot be sent any more was refused.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> Result<(Vec<u8>, Ended)> {
    let mut stream = connect(address)?;
    let _ = stream.write_all(bytes);
    Ok(read_all(&mut stream))
}

/// The statuses of answers of HTTP/1, 100 included.
pub(crate) fn statuses(answer: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answer);
    let heads = text.match_indices("HTTP/1.").map(|(at, _)| &text[at..]);
    heads.filter_map(|head| head.split(' ').nth(1)?.parse().ok()).collect()
}
