//! One question to an agent's admin socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The body of a 200 answer; everything else is an error that holds it.
pub fn get(socket: &Path, path: &str) -> Result<String> {
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("no agent at {}", socket.display()))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the agent's answer has no end of head")?;
    if head.split_whitespace().nth(1) != Some("200") {
        bail!("GET {path}: {}: {}", head.lines().next().unwrap_or_default(), body.trim());
    }
    Ok(body.to_owned())
}
