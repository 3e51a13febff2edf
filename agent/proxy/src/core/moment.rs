//! Moments of the monotonic clock, for what is timed with every request.

use rustix::time::{ClockId, clock_gettime};

use crate::core::histogram::Observed;

/// In nanoseconds: for a difference, [`Instant`](std::time::Instant) takes twice the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(u64);

// === impl Moment ===

impl Moment {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let seconds = now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000);
        Self(seconds.wrapping_add(now.tv_nsec.cast_unsigned()))
    }

    /// The time since.
    pub(crate) fn observed(self) -> Observed {
        Observed::nanoseconds(Self::now().0.saturating_sub(self.0))
    }
}
