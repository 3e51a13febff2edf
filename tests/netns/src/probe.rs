//! A client's connection that stays open over all changes, to see soon when one of them is in
//! force.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use portcullis_testbed::Connection;

use crate::{Scenario, VIP};

const TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_micros(500);

pub struct Probe(Connection<TcpStream>);

impl Probe {
    /// To port 80 of the VIP.
    pub fn open(scenario: &Scenario, host: &str) -> Result<Self> {
        let stream = scenario.client.enter(|| Ok(TcpStream::connect((VIP, 80))?))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self(Connection::new(stream, host)))
    }

    /// The head of the answer, in lower case.
    pub fn get(&mut self, path: &str) -> Result<String> {
        Ok(self.0.get(path)?.head)
    }

    /// Time until the answer's head contains the text.
    pub fn until_contains(&mut self, path: &str, text: &str) -> Result<Duration> {
        let begin = Instant::now();
        loop {
            let head = self.get(path)?;
            if head.contains(text) {
                return Ok(begin.elapsed());
            }
            if begin.elapsed() > TIMEOUT {
                bail!("{path}: no {text:?} within {TIMEOUT:?}: {head}");
            }
            thread::sleep(PAUSE);
        }
    }
}
