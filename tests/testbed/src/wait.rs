//! Waiting for something to become true, for a bounded time.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const PAUSE: Duration = Duration::from_millis(5);

/// Tries until it succeeds; when time is up, the last failure is the error.
pub fn until<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= end => bail!("not within {limit:?}: {error:#}"),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
