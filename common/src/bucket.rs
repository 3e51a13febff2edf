//! Buckets of new connections: so many a second, and as many at once as the burst. A bucket is one
//! moment, the one at which it will be full again, so that it can be changed in one step (the
//! generic cell rate algorithm of ATM's traffic management).

use crate::abi::Budget;

/// The moment at which the bucket is full again once a connection is taken now; `None` if none is
/// left. All times are in nanoseconds.
#[inline(always)]
pub const fn take(full_at: u64, now: u64, budget: &Budget) -> Option<u64> {
    let begin = if full_at > now { full_at } else { now };
    let full_at = begin.saturating_add(budget.interval);
    if full_at - now <= budget.span { Some(full_at) } else { None }
}

impl Budget {
    /// Neither number may be 0; more than a billion a second are a billion.
    pub const fn new(per_second: u32, burst: u32) -> Self {
        let interval = match per_second {
            0 => SECOND,
            some => SECOND / some as u64,
        };
        let interval = if interval == 0 { 1 } else { interval };
        Self { interval, span: interval * burst as u64 }
    }
}

const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections taken of so many that come at once.
    fn taken(full_at: &mut u64, now: u64, budget: &Budget, coming: u32) -> u32 {
        let mut taken = 0;
        for _ in 0..coming {
            if let Some(next) = take(*full_at, now, budget) {
                *full_at = next;
                taken += 1;
            }
        }
        taken
    }

    #[test]
    fn a_burst_is_taken_at_once_and_comes_back_at_the_rate() {
        let budget = Budget::new(10, 3);
        let mut full_at = 0;
        assert_eq!(taken(&mut full_at, 7 * SECOND, &budget, 9), 3);
        assert_eq!(taken(&mut full_at, 7 * SECOND + SECOND / 10, &budget, 9), 1);
        assert_eq!(taken(&mut full_at, 7 * SECOND + SECOND / 5 + 1, &budget, 9), 1);
        assert_eq!(taken(&mut full_at, 60 * SECOND, &budget, 9), 3, "no more than the burst");
    }

    #[test]
    fn every_number_is_a_rate() {
        for per_second in [1, 3, 999_999_999, u32::MAX] {
            for burst in [1, u32::MAX] {
                let budget = Budget::new(per_second, burst);
                assert!(budget.interval > 0 && budget.span >= budget.interval, "{budget:?}");
                assert!(take(0, SECOND, &budget).is_some());
            }
        }
        assert_eq!(taken(&mut 0, 0, &Budget::new(1, 1), 3), 1);
    }
}
