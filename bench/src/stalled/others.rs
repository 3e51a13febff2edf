//! Clients that do nothing wrong, beside those that do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::site::ONE;

const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// A request at a time, each on a connection of its own.
pub(super) struct Others {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Option<Duration>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) asked: usize,
    pub(super) failed: usize,
    /// Of what was answered.
    pub(super) p99: Duration,
}

impl Others {
    pub(super) fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut times = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                times.push(is_answered(address).then(|| begun.elapsed()));
                thread::sleep(PAUSE);
            }
            times
        });
        Self { stop, thread }
    }

    pub(super) fn finish(self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(Seen::of(&self.thread.join().map_err(|_| anyhow!("a client panicked"))?))
    }
}

fn is_answered(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let request = format!("GET / HTTP/1.1\r\nHost: {ONE}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

impl Seen {
    fn of(times: &[Option<Duration>]) -> Self {
        let mut answered: Vec<_> = times.iter().flatten().copied().collect();
        answered.sort_unstable();
        let p99 = answered.get(answered.len() * 99 / 100).copied().unwrap_or_default();
        Self { asked: times.len(), failed: times.len() - answered.len(), p99 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_and_have_no_time() {
        let times: Vec<_> = (0..200).map(|n| (n % 2 == 0).then(|| Duration::from_millis(n))).collect();
        assert_eq!(Seen::of(&times), Seen { asked: 200, failed: 100, p99: Duration::from_millis(198) });
        assert_eq!(Seen::of(&[None]).failed, 1);
    }
}
