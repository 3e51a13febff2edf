//! Rate limits: token buckets that all cores share, one for each key of a limit. What has been
//! taken hangs on the policy, its target and the limit, not on the configuration that they are part
//! of. A bucket is one number, the moment at which it will be full again, and a request moves it.
//!
//! A key has a slot as long as its bucket is not full, which is all that there is to remember: no
//! other key can have it taken away. Where more keys are in use than there are slots, those that
//! come later share buckets, so that they get less, never more.

use std::array;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use http::header::{HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use portcullis_model::{Believer, ClaimLimit, ObjectName, RateKey, RateLimit, RateScope, TrafficPolicy};

/// Limits from which on those are looked for that no policy needs.
const MANY: usize = 64;
/// Policies that a core keeps the limits of before it looks for those that are gone.
const MANY_POLICIES: usize = 256;

/// Slots next to each other, in one of which the bucket of a key is: a cache line.
const WAYS: usize = 8;
/// Sets of slots that are made at once, when one of them is needed.
const SETS_OF_A_BLOCK: usize = 64;
const BLOCKS: usize = 128;

/// Times are in sixteenths of a microsecond, and leave twelve bits to tell keys of one set apart.
const SECOND: u64 = 16_000_000;
const TIME: u64 = (1 << 52) - 1;
/// Cores that were interrupted come with a time that is over: never by as much.
const LATE: u64 = 60 * SECOND;
/// More agents than that take themselves for as many: times would not have room for more.
const MOST_AGENTS: u32 = 10_000;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The buckets of all cores. The lock is for finding one, once per core and policy.
#[derive(Clone, Debug)]
pub(crate) struct SharedRateLimits {
    start: Instant,
    limiters: Arc<Mutex<Limiters>>,
    /// Those that limits of scope Cluster are divided by.
    agents: Arc<AtomicU32>,
}

#[derive(Debug)]
struct Limiters {
    by_identity: HashMap<Identity, Arc<Limiter>>,
    /// Their number at which those that are full and unused go.
    most: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    target: Arc<str>,
    policy: ObjectName,
    limit: RateLimit,
}

/// The limits of policies as one core finds them: by the address of the model's policy, which is
/// kept alive, so it is not reused.
pub(crate) struct RateLimits {
    shared: SharedRateLimits,
    by_policy: RefCell<HashMap<usize, OfPolicy>>,
    by_claim: RefCell<HashMap<usize, OfClaims>>,
}

type OfPolicy = (Arc<TrafficPolicy>, Limits);
/// Each with the owner whose view of the client it goes by.
type Limits = Rc<[(Believer, Arc<Limiter>)]>;
type OfClaims = (Arc<[ClaimLimit]>, Rc<[Arc<Limiter>]>);

#[derive(Debug)]
struct Limiter {
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
    ByKey { hasher: RandomState, blocks: Box<[Block]> },
}

type Set = [AtomicU64; WAYS];
type Block = OnceLock<Box<[Set; SETS_OF_A_BLOCK]>>;

/// A limit that leaves no request to a key for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted {
    pub requests: u32,
    pub period_seconds: u32,
    /// Until the next one.
    pub wait_seconds: u64,
}

// === impl Exhausted ===

impl Exhausted {
    /// `Retry-After`, and the fields of draft-ietf-httpapi-ratelimit-headers.
    pub(crate) fn tell(&self, fields: &mut HeaderMap) {
        let Self { requests, period_seconds, wait_seconds } = self;
        let told = [
            (RETRY_AFTER, wait_seconds.to_string()),
            (RATE_LIMIT_POLICY, format!("\"limit\";q={requests};w={period_seconds}")),
            (RATE_LIMIT, format!("\"limit\";r=0;t={wait_seconds}")),
        ];
        for (name, value) in told {
            if let Ok(value) = HeaderValue::from_str(&value) {
                fields.insert(name, value);
            }
        }
    }
}

// === impl SharedRateLimits ===

impl Default for SharedRateLimits {
    fn default() -> Self {
        let limiters = Limiters { by_identity: HashMap::new(), most: MANY };
        let agents = Arc::new(AtomicU32::new(1));
        Self { start: Instant::now(), limiters: Arc::new(Mutex::new(limiters)), agents }
    }
}

impl SharedRateLimits {
    /// Past 0, which is the time of a bucket that was never used.
    fn now(&self) -> u64 {
        let nanoseconds = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX / 4);
        (nanoseconds / 125 * 2 + 1) & TIME
    }

    fn limiter(&self, target: &Arc<str>, policy: &ObjectName, limit: &RateLimit) -> Arc<Limiter> {
        let identity = Identity { target: target.clone(), policy: policy.clone(), limit: limit.clone() };
        let mut limiters = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = limiters.by_identity.get(&identity) {
            return known.clone();
        }
        if limiters.by_identity.len() >= limiters.most {
            let now = self.now();
            limiters.by_identity.retain(|_, it| Arc::strong_count(it) > 1 || it.is_in_use(now));
            limiters.most = MANY.max(2 * limiters.by_identity.len());
        }
        let agents = match limit.scope {
            RateScope::Node => Arc::new(AtomicU32::new(1)),
            RateScope::Cluster => self.agents.clone(),
        };
        let limiter = || Arc::new(Limiter::new(limit, agents));
        limiters.by_identity.entry(identity).or_insert_with(limiter).clone()
    }
}

// === impl RateLimits ===

impl RateLimits {
    pub(crate) fn new(shared: SharedRateLimits) -> Self {
        Self { shared, by_policy: RefCell::default(), by_claim: RefCell::default() }
    }

    /// Divides limits of scope Cluster by so many agents, on all cores.
    pub(crate) fn share_among(&self, agents: Option<NonZeroU32>) {
        self.shared.agents.store(agents.map_or(1, NonZeroU32::get).min(MOST_AGENTS), Relaxed);
    }

    /// Takes a request from each limit but those by claim, the narrowest level's first: what that
    /// refuses costs the others nothing. `key` is the text that a limit tells requests apart by.
    pub(crate) fn take(
        &self,
        policy: &Arc<TrafficPolicy>,
        key: impl Fn(Believer, &RateKey) -> Vec<u8>,
    ) -> Result<(), Exhausted> {
        let now = self.shared.now();
        let limits = self.of(policy);
        limits.iter().try_for_each(|(believer, limiter)| limiter.take(now, |it| key(*believer, it)))
    }

    fn of(&self, policy: &Arc<TrafficPolicy>) -> Limits {
        let mut by_policy = self.by_policy.borrow_mut();
        if let Some((_, limiters)) = by_policy.get(&Arc::as_ptr(policy).addr()) {
            return limiters.clone();
        }
        if by_policy.len() >= MANY_POLICIES {
            by_policy.retain(|_, (policy, _)| Arc::strong_count(policy) > 1);
        }
        let limits = policy.believers().rev().flat_map(|(believer, level)| {
            let limits = level.protection.rate_limits.iter().filter(|limit| !limit.key.is_claim());
            limits.map(move |limit| {
                (believer, self.shared.limiter(&level.target, &level.protection.policy, limit))
            })
        });
        let limiters: Limits = limits.collect();
        by_policy.insert(Arc::as_ptr(policy).addr(), (policy.clone(), limiters.clone()));
        limiters
    }
}

impl RateLimits {
    /// Takes a request from each of these limits. `key` is the text of a claim.
    pub(crate) fn take_by_claim(
        &self,
        limits: &Arc<[ClaimLimit]>,
        key: impl Fn(&ClaimLimit) -> Vec<u8>,
    ) -> Result<(), Exhausted> {
        if limits.is_empty() {
            return Ok(());
        }
        let now = self.shared.now();
        let limiters = self.of_claims(limits);
        let mut both = limits.iter().zip(limiters.iter());
        both.try_for_each(|(limit, limiter)| limiter.take(now, |_| key(limit)))
    }

    fn of_claims(&self, limits: &Arc<[ClaimLimit]>) -> Rc<[Arc<Limiter>]> {
        let mut by_claim = self.by_claim.borrow_mut();
        let place = Arc::as_ptr(limits).cast::<()>().addr();
        if let Some((_, limiters)) = by_claim.get(&place) {
            return limiters.clone();
        }
        if by_claim.len() >= MANY_POLICIES {
            by_claim.retain(|_, (limits, _)| Arc::strong_count(limits) > 1);
        }
        let limiters: Rc<[_]> =
            limits.iter().map(|it| self.shared.limiter(&it.target, &it.policy, &it.limit)).collect();
        by_claim.insert(place, (limits.clone(), limiters.clone()));
        limiters
    }
}

// === impl Limiter ===

impl Limiter {
    fn new(limit: &RateLimit, agents: Arc<AtomicU32>) -> Self {
        // Rounded up: more than the rate is never let in.
        let interval = (u64::from(limit.period.seconds()) * SECOND).div_ceil(u64::from(limit.requests.get()));
        let buckets = match limit.key {
            RateKey::All => Buckets::One(AtomicU64::default()),
            RateKey::ClientAddress | RateKey::Header(_) | RateKey::Claim(_) => Buckets::ByKey {
                hasher: RandomState::new(),
                blocks: (0..BLOCKS).map(|_| OnceLock::new()).collect(),
            },
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

    fn take(&self, now: u64, key: impl Fn(&RateKey) -> Vec<u8>) -> Result<(), Exhausted> {
        let share = self.share();
        let taken = match &self.buckets {
            Buckets::One(bucket) => share.move_bucket(bucket, 0, now),
            Buckets::ByKey { hasher, blocks } => {
                share.take_by(hasher.hash_one(key(&self.limit.key)), blocks, now)
            }
        };
        taken.map_err(|wait| Exhausted {
            requests: self.limit.requests.get(),
            period_seconds: self.limit.period.seconds(),
            wait_seconds: wait.div_ceil(SECOND).max(1),
        })
    }

    /// True if a bucket is not full.
    fn is_in_use(&self, now: u64) -> bool {
        let is_used = |bucket: &AtomicU64| bucket.load(Relaxed) & TIME > now;
        match &self.buckets {
            Buckets::One(bucket) => is_used(bucket),
            Buckets::ByKey { blocks, .. } => {
                let sets = blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter());
                sets.flatten().any(is_used)
            }
        }
    }
}

// === impl Share ===

impl Share {
    fn take_by(&self, hash: u64, blocks: &[Block], now: u64) -> Result<(), u64> {
        let at = (hash & TIME) as usize % (BLOCKS * SETS_OF_A_BLOCK);
        let block = blocks[at / SETS_OF_A_BLOCK].get_or_init(|| Box::new(array::from_fn(|_| Set::default())));
        let set = &block[at % SETS_OF_A_BLOCK];
        let tag = hash & !TIME;
        loop {
            let mut free = None;
            for slot in set {
                let held = slot.load(Relaxed);
                if held & TIME <= now {
                    free = free.or(Some((slot, held)));
                } else if held & !TIME == tag {
                    return self.move_bucket(slot, tag, now);
                }
            }
            let Some((slot, held)) = free else {
                return self.move_bucket(&set[(hash >> 20) as usize % WAYS], tag, now);
            };
            // Another core may have taken it, for this very key: then it is there to be found.
            if slot.compare_exchange(held, tag | (now + self.interval), Relaxed, Relaxed).is_ok() {
                return Ok(());
            }
        }
    }

    /// Takes a token, or says how long it takes until there is one.
    fn move_bucket(&self, bucket: &AtomicU64, tag: u64, now: u64) -> Result<(), u64> {
        let mut held = bucket.load(Relaxed);
        loop {
            // What one of many agents took it pays back at their rate, not for longer than they are
            // there: one of a thousand would owe a thousand times as long as one alone can.
            let full_at = match held & TIME {
                owed if owed > now + self.most_owed + LATE => now + self.most_owed,
                owed => owed,
            };
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

    use portcullis_model::Period;

    use super::*;

    fn limiter(requests: u32, period: Period, burst: u32, key: RateKey) -> Limiter {
        let [requests, burst] = [requests, burst].map(|it| NonZeroU32::new(it).unwrap());
        let limit = RateLimit { requests, period, burst, key, scope: RateScope::Node };
        Limiter::new(&limit, Arc::new(AtomicU32::new(1)))
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
