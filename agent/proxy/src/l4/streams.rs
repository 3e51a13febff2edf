//! The connections of a core whose bytes are forwarded as they are, and the orders they get: to end
//! because their listener is gone, nothing moves any more, or they hold too much memory. As for
//! HTTP, one sweep by the core's clock takes the place of a timer per connection.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::client::listener::ListenerState;
use crate::core::clock;
use crate::core::ending::Ending;
use crate::core::log_limit::LogLimit;
use crate::core::room::{self, Held, Holder};
use crate::core::settings::L4;
use crate::core::snapshot::Current;
use crate::l4::side::Side;

/// The time until aborted connections must be over, and the pause between looks.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);
const ABORT_POLL: Duration = Duration::from_millis(1);

/// The bytes that a connection has moved and holds.
pub(crate) struct Progress {
    listener: Rc<ListenerState>,
    /// Bytes from the client, and to it.
    received: Cell<u64>,
    sent: Cell<u64>,
    /// Bytes in pipes and in memory.
    held: Cell<usize>,
    /// Something moved since the last sweep.
    has_moved: Cell<bool>,
    /// Time since which nothing has moved.
    still_since: Cell<u32>,
    watch: Cell<Watch>,
}

/// The way to notice that a side was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Both sides are read.
    Reads,
    /// The sweep has the connection looked at.
    Sweep,
}

/// A connection as the sweep sees it.
pub(crate) struct Stream {
    peer: SocketAddr,
    local: SocketAddr,
    pub progress: Progress,
    /// The time at which it has to be over, since its listener is gone.
    deadline: Cell<Option<u32>>,
    order: Cell<Option<Ending>>,
    waker: RefCell<Option<Waker>>,
}

pub(crate) struct Streams {
    settings: L4,
    /// The time that connections of a listener that is gone have to end by themselves.
    drain: Duration,
    /// Bytes that they may hold, those of HTTP included.
    buffers: usize,
    closed_for_buffers: LogLimit,
    open: RefCell<HashMap<u64, Rc<Stream>, RandomState>>,
    registered: Cell<u64>,
}

/// Keeps a connection among the core's.
pub(crate) struct Registered {
    pub stream: Rc<Stream>,
    streams: Rc<Streams>,
    number: u64,
}

// === impl Progress ===

impl Progress {
    /// Bytes of that side went to the other one.
    pub(crate) fn moved(&self, from: Side, bytes: usize) {
        let bytes = bytes as u64;
        let (total, counter) = match from {
            Side::Client => (&self.received, &self.counters().received),
            Side::Backend => (&self.sent, &self.counters().sent),
        };
        total.set(total.get() + bytes);
        counter.add(bytes);
        self.has_moved.set(true);
    }

    pub(crate) fn hold(&self, bytes: usize) {
        if self.held.get() != bytes {
            self.held.set(bytes);
        }
    }

    pub(crate) fn watch(&self, watch: Watch) {
        self.watch.set(watch);
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.get()
    }

    fn counters(&self) -> &crate::core::stats::ForwardedCounters {
        &self.listener.counters().forwarded
    }

    /// Ticks for which nothing has moved.
    fn still(&self) -> u32 {
        if self.has_moved.take() {
            self.still_since.set(clock::now());
        }
        clock::now() - self.still_since.get()
    }
}

// === impl Stream ===

impl Stream {
    /// Polls to the end, or until an order comes.
    pub(crate) async fn drive<F: Future>(&self, mut body: Pin<&mut F>) -> Result<F::Output, Ending> {
        std::future::poll_fn(|cx| {
            if let Some(order) = self.order.get() {
                return Poll::Ready(Err(order));
            }
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            drop(waker);
            body.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    fn order(&self, ending: Ending) {
        self.order.set(self.order.get().or(Some(ending)));
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// True if its listener is gone, or is there in name only: its port is for other protocols now.
    fn is_withdrawn(&self, current: &Current) -> bool {
        let state = &self.progress.listener;
        let port = current.port(self.local);
        !state.is_served() || !port.is_some_and(|port| port.listeners.suits(&state.listener.serves))
    }
}

// === impl Streams ===

impl Streams {
    pub(crate) fn new(settings: L4, drain: Duration, buffers: usize) -> Self {
        Self {
            settings,
            drain,
            buffers,
            closed_for_buffers: LogLimit::default(),
            open: RefCell::default(),
            registered: Cell::default(),
        }
    }

    pub(crate) fn register(
        self: &Rc<Self>,
        peer: SocketAddr,
        local: SocketAddr,
        listener: Rc<ListenerState>,
        current: &Current,
    ) -> Registered {
        listener.counters().forwarded.begun.increment();
        listener.counters().forwarded.open.increment();
        let progress = Progress {
            listener,
            received: Cell::new(0),
            sent: Cell::new(0),
            held: Cell::new(0),
            has_moved: Cell::new(false),
            still_since: Cell::new(clock::now()),
            watch: Cell::new(Watch::Reads),
        };
        let (deadline, order, waker) = (Cell::default(), Cell::default(), RefCell::default());
        let stream = Rc::new(Stream { peer, local, progress, deadline, order, waker });
        self.follow_one(&stream, current);
        let number = self.registered.get();
        self.registered.set(number + 1);
        self.open.borrow_mut().insert(number, stream.clone());
        Registered { stream, streams: self.clone(), number }
    }

    /// Lets connections of listeners that are gone end by themselves for a while, even if the
    /// listener comes back.
    pub(crate) fn follow(&self, current: &Current) {
        self.open.borrow().values().for_each(|stream| self.follow_one(stream, current));
    }

    fn follow_one(&self, stream: &Stream, current: &Current) {
        if stream.deadline.get().is_none() && stream.is_withdrawn(current) {
            stream.deadline.set(Some(clock::now().saturating_add(clock::ticks(self.drain))));
        }
    }

    /// Ends what has to end. Together with the bytes that HTTP holds, no more are held than may be;
    /// `taken` is held by what does not end. Returns what is held here.
    pub(crate) fn sweep(&self, by_http: Held, taken: usize) -> Held {
        let idle = clock::ticks(self.settings.idle);
        let mut held = Held::default();
        for stream in self.open.borrow().values() {
            let now = clock::now();
            if stream.deadline.get().is_some_and(|deadline| now > deadline) {
                stream.order(Ending::Withdrawn);
            } else if stream.progress.still() > idle {
                stream.order(Ending::Idle);
            } else if stream.progress.watch.get() == Watch::Sweep && now.is_multiple_of(clock::PER_SECOND) {
                stream.wake();
            }
            held.hold(stream.progress.held.get());
        }
        let room = self.buffers.saturating_sub(taken);
        if (held + by_http).bytes > room {
            held = self.make_room(held, by_http, room);
        }
        held
    }

    /// Ends connections until the others hold no more than they may, as far as it is theirs.
    fn make_room(&self, mut held: Held, by_http: Held, room: usize) -> Held {
        let open = self.open.borrow();
        let holders = open.values().map(|it| {
            let Progress { held, .. } = &it.progress;
            Holder { bytes: held.get(), ticks: it.progress.still(), it }
        });
        let all = held + by_http;
        for Holder { bytes, it: stream, .. } in room::to_end(holders.collect(), all, room) {
            if self.closed_for_buffers.is_due() {
                tracing::warn!(
                    client = %stream.peer,
                    listener = %stream.progress.listener.listener.id,
                    "bytes that clients or backends do not take hold {} bytes, more than this core's share of \
                     --buffers: those connections are reset that hold the most, of those with more than an equal part \
                     of it; this one held {bytes} bytes",
                    all.bytes
                );
            }
            stream.order(Ending::Buffers);
            held.release(bytes);
        }
        held
    }

    /// Ends all connections, and waits until they have been logged.
    pub(crate) async fn abort_all(&self) {
        self.open.borrow().values().for_each(|stream| stream.order(Ending::Stopped));
        let ended = async {
            while !self.open.borrow().is_empty() {
                tokio::time::sleep(ABORT_POLL).await;
            }
        };
        let _ = tokio::time::timeout(ABORT_TIMEOUT, ended).await;
    }
}

// === impl Registered ===

impl Drop for Registered {
    fn drop(&mut self) {
        self.stream.progress.counters().open.decrement();
        self.streams.open.borrow_mut().remove(&self.number);
    }
}
