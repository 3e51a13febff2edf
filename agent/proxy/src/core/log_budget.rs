//! Lines of the log about one thing, of which there may be many at once: some of each minute.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A minute's lines.
const LINES: u32 = 20;

/// For all cores. At the turn of a minute two of them may have a line too many.
#[derive(Debug, Default)]
pub(crate) struct LogBudget {
    minute: AtomicU64,
    lines: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Free,
    /// The one that should say that there are no more.
    Last,
    Over,
}

// === impl LogBudget ===

impl LogBudget {
    /// `now` is of any clock, in milliseconds.
    pub(crate) fn next(&self, now: u64) -> Turn {
        let minute = now / 60_000;
        if self.minute.swap(minute, Relaxed) != minute {
            self.lines.store(0, Relaxed);
        }
        match self.lines.fetch_add(1, Relaxed) + 1 {
            line if line < LINES => Turn::Free,
            LINES => Turn::Last,
            _ => Turn::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_twenty_lines() {
        let budget = LogBudget::default();
        let turns: Vec<_> = (0..1000).map(|at| budget.next(60_000 + at)).collect();
        assert_eq!(turns.iter().filter(|turn| **turn == Turn::Free).count(), 19);
        assert_eq!((turns[19], turns[20]), (Turn::Last, Turn::Over));
        assert_eq!(budget.next(120_000), Turn::Free);
    }
}
