//! A request and its response on a client connection: what is awaited meanwhile, and the bytes that
//! are held for it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::client::clients::Client;
use crate::client::progress::{Awaited, Progress};
use crate::core::durations::Measured;

/// Unread bytes of a connection from which on each response has one piece at most.
const MUCH: usize = 8 << 10;
/// Bytes of a piece then.
const SMALL_PIECE: usize = 3 << 10;

/// A request that is being served; while one is, the connection is not idle.
pub(crate) struct Exchange {
    client: Rc<Client>,
    awaited: Awaited,
    /// May take any time.
    is_unhurried: bool,
    /// Of its response: read from the backend, and not written.
    unread: Option<Arc<AtomicUsize>>,
    /// Of one that is answered.
    measured: Option<Measured>,
}

/// So many bytes of a response, until they are written.
pub(crate) struct Held {
    bytes: usize,
    of_exchange: Arc<AtomicUsize>,
    of_connection: Arc<Progress>,
}

struct HeldBytes {
    bytes: Bytes,
    _held: Held,
}

// === impl Exchange ===

impl Exchange {
    pub(crate) fn begin(client: &Rc<Client>) -> Self {
        client.progress.begin(Awaited::Response);
        client.under_way.set(client.under_way.get() + 1);
        Self {
            client: client.clone(),
            awaited: Awaited::Response,
            is_unhurried: false,
            unread: None,
            measured: None,
        }
    }

    pub(crate) fn client(&self) -> &Rc<Client> {
        &self.client
    }

    /// Has the time counted that it takes, now that there is an answer.
    pub(crate) fn measure(&mut self, measured: Measured) {
        self.measured = Some(measured);
    }

    /// Holds the client to no minimum rate, as long as the exchange lasts.
    pub(crate) fn take_any_time(&mut self) {
        if !self.is_unhurried {
            self.is_unhurried = true;
            self.client.progress.begin_unhurried();
        }
    }

    pub(crate) fn may_take_any_time(&self) -> bool {
        self.is_unhurried
    }

    /// The bytes of its response that were read from the backend, and not written.
    pub(crate) fn unread(&mut self) -> Arc<AtomicUsize> {
        self.unread.get_or_insert_default().clone()
    }

    /// The bytes, which count as unread until the HTTP library drops them.
    pub(crate) fn hold(&mut self, bytes: Bytes) -> Bytes {
        let held = self.hold_elsewhere(bytes.len());
        Bytes::from_owner(HeldBytes { bytes, _held: held })
    }

    /// Has bytes count as unread that are not here.
    pub(crate) fn hold_elsewhere(&mut self, bytes: usize) -> Held {
        let of_exchange = self.unread();
        of_exchange.store(of_exchange.load(Relaxed) + bytes, Relaxed);
        let of_connection = self.client.progress.clone();
        of_connection.hold(bytes);
        Held { bytes, of_exchange, of_connection }
    }

    pub(crate) fn wait(&mut self, awaited: Awaited) {
        if awaited != self.awaited {
            self.client.progress.wait(self.awaited, awaited);
            self.awaited = awaited;
        }
    }

    /// The bytes that are worth reading from the backend: none while the client does not take what
    /// is written to it. When there is much for it already, a response has to wait until its own
    /// bytes are written, and gets a small piece then. It need not wait for those of others, which
    /// HTTP/2's windows may hold back.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<usize> {
        let progress = &self.client.progress;
        let own = self.unread.as_ref().map_or(0, |unread| unread.load(Relaxed));
        let has_much = progress.unread() >= MUCH;
        if !progress.is_write_blocked() && (own == 0 || !has_much) {
            return Poll::Ready(if has_much { SMALL_PIECE } else { usize::MAX });
        }
        let mut blocked = self.client.blocked.borrow_mut();
        if !blocked.iter().any(|known| known.will_wake(cx.waker())) {
            blocked.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The response came to its end.
    pub(crate) fn complete(&self) {
        self.client.progress.complete();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.client.progress.end(self.awaited);
        self.client.under_way.set(self.client.under_way.get() - 1);
        if self.is_unhurried {
            self.client.progress.end_unhurried();
        }
    }
}

// === impl Held ===

impl Held {
    /// Some of them were written.
    pub(crate) fn release(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.of_exchange.store(self.of_exchange.load(Relaxed).saturating_sub(bytes), Relaxed);
        self.of_connection.release(bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

// === impl HeldBytes ===

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
