//! Bytes to the agent and back, without a library that would put them right.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;

/// The time in which an answer has to begin, or to go on: only what is wrong anyhow uses it up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// An attacker's connection.
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
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
            Err(error) if is_late(&error) => return (read, Ended::Open),
            Err(_) => return (read, Ended::Closed),
        }
    }
}

pub(crate) fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
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

/// A response of HTTP/1, as a client reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// False if it broke off.
    pub(crate) is_whole: bool,
}

/// The responses on a connection, one behind the other; bytes behind the last one that are none
/// count as one of status 0.
pub(crate) fn responses(mut bytes: &[u8]) -> Vec<Response> {
    let mut responses = Vec::new();
    while !bytes.is_empty() {
        let (response, rest) = response(bytes);
        responses.push(response);
        bytes = rest;
    }
    responses
}

pub(crate) fn statuses(answer: &[u8]) -> Vec<u16> {
    responses(answer).into_iter().map(|response| response.status).collect()
}

fn response(bytes: &[u8]) -> (Response, &[u8]) {
    let broken = |status, body: &[u8]| Response { status, body: body.to_vec(), is_whole: false };
    let Some((head, rest)) = split(bytes, b"\r\n\r\n") else { return (broken(0, bytes), &[]) };
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let rest_of_line = head.strip_prefix("http/1.1 ").or_else(|| head.strip_prefix("http/1.0 "));
    let status = rest_of_line.and_then(|rest| rest.get(..3)?.parse().ok());
    let Some(status) = status else { return (broken(0, bytes), &[]) };
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if status < 200 || status == 204 || status == 304 {
        return (Response { status, body: Vec::new(), is_whole: true }, rest);
    }
    if field("transfer-encoding:").is_some() {
        let mut body = Vec::new();
        return match chunks(rest, &mut body) {
            Some(rest) => (Response { status, body, is_whole: true }, rest),
            None => (broken(status, &body), &[]),
        };
    }
    match field("content-length:").and_then(|length| length.parse().ok()) {
        Some(length) if length <= rest.len() => {
            (Response { status, body: rest[..length].to_vec(), is_whole: true }, &rest[length..])
        }
        Some(_) => (broken(status, rest), &[]),
        // Until the end of the connection.
        None => (Response { status, body: rest.to_vec(), is_whole: true }, &[]),
    }
}

/// The bytes behind the last chunk; `None` if that has not come.
fn chunks<'bytes>(mut bytes: &'bytes [u8], body: &mut Vec<u8>) -> Option<&'bytes [u8]> {
    loop {
        let (line, rest) = split(bytes, b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(line).ok()?, 16).ok()?;
        if size == 0 {
            // Without trailers; no backend here sends any.
            return rest.strip_prefix(b"\r\n");
        }
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        bytes = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

/// The bytes before and behind the first of these.
fn split<'bytes>(bytes: &'bytes [u8], at: &[u8]) -> Option<(&'bytes [u8], &'bytes [u8])> {
    let found = bytes.windows(at.len()).position(|window| window == at)?;
    Some((&bytes[..found], &bytes[found + at.len()..]))
}
