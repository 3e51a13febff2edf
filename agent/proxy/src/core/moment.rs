//! Moments of the monotonic clock, for what is timed with every request.

use nix::time::{ClockId, clock_gettime};

use crate::core::histogram::Observed;

/// Nanoseconds of the clock: as a number, which std's moments are not, it costs one subtraction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(u64);

// === impl Moment ===

impl Moment {
    pub(crate) fn now() -> Self {
        // Linux has this clock, and it is not negative.
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
        let (seconds, nanoseconds) = time.map_or((0, 0), |time| (time.tv_sec(), time.tv_nsec()));
        Self(seconds.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(nanoseconds.cast_unsigned()))
    }

    /// The time since.
    pub(crate) fn observed(self) -> Observed {
        Observed::nanoseconds(Self::now().0.wrapping_sub(self.0))
    }
}
