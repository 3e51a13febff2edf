//! The number of connections that a Gateway may have: its limits on one core, and a count that all
//! cores share. What must outlive changed limits (the number of connections, the counters of
//! refusals) hangs on the Gateway's name.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use foldhash::fast::RandomState;
use http::HeaderValue;
use portcullis_model::{AccessLog, Gateway, Limits, ObjectName, Port};

use crate::client::open_limit::Places;
use crate::core::log_limit::LogLimit;
use crate::core::pseudonym::AgentId;
use crate::core::stats::{ExceededLimit, GatewayCounters, NotAdmitted, Stats};

/// A Gateway in one version.
struct GatewayLimit {
    gateway: Arc<Gateway>,
    pseudonym: HeaderValue,
    counts: Rc<GatewayCounts>,
}

/// A connection that was let in. As long as it lasts it counts, and is held to the limits that it
/// began with.
pub(crate) struct ConnectionPermit {
    limit: Rc<GatewayLimit>,
    /// In the counts of listeners that limit their connections.
    pub places: Places,
}

/// The limits of a core, by the address of their Gateway (which they keep alive, so it is not
/// reused).
pub(crate) struct ConnectionLimits {
    agent: AgentId,
    shared_counts: SharedCounts,
    gateways: RefCell<HashMap<usize, Rc<GatewayLimit>, RandomState>>,
    counts: RefCell<HashMap<ObjectName, Rc<GatewayCounts>, RandomState>>,
}

/// The number of connections each Gateway has on all cores together. Cores share the number, which
/// a connection changes when it comes and when it goes; the lock is for finding it, once per core
/// and version of a Gateway.
#[derive(Clone, Default)]
pub(crate) struct SharedCounts(Arc<Mutex<HashMap<ObjectName, Weak<AtomicU32>>>>);

/// The state that a Gateway's successive versions share.
struct GatewayCounts {
    open: Arc<AtomicU32>,
    counters: GatewayCounters,
    /// For the warning that the Gateway has as many as it may have.
    full: LogLimit,
}

// === impl ConnectionPermit ===

impl ConnectionPermit {
    pub(crate) fn limits(&self) -> &Limits {
        &self.limit.gateway.limits
    }

    pub(crate) fn gateway(&self) -> &ObjectName {
        &self.limit.gateway.name
    }

    pub(crate) fn access_log(&self) -> Option<AccessLog> {
        self.limit.gateway.access_log
    }

    pub(crate) fn pseudonym(&self) -> &HeaderValue {
        &self.limit.pseudonym
    }

    pub(crate) fn refused(&self, limit: ExceededLimit) {
        self.limit.counts.counters.refused(limit);
    }

    /// Counts a client of which it is not known which of the Gateway's listeners it means.
    pub(crate) fn not_admitted(&self, reason: NotAdmitted) {
        self.limit.counts.counters.not_admitted(reason);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.counts.open.fetch_sub(1, Relaxed);
        self.limit.counts.counters.open.decrement();
    }
}

// === impl ConnectionLimits ===

impl ConnectionLimits {
    pub(crate) fn new(agent: AgentId, shared_counts: SharedCounts) -> Self {
        Self { agent, shared_counts, gateways: RefCell::default(), counts: RefCell::default() }
    }

    /// `None` if the Gateway has as many connections as it may have.
    pub(crate) fn admit(&self, gateway: &Arc<Gateway>) -> Option<ConnectionPermit> {
        let mut gateways = self.gateways.borrow_mut();
        let key = Arc::as_ptr(gateway) as usize;
        let state = gateways.entry(key).or_insert_with(|| {
            let mut counts = self.counts.borrow_mut();
            let counts = counts.entry(gateway.name.clone()).or_insert_with(|| {
                Rc::new(GatewayCounts {
                    open: self.shared_counts.open(&gateway.name),
                    counters: GatewayCounters::default(),
                    full: LogLimit::default(),
                })
            });
            let pseudonym = self.agent.pseudonym(&gateway.name);
            Rc::new(GatewayLimit { gateway: gateway.clone(), pseudonym, counts: counts.clone() })
        });
        let permit = ConnectionPermit { limit: state.clone(), places: Places::default() };
        // Counted first, so that no two cores can both take the last place.
        let before = state.counts.open.fetch_add(1, Relaxed);
        state.counts.counters.open.increment();
        match gateway.limits.connections {
            Some(limit) if before >= limit => {
                permit.refused(ExceededLimit::Connections);
                if state.counts.full.is_due() {
                    tracing::warn!(
                        "Gateway {} has {limit} connections open, its limits.connections: more are closed; raise the \
                         limit in its GatewayParameters if they are wanted",
                        gateway.name
                    );
                }
                None
            }
            _ => Some(permit),
        }
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
}

// === impl SharedCounts ===

impl SharedCounts {
    /// Also that of a Gateway that was gone, if connections of its are still open.
    fn open(&self, gateway: &ObjectName) -> Arc<AtomicU32> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = counts.get(gateway).and_then(Weak::upgrade) {
            return open;
        }
        counts.retain(|_, open| open.strong_count() > 0);
        let open = Arc::default();
        counts.insert(gateway.clone(), Arc::downgrade(&open));
        open
    }
}
