//! The backend: sends as many bytes of a pattern as it is asked for, or all that it got, and
//! answers datagrams with what they hold. Its threads live as long as the process.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;

use anyhow::Result;

use super::site::{BACKEND, BACKEND_TCP, BACKEND_UDP, ECHO, read_request};

/// Connections at a time.
const THREADS: usize = 64;
/// Bytes of the pattern, which is sent over and over: a prime, so that it fits no buffer.
pub(super) const PATTERN: usize = 1_048_573;

pub(super) fn start() -> Result<()> {
    let listener = Arc::new(TcpListener::bind((BACKEND, BACKEND_TCP))?);
    let bytes: Arc<[u8]> = pattern().into();
    for _ in 0..THREADS {
        let (listener, bytes) = (listener.clone(), bytes.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away is no error.
                let _ = serve(stream, &bytes);
            }
        });
    }
    let socket = UdpSocket::bind((BACKEND, BACKEND_UDP))?;
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        loop {
            if let Ok((length, peer)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], peer);
            }
        }
    });
    Ok(())
}

/// No two places in it look alike.
pub(super) fn pattern() -> Vec<u8> {
    let mut random = crate::random::Random::new();
    (0..PATTERN).map(|_| u8::try_from(random.below(256)).unwrap_or_default()).collect()
}

fn serve(mut stream: TcpStream, pattern: &[u8]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let asked = read_request(&mut stream)?;
    if asked == ECHO {
        let mut got = Vec::new();
        stream.read_to_end(&mut got)?;
        stream.write_all(&got)?;
    } else {
        let mut left = asked;
        while left > 0 {
            let part = &pattern[..pattern.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            stream.write_all(part)?;
            left -= part.len() as u64;
        }
    }
    stream.shutdown(Shutdown::Write)
}
