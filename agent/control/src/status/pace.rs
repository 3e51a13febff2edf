//! The pace at which one object is written: at once if it is new, then ever more rarely; and while
//! it keeps changing, as when the routes of a Gateway come by the thousand, only now and then until
//! it holds still.

use std::time::Duration;

use tokio::time::Instant;

use crate::kube::reverts::Reverts;

/// An object rests after a write, after each twice as long.
pub(super) const FIRST_REST: Duration = Duration::from_millis(25);
const LONGEST_REST: Duration = Duration::from_millis(200);
/// One that still changes after the longest rest is written when nothing changed for so long …
const STILL: Duration = Duration::from_millis(200);
/// … or when this has passed since the last write.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Time without a write after which an object starts anew.
const CALM: Duration = Duration::from_secs(3);
/// After the API server would not take a write, and so on, twice as long each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Time when the object was looked at last, to be written, and its rest after that.
    last: Option<(Instant, Duration)>,
    /// Attempts in a row that came to nothing.
    failures: u32,
    pub(super) reverts: Reverts,
}

impl Pace {
    /// The object is as it should be; it rests until the time returned.
    pub(super) fn settled(&mut self) -> Instant {
        let now = Instant::now();
        let rest = match self.last {
            Some((last, rest)) if last.elapsed() < CALM => (rest * 2).min(LONGEST_REST),
            _ => FIRST_REST,
        };
        self.last = Some((now, rest));
        self.failures = 0;
        now + rest
    }

    /// The API server would not take a write; how long to wait before the next.
    pub(super) fn refused(&mut self) -> Duration {
        let wait = FIRST_RETRY.saturating_mul(1 << self.failures.min(16)).min(LONGEST_RETRY);
        self.failures += 1;
        wait
    }

    /// The time to write what is as it is `since` then, and rests until `rested`.
    pub(super) fn due(&self, rested: Instant, since: Instant) -> Instant {
        match self.last {
            Some((last, rest)) if rest == LONGEST_REST => {
                rested.max((since + STILL).min(last + LONGEST_WAIT))
            }
            _ => rested,
        }
    }

    /// Tells whether there is nothing to remember.
    pub(super) fn is_over(&self) -> bool {
        self.last.is_none_or(|(last, _)| last.elapsed() >= CALM)
            && self.failures == 0
            && self.reverts.is_over()
    }
}
