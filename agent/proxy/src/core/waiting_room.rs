//! Room for what cores hand over to a thread, and which waits there: so much of all of it together,
//! in however many pieces it comes. Cores touch it once for a piece, not for what is in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Seconds between two lines of the log about it.
const LOG_INTERVAL: u64 = 60;

#[derive(Debug)]
pub(crate) struct WaitingRoom {
    most: usize,
    taken: AtomicUsize,
    begun: Instant,
    /// The second from which its being full may be logged.
    log_from: AtomicU64,
}

// === impl WaitingRoom ===

impl WaitingRoom {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: AtomicUsize::new(0),
            begun: Instant::now(),
            log_from: AtomicU64::new(0),
        })
    }

    /// True if there was room for so much; now it is taken.
    pub(crate) fn take(&self, amount: usize) -> bool {
        let with = |taken: usize| taken.checked_add(amount).filter(|taken| *taken <= self.most);
        self.taken.fetch_update(Relaxed, Relaxed, with).is_ok()
    }

    /// Gives back what was taken.
    pub(crate) fn leave(&self, amount: usize) {
        self.taken.fetch_sub(amount, Relaxed);
    }

    /// True if it is time to log that there was no room: for one of all cores, once a minute.
    pub(crate) fn is_log_due(&self) -> bool {
        let (now, from) = (self.begun.elapsed().as_secs(), self.log_from.load(Relaxed));
        now >= from && self.log_from.compare_exchange(from, now + LOG_INTERVAL, Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_waits_than_there_is_room_for() {
        let room = WaitingRoom::new(10);
        assert!(room.take(4) && room.take(6) && !room.take(1) && !room.take(usize::MAX));
        room.leave(4);
        assert!(!room.take(5) && room.take(4));
        assert!(room.is_log_due() && !room.is_log_due());
    }
}
