//! One kind of what is exported: batches are gathered into messages, and each is sent, again if
//! that may help, or counted as lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::DecodeError;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::core::stats::ExportStats;
use crate::export::post::{Failure, Post};

/// The time for which a message is gathered.
const GATHER: Duration = Duration::from_secs(1);
/// Items of a message, unless one batch has more.
const ITEMS: usize = 512;
/// The pauses before a message is sent again.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// The longest that a collector can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Bytes of a collector's own words in the log.
const WORDS: usize = 256;
/// The time between two lines of the log about the same collector.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The differences between kinds.
pub(super) trait Signal {
    type Batch;
    /// In words, for the log.
    const NAME: &'static str;

    fn count(batch: &Self::Batch) -> usize;
    /// Notes that so many items do not wait any more: they are on their way.
    fn gathered(&self, _items: usize) {}
    fn message(&self, batches: Vec<Self::Batch>) -> Bytes;
    /// The number of items that the collector did not take, and why, by its answer.
    ///
    /// # Errors
    /// When that is none of a collector.
    fn rejected(answer: Bytes) -> Result<Option<(u64, String)>, DecodeError>;
}

/// Totals, written by the exporter's thread alone.
#[derive(Debug, Default)]
pub(super) struct Counts {
    sent: AtomicU64,
    lost: AtomicU64,
}

/// The state of the collector in the log.
#[derive(Default)]
struct Logged {
    is_failing: bool,
    last: Option<Instant>,
}

/// Sends until all senders of batches are gone.
pub(super) async fn run<S: Signal>(
    mut batches: mpsc::Receiver<S::Batch>,
    signal: S,
    mut post: Post,
    counts: Arc<Counts>,
) {
    let mut logged = Logged::default();
    while let Some(first) = batches.recv().await {
        let gathered = gather::<S>(first, &mut batches).await;
        let items = gathered.iter().map(S::count).sum::<usize>();
        signal.gathered(items);
        let items = items as u64;
        let answer = send(&mut post, signal.message(gathered), || batches.is_closed()).await;
        let rejected = answer.and_then(|answer| {
            S::rejected(answer).map_err(|error| format!("what it answered is not OTLP's: {error}"))
        });
        match rejected {
            Ok(rejected) => {
                let lost = rejected.as_ref().map_or(0, |(lost, _)| (*lost).min(items));
                counts.sent.fetch_add(items - lost, Relaxed);
                counts.lost.fetch_add(lost, Relaxed);
                match rejected {
                    None => logged.works::<S>(&post),
                    Some((lost, why)) => {
                        let why = quoted(&why);
                        logged.fails::<S>(&post, &format!("it refused {lost} of {items}: {why}"))
                    }
                }
            }
            Err(why) => {
                counts.lost.fetch_add(items, Relaxed);
                logged.fails::<S>(&post, &why);
            }
        }
    }
}

/// More that comes before the time is over.
async fn gather<S: Signal>(first: S::Batch, batches: &mut mpsc::Receiver<S::Batch>) -> Vec<S::Batch> {
    let mut items = S::count(&first);
    let mut gathered = vec![first];
    let gathering = async {
        while items < ITEMS {
            let Some(next) = batches.recv().await else { return };
            items += S::count(&next);
            gathered.push(next);
        }
    };
    let _ = timeout(GATHER, gathering).await;
    gathered
}

/// Sends a message until it is taken, refused, or has been sent often enough.
async fn send(post: &mut Post, message: Bytes, is_last: impl Fn() -> bool) -> Result<Bytes, String> {
    let mut pauses = PAUSES.into_iter();
    loop {
        let (why, wanted) = match post.send(message.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(Failure::Refused(why)) => return Err(why),
            Err(Failure::Again(why, wanted)) => (why, wanted),
        };
        // An agent that ends does not wait for a collector that is down.
        let Some(pause) = pauses.next().filter(|_| !is_last()) else { return Err(why) };
        sleep(wanted.unwrap_or(pause).min(LONGEST_PAUSE)).await;
    }
}

/// A collector's words, so that they are a part of one line of the log and of no other.
fn quoted(words: &str) -> String {
    const MORE: &str = "…";
    let mut quoted = String::new();
    for c in words.chars().flat_map(char::escape_debug) {
        if quoted.len() + c.len_utf8() + MORE.len() > WORDS {
            return quoted + MORE;
        }
        quoted.push(c);
    }
    quoted
}

// === impl Counts ===

impl Counts {
    pub(super) fn read(&self) -> ExportStats {
        ExportStats { sent: self.sent.load(Relaxed), lost: self.lost.load(Relaxed) }
    }
}

// === impl Logged ===

impl Logged {
    fn fails<S: Signal>(&mut self, post: &Post, why: &str) {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        if !self.is_failing && is_due {
            tracing::warn!(
                collector = %post.url(),
                "{} are lost, and counted: {why}; look whether the collector is up and takes OTLP over HTTP there",
                S::NAME
            );
            self.last = Some(Instant::now());
        }
        self.is_failing |= is_due;
    }

    fn works<S: Signal>(&mut self, post: &Post) {
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(collector = %post.url(), "{} are taken again", S::NAME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_collector_are_a_part_of_one_line() {
        assert_eq!(quoted("no room: \u{e4}"), "no room: \u{e4}");
        assert_eq!(quoted("a\nb\u{202e}c\u{1b}[0m\u{2028}"), r"a\nb\u{202e}c\u{1b}[0m\u{2028}");
        let long = quoted(&"\u{20ac}\n".repeat(3000));
        assert!(long.len() <= WORDS && long.len() > WORDS - 10 && long.ends_with('…'), "{long}");
    }
}
