//! The endpoints of backends, per core, as the current snapshot has them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use portcullis_model::{
    Backend, BackendName, BackendProtocol, Balancing, Certificate, ConnectionTerms, Encryption, HashKey,
    ListenerId, ObjectName, ParentKind,
};
use rustls::crypto::CryptoProvider;

use crate::core::crypto::provider;
use crate::core::settings::Upstream;
use crate::core::shares::CoreShares;
use crate::core::snapshot::SnapshotCell;
use crate::core::stats::CoreCounters;
use crate::upstream::balance::{self, Asked, Turns};
use crate::upstream::endpoint::Endpoint;
use crate::upstream::health::SharedHealth;
use crate::upstream::tls::Security;

const SWEEP: Duration = Duration::from_secs(10);
/// Bytes of all request bodies that a core keeps; those of one namespace's backends have half of
/// it.
const KEPT_BODIES: usize = 16 << 20;

pub(crate) struct Pools {
    pub counters: Rc<CoreCounters>,
    /// Of request bodies, so that they can be sent again.
    pub kept: CoreShares,
    snapshot: Rc<SnapshotCell>,
    settings: Upstream,
    provider: Arc<CryptoProvider>,
    /// The Gateway whose certificate backends are shown.
    gateway: Option<ObjectName>,
    health: SharedHealth,
    backends: RefCell<HashMap<BackendName, Rc<Pool>, RandomState>>,
    /// Those of Gateways that show a certificate: connections that one has made in its name are no
    /// other's.
    of_gateways: RefCell<HashMap<ObjectName, Rc<Self>, RandomState>>,
}

/// A backend of whose terms none needs more of a request than bytes.
pub(crate) struct PlainBackend {
    pools: Rc<Pools>,
    pool: Rc<Pool>,
}

/// The endpoints of one backend.
struct Pool {
    backend: Arc<Backend>,
    security: Security,
    /// The certificate that is shown.
    certificate: Option<Certificate>,
    generation: Cell<u64>,
    endpoints: Vec<Rc<Endpoint>>,
    turns: Turns,
    /// None of its terms needs more of a request than bytes.
    is_plain: bool,
}

// === impl Pools ===

impl Pools {
    pub(crate) fn new(
        settings: Upstream,
        snapshot: Rc<SnapshotCell>,
        counters: Rc<CoreCounters>,
        health: SharedHealth,
    ) -> Self {
        let provider = Arc::new(provider());
        let (backends, of_gateways) = (RefCell::default(), RefCell::default());
        let kept = CoreShares::new(KEPT_BODIES);
        Self { counters, kept, snapshot, settings, provider, gateway: None, health, backends, of_gateways }
    }

    /// The pools for what a listener serves.
    pub(crate) fn serving(self: &Rc<Self>, listener: Option<&ListenerId>) -> Rc<Self> {
        let Some(listener) = listener.filter(|_| self.snapshot.has_client_certificates()) else {
            return self.clone();
        };
        // A ListenerSet has none of its own.
        let gateway = match listener.kind {
            ParentKind::Gateway => &listener.parent,
            ParentKind::ListenerSet => &listener.gateway,
        };
        if !self.snapshot.load().snapshot.client_certificates.contains_key(gateway) {
            return self.clone();
        }
        let mut of_gateways = self.of_gateways.borrow_mut();
        let pools = of_gateways.entry(gateway.clone()).or_insert_with(|| {
            let (snapshot, counters) = (self.snapshot.clone(), self.counters.clone());
            let pools = Self::new(self.settings.clone(), snapshot, counters, self.health.clone());
            let (kept, provider) = (self.kept.clone(), self.provider.clone());
            Rc::new(Self { gateway: Some(gateway.clone()), kept, provider, ..pools })
        });
        pools.clone()
    }

    /// Drops connections that have been idle for too long, for ever.
    pub(crate) async fn sweep_forever(self: Rc<Self>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            self.sweep();
        }
    }

    /// The endpoint for the next request; `None` if the backend has no endpoint.
    pub(crate) fn pick(&self, name: &BackendName, asked: Asked<'_>) -> Option<Rc<Endpoint>> {
        self.current(name)?.pick(asked, &self.counters).cloned()
    }

    /// False for a backend that never speaks HTTP/2.
    pub(crate) fn may_speak_http2(&self, name: &BackendName) -> bool {
        self.current(name).is_some_and(|pool| pool.backend.protocol != BackendProtocol::Http1)
    }

    /// The backend, if none of its terms needs more of a request than bytes.
    pub(crate) fn plain(self: Rc<Self>, name: &BackendName) -> Option<PlainBackend> {
        let pool = self.current(name).filter(|pool| pool.is_plain)?;
        Some(PlainBackend { pools: self, pool })
    }

    /// True if the backend has the endpoint, and it is available.
    pub(crate) fn takes(&self, name: &BackendName, endpoint: SocketAddr) -> bool {
        let pool = self.current(name);
        let found = pool.as_ref().and_then(|pool| pool.endpoints.iter().find(|it| it.address == endpoint));
        found.is_some_and(|it| it.is_available())
    }

    /// The pool of a backend as the current snapshot has it; endpoints that stay keep their
    /// connections.
    fn current(&self, name: &BackendName) -> Option<Rc<Pool>> {
        let known = self.backends.borrow().get(name).cloned();
        if let Some(pool) = &known
            && pool.generation.get() == self.snapshot.generation()
        {
            return known;
        }
        let current = self.snapshot.load();
        let Some(backend) = current.snapshot.backends.get(name.as_str()) else {
            self.backends.borrow_mut().remove(name);
            return None;
        };
        let certificates = &current.snapshot.client_certificates;
        let certificate = self.gateway.as_ref().and_then(|gateway| certificates.get(gateway));
        let certificate = match &backend.encryption {
            Encryption::Tls(tls) => tls.shown(certificate),
            Encryption::None | Encryption::Unavailable => certificate,
        };
        match known {
            Some(pool) if Arc::ptr_eq(&pool.backend, backend) && pool.certificate.as_ref() == certificate => {
                pool.generation.set(current.generation);
                Some(pool)
            }
            known => Some(self.replace(current.generation, known, backend, certificate)),
        }
    }

    fn replace(
        &self,
        generation: u64,
        known: Option<Rc<Pool>>,
        backend: &Arc<Backend>,
        certificate: Option<&Certificate>,
    ) -> Rc<Pool> {
        let Backend { name, protocol, encryption, connections, proxy_header, .. } = &**backend;
        // Connections, and sessions of TLS, are those of who was verified by the same terms, and
        // was shown the same certificate.
        let known = known.filter(|known| {
            let Backend { protocol: before, encryption: way, connections: terms, .. } = &*known.backend;
            let Backend { proxy_header: header, retry_budget: budget, resilience, .. } = &*known.backend;
            let rest = (proxy_header, &backend.retry_budget, backend.resilience.is_some());
            (before, way, terms, known.certificate.as_ref())
                == (protocol, encryption, connections, certificate)
                && (header, budget, resilience.is_some()) == rest
        });
        let security = match &known {
            Some(known) => known.security.clone(),
            None => Security::new(encryption, *protocol, certificate, &self.provider),
        };
        let ConnectionTerms { connect, idle, vanished } = *connections;
        let settings = Upstream {
            connect: connect.unwrap_or(self.settings.connect),
            idle: idle.unwrap_or(self.settings.idle),
            vanished: vanished.unwrap_or(self.settings.vanished),
            ..self.settings.clone()
        };
        let old = known.iter().flat_map(|pool| &pool.endpoints).map(|it| (it.address, it));
        let old: HashMap<_, _, RandomState> = old.collect();
        let budget = self.health.budget(backend);
        let shared = self.health.of(backend, self.snapshot.load().snapshot.generation);
        let mut states = shared.as_ref().map(|health| health.endpoints(&backend.endpoints).into_iter());
        let endpoints = backend.endpoints.iter().map(|address| {
            let state = states.as_mut().and_then(Iterator::next);
            match old.get(address) {
                Some(stays) => Rc::clone(stays),
                None => Endpoint::new(
                    *address,
                    *protocol,
                    security.clone(),
                    *proxy_header,
                    &settings,
                    state,
                    budget.clone(),
                ),
            }
        });
        let endpoints: Vec<Rc<Endpoint>> = endpoints.collect();
        let needs_fields =
            matches!(backend.balancing, Balancing::Hash(HashKey::Header(_) | HashKey::Cookie(_)));
        let is_plain = !needs_fields && endpoints.iter().all(|endpoint| endpoint.is_plain());
        let (backend, certificate) = (backend.clone(), certificate.cloned());
        let (generation, turns) = (generation.into(), Turns::new());
        let pool = Rc::new(Pool { backend, security, certificate, generation, endpoints, turns, is_plain });
        self.backends.borrow_mut().insert(name.clone(), pool.clone());
        pool
    }

    fn sweep(&self) {
        let current = self.snapshot.load();
        let mut backends = self.backends.borrow_mut();
        backends.retain(|name, _| current.snapshot.backends.get(name.as_str()).is_some());
        backends.values().flat_map(|pool| &pool.endpoints).for_each(|endpoint| endpoint.sweep());
        let mut of_gateways = self.of_gateways.borrow_mut();
        of_gateways.retain(|gateway, _| current.snapshot.client_certificates.contains_key(gateway));
        of_gateways.values().for_each(|pools| pools.sweep());
    }
}

// === impl PlainBackend ===

impl PlainBackend {
    /// The endpoint for the next request; `None` if there is none.
    pub(crate) fn pick(&self, asked: Asked<'_>) -> Option<&Rc<Endpoint>> {
        self.pool.pick(asked, self.counters())
    }

    /// As the current snapshot has it; `None` if its terms are others by now.
    pub(crate) fn again(&self) -> Option<Self> {
        self.pools.clone().plain(&self.pool.backend.name)
    }

    pub(crate) fn counters(&self) -> &CoreCounters {
        &self.pools.counters
    }
}

// === impl Pool ===

impl Pool {
    fn pick(&self, asked: Asked<'_>, counters: &CoreCounters) -> Option<&Rc<Endpoint>> {
        let chosen = balance::choose(&self.backend, &self.endpoints, &self.turns, &asked)?;
        if let Some(locality) = &self.backend.locality
            && let Some(place) = locality.places.get(chosen)
        {
            counters.chosen(*place);
        }
        self.endpoints.get(chosen).filter(|it| it.may_be_asked())
    }
}
