//! A client's HTTP/1.1 connection that stays open, one request at a time: tests see soon what
//! changes for it, and hold it over what does not.

use std::io::{BufRead, BufReader, Read, Write};

use anyhow::{Context, Result, ensure};

/// Stays open until it is dropped, or fails.
pub struct Connection<S> {
    pub(crate) stream: BufReader<S>,
    host: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and fields, names in lower case.
    pub head: String,
    pub body: String,
}

impl<S: Read + Write> Connection<S> {
    /// Requests are for this host.
    pub fn new(stream: S, host: &str) -> Self {
        Self { stream: BufReader::new(stream), host: host.to_owned() }
    }

    pub fn get(&mut self, path: &str) -> Result<Answer> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(self.stream.read_line(&mut head)? > 0, "the connection was closed after {head:?}");
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.context("an answer without length")?.trim().parse()?];
        self.stream.read_exact(&mut body)?;
        let status = head.split_whitespace().nth(1).context("an answer without status")?.parse()?;
        Ok(Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// The bytes, for a protocol of the caller's.
    pub fn into_stream(self) -> S {
        self.stream.into_inner()
    }
}
