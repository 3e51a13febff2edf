//! Connections that each have a request under way, and the backend behind the agent. Both are
//! threads of this process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Requests at a time: the agent finds several whenever it looks.
pub(super) const AT_ONCE: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(30);
const BODY: usize = 1024;

pub(super) struct Load(Vec<BufReader<TcpStream>>);

impl Load {
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let connect = |_| {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            Ok(BufReader::new(stream))
        };
        Ok(Self((0..AT_ONCE).map(connect).collect::<Result<_>>()?))
    }

    /// Sends these requests, the heads of which are given, and reads the answers. All have to be
    /// 200.
    pub(super) fn ask(&mut self, heads: &[String]) -> Result<()> {
        for heads in heads.chunks(AT_ONCE) {
            for (connection, head) in self.0.iter_mut().zip(heads) {
                connection.get_mut().write_all(head.as_bytes())?;
            }
            self.0.iter_mut().take(heads.len()).try_for_each(read_answer)?;
        }
        Ok(())
    }
}

fn read_answer(connection: &mut BufReader<TcpStream>) -> Result<()> {
    let head = read_head(connection)?.context("the connection was closed")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.context("an answer without length")?.trim().parse()?];
    Ok(connection.read_exact(&mut body)?)
}

/// Serves as long as this process lives.
pub(super) fn start_backend(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot bind {address}"))?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A connection that the agent closes is no error.
            thread::spawn(move || serve(stream).ok());
        }
    });
    Ok(())
}

fn serve(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n{}", "x".repeat(BODY));
    let mut connection = BufReader::new(stream);
    while read_head(&mut connection)?.is_some() {
        connection.get_mut().write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// `None` at the end of the connection.
fn read_head(connection: &mut impl BufRead) -> Result<Option<String>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if connection.read_line(&mut head)? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(head))
}
