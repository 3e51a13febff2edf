//! A backend that takes anything for a request which looks like one, and remembers what it was
//! asked for: a request that no client sent as one was smuggled.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

/// The paths that have been asked for, of requests that were complete.
#[derive(Clone, Default)]
pub(crate) struct Asked(Arc<Mutex<Vec<String>>>);

// === impl Asked ===

impl Asked {
    /// Requests for paths that hold this.
    pub(crate) fn count(&self, text: &str) -> usize {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().filter(|path| path.contains(text)).count()
    }

    fn note(&self, path: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
    }
}

/// Serves until the process ends.
pub(crate) fn start(address: SocketAddr) -> Result<Asked> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot bind {address}"))?;
    let asked = Asked::default();
    let noting = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let asked = noting.clone();
            // A peer that goes away is no error.
            thread::spawn(move || serve(stream, &asked).ok());
        }
    });
    Ok(asked)
}

fn serve(mut stream: TcpStream, asked: &Asked) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(head) = head(&mut reader)? {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        skip_body(&mut reader, &head)?;
        asked.note(&path);
        // Switches to nothing.
        let body = format!("asked for {path}\n");
        let length = body.len();
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes())?;
    }
    Ok(())
}

/// `None` at the end of the connection.
pub(crate) fn head(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut head = String::new();
    loop {
        let start = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        if head[start..].trim_end().is_empty() && start > 0 {
            return Ok(Some(head));
        }
    }
}

fn skip_body(reader: &mut impl BufRead, head: &str) -> io::Result<()> {
    let head = head.to_ascii_lowercase();
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("transfer-encoding:").is_some_and(|coding| coding.contains("chunked")) {
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let size = u64::from_str_radix(line.trim().split(';').next().unwrap_or_default(), 16);
            let size = size.map_err(|_| io::ErrorKind::InvalidData)?;
            skip(reader, size)?;
            reader.read_line(&mut line)?;
            if size == 0 {
                return Ok(());
            }
        }
    }
    skip(reader, field("content-length:").and_then(|length| length.parse().ok()).unwrap_or(0))
}

fn skip(reader: &mut impl BufRead, length: u64) -> io::Result<()> {
    let skipped = io::copy(&mut Read::take(reader, length), &mut io::sink())?;
    if skipped < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}
