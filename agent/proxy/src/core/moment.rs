//! Moments of the monotonic clock, for what is timed with every request.

use std::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(Instant);

// === impl Moment ===

impl Moment {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds; a number takes half of what a duration takes to be compared and added up.
    pub(crate) fn elapsed(self) -> u64 {
        let elapsed = self.0.elapsed();
        elapsed.as_secs().wrapping_mul(1_000_000_000).wrapping_add(elapsed.subsec_nanos().into())
    }
}
