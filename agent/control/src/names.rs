//! The addresses of hosts outside the cluster: the names that translation asks for are looked up,
//! and again when an answer expires. A server that does not answer keeps the last addresses for a
//! while; one that says that there are none does not. What may be sent to an address is not decided
//! here.

mod dns;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use portcullis_gateway::NameAnswer;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

pub use dns::Dns;

/// An answer is used for no less time than this, whatever it says, and for no more.
const SHORTEST_LIFE: Duration = Duration::from_secs(5);
const LONGEST_LIFE: Duration = Duration::from_secs(300);
/// Time for which the last answer is used though there is no new one, after it expired.
const KEPT: Duration = Duration::from_secs(600);
/// Pauses after a question without an answer: they double.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Questions of a line that wait for an answer at once.
const AT_ONCE: usize = 64;
/// Addresses that a name has; of more, the first in order.
const MOST_ADDRESSES: usize = 64;
/// Time for which answers are collected: each that is another may become a snapshot, and the owners
/// of many names can make them others all the time.
const COLLECTED: Duration = Duration::from_secs(1);

/// Looks up names.
pub trait Lookup: Send + Sync + 'static {
    /// The addresses of a name in lower case, without a dot at its end.
    fn look_up(&self, name: &str) -> impl Future<Output = Result<Found, NotFound>> + Send;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub addresses: BTreeSet<IpAddr>,
    pub valid: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// A server says so.
    #[error("{0}")]
    NoAddress(String),
    #[error("{0}")]
    NoAnswer(String),
}

/// Names that are looked up for as long as this lives.
#[derive(Debug)]
pub struct Names {
    wanted: watch::Sender<BTreeSet<Arc<str>>>,
    pub(crate) answers: watch::Receiver<BTreeMap<Arc<str>, NameAnswer>>,
    task: AbortHandle,
}

/// Questions that wait for an answer, in two lines: names that there was no answer for the last
/// time, which may take their time again, keep no others waiting.
#[derive(Default)]
struct Lines {
    first: JoinSet<Asked>,
    again: JoinSet<Asked>,
}

type Asked = (Arc<str>, Result<Found, NotFound>);

/// A name that is wanted.
struct Wanted {
    /// `None` until there was an answer, or none in time.
    answer: Option<NameAnswer>,
    /// The end of the time for which the last addresses may be used.
    until: Instant,
    /// The time of the next question; `None` while one is asked.
    due: Option<Instant>,
    pause: Duration,
}

// === impl Names ===

impl Names {
    pub fn looked_up_by(lookup: impl Lookup) -> Self {
        let (wanted, names) = watch::channel(BTreeSet::new());
        let (known, answers) = watch::channel(BTreeMap::new());
        let task = tokio::spawn(look_up(Arc::new(lookup), names, known)).abort_handle();
        Self { wanted, answers, task }
    }

    /// Waits until all names that are wanted were looked up once, but no longer than so long.
    /// Returns whether there are any.
    pub(crate) async fn found(&mut self, limit: Duration) -> bool {
        let wanted = self.wanted.borrow().clone();
        let all = self.answers.wait_for(|known| wanted.iter().all(|name| known.contains_key(name)));
        // What is not known by then is told like everything that changes later.
        let _ = tokio::time::timeout(limit, all).await;
        !wanted.is_empty()
    }

    /// Looks up these from now on, and no others.
    pub(crate) fn want(&self, names: BTreeSet<Arc<str>>) {
        self.wanted.send_replace(names);
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look_up(
    lookup: Arc<impl Lookup>,
    mut names: watch::Receiver<BTreeSet<Arc<str>>>,
    known: watch::Sender<BTreeMap<Arc<str>, NameAnswer>>,
) {
    let mut all = BTreeMap::<Arc<str>, Wanted>::new();
    let mut lines = Lines::default();
    let (mut is_other, mut quiet_until) = (false, Instant::now());
    loop {
        let now = Instant::now();
        let mut due: Vec<_> = all.iter_mut().filter(|(_, it)| it.due.is_some_and(|due| due <= now)).collect();
        due.sort_by_key(|(_, wanted)| wanted.due);
        for (name, wanted) in due {
            if lines.have_room_for(wanted) {
                lines.ask(&lookup, name, wanted);
            }
        }
        let is_quiet = now < quiet_until;
        if is_other && !is_quiet {
            let answers = all.iter().filter_map(|(name, it)| Some((name.clone(), it.answer.clone()?)));
            known.send_replace(answers.collect());
            (is_other, quiet_until) = (false, now + COLLECTED);
        }
        let next = all.values().filter(|it| lines.have_room_for(it)).filter_map(|it| it.due).min();
        let next = next.into_iter().chain(is_other.then_some(quiet_until)).min();
        let pause = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = names.changed() => match changed {
                Ok(()) => {
                    let names = names.borrow_and_update();
                    all.retain(|name, it| {
                        let is_wanted = names.contains(name);
                        is_other |= !is_wanted && it.answer.is_some();
                        is_wanted
                    });
                    for name in names.iter() {
                        all.entry(name.clone()).or_insert_with(Wanted::new);
                    }
                }
                Err(_) => return,
            },
            (name, found) = lines.next() => if let Some(wanted) = all.get_mut(&name) {
                is_other |= wanted.take(&name, found);
            },
            () = pause => {}
        }
    }
}

// === impl Lines ===

impl Lines {
    fn have_room_for(&self, wanted: &Wanted) -> bool {
        let line = if wanted.is_failing() { &self.again } else { &self.first };
        line.len() < AT_ONCE
    }

    fn ask(&mut self, lookup: &Arc<impl Lookup>, name: &Arc<str>, wanted: &mut Wanted) {
        wanted.due = None;
        let (lookup, name) = (lookup.clone(), name.clone());
        let line = if wanted.is_failing() { &mut self.again } else { &mut self.first };
        line.spawn(async move {
            let found = lookup.look_up(&name).await;
            (name, found)
        });
    }

    /// The next answer to come; waits for ever if there is no question.
    async fn next(&mut self) -> Asked {
        let done = tokio::select! {
            Some(done) = self.first.join_next() => done,
            Some(done) = self.again.join_next() => done,
            else => std::future::pending().await,
        };
        match done {
            Ok(done) => done,
            // Ends with the runtime that it is part of: a panic ends the process.
            Err(_) => std::future::pending().await,
        }
    }
}

// === impl Wanted ===

impl Wanted {
    fn new() -> Self {
        let now = Instant::now();
        Self { answer: None, until: now, due: Some(now), pause: FIRST_PAUSE }
    }

    fn is_failing(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.failure.is_some())
    }

    /// Returns whether that is another answer.
    fn take(&mut self, name: &str, found: Result<Found, NotFound>) -> bool {
        let now = Instant::now();
        let last = self.answer.take();
        let before = last.clone().unwrap_or_default();
        if let Err(why) = &found
            && before.failure.is_none()
        {
            tracing::warn!("the addresses of {name} are not known: {why}");
        }
        let answer = match found {
            Ok(Found { addresses, valid }) => {
                if before.failure.is_some() {
                    tracing::info!("the addresses of {name} are known again");
                }
                let valid = valid.clamp(SHORTEST_LIFE, LONGEST_LIFE);
                self.until = now + valid + KEPT;
                self.due = Some(now + valid);
                self.pause = FIRST_PAUSE;
                let addresses = addresses.into_iter().take(MOST_ADDRESSES).collect();
                NameAnswer { addresses, failure: None }
            }
            Err(why) => {
                self.due = Some(now + self.pause);
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                let is_kept = matches!(why, NotFound::NoAnswer(_)) && now < self.until;
                let addresses = if is_kept { before.addresses } else { BTreeSet::new() };
                NameAnswer { addresses, failure: Some(why.to_string().into()) }
            }
        };
        self.answer = Some(answer);
        self.answer != last
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
