//! A client's connection that stays open over all changes, to see soon when one of them is in
//! force.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::{Scenario, VIP};

const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(500);

pub struct Probe {
    stream: BufReader<TcpStream>,
    host: String,
}

impl Probe {
    /// To port 80 of the VIP.
    pub fn open(scenario: &Scenario, host: &str) -> Result<Self> {
        let stream = scenario.client.enter(|| Ok(TcpStream::connect((VIP, 80))?))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), host: host.to_owned() })
    }

    /// The head of the answer, in lower case.
    pub fn get(&mut self, path: &str) -> Result<String> {
        write!(self.stream.get_mut(), "GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host)?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(self.stream.read_line(&mut head)? > 0, "the connection was closed after {head:?}");
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.context("an answer without length")?.trim().parse()?];
        self.stream.read_exact(&mut body)?;
        Ok(head)
    }

    /// How long it takes until the answer's head contains the text.
    pub fn until_contains(&mut self, path: &str, text: &str) -> Result<Duration> {
        let begin = Instant::now();
        loop {
            let head = self.get(path)?;
            if head.contains(text) {
                return Ok(begin.elapsed());
            }
            if begin.elapsed() > PATIENCE {
                bail!("{path}: no {text:?} within {PATIENCE:?}: {head}");
            }
            thread::sleep(PAUSE);
        }
    }
}
