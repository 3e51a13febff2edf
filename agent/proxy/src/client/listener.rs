//! Listeners as one core serves them: their TLS state and their counters. They are made when a
//! listener first sees traffic; what must outlive a changed listener (counters, TLS sessions) hangs
//! on the listener's identity.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::mem::{Discriminant, discriminant};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use portcullis_model::{
    Access, Believer, ClientCertificates, ClientRanges, KeyRing, Limits, Listener, ListenerId,
    ListenerLimits, Port, Serves, TlsOptions, TlsTermination,
};
use rustls::ServerConfig;

use crate::client::budget::{Bucket, Charged, SharedBudgets};
use crate::client::connection_limit::ConnectionPermit;
use crate::client::open_limit::{OpenCount, Places, SharedOpen};
use crate::client::tls::{Protocols, TlsFactory};
use crate::client::turns::HandshakeQueue;
use crate::core::durations::{Durations, ListenerSeries};
use crate::core::log_limit::LogLimit;
use crate::core::stats::{ListenerCounters, NotAdmitted, Stats};

pub(crate) struct ListenerState {
    pub listener: Arc<Listener>,
    /// Of its budgets, in their order.
    buckets: Box<[Bucket]>,
    /// The connections that may be open at a time.
    open: Box<[OpenCount]>,
    shared: Rc<SharedState>,
}

/// The listeners of a core, by the address of the model's (which they keep alive, so it is not
/// reused).
pub(crate) struct Listeners {
    tls: TlsFactory,
    /// The keys of tickets.
    ring: RefCell<Arc<KeyRing>>,
    budgets: SharedBudgets,
    open: SharedOpen,
    durations: Rc<Durations>,
    listeners: RefCell<HashMap<usize, Rc<ListenerState>, RandomState>>,
    shared: RefCell<HashMap<ListenerId, Rc<SharedState>, RandomState>>,
    /// Of ports that were asked for a name they have not.
    refusals: ByPort<Refusal>,
    /// Of ports that connections came to.
    terms: ByPort<Rc<PortTerms>>,
}

/// By the address of the model's port, which is kept alive, so it is not reused.
type ByPort<T> = RefCell<HashMap<usize, (Arc<Port>, T), RandomState>>;

/// The terms to which a connection is held before it is known which of the port's listeners it is
/// for: the addresses that some of them permit, and the budgets and limits that all of them have in
/// common.
pub(crate) struct PortTerms {
    pub clients: Option<Arc<ClientRanges>>,
    pub budgets: Box<[Bucket]>,
    pub open: Box<[OpenCount]>,
    pub limits: PortLimits,
    /// For the warning that clients are kept out, by reason.
    pub keeping_out: [LogLimit; NotAdmitted::ALL.len()],
}

/// The limits that listeners of a port set beside their Gateway.
pub(crate) struct PortLimits {
    /// True if one of them sets some.
    pub are_there: bool,
    /// The loosest, if all do.
    pub common: Option<ListenerLimits>,
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
    /// By the latest snapshot; `None` if it has no such listener.
    served: RefCell<Option<Served>>,
    counters: ListenerCounters,
    /// `None` if they are not measured.
    durations: RefCell<Option<Rc<ListenerSeries>>>,
    handshakes: Rc<HandshakeQueue>,
    /// For the warning that clients are kept out, by reason.
    keeping_out: [LogLimit; NotAdmitted::ALL.len()],
    tls: RefCell<Option<(TlsTermination, Protocols, Arc<ServerConfig>)>>,
}

/// The part of a listener's service that its connections were made by.
#[derive(PartialEq)]
struct Served {
    kind: Discriminant<Serves>,
    /// Connections of clients that have shown none are not for a listener that asks for them.
    clients: ClientCertificates,
    /// Nor are those that began on other terms.
    options: Arc<TlsOptions>,
}

// === impl ListenerState ===

impl ListenerState {
    /// True if the latest snapshot has the listener, in this version or another that serves
    /// connections in the same way: requests of HTTPS are nothing that TLS passed on has an answer
    /// to.
    pub(crate) fn is_served(&self) -> bool {
        self.shared.served.borrow().as_ref().is_some_and(|served| *served == Served::by(&self.listener))
    }

    pub(crate) fn counters(&self) -> &ListenerCounters {
        &self.shared.counters
    }

    /// `None` if they are not measured.
    pub(crate) fn durations(&self) -> Option<Rc<ListenerSeries>> {
        self.shared.durations.borrow().clone()
    }

    /// The handshakes that wait for a turn of the listener.
    pub(crate) fn handshakes(&self) -> &Rc<HandshakeQueue> {
        &self.shared.handshakes
    }

    pub(crate) fn has_budgets(&self) -> bool {
        !self.buckets.is_empty()
    }

    pub(crate) fn limits_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Gives a connection that was let in its place among those that may be open, or counts why
    /// not.
    pub(crate) fn occupy(&self, places: &Places, client: IpAddr) -> Result<(), NotAdmitted> {
        places.take(&self.open).map_err(|OpenCount { owner, .. }| {
            let why = format_args!("the connections that the ListenerPolicy on {owner} lets be open");
            self.keep_out(NotAdmitted::Connections, client, why)
        })
    }

    /// Lets a new connection of a client in, or counts why not.
    pub(crate) fn admit(&self, client: IpAddr) -> Result<(), NotAdmitted> {
        self.permit(client)?;
        self.charge(&mut Charged::default(), client)
    }

    /// True of clients with an address that may connect.
    pub(crate) fn permit(&self, client: IpAddr) -> Result<(), NotAdmitted> {
        let rules = self.listener.admission.clients.as_ref();
        match rules.map(|rules| rules.access(&client.to_canonical())) {
            None | Some(Access::Permitted) => Ok(()),
            Some(Access::Denied) => {
                let why = format_args!("the addresses that its policies permit");
                Err(self.keep_out(NotAdmitted::Address, client, why))
            }
        }
    }

    /// True of requests of a peer whose client may send them, as the proxies list it that each
    /// owner believes.
    pub(crate) fn permit_listed(
        &self,
        peer: IpAddr,
        client: impl Fn(Believer) -> Option<IpAddr>,
    ) -> Result<(), NotAdmitted> {
        let Some(listed) = &self.listener.admission.listed else { return Ok(()) };
        for (believer, rules) in listed.rules() {
            let client = client(believer).map(|client| client.to_canonical());
            if client.is_none_or(|client| rules.access(&client) == Access::Denied) {
                let why =
                    format_args!("the addresses that its ListenerPolicies permit, as proxies list them");
                return Err(self.keep_out(NotAdmitted::Address, client.unwrap_or(peer), why));
            }
        }
        Ok(())
    }

    /// Takes a connection from each of the budgets that it has not been taken from.
    pub(crate) fn charge(&self, charged: &mut Charged, client: IpAddr) -> Result<(), NotAdmitted> {
        charged.charge(&self.buckets).map_err(|Bucket { owner, .. }| {
            let why = format_args!("the connections a second of the ListenerPolicy on {owner}");
            self.keep_out(NotAdmitted::Connections, client, why)
        })
    }

    /// Counts a client that is kept out, and logs one now and then.
    pub(crate) fn keep_out(
        &self,
        reason: NotAdmitted,
        client: IpAddr,
        by: std::fmt::Arguments<'_>,
    ) -> NotAdmitted {
        self.shared.counters.not_admitted(reason);
        if self.shared.keeping_out[reason as usize].is_due() {
            tracing::warn!(
                listener = %self.listener.id,
                client = %client.to_canonical(),
                reason = reason.name(),
                "clients are kept out by {by}; network_server_clients_not_admitted_total counts them"
            );
        }
        reason
    }
}

// === impl Listeners ===

impl Listeners {
    pub(crate) fn new(
        tls: TlsFactory,
        budgets: SharedBudgets,
        open: SharedOpen,
        ring: Arc<KeyRing>,
        durations: Rc<Durations>,
    ) -> Self {
        Self {
            tls,
            ring: RefCell::new(ring),
            budgets,
            open,
            durations,
            listeners: RefCell::default(),
            shared: RefCell::default(),
            refusals: RefCell::default(),
            terms: RefCell::default(),
        }
    }

    /// Has tickets sealed with other keys. Configurations are made again when they are needed.
    pub(crate) fn use_keys(&self, ring: Arc<KeyRing>) {
        self.ring.replace(ring);
        self.shared.borrow().values().for_each(|shared| drop(shared.tls.take()));
    }

    pub(crate) fn get(&self, listener: &Arc<Listener>) -> Rc<ListenerState> {
        let mut listeners = self.listeners.borrow_mut();
        let key = Arc::as_ptr(listener) as usize;
        let state = listeners.entry(key).or_insert_with(|| {
            let mut shared = self.shared.borrow_mut();
            let shared = shared.entry(listener.id.clone()).or_insert_with(|| {
                let durations = RefCell::new(self.durations.listener(&listener.id));
                Rc::new(SharedState { durations, ..SharedState::default() })
            });
            let shared = shared.clone();
            shared.served.replace(Some(Served::by(listener)));
            let budgets = listener.admission.budgets.iter();
            let buckets = budgets.map(|budget| self.budgets.bucket(budget)).collect();
            let open = listener.admission.open.iter().map(|limit| self.open.count(limit)).collect();
            Rc::new(ListenerState { listener: listener.clone(), buckets, open, shared })
        });
        state.clone()
    }

    /// `None` for a listener that does not terminate TLS. Unless its terms changed, or the keys of
    /// tickets, a listener keeps its configuration.
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
        let id = &listener_state.listener.id;
        let config = self.tls.server_config(id, termination, protocols, &self.ring.borrow())?;
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

    /// Compared once for each version of a port.
    pub(crate) fn terms(&self, port: &Arc<Port>) -> Rc<PortTerms> {
        let mut terms = self.terms.borrow_mut();
        let (_, terms) = terms.entry(Arc::as_ptr(port) as usize).or_insert_with(|| {
            let budgets = port.listeners.common_budgets();
            let terms = PortTerms {
                clients: port.clients.clone(),
                budgets: budgets.map(|budget| self.budgets.bucket(budget)).collect(),
                open: port.listeners.common_open().map(|limit| self.open.count(limit)).collect(),
                limits: PortLimits {
                    are_there: port.listeners.iter().any(|it| it.admission.limits.is_some()),
                    common: port.listeners.common_limits(),
                },
                keeping_out: Default::default(),
            };
            (port.clone(), Rc::new(terms))
        });
        terms.clone()
    }

    /// Forgets listeners that no port has any more, or none that serves anything: connections to
    /// one that lost its certificate end as they do when it goes.
    pub(crate) fn retain<'p>(&self, ports: impl Iterator<Item = &'p Arc<Port>>) {
        self.refusals.borrow_mut().clear();
        self.terms.borrow_mut().clear();
        let mut shared = self.shared.borrow_mut();
        shared.values().for_each(|shared| drop(shared.served.take()));
        let mut live = HashSet::with_hasher(RandomState::default());
        let listeners = ports.flat_map(|port| port.listeners.iter());
        for listener in listeners.filter(|listener| listener.serves != Serves::NoCertificate) {
            live.insert(Arc::as_ptr(listener) as usize);
            if let Some(shared) = shared.get(&listener.id) {
                shared.served.replace(Some(Served::by(listener)));
            }
        }
        shared.retain(|_, shared| shared.served.borrow().is_some());
        // A place may have become free for a series of their own.
        for (id, shared) in shared.iter() {
            shared.durations.replace(self.durations.listener(id));
        }
        self.listeners.borrow_mut().retain(|identity, _| live.contains(identity));
    }

    pub(crate) fn read_into(&self, stats: &mut Stats) {
        let shared = self.shared.borrow();
        stats.listeners.extend(shared.iter().map(|(id, shared)| (id.clone(), shared.counters.read())));
    }
}

// === impl Served ===

impl Served {
    fn by(listener: &Listener) -> Self {
        let TlsTermination { clients, options, .. } = listener.serves.tls().cloned().unwrap_or_default();
        Self { kind: discriminant(&listener.serves), clients, options }
    }
}

// === impl PortTerms ===

impl PortTerms {
    /// The time for what comes before the first request is known: that of all listeners, or the
    /// Gateway's.
    pub(crate) fn header_timeout(&self, gateway: &Limits) -> Duration {
        let common = self.limits.common.as_ref().and_then(|limits| limits.header_timeout);
        common.map_or(gateway.header_timeout, |time| time.min(gateway.header_timeout))
    }

    /// Counts a client that is kept out before it is known which listener it means, and logs one
    /// now and then.
    pub(crate) fn keep_out(
        &self,
        permit: &ConnectionPermit,
        (client, local): (IpAddr, SocketAddr),
        reason: NotAdmitted,
        by: std::fmt::Arguments<'_>,
    ) {
        permit.not_admitted(reason);
        if self.keeping_out[reason as usize].is_due() {
            tracing::warn!(
                gateway = %permit.gateway(),
                %local,
                client = %client.to_canonical(),
                reason = reason.name(),
                "clients are kept out of all listeners of a port by {by}; network_server_clients_not_admitted_total counts \
                 them"
            );
        }
    }
}
