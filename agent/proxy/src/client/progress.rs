//! The progress of a client connection: what its requests wait for, and what its bytes show. The
//! connection and its requests leave marks here, which the sweep of
//! [`Clients`](crate::client::clients::Clients) looks at now and then, so that no connection holds
//! a timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::Poll;

use crate::core::clock;
use crate::core::untaken::Untaken;

/// Bytes of memory that a connection and each of its responses take besides those that are read.
const CONNECTION: usize = 24 << 10;
const RESPONSE: usize = 8 << 10;

/// Only the connection's core touches it; it is atomic because the stream of an upgraded connection
/// must be `Send`.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The number of exchanges that wait for each [`Awaited`].
    exchanges: [AtomicU32; 3],
    /// End of the last exchange.
    idle_since: AtomicU32,
    /// Time since which a request head has been overdue, plus one; 0 if none is.
    head_since: AtomicU32,
    /// More of an HTTP/1 request's body is wanted than came.
    body_wanted: AtomicBool,
    /// Of that body, bytes were announced that have not come.
    body_owed: AtomicBool,
    /// Bytes came or went since the sweeper looked.
    moved: AtomicBool,
    /// Bytes of requests and responses since the connection began.
    received: AtomicU64,
    written: AtomicU64,
    /// Bytes of responses that were read from backends and are yet to be written.
    unread: AtomicUsize,
    /// Bytes of requests that backends are yet to take.
    pub untaken: Arc<Untaken>,
    /// Exchanges that may take any time, and whether bytes of one may still be on their way.
    unhurried: AtomicU32,
    unhurried_lately: AtomicBool,
    /// The connection has more to write than its socket took.
    write_blocked: AtomicBool,
    /// Responses that came to their end since they were last taken.
    completed: AtomicU32,
}

/// The direction in which a client keeps an exchange from going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    /// Bytes of a request's body that it announced.
    Request,
    /// Room for the response: its socket is full.
    Response,
}

/// The thing that an exchange waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The response to begin; for that, perhaps, the rest of the request.
    Response,
    /// The backend, for more of the response.
    Backend,
    /// The client, to take what there is of the response.
    Client,
}

// === impl Progress ===

impl Progress {
    /// Of a connection whose first request is awaited.
    pub(crate) fn new() -> Self {
        let now = clock::now();
        Self {
            exchanges: Default::default(),
            idle_since: now.into(),
            head_since: (now + 1).into(),
            body_wanted: false.into(),
            body_owed: false.into(),
            moved: false.into(),
            received: 0.into(),
            written: 0.into(),
            unread: 0.into(),
            untaken: Arc::default(),
            unhurried: 0.into(),
            unhurried_lately: false.into(),
            write_blocked: false.into(),
            completed: 0.into(),
        }
    }

    // --- marks ---

    pub(crate) fn begin(&self, awaited: Awaited) {
        let count = self.waiting(awaited);
        count.store(count.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn end(&self, awaited: Awaited) {
        let count = self.waiting(awaited);
        count.store(count.load(Relaxed) - 1, Relaxed);
        self.idle_since.store(clock::now(), Relaxed);
    }

    pub(crate) fn wait(&self, before: Awaited, now: Awaited) {
        let (before, now) = (self.waiting(before), self.waiting(now));
        before.store(before.load(Relaxed) - 1, Relaxed);
        now.store(now.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn complete(&self) {
        self.completed.store(self.completed.load(Relaxed).saturating_add(1), Relaxed);
    }

    /// The client has yet to send a head, or the rest of one, before it may take its time.
    pub(crate) fn head_is_due(&self) {
        if self.head_since.load(Relaxed) == 0 {
            self.head_since.store(clock::now() + 1, Relaxed);
        }
    }

    pub(crate) fn head_is_complete(&self) {
        self.head_since.store(0, Relaxed);
    }

    /// Bytes of an HTTP/1 request came.
    pub(crate) fn received(&self, bytes: usize) {
        self.body_wanted.store(false, Relaxed);
        self.received.store(self.received.load(Relaxed) + bytes as u64, Relaxed);
        self.moved();
    }

    /// Bytes went to the client's socket.
    pub(crate) fn written(&self, bytes: usize) {
        self.written.store(self.written.load(Relaxed) + bytes as u64, Relaxed);
    }

    /// More of an HTTP/1 request's body would be read if it were there; `owed` if it was announced.
    pub(crate) fn wants_body(&self, owed: impl FnOnce() -> bool) {
        if !self.body_wanted.load(Relaxed) {
            self.body_wanted.store(true, Relaxed);
            self.body_owed.store(owed(), Relaxed);
        }
    }

    /// Bytes of a response were read from its backend.
    pub(crate) fn hold(&self, bytes: usize) {
        self.unread.store(self.unread.load(Relaxed) + bytes, Relaxed);
    }

    /// They were written, or are no longer wanted.
    pub(crate) fn release(&self, bytes: usize) {
        self.unread.store(self.unread.load(Relaxed).saturating_sub(bytes), Relaxed);
    }

    /// An exchange began that may take any time.
    pub(crate) fn begin_unhurried(&self) {
        self.unhurried.store(self.unhurried.load(Relaxed) + 1, Relaxed);
        self.unhurried_lately.store(true, Relaxed);
    }

    pub(crate) fn end_unhurried(&self) {
        self.unhurried.store(self.unhurried.load(Relaxed) - 1, Relaxed);
    }

    pub(crate) fn moved(&self) {
        self.moved.store(true, Relaxed);
    }

    /// The outcome of a write or flush.
    pub(crate) fn note_write<T>(&self, write: &Poll<T>) {
        // Most writes change nothing.
        if self.is_write_blocked() != write.is_pending() {
            self.write_blocked.store(write.is_pending(), Relaxed);
        }
    }

    // --- conclusions ---

    pub(crate) fn bytes_written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Ticks for which the current request head has been on its way. One that was sent behind
    /// another request is not read before that is answered (RFC 9112 section 9.3.2), so its time
    /// begins then.
    pub(crate) fn head_age(&self) -> Option<u32> {
        let since = self.head_since.load(Relaxed).checked_sub(1)?;
        (self.exchanges() == 0).then(|| clock::now() - since.max(self.idle_since.load(Relaxed)))
    }

    /// Ticks for which there has been no request.
    pub(crate) fn idle_age(&self) -> Option<u32> {
        let idle = self.exchanges() == 0 && self.head_since.load(Relaxed) == 0;
        idle.then(|| clock::now() - self.idle_since.load(Relaxed))
    }

    pub(crate) fn exchanges(&self) -> u32 {
        self.exchanges.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// True if all exchanges would go on once the client sent or read more. Slow backends and
    /// silent streams are not its fault.
    pub(crate) fn waits_for_client(&self) -> bool {
        let [response, backend, client] = self.exchanges.each_ref().map(|count| count.load(Relaxed));
        backend == 0 && if response > 0 { self.body_wanted.load(Relaxed) } else { client > 0 }
    }

    pub(crate) fn is_write_blocked(&self) -> bool {
        self.write_blocked.load(Relaxed)
    }

    pub(crate) fn unread(&self) -> usize {
        self.unread.load(Relaxed)
    }

    /// Bytes of memory that are in use because the client does not read, of its own responses and
    /// of those that backends have sent ahead, and because backends do not take what it sent.
    pub(crate) fn held(&self, ahead: usize) -> usize {
        let [_, _, client] = &self.exchanges;
        let responses = match self.unread() + ahead {
            0 => 0,
            unread => CONNECTION + client.load(Relaxed) as usize * RESPONSE + unread,
        };
        responses + self.untaken.bytes()
    }

    /// The direction in which the client has to go on at the minimum rate, with the bytes that went
    /// that way so far. `None` if nothing is up to it alone, or one of its exchanges may take any
    /// time.
    pub(crate) fn owed(&self) -> Option<(Owed, u64)> {
        if self.unhurried_lately.load(Relaxed) {
            // The end of its response may be what the socket has no room for.
            let lately = self.unhurried.load(Relaxed) > 0 || self.is_write_blocked();
            self.unhurried_lately.store(lately, Relaxed);
            return None;
        }
        let [response, ..] = self.exchanges.each_ref().map(|count| count.load(Relaxed));
        if self.is_write_blocked() {
            Some((Owed::Response, self.written.load(Relaxed)))
        } else if response > 0 && self.body_wanted.load(Relaxed) && self.body_owed.load(Relaxed) {
            Some((Owed::Request, self.received.load(Relaxed)))
        } else {
            None
        }
    }

    pub(crate) fn take_moved(&self) -> bool {
        self.moved.swap(false, Relaxed)
    }

    pub(crate) fn take_completed(&self) -> u32 {
        let completed = self.completed.load(Relaxed);
        if completed > 0 {
            self.completed.store(0, Relaxed);
        }
        completed
    }

    fn waiting(&self, awaited: Awaited) -> &AtomicU32 {
        let [response, backend, client] = &self.exchanges;
        match awaited {
            Awaited::Response => response,
            Awaited::Backend => backend,
            Awaited::Client => client,
        }
    }
}
