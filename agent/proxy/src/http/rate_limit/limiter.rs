//! One limit: a bucket of tokens, or one for each key. A bucket is one number, the moment at which
//! it will be full again, and a request moves it.
//!
//! A key has a slot as long as its bucket is not full, which is all that there is to remember: no
//! other key can have it taken away. Where more keys are in use than there are slots, or more than
//! there is room for, those that come later share buckets, so that they get less, never more.

use std::array;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use portcullis_model::{RateKey, RateLimit};

use super::Exhausted;
use crate::core::shares::Shares;

/// Slots next to each other, in one of which the bucket of a key is: a cache line.
const WAYS: usize = 8;
/// Sets of slots that are made at once, when one of them is needed.
const SETS_OF_A_BLOCK: usize = 64;
const BLOCKS: usize = 128;

/// Times are in sixteenths of a microsecond, and leave twelve bits to tell keys of one set apart.
pub(super) const SECOND: u64 = 16_000_000;
pub(super) const TIME: u64 = (1 << 52) - 1;
/// Cores that were interrupted come with a time that is over: never by as much.
const LATE: u64 = 60 * SECOND;

#[derive(Debug)]
pub(super) struct Limiter {
    limit: RateLimit,
    /// The time in which a token comes, and as many as a bucket has room for: of all agents that
    /// share the limit.
    interval: u64,
    burst: u64,
    agents: Arc<AtomicU32>,
    buckets: Buckets,
}

/// The share of a limit that is this agent's. A bucket's time to be full again stays what it is
/// when there are other shares, so that nothing of what was taken is given back.
#[derive(Clone, Copy)]
struct Share {
    /// The time in which a token comes.
    interval: u64,
    /// The time in which an empty bucket fills.
    depth: u64,
    /// The longest time that a bucket can lack to be full, as the number of agents is now.
    most_owed: u64,
}

#[derive(Debug)]
enum Buckets {
    One(AtomicU64),
    ByKey(ByKey),
}

#[derive(Debug)]
struct ByKey {
    hasher: RandomState,
    blocks: Box<[Block]>,
    /// Those of keys whose block there was no room for.
    shared: Set,
    room: Room,
}

type Set = [AtomicU64; WAYS];
type Block = OnceLock<Box<[Set; SETS_OF_A_BLOCK]>>;

/// Room for blocks: that of the namespace of a limit's policy.
#[derive(Debug)]
struct Room {
    all: Arc<Mutex<Shares>>,
    namespace: Arc<str>,
}

// === impl Limiter ===

impl Limiter {
    pub(super) fn new(
        limit: &RateLimit,
        agents: Arc<AtomicU32>,
        namespace: &Arc<str>,
        room: &Arc<Mutex<Shares>>,
    ) -> Self {
        // Rounded up: more than the rate is never let in.
        let interval = (u64::from(limit.period.seconds()) * SECOND).div_ceil(u64::from(limit.requests.get()));
        let buckets = match limit.key {
            RateKey::All => Buckets::One(AtomicU64::default()),
            RateKey::ClientAddress | RateKey::Header(_) | RateKey::Claim(_) => {
                Buckets::ByKey(ByKey::new(Room { all: room.clone(), namespace: namespace.clone() }))
            }
        };
        Self { interval, burst: limit.burst.get().into(), agents, buckets, limit: limit.clone() }
    }

    /// Each agent lets one come at once at least, be the burst smaller than their number.
    fn share(&self) -> Share {
        let agents = u64::from(self.agents.load(Relaxed));
        let interval = self.interval * agents;
        let depth = interval * (self.burst / agents).max(1);
        Share { interval, depth, most_owed: self.interval * self.burst.max(agents) }
    }

    pub(super) fn take(&self, now: u64, key: impl Fn(&RateKey) -> Vec<u8>) -> Result<(), Exhausted> {
        let share = self.share();
        let taken = match &self.buckets {
            Buckets::One(bucket) => share.move_bucket(bucket, 0, now),
            Buckets::ByKey(buckets) => buckets.take(&key(&self.limit.key), share, now),
        };
        taken.map_err(|wait| Exhausted {
            requests: self.limit.requests.get(),
            period_seconds: self.limit.period.seconds(),
            wait_seconds: wait.div_ceil(SECOND).max(1),
        })
    }

    /// True if a bucket is not full.
    pub(super) fn is_in_use(&self, now: u64) -> bool {
        let is_used = |bucket: &AtomicU64| bucket.load(Relaxed) & TIME > now;
        match &self.buckets {
            Buckets::One(bucket) => is_used(bucket),
            Buckets::ByKey(ByKey { blocks, shared, .. }) => {
                let sets = blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter());
                shared.iter().chain(sets.flatten()).any(is_used)
            }
        }
    }

    /// The room that its keys take.
    pub(super) fn blocks(&self) -> usize {
        match &self.buckets {
            Buckets::One(_) => 0,
            Buckets::ByKey(buckets) => buckets.made(),
        }
    }
}

// === impl ByKey ===

impl ByKey {
    fn new(room: Room) -> Self {
        let blocks = (0..BLOCKS).map(|_| OnceLock::new()).collect();
        Self { hasher: RandomState::new(), blocks, shared: Set::default(), room }
    }

    fn take(&self, key: &[u8], share: Share, now: u64) -> Result<(), u64> {
        let hash = self.hasher.hash_one(key);
        let any = (hash >> 20) as usize % WAYS;
        let at = (hash & TIME) as usize % (BLOCKS * SETS_OF_A_BLOCK);
        let Some(block) = self.block(at / SETS_OF_A_BLOCK) else {
            return share.move_bucket(&self.shared[any], 0, now);
        };
        let set = &block[at % SETS_OF_A_BLOCK];
        let tag = hash & !TIME;
        loop {
            let mut free = None;
            for slot in set {
                let held = slot.load(Relaxed);
                if held & TIME <= now {
                    free = free.or(Some((slot, held)));
                } else if held & !TIME == tag {
                    return share.move_bucket(slot, tag, now);
                }
            }
            let Some((slot, held)) = free else {
                return share.move_bucket(&set[any], tag, now);
            };
            // It may be one of those that shared a bucket until there was room.
            let owed = share.full_at(self.shared[any].load(Relaxed), now);
            let next = owed.max(now) + share.interval;
            if next > now + share.depth {
                return Err(next - now - share.depth);
            }
            // Another core may have taken it, for this very key: then it is there to be found.
            if slot.compare_exchange(held, tag | next, Relaxed, Relaxed).is_ok() {
                return Ok(());
            }
        }
    }

    fn block(&self, at: usize) -> Option<&[Set; SETS_OF_A_BLOCK]> {
        let block = &self.blocks[at];
        if block.get().is_none() {
            if !self.room.take() {
                return None;
            }
            // Another core may have made it.
            if block.set(Box::new(array::from_fn(|_| Set::default()))).is_err() {
                self.room.give_back(1);
            }
        }
        block.get().map(|block| &**block)
    }

    fn made(&self) -> usize {
        self.blocks.iter().filter(|block| block.get().is_some()).count()
    }
}

impl Drop for ByKey {
    fn drop(&mut self) {
        self.room.give_back(self.made());
    }
}

// === impl Room ===

impl Room {
    fn take(&self) -> bool {
        self.shares().take(&self.namespace, 1)
    }

    fn give_back(&self, blocks: usize) {
        self.shares().give_back(&self.namespace, blocks);
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Share ===

impl Share {
    /// The time at which a bucket is full. One of many agents pays back at their rate, not for
    /// longer than they are there: one of a thousand would owe a thousand times as long as one
    /// alone can.
    fn full_at(&self, held: u64, now: u64) -> u64 {
        match held & TIME {
            owed if owed > now + self.most_owed + LATE => now + self.most_owed,
            owed => owed,
        }
    }

    /// Takes a token, or says how long it takes until there is one.
    fn move_bucket(&self, bucket: &AtomicU64, tag: u64, now: u64) -> Result<(), u64> {
        let mut held = bucket.load(Relaxed);
        loop {
            let full_at = self.full_at(held, now);
            let next = full_at.max(now) + self.interval;
            if next > now + self.depth {
                let owed = held & !TIME | full_at;
                if owed == held || bucket.compare_exchange(held, owed, Relaxed, Relaxed).is_ok() {
                    return Err(next - now - self.depth);
                }
                held = bucket.load(Relaxed);
                continue;
            }
            // The key that has it keeps it.
            let tag = if full_at > now { held & !TIME } else { tag };
            match bucket.compare_exchange_weak(held, tag | next, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => held = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::thread;

    use portcullis_model::{Period, RateScope};

    use super::*;

    fn limiter(requests: u32, period: Period, burst: u32, key: RateKey) -> Limiter {
        let [requests, burst] = [requests, burst].map(|it| NonZeroU32::new(it).unwrap());
        let limit = RateLimit { requests, period, burst, key, scope: RateScope::Node };
        with_room(limit, BLOCKS)
    }

    /// With room for so many blocks.
    fn with_room(limit: RateLimit, blocks: usize) -> Limiter {
        let room = Arc::new(Mutex::new(Shares::new(2 * blocks)));
        Limiter::new(&limit, Arc::new(AtomicU32::new(1)), &"test".into(), &room)
    }

    fn of_agents(number: u32, limiter: &Limiter) {
        limiter.agents.store(number, Relaxed);
    }

    /// Requests of a key that pass, of so many at one moment.
    fn passed(limiter: &Limiter, key: &str, now: u64, attempts: usize) -> usize {
        (0..attempts).filter(|_| limiter.take(now, |_| key.as_bytes().to_vec()).is_ok()).count()
    }

    #[test]
    fn a_burst_passes_at_once_and_then_the_rate() {
        for key in [RateKey::All, RateKey::ClientAddress] {
            let limiter = limiter(10, Period::Second, 25, key);
            let begin = 7 * SECOND;
            assert_eq!(passed(&limiter, "a", begin, 100), 25);
            assert_eq!(passed(&limiter, "a", begin + SECOND / 10 - 1, 100), 0);
            assert_eq!(passed(&limiter, "a", begin + SECOND / 10, 100), 1);
            assert_eq!(passed(&limiter, "a", begin + SECOND, 100), 9);
            assert_eq!(passed(&limiter, "a", begin + 1000 * SECOND, 100), 25);
        }
    }

    #[test]
    fn the_wait_is_until_a_request_passes() {
        let limiter = limiter(6, Period::Minute, 2, RateKey::All);
        assert_eq!(passed(&limiter, "", SECOND, 3), 2);
        let exhausted = limiter.take(SECOND, |_| Vec::new()).unwrap_err();
        assert_eq!(exhausted, Exhausted { requests: 6, period_seconds: 60, wait_seconds: 10 });
        assert!(limiter.take(11 * SECOND - 1, |_| Vec::new()).is_err());
        assert!(limiter.take(11 * SECOND, |_| Vec::new()).is_ok());
    }

    #[test]
    fn agents_have_a_share_each_and_never_more_than_all_of_it_together() {
        for (agents, burst, at_once) in [(1, 10, 10), (3, 10, 3), (10, 10, 1), (16, 10, 1)] {
            let limiter = limiter(40, Period::Second, burst, RateKey::All);
            of_agents(agents, &limiter);
            assert_eq!(passed(&limiter, "", SECOND, 100), at_once, "{agents}");
            let moments = 1..=100 * 40;
            let passed: usize = moments.map(|at| passed(&limiter, "", SECOND + at * SECOND / 40, 2)).sum();
            let all = passed * agents as usize;
            assert!(all <= 4000 && all > 4000 - 2 * agents as usize, "{agents}: {passed}");
        }
    }

    #[test]
    fn another_number_of_agents_gives_nothing_back() {
        for key in [RateKey::All, RateKey::ClientAddress] {
            let limiter = limiter(1, Period::Hour, 12, key);
            assert_eq!(passed(&limiter, "a", SECOND, 20), 12);
            for agents in [2, 3, 12, 1, 4, 1] {
                of_agents(agents, &limiter);
                assert_eq!(passed(&limiter, "a", 2 * SECOND, 20), 0, "{agents}");
            }
            // A half of what has come since is one's of two.
            of_agents(2, &limiter);
            assert_eq!(passed(&limiter, "a", (4 * 3600 + 1) * SECOND, 20), 2);
        }
    }

    #[test]
    fn what_is_owed_is_that_of_the_agents_that_are_there() {
        const HOUR: u64 = 3600 * SECOND;
        for key in [RateKey::All, RateKey::ClientAddress] {
            let limiter = limiter(1, Period::Hour, 1, key);
            of_agents(1000, &limiter);
            assert_eq!(passed(&limiter, "a", SECOND, 2), 1);
            of_agents(2, &limiter);
            assert_eq!(passed(&limiter, "a", HOUR, 2), 0);
            let wait = limiter.take(HOUR, |_| b"a".to_vec()).unwrap_err().wait_seconds;
            assert_eq!(wait, 2 * 3600);
            // It is not put off by those that are refused meanwhile, nor by another number.
            of_agents(1000, &limiter);
            assert_eq!(passed(&limiter, "a", 2 * HOUR, 2), 0);
            of_agents(2, &limiter);
            assert_eq!(passed(&limiter, "a", 3 * HOUR - 1, 2), 0);
            assert_eq!(passed(&limiter, "a", 3 * HOUR, 2), 1);
        }
    }

    #[test]
    fn a_flood_of_other_keys_gives_no_key_a_fresh_bucket() {
        let limiter = limiter(1, Period::Hour, 2, RateKey::ClientAddress);
        assert_eq!(passed(&limiter, "attacker", SECOND, 3), 2);
        for other in 0..200_000 {
            passed(&limiter, &format!("other {other}"), 2 * SECOND, 1);
        }
        assert_eq!(passed(&limiter, "attacker", 3 * SECOND, 10), 0);
    }

    #[test]
    fn keys_have_buckets_of_their_own() {
        let limiter = limiter(1, Period::Hour, 3, RateKey::ClientAddress);
        let clients = (0..100).map(|client| passed(&limiter, &client.to_string(), SECOND, 5));
        assert_eq!(clients.filter(|passed| *passed == 3).count(), 100);
    }

    #[test]
    fn keys_without_room_share_and_have_nothing_twice() {
        const KEYS: usize = 1000;
        let [requests, burst] = [1, 5].map(|it| NonZeroU32::new(it).unwrap());
        let key = RateKey::ClientAddress;
        let limit = RateLimit { requests, period: Period::Hour, burst, key, scope: RateScope::Node };
        let limiter = with_room(limit, 3);
        let each = |now| (0..KEYS).map(|key| passed(&limiter, &key.to_string(), now, 6)).collect::<Vec<_>>();
        let first = each(SECOND);
        assert_eq!(limiter.blocks(), 3);
        let own = first.iter().filter(|passed| **passed == 5).count();
        assert!((5..100).contains(&own), "{own}");
        let others: usize = first.iter().filter(|passed| **passed < 5).sum();
        assert!(others <= WAYS * 5, "{others}");
        // There is room, and what they had together counts for each of them.
        let Buckets::ByKey(buckets) = &limiter.buckets else { panic!("no keys") };
        *buckets.room.shares() = Shares::new(2 * BLOCKS);
        assert_eq!(each(2 * SECOND), [0; KEYS]);
        // A few may have no key, as chance will have it.
        assert!((BLOCKS * 9 / 10..=BLOCKS).contains(&limiter.blocks()), "{}", limiter.blocks());
        let whole = each((5 * 3600 + 2) * SECOND);
        assert!(whole.iter().filter(|passed| **passed == 5).count() > KEYS * 9 / 10);
    }

    #[test]
    fn a_limit_gives_its_room_back() {
        let limiter = limiter(1, Period::Hour, 1, RateKey::ClientAddress);
        // So many that no block is without one.
        for key in 0..10_000 {
            passed(&limiter, &key.to_string(), SECOND, 1);
        }
        let Buckets::ByKey(buckets) = &limiter.buckets else { panic!("no keys") };
        let room = buckets.room.all.clone();
        assert_eq!(limiter.blocks(), BLOCKS);
        assert!(!room.lock().unwrap().take(&"test".into(), 1));
        drop(limiter);
        assert!(room.lock().unwrap().take(&"test".into(), BLOCKS));
    }

    /// As many as the rate and the burst allow pass in ten seconds, though one core has most of the
    /// traffic and the others have the rest.
    #[test]
    fn uneven_cores_share_a_limit() {
        const SECONDS: u64 = 10;
        for key in [RateKey::All, RateKey::ClientAddress] {
            let limiter = limiter(1000, Period::Second, 50, key);
            // All of a moment's attempts come before those of the next, on whichever core.
            let moment = AtomicU64::new(0);
            let step = SECOND / 500;
            let passed: usize = thread::scope(|scope| {
                let cores = [40, 5, 3, 1].map(|share| {
                    let (limiter, moment) = (&limiter, &moment);
                    scope.spawn(move || {
                        let mut count = 0;
                        loop {
                            let now = moment.load(Relaxed);
                            if now >= SECONDS * 500 {
                                return count;
                            }
                            count += passed(limiter, "client", SECOND + now * step, share);
                            if share == 40 {
                                moment.fetch_add(1, Relaxed);
                            }
                        }
                    })
                });
                cores.into_iter().map(|core| core.join().unwrap()).sum()
            });
            let (rate, burst) = (1000, 50);
            let most = rate * SECONDS as usize * 101 / 100 + burst;
            assert!(passed <= most, "{passed} of at most {most}");
            assert!(passed >= rate * SECONDS as usize * 99 / 100, "{passed}");
        }
    }
}
