//! Key sets that issuers serve. A thread of its own fetches them, once for all cores, and keeps
//! them; cores look at what it has published, and ask it where a token names a key that they do not
//! know. Nothing here knows what tokens are.

mod fetch;
mod keeper;
mod kept;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use portcullis_model::{KeySet, RemoteKeySet, Snapshot};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::core::settings::Upstream;
use crate::core::stats::KeySetStats;
use crate::upstream::health::SharedHealth;
use crate::upstream::key_sets::keeper::Keeper;

/// The time that a fetch may take, and a request may wait for one.
const LONGEST: Duration = Duration::from_secs(5);

/// The sets as the thread has published them last.
type Published = Arc<HashMap<Arc<RemoteKeySet>, PublishedSet, RandomState>>;

#[derive(Clone, Debug)]
struct PublishedSet {
    keys: Option<Arc<KeySet>>,
    /// Before that, no token has it fetched.
    next: Instant,
    fetched: Option<Instant>,
    failure: Option<Arc<str>>,
    fetches: u64,
    failures: u64,
}

/// The handle of the thread. There is none before a key set is to be fetched.
#[derive(Debug)]
pub(crate) struct KeySets {
    messages: mpsc::UnboundedSender<Message>,
    published: watch::Receiver<Published>,
    unstarted: Mutex<Option<Unstarted>>,
}

/// The things that the thread begins with.
#[derive(Debug)]
struct Unstarted {
    messages: mpsc::UnboundedReceiver<Message>,
    published: watch::Sender<Published>,
    settings: Upstream,
    health: SharedHealth,
}

#[derive(Debug)]
enum Message {
    Follow(Arc<Snapshot>),
    Ask(Question),
}

/// Asks for other keys than those that a core has.
#[derive(Debug)]
struct Question {
    set: Arc<RemoteKeySet>,
    seen: Option<Arc<KeySet>>,
    /// Dropped if there are none.
    answer: oneshot::Sender<Arc<KeySet>>,
}

/// The part of the handle that every core has.
#[derive(Clone, Debug)]
pub(crate) struct KeySetsLink {
    messages: mpsc::UnboundedSender<Message>,
    published: watch::Receiver<Published>,
}

/// The key sets as a core knows them.
pub(crate) struct KnownKeys {
    link: KeySetsLink,
    sets: RefCell<HashMap<Arc<RemoteKeySet>, Rc<KnownSet>, RandomState>>,
}

/// A key set as a core knows it. The core's own, so that requests count no references that it
/// shares with others.
pub(crate) struct KnownSet {
    /// `None` if it was never fetched, or for too long.
    pub keys: Option<Arc<KeySet>>,
    next: Instant,
}

// === impl KeySets ===

impl KeySets {
    pub(crate) fn new(settings: Upstream, health: SharedHealth) -> Self {
        let (messages, received) = mpsc::unbounded_channel();
        let (publisher, published) = watch::channel(Published::default());
        let unstarted = Unstarted { messages: received, published: publisher, settings, health };
        Self { messages, published, unstarted: Mutex::new(Some(unstarted)) }
    }

    pub(crate) fn link(&self) -> KeySetsLink {
        KeySetsLink { messages: self.messages.clone(), published: self.published.clone() }
    }

    /// Fetches what the snapshot has, from its backends, and keeps nothing else.
    pub(crate) fn follow(&self, snapshot: &Arc<Snapshot>) {
        let mut unstarted = self.unstarted.lock().unwrap_or_else(PoisonError::into_inner);
        if !snapshot.key_sets.is_empty()
            && let Some(parts) = unstarted.take()
        {
            let started = std::thread::Builder::new().name("key-sets".to_owned());
            if let Err(error) = started.spawn(move || parts.run()) {
                tracing::error!(%error, "key sets are not fetched, so no token of theirs passes: no thread");
            }
        }
        if unstarted.is_none() {
            let _ = self.messages.send(Message::Follow(snapshot.clone()));
        }
    }

    pub(crate) fn stats(&self) -> BTreeMap<RemoteKeySet, KeySetStats> {
        let published = self.published.borrow().clone();
        let stats = published.iter().map(|(set, published)| {
            let PublishedSet { keys, fetched, failure, fetches, failures, .. } = published;
            let stats = KeySetStats {
                age: fetched.map(|at| at.elapsed()).filter(|_| keys.is_some()),
                failure: failure.clone(),
                fetches: *fetches,
                failures: *failures,
            };
            (RemoteKeySet::clone(set), stats)
        });
        stats.collect()
    }
}

impl Unstarted {
    fn run(self) {
        let Self { messages, published, settings, health } = self;
        keeper::block_on(async move || Keeper::new(settings, health, published).run(messages).await);
    }
}

// === impl KnownKeys ===

impl KnownKeys {
    pub(crate) fn new(link: KeySetsLink) -> Rc<Self> {
        Rc::new(Self { link, sets: RefCell::default() })
    }

    /// Takes what the thread publishes, as long as there is one.
    pub(crate) async fn follow_forever(self: Rc<Self>) {
        let mut published = self.link.published.clone();
        while published.changed().await.is_ok() {
            let now = published.borrow_and_update().clone();
            let sets = now.iter().map(|(set, published)| {
                let PublishedSet { keys, next, .. } = published;
                (set.clone(), Rc::new(KnownSet { keys: keys.clone(), next: *next }))
            });
            let sets = sets.collect();
            self.sets.replace(sets);
        }
    }

    /// `None` if the thread has not said anything of it yet.
    pub(crate) fn get(&self, set: &RemoteKeySet) -> Option<Rc<KnownSet>> {
        self.sets.borrow().get(set).cloned()
    }

    /// Other keys than those that are known, if the issuer has such; it may have to be asked, which
    /// takes a while. `None` where that has been done a moment ago, or fails.
    pub(crate) async fn renewed(
        &self,
        set: &Arc<RemoteKeySet>,
        known: Option<&KnownSet>,
    ) -> Option<Arc<KeySet>> {
        if known.is_some_and(|known| Instant::now() < known.next) {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        let seen = known.and_then(|known| known.keys.clone());
        let question = Question { set: set.clone(), seen, answer };
        self.link.messages.send(Message::Ask(question)).ok()?;
        timeout(LONGEST, answered).await.ok()?.ok()
    }
}
