//! A coarse clock per core: what needs no better resolution reads a cell instead of calling the
//! kernel.

use std::cell::Cell;
use std::time::Duration;

/// Ticks a second.
pub(crate) const PER_SECOND: u32 = 4;
const TICK: Duration = Duration::from_millis(1000 / PER_SECOND as u64);

thread_local! {
    static NOW: Cell<u32> = const { Cell::new(0) };
}

/// Ticks since the core started.
pub(crate) fn now() -> u32 {
    NOW.get()
}

/// At least the duration, in ticks.
pub(crate) fn ticks(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis().div_ceil(TICK.as_millis())).unwrap_or(u32::MAX)
}

/// The duration of so many ticks.
pub(crate) fn duration(ticks: u32) -> Duration {
    TICK.saturating_mul(ticks)
}

/// Waits for about so many ticks: the clock is late when its core is busy.
pub(crate) async fn wait(ticks: u32) {
    tokio::time::sleep(duration(ticks)).await;
}

/// Waits for the next tick of the core's clock; the core has one caller.
pub(crate) async fn tick() {
    tokio::time::sleep(TICK).await;
    advance();
}

pub(crate) fn advance() {
    NOW.set(NOW.get() + 1);
}
