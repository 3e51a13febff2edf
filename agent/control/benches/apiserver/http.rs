//! A client that asks one thing after the other over a connection that stays open, and a backend
//! that answers everything.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct Connection {
    to: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Connection {
    /// Not before the first request.
    pub(crate) fn to(to: SocketAddr) -> Self {
        Self { to, stream: None }
    }

    /// The status of the answer. The connection is opened anew after an error, and when the server
    /// said so.
    pub(crate) fn get(&mut self, host: &str, path: &str) -> io::Result<u16> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.to)?,
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes())?;
        let head = head(&mut stream)?.to_ascii_lowercase();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let length = field("content-length:").and_then(|length| length.parse().ok()).unwrap_or(0);
        stream.read_exact(&mut vec![0; length])?;
        if field("connection:") != Some("close") {
            self.stream = Some(stream);
        }
        let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        status.ok_or_else(|| io::Error::other("no status line"))
    }
}

fn connect(to: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(BufReader::new(stream))
}

/// Up to the empty line.
fn head(stream: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

/// Answers as long as the process runs; returns its port.
pub(crate) fn backend(address: IpAddr) -> u16 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer_all(stream));
        }
    });
    port
}

fn answer_all(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        head(&mut stream)?;
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n")?;
    }
}
