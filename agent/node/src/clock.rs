//! The clock of the kernel programs.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds, as the programs count them.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
