//! A gate is where connections come in: a port's Gateway on one core, with the limits that hold there. What must outlive
//! changed limits (how many connections there are, what was refused) hangs on the Gateway's name.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use portcullis_model::{Gateway, Limits, ListenerGroup, ObjectName};

use crate::core::clock;
use crate::core::stats::{GatewayCounters, Refusal, Stats};

/// How often a core says that a Gateway is full.
const REMIND: Duration = Duration::from_secs(60);

pub(crate) struct Gate {
    gateway: Arc<Gateway>,
    lineage: Rc<Lineage>,
}

/// A connection that was let in. As long as it lasts it counts, and is held to the limits that it began with.
pub(crate) struct Admitted(Rc<Gate>);

/// The gates of a core, by the address of their Gateway (which they keep alive, so it is not reused).
pub(crate) struct Gates {
    crowds: Crowds,
    gates: RefCell<HashMap<usize, Rc<Gate>, RandomState>>,
    lineages: RefCell<HashMap<ObjectName, Rc<Lineage>, RandomState>>,
}

/// How many connections each Gateway has on all cores together. Cores share the number, which a connection changes when it
/// comes and when it goes; the lock is for finding it, once per core and version of a Gateway.
#[derive(Clone, Default)]
pub(crate) struct Crowds(Arc<Mutex<HashMap<ObjectName, Weak<AtomicU32>>>>);

/// What a Gateway's successive versions share.
struct Lineage {
    open: Arc<AtomicU32>,
    counters: GatewayCounters,
    /// By the core's clock.
    reminded: Cell<Option<u32>>,
}

// === impl Gate ===

impl Gate {
    /// Counts first and looks then, so that no two cores can both take the last place.
    fn admit(self: Rc<Self>) -> Option<Admitted> {
        let before = self.lineage.open.fetch_add(1, Relaxed);
        self.lineage.counters.open.increment();
        let admitted = Admitted(self);
        match admitted.limits().connections {
            Some(limit) if before >= limit => {
                admitted.refused(Refusal::Connections);
                admitted.0.remind(limit);
                None
            }
            _ => Some(admitted),
        }
    }

    fn remind(&self, limit: u32) {
        let lately = |since| clock::now() - since < clock::ticks(REMIND);
        if self.lineage.reminded.get().is_some_and(lately) {
            return;
        }
        self.lineage.reminded.set(Some(clock::now()));
        tracing::warn!(
            "Gateway {} has {limit} connections open, its limits.connections: more are closed; raise the limit in its \
             GatewayParameters if they are wanted",
            self.gateway.name
        );
    }
}

// === impl Admitted ===

impl Admitted {
    pub(crate) fn limits(&self) -> &Limits {
        &self.0.gateway.limits
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.0.lineage.counters.refused(refusal);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.lineage.open.fetch_sub(1, Relaxed);
        self.0.lineage.counters.open.decrement();
    }
}

// === impl Gates ===

impl Gates {
    pub(crate) fn new(crowds: Crowds) -> Self {
        Self { crowds, gates: RefCell::default(), lineages: RefCell::default() }
    }

    /// `None` if the Gateway has as many connections as it may have.
    pub(crate) fn admit(&self, gateway: &Arc<Gateway>) -> Option<Admitted> {
        let mut gates = self.gates.borrow_mut();
        let gate = gates.entry(Arc::as_ptr(gateway) as usize).or_insert_with(|| self.make(gateway));
        gate.clone().admit()
    }

    /// Forgets Gateways that are no longer served.
    pub(crate) fn retain<'g>(&self, groups: impl Iterator<Item = &'g Arc<ListenerGroup>>) {
        let mut live = HashSet::with_hasher(RandomState::default());
        let mut names = HashSet::with_hasher(RandomState::default());
        for gateway in groups.map(|group| &group.gateway) {
            live.insert(Arc::as_ptr(gateway) as usize);
            names.insert(&gateway.name);
        }
        self.gates.borrow_mut().retain(|identity, _| live.contains(identity));
        self.lineages.borrow_mut().retain(|name, _| names.contains(name));
    }

    pub(crate) fn read_into(&self, stats: &mut Stats) {
        let lineages = self.lineages.borrow();
        stats.gateways.extend(lineages.iter().map(|(name, lineage)| (name.clone(), lineage.counters.read())));
    }

    fn make(&self, gateway: &Arc<Gateway>) -> Rc<Gate> {
        let mut lineages = self.lineages.borrow_mut();
        let lineage =
            lineages.entry(gateway.name.clone()).or_insert_with(|| self.crowds.lineage(&gateway.name));
        Rc::new(Gate { gateway: gateway.clone(), lineage: lineage.clone() })
    }
}

// === impl Crowds ===

impl Crowds {
    fn lineage(&self, gateway: &ObjectName) -> Rc<Lineage> {
        let open = self.open(gateway);
        Rc::new(Lineage { open, counters: GatewayCounters::default(), reminded: Cell::default() })
    }

    /// Also that of a Gateway that was gone, if connections of its are still open.
    fn open(&self, gateway: &ObjectName) -> Arc<AtomicU32> {
        let mut crowds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = crowds.get(gateway).and_then(Weak::upgrade) {
            return open;
        }
        crowds.retain(|_, open| open.strong_count() > 0);
        let open = Arc::default();
        crowds.insert(gateway.clone(), Arc::downgrade(&open));
        open
    }
}
