//! A key set that is kept: when it is fetched, how long it is good for, and who waits for it. The
//! times are given, nothing here waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_model::{KeySet, RemoteKeySet};
use tokio::sync::oneshot;

use crate::core::log_budget::LogBudgets;
use crate::upstream::key_sets::{PublishedSet, Question};

/// Between two fetches that tokens brought about, by keys that are not known.
const PAUSE: Duration = Duration::from_secs(10);
/// After a failure; twice as long after each further one, up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// The time for which a set is good whose issuer fails.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Requests that wait for a set.
const MOST_WAITING: usize = 1024;

#[derive(Debug)]
pub(super) struct KeptSet {
    pub set: Arc<RemoteKeySet>,
    keys: Option<Arc<KeySet>>,
    /// The time of the last fetch that succeeded.
    fetched: Option<Instant>,
    /// Before that, no token has it fetched.
    next: Instant,
    fetching: Fetching,
    waiting: Vec<oneshot::Sender<Arc<KeySet>>>,
    lines: Arc<LogBudgets>,
    logged: State,
    failures_in_a_row: u32,
    /// The reason of the last one.
    failure: Option<Arc<str>>,
    fetches: u64,
    failures: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetching {
    No,
    ByTime,
    /// A token has brought it about.
    ByToken,
}

/// The state of a set, as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Good,
    Failing,
    /// It failed for so long that its keys are not good any more.
    Expired,
}

/// The effect of a question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It is to be fetched now.
    Fetch,
    Nothing,
}

// === impl KeptSet ===

impl KeptSet {
    pub(super) fn new(set: Arc<RemoteKeySet>, lines: Arc<LogBudgets>, now: Instant) -> Self {
        Self {
            set,
            keys: None,
            fetched: None,
            next: now,
            // The first fetch is on its way.
            fetching: Fetching::ByTime,
            waiting: Vec::new(),
            lines,
            logged: State::Good,
            failures_in_a_row: 0,
            failure: None,
            fetches: 0,
            failures: 0,
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failures_in_a_row > 0
    }

    /// Answers with keys that the core did not have, at once or when they come.
    pub(super) fn ask(&mut self, question: Question, now: Instant) -> Asked {
        let Question { seen, answer, .. } = question;
        if let Some(keys) = &self.keys
            && seen.is_none_or(|seen| !Arc::ptr_eq(&seen, keys))
        {
            let _ = answer.send(keys.clone());
            return Asked::Nothing;
        }
        let is_idle = self.fetching == Fetching::No;
        if is_idle && now < self.next {
            return Asked::Nothing;
        }
        if self.waiting.len() < MOST_WAITING {
            self.waiting.push(answer);
        }
        if is_idle {
            self.fetching = Fetching::ByToken;
            Asked::Fetch
        } else {
            Asked::Nothing
        }
    }

    pub(super) fn begin(&mut self) {
        if self.fetching == Fetching::No {
            self.fetching = Fetching::ByTime;
        }
    }

    /// Takes the outcome of a fetch. Returns the time until the next one, of which `share` (0 to 1)
    /// is the part that is left to chance.
    pub(super) fn end(&mut self, outcome: Result<KeySet, String>, now: Instant, share: f64) -> Duration {
        if self.fetching == Fetching::ByToken {
            self.next = now + PAUSE;
        }
        self.fetching = Fetching::No;
        match outcome {
            Ok(keys) => {
                self.take(keys, now);
                // Before its time is over, and not together with all other agents.
                self.set.lifetime.mul_f64(0.8 + 0.15 * share)
            }
            // Those who wait have seen the keys that there are: they get none.
            Err(why) => {
                self.waiting.clear();
                self.fail(&why, now);
                let doublings = (self.failures_in_a_row - 1).min(8);
                (FIRST_RETRY * (1 << doublings)).min(LAST_RETRY).mul_f64(1.0 + 0.2 * share)
            }
        }
    }

    /// Answers those who waited for the fetch that has ended. Once it is published: a core that
    /// hears of keys by an answer alone would take those of before for new ones.
    pub(super) fn answer_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            if let Some(keys) = &self.keys {
                let _ = waiting.send(keys.clone());
            }
        }
    }

    fn take(&mut self, keys: KeySet, now: Instant) {
        self.tell(State::Good, |set| tracing::info!("key set {set} is fetched again"));
        self.failures_in_a_row = 0;
        self.failure = None;
        self.fetches += 1;
        self.fetched = Some(now);
        // What was verified with the same keys stays verified.
        if self.keys.as_ref().is_none_or(|known| **known != keys) {
            self.keys = Some(Arc::new(keys));
        }
    }

    fn fail(&mut self, why: &str, now: Instant) {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        self.failures += 1;
        self.failure = Some(why.into());
        match self.fetched.map(|at| now - at) {
            Some(age) if age >= KEPT => {
                self.tell(State::Expired, |set| tracing::error!(
                    "key set {set} could not be fetched for {KEPT:?} ({why}): no token of its issuer passes any more"
                ));
                self.keys = None;
            }
            Some(_) => {
                self.tell(State::Failing, |set| tracing::warn!(
                    "key set {set} cannot be fetched: {why}; tokens are checked with the one that is there, for {KEPT:?} at \
                     most"
                ));
            }
            None => {
                self.tell(State::Failing, |set| tracing::warn!(
                    "key set {set} cannot be fetched: {why}; no token of its issuer passes until the Service answers 200 \
                     with a JSON Web Key Set"
                ));
            }
        }
    }

    /// Logs a state once, when it begins or as soon as its namespace has a line left.
    fn tell(&mut self, state: State, line: impl FnOnce(&RemoteKeySet)) {
        if state != self.logged && self.lines.tell_of_key_set(&self.set.backend, || line(&self.set)) {
            self.logged = state;
        }
    }

    pub(super) fn published(&self) -> PublishedSet {
        let Self { keys, next, fetched, failure, fetches, failures, .. } = self;
        PublishedSet {
            keys: keys.clone(),
            next: *next,
            fetched: *fetched,
            failure: failure.clone(),
            fetches: *fetches,
            failures: *failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use portcullis_model::{BackendName, KeyKinds};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn keys(id: &str) -> KeySet {
        let document = format!(
            r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{id}","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}}]}}"#
        );
        KeySet::parse(document.as_bytes(), KeyKinds::Public).unwrap()
    }

    fn kept(now: Instant) -> KeptSet {
        let set = RemoteKeySet {
            backend: BackendName("auth/login:80".into()),
            host: "login.auth.svc".into(),
            path: "/certs".into(),
            lifetime: Duration::from_secs(300),
        };
        KeptSet::new(Arc::new(set), Arc::default(), now)
    }

    fn ask(kept: &mut KeptSet, now: Instant) -> (Asked, oneshot::Receiver<Arc<KeySet>>) {
        let (answer, answered) = oneshot::channel();
        let question = Question { set: kept.set.clone(), seen: kept.keys.clone(), answer };
        (kept.ask(question, now), answered)
    }

    #[test]
    fn requests_wait_for_a_fetch_that_is_on_its_way() {
        let now = Instant::now();
        let mut kept = kept(now);
        let (asked, mut answered) = ask(&mut kept, now);
        assert_eq!(asked, Asked::Nothing);
        kept.end(Ok(keys("a")), now, 0.0);
        assert!(answered.try_recv().is_err(), "not before it is published");
        kept.answer_waiting();
        assert!(answered.try_recv().unwrap().has("a"));
        // A core that has not heard of it yet is told at once.
        let (answer, mut answered) = oneshot::channel();
        kept.ask(Question { set: kept.set.clone(), seen: None, answer }, now);
        assert!(answered.try_recv().unwrap().has("a"));
    }

    #[test]
    fn tokens_have_it_fetched_now_and_then() {
        let now = Instant::now();
        let mut kept = kept(now);
        kept.end(Ok(keys("a")), now, 0.0);
        let (asked, mut answered) = ask(&mut kept, now);
        assert_eq!(asked, Asked::Fetch);
        assert_eq!(ask(&mut kept, now).0, Asked::Nothing);
        kept.end(Ok(keys("b")), now + SECOND, 0.0);
        kept.answer_waiting();
        assert!(answered.try_recv().unwrap().has("b"));
        // The next one is after a pause, whatever many tokens name.
        for later in [1, 5, 10] {
            let (asked, mut answered) = ask(&mut kept, now + later * SECOND);
            assert_eq!((asked, answered.try_recv().is_err()), (Asked::Nothing, true), "{later}");
        }
        let (asked, mut answered) = ask(&mut kept, now + 11 * SECOND);
        assert_eq!(asked, Asked::Fetch);
        // Of a fetch that fails they learn nothing.
        kept.end(Err("down".to_owned()), now + 12 * SECOND, 0.0);
        kept.answer_waiting();
        assert!(answered.try_recv().is_err());
        assert_eq!(ask(&mut kept, now + 13 * SECOND).0, Asked::Nothing);
        // Fetches by time leave tokens theirs.
        kept.begin();
        kept.end(Ok(keys("b")), now + 40 * SECOND, 0.0);
        assert_eq!(ask(&mut kept, now + 40 * SECOND).0, Asked::Fetch);
    }

    #[test]
    fn no_more_wait_than_may() {
        let now = Instant::now();
        let mut kept = kept(now);
        let mut waiting: Vec<_> = (0..=MOST_WAITING).map(|_| ask(&mut kept, now).1).collect();
        assert!(waiting.pop().unwrap().try_recv().is_err());
        kept.end(Ok(keys("a")), now, 0.0);
        kept.answer_waiting();
        assert!(waiting.into_iter().all(|mut it| it.try_recv().is_ok()));
    }

    #[test]
    fn the_last_good_set_is_kept_for_a_day() {
        let now = Instant::now();
        let mut kept = kept(now);
        kept.begin();
        assert_eq!(kept.end(Err("down".to_owned()), now, 0.0), SECOND);
        kept.end(Ok(keys("a")), now, 0.0);
        for (seconds, wait) in [(300, 1), (301, 2), (303, 4), (86_000, 8), (86_399, 16)] {
            kept.begin();
            assert_eq!(kept.end(Err("down".to_owned()), now + seconds * SECOND, 0.0), wait * SECOND);
            assert!(kept.published().keys.is_some());
        }
        assert_eq!(kept.end(Err("down".to_owned()), now + KEPT, 0.0), LAST_RETRY);
        assert!(kept.published().keys.is_none());
        assert_eq!(kept.end(Err("down".to_owned()), now + KEPT, 1.0), LAST_RETRY.mul_f64(1.2));
        kept.end(Ok(keys("a")), now + KEPT + SECOND, 0.0);
        assert!(kept.published().keys.is_some());
    }

    #[test]
    fn what_lasts_is_logged_once_there_are_lines_again() {
        let now = Instant::now();
        let mut kept = kept(now);
        let backend = kept.set.backend.clone();
        while kept.lines.tell_of_key_set(&backend, || {}) {}
        kept.end(Err("down".to_owned()), now, 0.0);
        assert_eq!(kept.logged, State::Good, "there is no line left");
        kept.lines = Arc::default();
        kept.end(Err("down".to_owned()), now + SECOND, 0.0);
        assert_eq!(kept.logged, State::Failing);
        kept.end(Ok(keys("a")), now + 2 * SECOND, 0.0);
        assert_eq!(kept.logged, State::Good);
        while kept.lines.tell_of_key_set(&backend, || {}) {}
        kept.end(Err("down".to_owned()), now + 2 * SECOND + KEPT, 0.0);
        kept.lines = Arc::default();
        kept.end(Err("down".to_owned()), now + 3 * SECOND + KEPT, 0.0);
        assert_eq!(kept.logged, State::Expired);
    }

    #[test]
    fn it_is_fetched_again_before_its_time_is_over() {
        let now = Instant::now();
        let mut kept = kept(now);
        assert_eq!(kept.end(Ok(keys("a")), now, 0.0), 240 * SECOND);
        assert_eq!(kept.end(Ok(keys("a")), now, 1.0), 285 * SECOND);
        // The same keys are the same set.
        let before = kept.published().keys.unwrap();
        kept.end(Ok(keys("a")), now, 0.0);
        assert!(Arc::ptr_eq(&before, &kept.published().keys.unwrap()));
    }
}
