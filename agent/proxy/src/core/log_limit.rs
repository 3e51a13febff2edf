//! Logging of what keeps happening: once when it begins, then once a minute as long as it goes on.

use std::cell::Cell;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Cell<Option<Instant>>,
}

// === impl LogLimit ===

impl LogLimit {
    /// True if it is time to log; the next time is an interval away then.
    pub(crate) fn is_due(&self) -> bool {
        let due = self.last.get().is_none_or(|last| last.elapsed() >= INTERVAL);
        if due {
            self.last.set(Some(Instant::now()));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_logged_once_a_minute() {
        let limit = LogLimit::default();
        assert!(limit.is_due() && !limit.is_due());
        limit.last.set(Instant::now().checked_sub(INTERVAL));
        assert!(limit.is_due() && !limit.is_due());
    }
}
