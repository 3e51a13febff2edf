//! Waiting for another process, with a deadline.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const PAUSE: Duration = Duration::from_millis(50);

/// Polls until there is an answer. An error ends the wait at once.
pub fn until<T>(what: &str, limit: Duration, mut poll: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = poll()? {
            return Ok(answer);
        }
        if start.elapsed() > limit {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        sleep(PAUSE);
    }
}

/// Polls until a condition holds.
pub fn until_true(what: &str, limit: Duration, mut poll: impl FnMut() -> bool) -> Result<()> {
    until(what, limit, || Ok(poll().then_some(())))
}
