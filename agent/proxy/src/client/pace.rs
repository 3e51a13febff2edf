//! The pace at which a client sends what it announced, and reads what fills its socket. The sweep
//! of [`Clients`](crate::client::clients::Clients) looks at it; nothing happens when bytes move.

use crate::client::progress::Owed;
use crate::core::clock;
use crate::core::settings::MinimumRate;

/// Bytes that a kernel may hold back and then let go at once: what goes beyond the minimum rate is
/// kept as credit up to so many.
const BURST: i64 = 16 << 10;

/// The minimum rate in the core's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    /// Bytes between two looks.
    per_look: i64,
    /// Credit at the beginning: the client may do nothing for so long.
    grace: i64,
}

/// A client that keeps something from going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    owed: Owed,
    /// Bytes that had gone that way at the last look.
    seen: u64,
    credit: i64,
}

// === impl Pacing ===

impl Pacing {
    /// `None` if any rate will do.
    pub(crate) fn of(rate: MinimumRate) -> Option<Self> {
        let per_look = i64::from(rate.bytes_per_second.div_ceil(clock::PER_SECOND));
        let looks = i64::from(clock::ticks(rate.grace));
        (per_look > 0).then(|| Self { per_look, grace: per_look.saturating_mul(looks) })
    }
}

// === impl Pace ===

impl Pace {
    /// The pace after another look at a client that owes this. `None`: it is too slow.
    pub(crate) fn look(before: Option<Self>, (owed, seen): (Owed, u64), pacing: Pacing) -> Option<Self> {
        let same = before.filter(|before| before.owed == owed);
        let before = same.unwrap_or(Self { owed, seen, credit: pacing.grace });
        let moved = i64::try_from(seen - before.seen).unwrap_or(i64::MAX);
        let most = pacing.grace.max(BURST);
        let credit = before.credit.saturating_add(moved).min(most) - pacing.per_look;
        (credit >= 0).then_some(Self { owed, seen, credit })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Looks until a client that moves so many bytes every so many looks has to go.
    fn looks(bytes: u64, every: u32) -> Option<u32> {
        let rate = MinimumRate { bytes_per_second: 240, grace: Duration::from_secs(5) };
        let pacing = Pacing::of(rate).unwrap();
        let mut pace = None;
        (1..10_000).find(|look| {
            let seen = u64::from(look / every) * bytes;
            pace = Pace::look(pace, (Owed::Response, seen), pacing);
            pace.is_none()
        })
    }

    #[test]
    fn the_rate_is_an_average_and_grace_comes_first() {
        assert_eq!(looks(0, 1), Some(5 * clock::PER_SECOND + 1));
        assert_eq!(looks(60, 1), None, "240 B/s");
        assert_eq!(looks(240, clock::PER_SECOND), None, "a second's bytes each second");
        assert_eq!(looks(4096, 16), None, "1 KiB/s, in pieces");
        assert!(looks(59, 1).is_some_and(|looks| looks > 20));
        assert!(looks(120, clock::PER_SECOND).is_some_and(|looks| looks < 80), "half of it");
    }

    #[test]
    fn what_is_owed_now_counts() {
        let pacing = Pacing::of(MinimumRate::default()).unwrap();
        let slow = Pace { owed: Owed::Request, seen: 7, credit: 0 };
        assert_eq!(Pace::look(Some(slow), (Owed::Request, 7), pacing), None);
        assert!(Pace::look(Some(slow), (Owed::Response, 9), pacing).is_some());
    }

    #[test]
    fn without_a_rate_there_is_no_pace() {
        assert!(Pacing::of(MinimumRate { bytes_per_second: 0, ..MinimumRate::default() }).is_none());
    }
}
