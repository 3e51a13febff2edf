//! Budgets of new connections: token buckets that all cores share, one for each object that has a
//! budget. What has been taken hangs on the object, not on its policy: a policy that is edited, or
//! deleted and made again, gives nothing back. A bucket is one number, which a connection moves.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use portcullis_model::{Budget, BudgetOwner};

use crate::core::stats::BudgetStats;

/// Buckets from which on those are looked for that no listener needs.
const MANY: usize = 64;
/// Buckets that a connection remembers.
const MOST_CHARGED: usize = 16;
const SECOND: u64 = 1_000_000_000;

/// The buckets of all cores. The lock is for finding one, once per core and version of a listener.
#[derive(Clone, Debug)]
pub(crate) struct SharedBudgets {
    start: Instant,
    buckets: Arc<Mutex<Buckets>>,
}

#[derive(Debug)]
struct Buckets {
    by_owner: HashMap<BudgetOwner, Arc<Shared>>,
    /// Their number at which those that are full and unused go.
    limit: usize,
}

/// The part of a bucket that all cores have in common.
#[derive(Debug, Default)]
struct Shared {
    /// Nanoseconds since the start until the bucket is full again.
    full_at: AtomicU64,
    taken: AtomicU64,
    refused: AtomicU64,
}

/// The bucket of a budget, as one core sees it.
pub(crate) struct Bucket {
    pub owner: BudgetOwner,
    start: Instant,
    shared: Arc<Shared>,
    /// Nanoseconds in which a token comes.
    interval: u64,
    /// Nanoseconds in which an empty bucket fills.
    depth: u64,
}

/// The buckets that a connection has been taken from, as many as are remembered.
#[derive(Default)]
pub(crate) struct Charged(Vec<Arc<Shared>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Token,
    Nothing,
}

// === impl SharedBudgets ===

impl Default for SharedBudgets {
    fn default() -> Self {
        let buckets = Buckets { by_owner: HashMap::new(), limit: MANY };
        Self { start: Instant::now(), buckets: Arc::new(Mutex::new(buckets)) }
    }
}

impl SharedBudgets {
    pub(crate) fn bucket(&self, budget: &Budget) -> Bucket {
        let Budget { owner, per_second, burst } = budget;
        let interval = SECOND / u64::from(NonZeroU32::get(*per_second));
        Bucket {
            owner: owner.clone(),
            start: self.start,
            shared: self.shared(owner),
            interval,
            depth: interval * u64::from(burst.get()),
        }
    }

    /// New connections by each budget that a listener has.
    pub(crate) fn stats(&self) -> BTreeMap<BudgetOwner, BudgetStats> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let used = buckets.by_owner.iter().filter(|(_, shared)| Arc::strong_count(shared) > 1);
        let stats = |shared: &Shared| BudgetStats {
            taken: shared.taken.load(Relaxed),
            refused: shared.refused.load(Relaxed),
        };
        used.map(|(owner, shared)| (owner.clone(), stats(shared))).collect()
    }

    fn shared(&self, owner: &BudgetOwner) -> Arc<Shared> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = buckets.by_owner.get(owner) {
            return known.clone();
        }
        if buckets.by_owner.len() >= buckets.limit {
            let now = since(self.start);
            buckets.by_owner.retain(|_, it| Arc::strong_count(it) > 1 || it.full_at.load(Relaxed) > now);
            buckets.limit = MANY.max(2 * buckets.by_owner.len());
        }
        buckets.by_owner.entry(owner.clone()).or_default().clone()
    }
}

// === impl Bucket ===

impl Bucket {
    pub(crate) fn take(&self) -> Taken {
        self.take_at(since(self.start))
    }

    fn take_at(&self, now: u64) -> Taken {
        let taken = self.move_to(now);
        let counter = match taken {
            Taken::Token => &self.shared.taken,
            Taken::Nothing => &self.shared.refused,
        };
        counter.fetch_add(1, Relaxed);
        taken
    }

    fn move_to(&self, now: u64) -> Taken {
        let mut full_at = self.shared.full_at.load(Relaxed);
        loop {
            // An empty bucket; one that was larger or slower before is no more than that.
            let latest = now + self.depth;
            let next = full_at.max(now) + self.interval;
            let (next, taken) = if next <= latest {
                (next, Taken::Token)
            } else if full_at > latest {
                (latest, Taken::Nothing)
            } else {
                return Taken::Nothing;
            };
            match self.shared.full_at.compare_exchange_weak(full_at, next, Relaxed, Relaxed) {
                Ok(_) => return taken,
                Err(other) => full_at = other,
            }
        }
    }
}

// === impl Charged ===

impl Charged {
    /// Takes the connection from each bucket that it has not been taken from, or says which of them
    /// is empty.
    pub(crate) fn charge<'b>(&mut self, buckets: &'b [Bucket]) -> Result<(), &'b Bucket> {
        for bucket in buckets {
            if self.0.iter().any(|known| Arc::ptr_eq(known, &bucket.shared)) {
                continue;
            }
            if bucket.take() == Taken::Nothing {
                return Err(bucket);
            }
            // The first ones are those that all listeners have.
            if self.0.len() == MOST_CHARGED {
                self.0.pop();
            }
            self.0.push(bucket.shared.clone());
        }
        Ok(())
    }
}

fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use portcullis_model::{ObjectName, ParentKind};

    use super::*;

    fn budget(name: &str, per_second: u32, burst: u32) -> Budget {
        let owner =
            BudgetOwner { kind: ParentKind::Gateway, name: ObjectName::new("infra", name), listener: None };
        let [per_second, burst] = [per_second, burst].map(|it| NonZeroU32::new(it).unwrap());
        Budget { owner, per_second, burst }
    }

    /// The number of tokens out of so many attempts at a time.
    fn tokens(bucket: &Bucket, now: u64, attempts: usize) -> usize {
        (0..attempts).filter(|_| bucket.take_at(now) == Taken::Token).count()
    }

    #[test]
    fn a_burst_comes_at_once_and_then_so_many_a_second() {
        let bucket = SharedBudgets::default().bucket(&budget("web", 10, 25));
        assert_eq!(tokens(&bucket, 0, 100), 25);
        assert_eq!(tokens(&bucket, SECOND / 10 - 1, 100), 0);
        assert_eq!(tokens(&bucket, SECOND / 10, 100), 1);
        assert_eq!(tokens(&bucket, SECOND, 100), 9);
        assert_eq!(tokens(&bucket, 1000 * SECOND, 100), 25, "it is full, and no more than that");
    }

    #[test]
    fn what_is_asked_of_a_budget_is_counted_as_long_as_a_listener_has_it() {
        let budgets = SharedBudgets::default();
        let (bucket, again) =
            (budgets.bucket(&budget("web", 10, 25)), budgets.bucket(&budget("web", 10, 25)));
        tokens(&bucket, 0, 20);
        tokens(&again, 0, 20);
        let stats = BudgetStats { taken: 25, refused: 15 };
        assert_eq!(budgets.stats(), [(bucket.owner.clone(), stats)].into());
        drop((bucket, again));
        assert_eq!(budgets.stats().len(), 0);
    }

    #[test]
    fn another_policy_of_the_same_object_gives_nothing_back() {
        let budgets = SharedBudgets::default();
        assert_eq!(tokens(&budgets.bucket(&budget("web", 10, 10)), 0, 100), 10);
        for others in 0..3 * MANY {
            drop(budgets.bucket(&budget(&others.to_string(), 1, 1)));
        }
        let again = budgets.bucket(&budget("web", 10, 10));
        assert_eq!(tokens(&again, 0, 100), 0, "it was made again");
        assert_eq!(tokens(&budgets.bucket(&budget("other", 10, 10)), 0, 100), 10);
        assert!(
            budgets.buckets.lock().unwrap().by_owner.len() <= 2 * MANY + 2,
            "those without a listener go"
        );
    }

    #[test]
    fn a_bucket_that_gets_smaller_is_empty_at_most() {
        let budgets = SharedBudgets::default();
        assert_eq!(tokens(&budgets.bucket(&budget("web", 1, 1_000)), 0, 10_000), 1_000);
        let smaller = budgets.bucket(&budget("web", 1_000, 10));
        assert_eq!(tokens(&smaller, 0, 1), 0);
        assert_eq!(tokens(&smaller, SECOND, 100), 10, "and not empty for as long as the large one was");
    }

    #[test]
    fn cores_share_a_bucket() {
        let budgets = SharedBudgets::default();
        let taken: usize = std::thread::scope(|scope| {
            let cores: Vec<_> = (0..4)
                .map(|_| {
                    let bucket = budgets.bucket(&budget("web", 1, 1_000));
                    scope.spawn(move || tokens(&bucket, 0, 1_000))
                })
                .collect();
            cores.into_iter().map(|core| core.join().unwrap()).sum()
        });
        assert_eq!(taken, 1_000);
    }
}
