//! How many connections a Gateway may have: its limits on one core, and a count that all cores share. What must outlive
//! changed limits (how many connections there are, what was refused) hangs on the Gateway's name.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use portcullis_model::{Gateway, Limits, ObjectName, Port};

use crate::core::clock;
use crate::core::stats::{GatewayCounters, Refusal, Stats};

/// How often a core says that a Gateway is full.
const REMIND: Duration = Duration::from_secs(60);

pub(crate) struct GatewayLimit {
    gateway: Arc<Gateway>,
    counts: Rc<GatewayCounts>,
}

/// A connection that was let in. As long as it lasts it counts, and is held to the limits that it began with.
pub(crate) struct ConnectionPermit(Rc<GatewayLimit>);

/// The limits of a core, by the address of their Gateway (which they keep alive, so it is not reused).
pub(crate) struct ConnectionLimits {
    shared_counts: SharedCounts,
    gateways: RefCell<HashMap<usize, Rc<GatewayLimit>, RandomState>>,
    counts: RefCell<HashMap<ObjectName, Rc<GatewayCounts>, RandomState>>,
}

/// How many connections each Gateway has on all cores together. Cores share the number, which a connection changes when it
/// comes and when it goes; the lock is for finding it, once per core and version of a Gateway.
#[derive(Clone, Default)]
pub(crate) struct SharedCounts(Arc<Mutex<HashMap<ObjectName, Weak<AtomicU32>>>>);

/// What a Gateway's successive versions share.
struct GatewayCounts {
    open: Arc<AtomicU32>,
    counters: GatewayCounters,
    /// By the core's clock.
    reminded: Cell<Option<u32>>,
}

// === impl GatewayLimit ===

impl GatewayLimit {
    /// Counts first and looks then, so that no two cores can both take the last place.
    fn admit(self: Rc<Self>) -> Option<ConnectionPermit> {
        let before = self.counts.open.fetch_add(1, Relaxed);
        self.counts.counters.open.increment();
        let permit = ConnectionPermit(self);
        match permit.limits().connections {
            Some(limit) if before >= limit => {
                permit.refused(Refusal::Connections);
                permit.0.remind(limit);
                None
            }
            _ => Some(permit),
        }
    }

    fn remind(&self, limit: u32) {
        let lately = |since| clock::now() - since < clock::ticks(REMIND);
        if self.counts.reminded.get().is_some_and(lately) {
            return;
        }
        self.counts.reminded.set(Some(clock::now()));
        tracing::warn!(
            "Gateway {} has {limit} connections open, its limits.connections: more are closed; raise the limit in its \
             GatewayParameters if they are wanted",
            self.gateway.name
        );
    }
}

// === impl ConnectionPermit ===

impl ConnectionPermit {
    pub(crate) fn limits(&self) -> &Limits {
        &self.0.gateway.limits
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.0.counts.counters.refused(refusal);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.counts.open.fetch_sub(1, Relaxed);
        self.0.counts.counters.open.decrement();
    }
}

// === impl ConnectionLimits ===

impl ConnectionLimits {
    pub(crate) fn new(shared_counts: SharedCounts) -> Self {
        Self { shared_counts, gateways: RefCell::default(), counts: RefCell::default() }
    }

    /// `None` if the Gateway has as many connections as it may have.
    pub(crate) fn admit(&self, gateway: &Arc<Gateway>) -> Option<ConnectionPermit> {
        let mut gateways = self.gateways.borrow_mut();
        let limit = gateways.entry(Arc::as_ptr(gateway) as usize).or_insert_with(|| self.make(gateway));
        limit.clone().admit()
    }

    /// Forgets Gateways that are no longer served.
    pub(crate) fn retain<'p>(&self, ports: impl Iterator<Item = &'p Arc<Port>>) {
        let mut live = HashSet::with_hasher(RandomState::default());
        let mut names = HashSet::with_hasher(RandomState::default());
        for gateway in ports.map(|port| &port.gateway) {
            live.insert(Arc::as_ptr(gateway) as usize);
            names.insert(&gateway.name);
        }
        self.gateways.borrow_mut().retain(|identity, _| live.contains(identity));
        self.counts.borrow_mut().retain(|name, _| names.contains(name));
    }

    pub(crate) fn read_into(&self, stats: &mut Stats) {
        let counts = self.counts.borrow();
        stats.gateways.extend(counts.iter().map(|(name, counts)| (name.clone(), counts.counters.read())));
    }

    fn make(&self, gateway: &Arc<Gateway>) -> Rc<GatewayLimit> {
        let mut counts = self.counts.borrow_mut();
        let counts =
            counts.entry(gateway.name.clone()).or_insert_with(|| self.shared_counts.counts(&gateway.name));
        Rc::new(GatewayLimit { gateway: gateway.clone(), counts: counts.clone() })
    }
}

// === impl SharedCounts ===

impl SharedCounts {
    fn counts(&self, gateway: &ObjectName) -> Rc<GatewayCounts> {
        let open = self.open(gateway);
        Rc::new(GatewayCounts { open, counters: GatewayCounters::default(), reminded: Cell::default() })
    }

    /// Also that of a Gateway that was gone, if connections of its are still open.
    fn open(&self, gateway: &ObjectName) -> Arc<AtomicU32> {
        let mut shared_counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = shared_counts.get(gateway).and_then(Weak::upgrade) {
            return open;
        }
        shared_counts.retain(|_, open| open.strong_count() > 0);
        let open = Arc::default();
        shared_counts.insert(gateway.clone(), Arc::downgrade(&open));
        open
    }
}
