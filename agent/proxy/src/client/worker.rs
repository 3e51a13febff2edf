//! A worker is one listener on one core: its TLS state and its counters. Workers are made when a listener first sees
//! traffic; what must outlive a changed listener (counters, TLS sessions) hangs on the listener's identity.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;
use portcullis_model::{Listener, ListenerGroup, ListenerId, ListenerProtocol, TlsTermination};
use rustls::ServerConfig;

use crate::client::tls::TlsFactory;
use crate::core::stats::{ListenerCounters, Stats};

pub(crate) struct Worker {
    pub listener: Arc<Listener>,
    lineage: Rc<Lineage>,
}

/// The workers of a core, by the address of their listener (which they keep alive, so it is not reused).
pub(crate) struct Workers {
    tls: TlsFactory,
    workers: RefCell<HashMap<usize, Rc<Worker>, RandomState>>,
    lineages: RefCell<HashMap<ListenerId, Rc<Lineage>, RandomState>>,
}

/// What a listener's successive versions share.
#[derive(Default)]
struct Lineage {
    served: Cell<bool>,
    counters: ListenerCounters,
    tls: RefCell<Option<(TlsTermination, Arc<ServerConfig>)>>,
}

// === impl Worker ===

impl Worker {
    /// Whether the latest snapshot has the listener, in this version or another.
    pub(crate) fn is_served(&self) -> bool {
        self.lineage.served.get()
    }

    pub(crate) fn counters(&self) -> &ListenerCounters {
        &self.lineage.counters
    }
}

// === impl Workers ===

impl Workers {
    pub(crate) fn new(tls: TlsFactory) -> Self {
        Self { tls, workers: RefCell::default(), lineages: RefCell::default() }
    }

    pub(crate) fn get(&self, listener: &Arc<Listener>) -> Rc<Worker> {
        let mut workers = self.workers.borrow_mut();
        workers.entry(Arc::as_ptr(listener) as usize).or_insert_with(|| self.make(listener)).clone()
    }

    /// `None` for a listener that does not terminate TLS. Unless its certificates changed, a listener keeps its
    /// configuration, and with it its sessions.
    pub(crate) fn server_config(&self, worker: &Worker) -> Option<Arc<ServerConfig>> {
        let ListenerProtocol::Https(termination) = &worker.listener.protocol else { return None };
        let mut current = worker.lineage.tls.borrow_mut();
        if let Some((same, config)) = current.as_ref()
            && same == termination
        {
            return Some(config.clone());
        }
        let config = self.tls.server_config(termination);
        *current = Some((termination.clone(), config.clone()));
        Some(config)
    }

    /// Forgets listeners that no group holds any more.
    pub(crate) fn retain<'g>(&self, groups: impl Iterator<Item = &'g Arc<ListenerGroup>>) {
        let mut lineages = self.lineages.borrow_mut();
        lineages.values().for_each(|lineage| lineage.served.set(false));
        let mut live = HashSet::with_hasher(RandomState::default());
        for listener in groups.flat_map(|group| group.listeners.values()) {
            live.insert(Arc::as_ptr(listener) as usize);
            if let Some(lineage) = lineages.get(&listener.id) {
                lineage.served.set(true);
            }
        }
        lineages.retain(|_, lineage| lineage.served.get());
        self.workers.borrow_mut().retain(|identity, _| live.contains(identity));
    }

    pub(crate) fn read_into(&self, stats: &mut Stats) {
        let lineages = self.lineages.borrow();
        stats.listeners.extend(lineages.iter().map(|(id, lineage)| (id.clone(), lineage.counters.read())));
    }

    fn make(&self, listener: &Arc<Listener>) -> Rc<Worker> {
        let lineage = self.lineages.borrow_mut().entry(listener.id.clone()).or_default().clone();
        lineage.served.set(true);
        Rc::new(Worker { listener: listener.clone(), lineage })
    }
}
