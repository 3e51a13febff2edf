//! The time that regular expressions of routes may take for a request. They are linear in the
//! length of a value, but any tenant of a port may write many that take long for each byte, any
//! client may send many bytes, and all tenants share the core.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Of the core's processor, for a request. Thousands of ordinary expressions take less even where
/// each is used for the first time.
const MOST: Duration = Duration::from_millis(50);
/// The longest value that is looked at: a single expression may take 10 µs for a byte.
const LONGEST: usize = 8 << 10;
/// The least that an expression counts as, in bytes, and how many go by between two looks at the
/// clock: most requests have fewer.
const LEAST: usize = 64;
const UNTIMED: usize = 2 << 10;

/// The same limits for those who look for a request's route without serving it: true as long as one
/// more expression may look at so many bytes. By the processor's time of the thread that asks.
pub fn search_limit() -> Box<dyn Fn(usize) -> bool> {
    let time = SearchTime::default();
    Box::new(move |bytes| time.permits(bytes))
}

/// The time for a request, as far as it is used up.
#[derive(Debug, Default)]
pub(crate) struct SearchTime {
    untimed: Cell<usize>,
    begun: Cell<Option<Duration>>,
    is_over: Cell<bool>,
}

// === impl SearchTime ===

impl SearchTime {
    /// True if an expression may look at so many bytes.
    pub(crate) fn permits(&self, bytes: usize) -> bool {
        let untimed = self.untimed.get() + bytes.max(LEAST);
        self.untimed.set(untimed);
        if bytes > LONGEST {
            self.is_over.set(true);
        } else if untimed > UNTIMED {
            self.untimed.set(0);
            let now = of_thread();
            match self.begun.get() {
                None => self.begun.set(Some(now)),
                Some(begun) if now.saturating_sub(begun) > MOST => self.is_over.set(true),
                Some(_) => {}
            }
        }
        !self.is_over.get()
    }

    /// True if an expression was not permitted to look.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.get()
    }
}

/// The time that this thread has had the processor: that others had it is no fault of the routes.
fn of_thread() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the same clock: a machine that stands still counts as time of whichever thread it was.
    #[test]
    fn time_is_over_when_it_is_used_up_and_not_before() {
        let time = SearchTime::default();
        let earliest = of_thread();
        assert!(time.permits(LONGEST));
        let latest = of_thread();
        assert!((0..10_000).all(|_| time.permits(100)) || of_thread() - earliest > MOST);
        loop {
            let until = of_thread() + Duration::from_millis(1);
            while of_thread() < until {}
            let before = of_thread();
            if !time.permits(LONGEST) {
                break;
            }
            assert!(before - latest <= MOST, "{:?}", before - latest);
        }
        assert!(of_thread() - earliest > MOST);
        assert!(time.is_over() && !time.permits(1));
    }

    #[test]
    fn long_values_are_not_looked_at() {
        let time = SearchTime::default();
        assert!(time.permits(LONGEST) && !time.permits(LONGEST + 1) && time.is_over());
        let permits = search_limit();
        assert!(permits(LONGEST) && !permits(LONGEST + 1) && !permits(1));
    }
}
