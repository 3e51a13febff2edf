//! Histograms of durations. Each core counts in plain cells; a scrape adds them up.

use std::time::Duration;

use crate::core::counter::Counter;

/// Buckets: one up to each bound, and one beyond the last.
const BUCKETS: usize = Histogram::BOUNDS.len() + 1;

/// Durations, by how long they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Durations up to each of [`Histogram::BOUNDS`] and above the one before it, and beyond all.
    pub buckets: [u64; BUCKETS],
    /// Of all durations.
    pub sum: Duration,
}

/// A duration with its bucket.
#[derive(Clone, Copy)]
pub(crate) struct Observed {
    bucket: usize,
    nanoseconds: u64,
}

/// In nanoseconds.
const BOUNDS: [u64; Histogram::BOUNDS.len()] = {
    let mut bounds = [0; Histogram::BOUNDS.len()];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = Histogram::BOUNDS[at].as_nanos() as u64;
        at += 1;
    }
    bounds
};

/// One core's cells.
#[derive(Debug, Default)]
pub(crate) struct HistogramCells {
    buckets: [Counter; BUCKETS],
    nanoseconds: Counter,
}

// === impl Histogram ===

impl Histogram {
    /// Upper bounds, which belong to their buckets: from what a request costs beside an idle
    /// backend to what time-outs usually are.
    pub const BOUNDS: [Duration; 15] = [
        Duration::from_micros(250),
        Duration::from_micros(500),
        Duration::from_millis(1),
        Duration::from_micros(2_500),
        Duration::from_millis(5),
        Duration::from_millis(10),
        Duration::from_millis(25),
        Duration::from_millis(50),
        Duration::from_millis(100),
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_secs(1),
        Duration::from_millis(2_500),
        Duration::from_secs(5),
        Duration::from_secs(10),
    ];

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(sum, count)| *sum += count);
        self.sum += other.sum;
    }
}

// === impl Observed ===

impl Observed {
    /// Looks from below: what took long can wait for a few bounds more.
    pub(crate) fn nanoseconds(nanoseconds: u64) -> Self {
        let bucket = BOUNDS.iter().position(|bound| nanoseconds <= *bound);
        Self { bucket: bucket.unwrap_or(BOUNDS.len()), nanoseconds }
    }
}

// === impl HistogramCells ===

impl HistogramCells {
    pub(crate) fn observe(&self, observed: Observed) {
        self.buckets[observed.bucket].increment();
        self.nanoseconds.add(observed.nanoseconds);
    }

    pub(crate) fn read(&self) -> Histogram {
        Histogram {
            buckets: std::array::from_fn(|bucket| self.buckets[bucket].get()),
            sum: Duration::from_nanos(self.nanoseconds.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let cells = HistogramCells::default();
        let durations = [0, 250_000, 250_001, 10_000_000_000, 10_000_000_001];
        durations.into_iter().for_each(|duration| cells.observe(Observed::nanoseconds(duration)));
        let read = cells.read();
        assert_eq!(read.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((read.count(), read.sum), (5, Duration::from_nanos(durations.iter().sum())));
    }
}
