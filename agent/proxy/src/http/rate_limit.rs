//! Rate limits: token buckets that all cores share, one for each key of a limit. What has been
//! taken hangs on the policy, its target and the limit, not on the configuration that they are part
//! of.

mod limiter;

use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::header::{HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use portcullis_model::{Believer, ClaimLimit, ObjectName, RateKey, RateLimit, RateScope, TrafficPolicy};

use self::limiter::{Limiter, TIME};
use crate::core::shares::Shares;

/// Room for the keys of all limits, in blocks: 64 MiB.
const BLOCKS: usize = 16_384;
/// Of limits that no policy has any more, as many are kept, and as many blocks of theirs.
const KEPT: usize = 1024;

/// Time between looks for what no policy has any more.
const SWEEP: Duration = Duration::from_secs(10);
/// More agents than that take themselves for as many: times would not have room for more.
const MOST_AGENTS: u32 = 10_000;

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The buckets of all cores. The lock is for finding one, once per core and policy.
#[derive(Clone, Debug)]
pub(crate) struct SharedRateLimits {
    start: Instant,
    limiters: Arc<Mutex<HashMap<Identity, Arc<Limiter>>>>,
    room: Arc<Mutex<Shares>>,
    /// Those that limits of scope Cluster are divided by.
    agents: Arc<AtomicU32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    target: Arc<str>,
    policy: ObjectName,
    limit: RateLimit,
}

/// The limits of policies as one core finds them: by the address of the model's policy, which no
/// other one has as long as it is held here.
pub(crate) struct RateLimits {
    shared: SharedRateLimits,
    by_policy: RefCell<HashMap<usize, OfPolicy>>,
    by_claim: RefCell<HashMap<usize, OfClaims>>,
}

type OfPolicy = (Weak<TrafficPolicy>, Limits);
/// Each with the owner whose view of the client it goes by.
type Limits = Rc<[(Believer, Arc<Limiter>)]>;
type OfClaims = (Weak<[ClaimLimit]>, Rc<[Arc<Limiter>]>);

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
        Self {
            start: Instant::now(),
            limiters: Arc::default(),
            room: Arc::new(Mutex::new(Shares::new(BLOCKS))),
            agents: Arc::new(AtomicU32::new(1)),
        }
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
        let agents = || match limit.scope {
            RateScope::Node => Arc::new(AtomicU32::new(1)),
            RateScope::Cluster => self.agents.clone(),
        };
        let limiter = || Arc::new(Limiter::new(limit, agents(), &policy.namespace, &self.room));
        limiters.entry(identity).or_insert_with(limiter).clone()
    }

    /// Lets go what no policy has any more. What was taken is remembered as long as it counts, for
    /// a policy that comes back, but not of any number of them.
    fn sweep(&self) {
        let (now, mut left) = (self.now(), KEPT);
        let mut limiters = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        limiters.retain(|_, limiter| {
            if Arc::strong_count(limiter) > 1 {
                return true;
            }
            let rest = limiter.is_in_use(now).then(|| left.checked_sub(1 + limiter.blocks())).flatten();
            left = rest.unwrap_or(left);
            rest.is_some()
        });
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

    /// Forgets the policies of configurations that are over. They end some time after the next one
    /// has come: other cores and requests still have them.
    pub(crate) async fn sweep_forever(self: Rc<Self>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            self.by_policy.borrow_mut().retain(|_, (policy, _)| policy.strong_count() > 0);
            self.by_claim.borrow_mut().retain(|_, (limits, _)| limits.strong_count() > 0);
            self.shared.sweep();
        }
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
        let limits = policy.believers().rev().flat_map(|(believer, level)| {
            let limits = level.protection.rate_limits.iter().filter(|limit| !limit.key.is_claim());
            limits.map(move |limit| {
                (believer, self.shared.limiter(&level.target, &level.protection.policy, limit))
            })
        });
        let limiters: Limits = limits.collect();
        by_policy.insert(Arc::as_ptr(policy).addr(), (Arc::downgrade(policy), limiters.clone()));
        limiters
    }

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
        let limiters: Rc<[_]> =
            limits.iter().map(|it| self.shared.limiter(&it.target, &it.policy, &it.limit)).collect();
        by_claim.insert(place, (Arc::downgrade(limits), limiters.clone()));
        limiters
    }
}

#[cfg(test)]
mod tests {
    use portcullis_model::Period;

    use super::*;

    fn limit(requests: u32, key: RateKey) -> RateLimit {
        let requests = NonZeroU32::new(requests).unwrap();
        RateLimit { requests, period: Period::Hour, burst: requests, key, scope: RateScope::Node }
    }

    fn known(shared: &SharedRateLimits) -> usize {
        shared.limiters.lock().unwrap().len()
    }

    #[test]
    fn what_was_taken_outlives_a_policy_that_comes_back() {
        let shared = SharedRateLimits::default();
        let limiter =
            |limit: &RateLimit| shared.limiter(&"a route".into(), &ObjectName::new("shop", "policy"), limit);
        let [used, unused] = [1, 2].map(|requests| limit(requests, RateKey::ClientAddress));
        assert!(limiter(&used).take(shared.now(), |_| b"client".to_vec()).is_ok());
        drop(limiter(&unused));
        let held = limiter(&limit(3, RateKey::All));
        shared.sweep();
        assert_eq!(known(&shared), 2);
        assert!(limiter(&used).take(shared.now(), |_| b"client".to_vec()).is_err());
        drop(held);
        shared.sweep();
        assert_eq!(known(&shared), 1);
    }

    #[test]
    fn policies_that_are_gone_have_little_room() {
        let shared = SharedRateLimits::default();
        let take = |policy: u32, keys: u32| {
            let policy = ObjectName::new("shop", policy.to_string());
            let limiter = shared.limiter(&"a route".into(), &policy, &limit(1, RateKey::ClientAddress));
            for key in 0..keys {
                let _ = limiter.take(shared.now(), |_| key.to_string().into_bytes());
            }
        };
        for policy in 0..2000 {
            take(policy, 1);
        }
        shared.sweep();
        // A block each.
        assert_eq!(known(&shared), KEPT / 2);
        for policy in 0..20 {
            take(10_000 + policy, 5000);
        }
        shared.sweep();
        let limiters = shared.limiters.lock().unwrap();
        let blocks: usize = limiters.values().map(|it| it.blocks()).sum();
        assert!(blocks + limiters.len() <= KEPT, "{blocks}");
    }
}
