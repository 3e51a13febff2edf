//! Listeners as one core serves them: their TLS state and their counters. They are made when a
//! listener first sees traffic; what must outlive a changed listener (counters, TLS sessions) hangs
//! on the listener's identity.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use portcullis_model::{Listener, ListenerId, Port, Serves, TlsTermination};
use rustls::ServerConfig;

use crate::client::tls::{Protocols, TlsFactory};
use crate::core::stats::{ListenerCounters, Stats};

pub(crate) struct ListenerState {
    pub listener: Arc<Listener>,
    shared: Rc<SharedState>,
}

/// The listeners of a core, by the address of the model's (which they keep alive, so it is not
/// reused).
pub(crate) struct Listeners {
    tls: TlsFactory,
    listeners: RefCell<HashMap<usize, Rc<ListenerState>, RandomState>>,
    shared: RefCell<HashMap<ListenerId, Rc<SharedState>, RandomState>>,
    /// Of ports that were asked for a name they have not, likewise.
    refusals: RefCell<HashMap<usize, (Arc<Port>, Refusal), RandomState>>,
}

/// The way that a TLS port refuses server names that none of its listeners has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// In TLS, as a server that ends it.
    Alert,
    /// As a port that passes TLS on and does not speak it. The API's conformance tests take nothing
    /// else from TLS listeners.
    Reset,
}

/// The state that a listener's successive versions share.
#[derive(Default)]
struct SharedState {
    served: Cell<bool>,
    counters: ListenerCounters,
    tls: RefCell<Option<(TlsTermination, Protocols, Arc<ServerConfig>)>>,
}

// === impl ListenerState ===

impl ListenerState {
    /// True if the latest snapshot has the listener, in this version or another.
    pub(crate) fn is_served(&self) -> bool {
        self.shared.served.get()
    }

    pub(crate) fn counters(&self) -> &ListenerCounters {
        &self.shared.counters
    }
}

// === impl Listeners ===

impl Listeners {
    pub(crate) fn new(tls: TlsFactory) -> Self {
        Self { tls, listeners: RefCell::default(), shared: RefCell::default(), refusals: RefCell::default() }
    }

    pub(crate) fn get(&self, listener: &Arc<Listener>) -> Rc<ListenerState> {
        let mut listeners = self.listeners.borrow_mut();
        let key = Arc::as_ptr(listener) as usize;
        let state = listeners.entry(key).or_insert_with(|| {
            let shared = self.shared.borrow_mut().entry(listener.id.clone()).or_default().clone();
            shared.served.set(true);
            Rc::new(ListenerState { listener: listener.clone(), shared })
        });
        state.clone()
    }

    /// `None` for a listener that does not terminate TLS. Unless its certificates changed, a
    /// listener keeps its configuration, and with it its sessions.
    pub(crate) fn server_config(&self, listener_state: &ListenerState) -> Option<Arc<ServerConfig>> {
        let termination = listener_state.listener.serves.tls()?;
        let protocols = match listener_state.listener.serves.routes() {
            Some(_) => Protocols::Http,
            None => Protocols::Any,
        };
        let mut current = listener_state.shared.tls.borrow_mut();
        if let Some((same, offered, config)) = current.as_ref()
            && (same, *offered) == (termination, protocols)
        {
            return Some(config.clone());
        }
        let config = self.tls.server_config(termination, protocols);
        *current = Some((termination.clone(), protocols, config.clone()));
        Some(config)
    }

    /// Looked up once for each version of a port, which may have thousands of listeners.
    pub(crate) fn refusal(&self, port: &Arc<Port>) -> Refusal {
        let mut refusals = self.refusals.borrow_mut();
        let (_, refusal) = refusals.entry(Arc::as_ptr(port) as usize).or_insert_with(|| {
            let speaks_tls = port.listeners.iter().any(|listener| match listener.serves {
                Serves::Https { .. } | Serves::NoCertificate => true,
                Serves::Http(_)
                | Serves::TlsTerminated { .. }
                | Serves::TlsPassthrough(_)
                | Serves::Tcp(_)
                | Serves::Udp(_) => false,
            });
            (port.clone(), if speaks_tls { Refusal::Alert } else { Refusal::Reset })
        });
        *refusal
    }

    /// Forgets listeners that no port has any more, or none that serves anything: connections to
    /// one that lost its certificate end as they do when it goes.
    pub(crate) fn retain<'p>(&self, ports: impl Iterator<Item = &'p Arc<Port>>) {
        self.refusals.borrow_mut().clear();
        let mut shared = self.shared.borrow_mut();
        shared.values().for_each(|shared| shared.served.set(false));
        let mut live = HashSet::with_hasher(RandomState::default());
        let listeners = ports.flat_map(|port| port.listeners.iter());
        for listener in listeners.filter(|listener| listener.serves != Serves::NoCertificate) {
            live.insert(Arc::as_ptr(listener) as usize);
            if let Some(shared) = shared.get(&listener.id) {
                shared.served.set(true);
            }
        }
        shared.retain(|_, shared| shared.served.get());
        self.listeners.borrow_mut().retain(|identity, _| live.contains(identity));
    }

    pub(crate) fn read_into(&self, stats: &mut Stats) {
        let shared = self.shared.borrow();
        stats.listeners.extend(shared.iter().map(|(id, shared)| (id.clone(), shared.counters.read())));
    }
}
