//! The tunnels of a core, and the order they get: to end because their listener is gone. The
//! connection of HTTP/1 that has become one is none of the core's clients any more.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::Notify;

use crate::client::clients::Client;
use crate::client::listener::ListenerState;
use crate::core::snapshot::{Current, SnapshotCell};

pub(crate) struct Tunnels {
    snapshot: Rc<SnapshotCell>,
    /// The time that tunnels of a listener that is gone have to end by themselves.
    drain: Duration,
    open: RefCell<HashMap<u64, Rc<Tunnel>, RandomState>>,
    registered: Cell<u64>,
}

struct Tunnel {
    client: Rc<Client>,
    /// The one that its request was for.
    listener: Option<Rc<ListenerState>>,
    withdrawn: Notify,
}

/// Keeps a tunnel among the core's.
pub(crate) struct Registered {
    tunnel: Rc<Tunnel>,
    tunnels: Rc<Tunnels>,
    number: u64,
}

// === impl Tunnels ===

impl Tunnels {
    pub(crate) fn new(snapshot: Rc<SnapshotCell>, drain: Duration) -> Self {
        Self { snapshot, drain, open: RefCell::default(), registered: Cell::default() }
    }

    /// Its listener may have been withdrawn while the backend was asked.
    pub(crate) fn register(
        self: &Rc<Self>,
        client: Rc<Client>,
        listener: Option<Rc<ListenerState>>,
    ) -> Registered {
        let tunnel = Rc::new(Tunnel { client, listener, withdrawn: Notify::new() });
        tunnel.follow(&self.snapshot.load());
        let number = self.registered.get();
        self.registered.set(number + 1);
        self.open.borrow_mut().insert(number, tunnel.clone());
        Registered { tunnel, tunnels: self.clone(), number }
    }

    /// Lets tunnels of listeners that are gone end by themselves for a while, even if the listener
    /// comes back.
    pub(crate) fn follow(&self, current: &Current) {
        self.open.borrow().values().for_each(|tunnel| tunnel.follow(current));
    }
}

// === impl Tunnel ===

impl Tunnel {
    fn follow(&self, current: &Current) {
        let is_served = self.listener.as_ref().is_none_or(|listener| listener.is_served());
        if !is_served || self.client.is_withdrawn(current) {
            self.withdrawn.notify_one();
        }
    }
}

// === impl Registered ===

impl Registered {
    pub(crate) fn client(&self) -> &Rc<Client> {
        &self.tunnel.client
    }

    /// Waits until the listener is gone, and the time over that the tunnel has then.
    pub(crate) async fn withdrawn(&self) {
        self.tunnel.withdrawn.notified().await;
        tokio::time::sleep(self.tunnels.drain).await;
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.tunnels.open.borrow_mut().remove(&self.number);
    }
}
