//! Retry budgets (GEP-3388): of the requests to a Service a part may be sent again. The numbers are
//! those of the agent: its cores count in the same cells. A request counts as one; the lock is for
//! retries alone, which have their pause to wait for anyway, and makes them exact.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use portcullis_model::RetryBudget;

/// Parts of an interval. As it moves on, it forgets one after the other.
const PARTS: u64 = 10;
/// The current part, and as many before it.
const KEPT: usize = 11;

/// Budgets by their terms, which name the Service. The lock is for finding one, once per core and
/// version of a backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedBudgets(Arc<Mutex<HashMap<Arc<RetryBudget>, Weak<Budget>>>>);

/// The requests of a Service in its interval, and the retries among them.
#[derive(Debug)]
pub(crate) struct Budget {
    terms: Arc<RetryBudget>,
    /// By part: its number, the lower half of it, and how many there were.
    requests: [AtomicU64; PARTS as usize],
    retries: Mutex<Retries>,
}

#[derive(Debug, Default)]
struct Retries {
    /// In parts of the budget's interval.
    of_budget: Window,
    /// In those of the least rate's.
    of_rate: Window,
}

/// Numbers of parts, with how many there were.
#[derive(Debug, Default)]
struct Window([(u64, u64); KEPT]);

// === impl SharedBudgets ===

impl SharedBudgets {
    pub(crate) fn of(&self, terms: &Arc<RetryBudget>) -> Arc<Budget> {
        let mut budgets = lock(&self.0);
        if let Some(known) = budgets.get(terms).and_then(Weak::upgrade) {
            return known;
        }
        budgets.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Budget::new(terms.clone()));
        budgets.insert(terms.clone(), Arc::downgrade(&new));
        new
    }
}

// === impl Budget ===

impl Budget {
    fn new(terms: Arc<RetryBudget>) -> Self {
        Self { terms, requests: Default::default(), retries: Mutex::default() }
    }

    /// Notes a request that is sent for the first time.
    pub(crate) fn count(&self) {
        self.count_at(now());
    }

    /// True if one more retry is within the budget, which it is taken from then.
    pub(crate) fn permits_retry(&self) -> bool {
        let mut retries = lock(&self.retries);
        // Not before: so that it does not go back.
        self.take(&mut retries, now())
    }

    fn count_at(&self, at: Duration) {
        let number = part(at, self.terms.interval);
        let (Some(cell), tag) = (self.requests.get((number % PARTS) as usize), number << 32) else { return };
        let more = |known: u64| match known ^ tag {
            count if count < u64::from(u32::MAX) => Some(known + 1),
            // Too many to count.
            count if count == u64::from(u32::MAX) => None,
            _ => Some(tag | 1),
        };
        let _ = cell.fetch_update(Relaxed, Relaxed, more);
    }

    fn requests(&self, at: Duration) -> u64 {
        let now = part(at, self.terms.interval) as u32;
        let counts = self.requests.iter().map(|cell| cell.load(Relaxed));
        let recent = counts.filter(|count| u64::from(now.wrapping_sub((count >> 32) as u32)) < PARTS);
        recent.map(|count| count & u64::from(u32::MAX)).sum()
    }

    /// Requests are counted in a little less than the interval, retries in a little more, so that
    /// there is no interval with more than its share. The least rate is one, and the other way
    /// round.
    fn take(&self, retries: &mut Retries, at: Duration) -> bool {
        let RetryBudget { percent, interval, least, .. } = &*self.terms;
        let (of_budget, of_rate) = (part(at, *interval), part(at, least.interval));
        let is_share = (retries.of_budget.sum(of_budget, PARTS + 1) + 1) * 100
            <= self.requests(at) * u64::from(*percent);
        let permitted = is_share || retries.of_rate.sum(of_rate, PARTS) < u64::from(least.count.get());
        if permitted {
            retries.of_budget.add(of_budget);
            retries.of_rate.add(of_rate);
        }
        permitted
    }
}

// === impl Window ===

impl Window {
    fn add(&mut self, number: u64) {
        let Some((known, count)) = self.0.get_mut((number % KEPT as u64) as usize) else { return };
        if *known != number {
            (*known, *count) = (number, 0);
        }
        *count += 1;
    }

    /// Of the part with the number, and of those before it.
    fn sum(&self, number: u64, parts: u64) -> u64 {
        let recent = self.0.iter().filter(|(known, _)| number.saturating_sub(*known) < parts);
        recent.map(|(_, count)| count).sum()
    }
}

/// The number of the part of an interval.
fn part(at: Duration, interval: Duration) -> u64 {
    let number = at.as_nanos() * u128::from(PARTS) / interval.as_nanos().max(1);
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Since the first budget. The clocks of cores differ.
fn now() -> Duration {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed()
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use portcullis_model::{ObjectName, RetryRate};

    use super::*;

    fn budget(percent: u8, count: u32) -> Budget {
        let least = RetryRate { count: count.try_into().unwrap(), interval: Duration::from_secs(1) };
        let service = ObjectName::new("shop", "cart");
        Budget::new(Arc::new(RetryBudget { service, percent, interval: Duration::from_secs(10), least }))
    }

    /// The retries that are permitted at this moment.
    fn permitted(budget: &Budget, at: Duration) -> u64 {
        std::iter::repeat_with(|| budget.take(&mut lock(&budget.retries), at))
            .take_while(|permitted| *permitted)
            .count() as u64
    }

    #[test]
    fn retries_are_a_part_of_the_requests_of_the_interval() {
        let budget = budget(20, 1);
        let at = Duration::from_millis;
        (0..1000).for_each(|number| budget.count_at(at(number)));
        assert_eq!(permitted(&budget, at(1000)), 200);
        // One a second there may be in any case; it counts, too.
        assert_eq!(permitted(&budget, at(2500)), 1);
        (0..100).for_each(|_| budget.count_at(at(5000)));
        assert_eq!(permitted(&budget, at(5000)), 19);
        // The requests of the first second are over, and their retries not yet.
        assert_eq!(permitted(&budget, at(10_500)), 1);
        assert_eq!(permitted(&budget, at(13_000)), 1);
        (0..1000).for_each(|_| budget.count_at(at(30_000)));
        assert_eq!(permitted(&budget, at(30_000)), 200);
    }

    #[test]
    fn some_retries_there_may_be_in_any_case() {
        let none = budget(0, 3);
        let at = Duration::from_millis;
        for second in 0..10 {
            let begin = second * 1000;
            assert_eq!([begin, begin + 400, begin + 900].map(|time| permitted(&none, at(time))), [3, 0, 0]);
        }
        (0..100).for_each(|_| none.count_at(at(20_000)));
        assert_eq!(permitted(&none, at(20_000)), 3);
        let all = budget(100, 1);
        (0..50).for_each(|_| all.count_at(at(0)));
        assert_eq!(permitted(&all, at(0)), 50);
    }

    #[test]
    fn cores_share_a_budget_to_the_retry() {
        let budgets = SharedBudgets::default();
        let terms = budget(20, 1).terms;
        let permitted: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let budget = budgets.of(&terms);
                    scope.spawn(move || {
                        (0..5000)
                            .map(|_| {
                                budget.count();
                                u64::from(budget.permits_retry()) + u64::from(budget.permits_retry())
                            })
                            .sum::<u64>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // Beyond the least rate, of which there is one in each second that this takes.
        assert!((4000 - 1..=4000 + 10).contains(&permitted), "{permitted}");
        let other = Arc::new(RetryBudget { percent: 30, ..RetryBudget::clone(&terms) });
        let known = budgets.of(&terms);
        assert!(Arc::ptr_eq(&known, &budgets.of(&Arc::new(RetryBudget::clone(&terms)))));
        assert!(!Arc::ptr_eq(&known, &budgets.of(&other)));
    }
}
