//! A backend that answers only when the agent has nothing left to do, so that each request takes
//! the agent the same steps: what it reads never depends on who was faster.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

use super::callgrind::Threads;

const BODY: usize = 1024;

/// Of the agent that is measured now; a backend is there before the first.
pub(super) static AGENT: Mutex<Option<Threads>> = Mutex::new(None);

/// Serves as long as this process lives.
pub(super) fn start(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot bind {address}"))?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A connection that the agent closes is no error.
            thread::spawn(move || serve(stream).ok());
        }
    });
    Ok(())
}

fn serve(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {BODY}\r\n\r\n");
    let answer = head + &"x".repeat(BODY);
    let mut reader = BufReader::new(stream.try_clone()?);
    while read_request(&mut reader)? {
        let agent = *AGENT.lock().unwrap_or_else(PoisonError::into_inner);
        agent.map_or(Ok(()), Threads::wait_idle)?;
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// Returns false at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> Result<bool> {
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    Ok(io::copy(&mut reader.take(length), &mut io::sink())? == length)
}
