//! Waiting before the next attempt.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use kube::runtime::watcher::{self, Event};
use tokio::time::Instant;

/// Doubles up to its limit, with jitter, so that the agents of a cluster do not all come at once.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    limit: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, limit: Duration) -> Self {
        Self { first, limit, next: first }
    }

    /// For watches: traffic does not wait for them, operators do.
    pub(crate) fn for_watches() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(1))
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    /// The wait before the next attempt.
    pub(crate) fn delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.limit);
        jittered(delay)
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.delay()).await;
    }
}

/// A watch that is tried again in time.
pub(crate) fn spaced<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send {
    let begin = (events.boxed(), Backoff::for_watches());
    stream::unfold(begin, |(mut events, mut backoff)| async move {
        let event = events.next().await?;
        match &event {
            // A list begins before the API server is asked for it.
            Ok(Event::Init) => {}
            Ok(_) => backoff.reset(),
            Err(_) => backoff.wait().await,
        }
        Some((event, (events, backoff)))
    })
}

/// Between half of it and all of it.
pub(crate) fn jittered(duration: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    let share = (random % 1000) as u32;
    duration / 2 + duration * share / 2000
}

/// `None`: never. Cancel-safe.
pub(crate) async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}
