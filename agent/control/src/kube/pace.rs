//! How often one object is written: at once if it is new, then ever more rarely; and while it keeps changing, as when the
//! routes of a Gateway come by the thousand, only now and then until it holds still.

use std::time::Duration;

use tokio::time::Instant;

/// An object rests after a write, after each twice as long.
pub(super) const FIRST_REST: Duration = Duration::from_millis(25);
const LONGEST_REST: Duration = Duration::from_millis(200);
/// One that still changes after the longest rest is written when nothing changed for so long …
const STILL: Duration = Duration::from_millis(200);
/// … or when this has passed since the last write.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// What was not written for this long starts anew.
const CALM: Duration = Duration::from_secs(3);

/// When an object was written last, and how long it rested then.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<(Instant, Duration)>);

impl Pace {
    /// Takes note of a write; the object rests until the time returned.
    pub(super) fn written(&mut self) -> Instant {
        let now = Instant::now();
        let rest = match self.0 {
            Some((_, rest)) if !self.is_calm() => (rest * 2).min(LONGEST_REST),
            _ => FIRST_REST,
        };
        self.0 = Some((now, rest));
        now + rest
    }

    /// When to write what is as it is `since` then, and rests until `rested`.
    pub(super) fn due(&self, rested: Instant, since: Instant) -> Instant {
        match self.0 {
            Some((last, rest)) if rest == LONGEST_REST => {
                rested.max((since + STILL).min(last + LONGEST_WAIT))
            }
            _ => rested,
        }
    }

    pub(super) fn is_calm(&self) -> bool {
        self.0.is_none_or(|(last, _)| last.elapsed() >= CALM)
    }
}
