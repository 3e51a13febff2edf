//! A small HTTP/1.1 server that says who it is and what reached it (`?fields`: with all header
//! fields). A thread per connection: for tests, not for load.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use rustix::net::{Shutdown, shutdown};

/// Stops when dropped.
pub struct Backend {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    requests: AtomicU64,
    /// Locked while answers are held back.
    answers: Mutex<()>,
}

impl Backend {
    /// Port 0 takes a free one.
    pub fn start(name: &str, address: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("backend {name}: cannot bind {address}"))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            requests: AtomicU64::new(0),
            answers: Mutex::default(),
        });
        let accepting = (listener.try_clone()?, shared.clone());
        thread::spawn(move || accept(&accepting.0, &accepting.1));
        Ok(Self { listener, address, shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// No request is answered before this is dropped.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of requests that it answered, or would if nothing held them back.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // Ends the accept. No matter in which network namespace it is, which connecting to it would
        // not do.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming().map_while(Result::ok) {
        let shared = shared.clone();
        // A client that goes away is no error.
        thread::spawn(move || serve(stream, &shared).ok());
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(head) = head(&mut reader)? {
        skip_body(&mut reader, &head)?;
        let body = describe(&shared.name, &head);
        shared.requests.fetch_add(1, Ordering::Relaxed);
        drop(shared.answers.lock());
        let length = body.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// The lines of a request's head, or nothing at the end of the connection.
fn head(reader: &mut impl BufRead) -> io::Result<Option<Vec<String>>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => return Ok(Some(lines)),
            line => lines.push(line.to_owned()),
        }
    }
}

fn skip_body(reader: &mut impl BufRead, head: &[String]) -> io::Result<()> {
    let length = header(head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    io::copy(&mut io::Read::take(reader, length), &mut io::sink()).map(|_| ())
}

fn describe(name: &str, head: &[String]) -> String {
    let request = head.first().and_then(|line| line.rsplit_once(' ')).map_or("", |(request, _)| request);
    let value = |name| header(head, name).unwrap_or("-");
    format!(
        "{name}: {request} for {}, client {} by {}\n{}",
        value("host"),
        value("x-forwarded-for"),
        value("x-forwarded-proto"),
        if request.ends_with("?fields") { head[1..].join("\n") } else { String::new() }
    )
}

fn header<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    let fields = head.iter().skip(1).filter_map(|line| line.split_once(':'));
    fields.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}
