//! Moments of the monotonic clock, for what is timed with every request.

use std::time::Instant;

use crate::core::histogram::Observed;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(Instant);

// === impl Moment ===

impl Moment {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// The time since.
    pub(crate) fn observed(self) -> Observed {
        let elapsed = self.0.elapsed();
        let seconds = elapsed.as_secs().wrapping_mul(1_000_000_000);
        Observed::nanoseconds(seconds.wrapping_add(elapsed.subsec_nanos().into()))
    }
}
