//! The endpoints of backends, per core, as the current snapshot has them, and the choice of the one
//! that takes the next request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use foldhash::quality::FixedState;
use portcullis_model::{
    Affinity, Backend, BackendName, Certificate, Encryption, ListenerId, ObjectName, ParentKind,
};
use rustls::crypto::CryptoProvider;

use crate::core::crypto::provider;
use crate::core::settings::Upstream;
use crate::core::snapshot::SnapshotCell;
use crate::core::stats::CoreCounters;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::request::Room;
use crate::upstream::tls::Security;

const SWEEP: Duration = Duration::from_secs(10);
/// Bytes of all request bodies that a core keeps.
const KEPT_BODIES: usize = 8 << 20;

pub(crate) struct Pools {
    pub counters: Rc<CoreCounters>,
    /// Of request bodies, so that they can be sent again.
    pub kept: Rc<Room>,
    snapshot: Rc<SnapshotCell>,
    settings: Upstream,
    provider: Arc<CryptoProvider>,
    /// The Gateway whose certificate backends are shown.
    gateway: Option<ObjectName>,
    backends: RefCell<HashMap<BackendName, Rc<Pool>, RandomState>>,
    /// Those of Gateways that show a certificate: connections that one has made in its name are no
    /// other's.
    of_gateways: RefCell<HashMap<ObjectName, Rc<Self>, RandomState>>,
}

/// The endpoint that a request had best go to, as far as it says so itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preference {
    pub client: Option<IpAddr>,
    /// The endpoint that has the session of the request.
    pub session: Option<SocketAddr>,
}

/// The endpoints of one backend.
struct Pool {
    backend: Arc<Backend>,
    security: Security,
    /// The certificate that is shown.
    certificate: Option<Certificate>,
    generation: Cell<u64>,
    endpoints: Vec<Rc<Endpoint>>,
}

// === impl Preference ===

impl From<Option<IpAddr>> for Preference {
    fn from(client: Option<IpAddr>) -> Self {
        Self { client, session: None }
    }
}

// === impl Pools ===

impl Pools {
    pub(crate) fn new(settings: Upstream, snapshot: Rc<SnapshotCell>, counters: Rc<CoreCounters>) -> Self {
        let provider = Arc::new(provider());
        let (backends, of_gateways) = (RefCell::default(), RefCell::default());
        let kept = Room::new(KEPT_BODIES);
        Self { counters, kept, snapshot, settings, provider, gateway: None, backends, of_gateways }
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
            let pools = Self::new(self.settings.clone(), snapshot, counters);
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

    /// The endpoint for the next request: of two at random, the one with fewer requests in flight;
    /// of all, if the last attempt failed or those two lately did. `None` if the backend has no
    /// endpoint; the one to avoid is taken if there is no other. Where a client keeps its endpoint
    /// it is the first in the client's own order that is not to be avoided. A session has its own
    /// before all of this.
    pub(crate) fn pick(
        &self,
        name: &BackendName,
        preference: impl Into<Preference>,
        avoid: Option<SocketAddr>,
    ) -> Option<Rc<Endpoint>> {
        let pool = self.current(name)?;
        let endpoints = pool.endpoints.as_slice();
        let Preference { client, session } = preference.into();
        if let Some(address) = session.filter(|address| Some(*address) != avoid)
            && let Some(endpoint) = endpoints.iter().find(|it| it.address == address)
        {
            return Some(endpoint.clone());
        }
        if let (Affinity::ClientAddress, Some(client)) = (pool.backend.affinity, client) {
            return preferred(endpoints, client, avoid).cloned();
        }
        let chosen = match endpoints {
            [] => return None,
            [only] => only,
            [..] => {
                let one = fastrand::usize(..endpoints.len());
                let other = (one + fastrand::usize(1..endpoints.len())) % endpoints.len();
                least([&endpoints[one], &endpoints[other]], avoid)?
            }
        };
        let doubtful = avoid.is_some() || chosen.failed_lately();
        let chosen = if doubtful { least(endpoints, avoid)? } else { chosen };
        Some(chosen.clone())
    }

    /// True if the backend has the endpoint, and it refused no connection lately.
    pub(crate) fn takes(&self, name: &BackendName, endpoint: SocketAddr) -> bool {
        let pool = self.current(name);
        let found = pool.as_ref().and_then(|pool| pool.endpoints.iter().find(|it| it.address == endpoint));
        found.is_some_and(|it| !it.failed_lately())
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
        let Backend { name, protocol, encryption, .. } = &**backend;
        // Connections, and sessions of TLS, are those of who was verified by the same terms, and
        // was shown the same certificate.
        let known = known.filter(|known| {
            let Backend { protocol: before, encryption: way, .. } = &*known.backend;
            (before, way, known.certificate.as_ref()) == (protocol, encryption, certificate)
        });
        let security = match &known {
            Some(known) => known.security.clone(),
            None => Security::new(encryption, *protocol, certificate, &self.provider),
        };
        let old = known.iter().flat_map(|pool| &pool.endpoints).map(|it| (it.address, it));
        let old: HashMap<_, _, RandomState> = old.collect();
        let endpoints = backend.endpoints.iter().map(|address| match old.get(address) {
            Some(stays) => Rc::clone(stays),
            None => Endpoint::new(*address, *protocol, security.clone(), &self.settings),
        });
        let endpoints = endpoints.collect();
        let (backend, certificate) = (backend.clone(), certificate.cloned());
        let pool = Rc::new(Pool { backend, security, certificate, generation: generation.into(), endpoints });
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

/// The order of endpoints is each client's own (rendezvous hashing): one that comes or goes moves
/// no other client. It is the same for all cores, agents and nodes.
fn preferred(endpoints: &[Rc<Endpoint>], client: IpAddr, avoid: Option<SocketAddr>) -> Option<&Rc<Endpoint>> {
    let order = |it: &Endpoint| FixedState::default().hash_one((client.to_canonical(), it.address));
    endpoints.iter().min_by_key(|it| (Some(it.address) == avoid, it.failed_lately(), order(it)))
}

/// The endpoint most likely to answer soon.
fn least<'e>(
    endpoints: impl IntoIterator<Item = &'e Rc<Endpoint>>,
    avoid: Option<SocketAddr>,
) -> Option<&'e Rc<Endpoint>> {
    endpoints.into_iter().min_by_key(|it| (Some(it.address) == avoid, it.failed_lately(), it.in_flight()))
}
