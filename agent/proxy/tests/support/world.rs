//! A data plane between real clients and real backends on loopback. A test says which listeners and
//! rules there are, sends requests, and compares what the backend saw and what the client got.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_model::{
    Admission, Backend, BackendProtocol, Certificate, ClientCertificates, Encryption, FrontendKey, Gateway,
    HostPattern, Limits, Listener, ListenerFilter, ListenerId, ObjectName, ParentKind, Port, PortKey,
    PortListeners, RemoteKeySet, Serves, Snapshot, TlsTermination, TrafficPolicy, Unserved,
};
use portcullis_proxy::{Proxy, Settings, SocketMode};

use super::fixture::certificate;
use super::origin::Origin;
use super::rules::{RuleSpec, backend_name, route_table};
use super::settings::settings;
use super::via::{Client, Reply, Via};

/// A running proxy with one plain port (standing for :80) and one TLS port (standing for :443).
pub struct World {
    pub proxy: Proxy,
    pub plain: SocketAddr,
    pub tls: SocketAddr,
    pub listeners: Vec<ListenerSpec>,
    pub backends: Vec<Backend>,
    /// The Gateways of the plain and the TLS port.
    pub gateways: [Gateway; 2],
    /// By Gateway, what backends are shown.
    pub client_certificates: BTreeMap<ObjectName, Certificate>,
    /// Of all listeners.
    pub filters: Vec<ListenerFilter>,
    /// Of every listener.
    pub policy: Option<Arc<TrafficPolicy>>,
    /// The same.
    pub admission: Arc<Admission>,
    /// In its place, of listeners of these hosts.
    pub admissions: BTreeMap<&'static str, Arc<Admission>>,
    /// To be fetched.
    pub key_sets: Vec<Arc<RemoteKeySet>>,
    /// Those that are ready.
    pub agents: Option<NonZeroU32>,
    generation: u64,
}

#[derive(Clone)]
pub struct ListenerSpec {
    pub name: &'static str,
    pub host: &'static str,
    pub certificates: Option<Vec<Certificate>>,
    pub rules: Vec<RuleSpec>,
}

// === impl World ===

impl World {
    pub fn new() -> Self {
        Self::with(settings())
    }

    /// Two cores: the first one's socket stands for port 80, the second one's for port 443.
    pub fn with(settings: Settings) -> Self {
        let settings = Settings { cores: 2, sockets: SocketMode::Steered, ..settings };
        let proxy = Proxy::start(settings).unwrap();
        let [plain, tls] = [0, 1].map(|core| proxy.sockets()[core].v4.local_addr().unwrap());
        let gateways = ["gateway"; 2].map(|name| Gateway::new(ObjectName::new("test", name)));
        Self {
            proxy,
            plain,
            tls,
            listeners: Vec::new(),
            backends: Vec::new(),
            gateways,
            client_certificates: BTreeMap::new(),
            filters: Vec::new(),
            policy: None,
            admission: Arc::default(),
            admissions: BTreeMap::new(),
            key_sets: Vec::new(),
            agents: None,
            generation: 0,
        }
    }

    pub fn http(&mut self, host: &'static str, rules: Vec<RuleSpec>) {
        self.listeners.push(ListenerSpec { name: host, host, certificates: None, rules });
    }

    pub fn https(&mut self, host: &'static str, rules: Vec<RuleSpec>) {
        let certificates = Some(vec![certificate(&[if host == "*" { "any.test" } else { host }])]);
        self.listeners.push(ListenerSpec { name: host, host, certificates, rules });
    }

    pub fn backend(&mut self, name: &str, protocol: BackendProtocol, endpoints: &[SocketAddr]) {
        self.encrypted(name, protocol, Encryption::None, endpoints);
    }

    pub fn encrypted(
        &mut self,
        name: &str,
        protocol: BackendProtocol,
        encryption: Encryption,
        endpoints: &[SocketAddr],
    ) {
        let name = backend_name(name);
        self.backends.retain(|other| other.name != name);
        self.backends.push(Backend { protocol, encryption, ..Backend::new(name, endpoints.to_vec()) });
    }

    /// One echo backend `echo`, and the same rules on a listener for any host, with and without
    /// TLS.
    pub async fn echo(rules: Vec<RuleSpec>) -> (Self, Origin) {
        let mut world = Self::new();
        let backend = Origin::http1().await;
        world.backend("echo", BackendProtocol::Http1, &[backend.address]);
        world.http("*", rules.clone());
        world.https("*", rules);
        world.apply().await;
        (world, backend)
    }

    /// The same for both ports.
    pub fn limit(&mut self, limits: Limits) {
        for gateway in &mut self.gateways {
            gateway.limits = limits.clone();
        }
    }

    pub async fn apply(&mut self) {
        self.generation += 1;
        let snapshot = self.snapshot();
        assert_eq!(self.proxy.apply(Arc::new(snapshot)).await, Unserved::default());
    }

    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot { generation: self.generation, ..Snapshot::default() };
        let [plain, tls] = self.gateways.each_ref();
        let ports = [(self.plain, plain, false, 80), (self.tls, tls, true, 443)];
        for (address, gateway, tls, number) in ports {
            let specs = self.listeners.iter().filter(|spec| spec.certificates.is_some() == tls);
            if let Some(listeners) = self.listeners(specs) {
                let gateway = Arc::new(gateway.clone());
                let port = Port::new(gateway, PortKey::tcp(number), listeners);
                snapshot.frontends.insert(FrontendKey::tcp(address), Arc::new(port));
            }
        }
        snapshot.client_certificates.clone_from(&self.client_certificates);
        snapshot.agents = self.agents;
        snapshot.key_sets = self.key_sets.as_slice().into();
        for backend in &self.backends {
            snapshot.backends.insert(backend.name.0.clone(), Arc::new(backend.clone()));
        }
        snapshot
    }

    /// The snapshot, but that the listener for TLS wants certificates that none vouches for.
    pub fn asking_for_certificates(&self) -> Snapshot {
        let mut snapshot = self.snapshot();
        let port = Arc::make_mut(snapshot.frontends.get_mut(&FrontendKey::tcp(self.tls)).unwrap());
        let mut asks = Listener::clone(port.listeners.sorted()[0]);
        let Serves::Https { tls, .. } = &mut asks.serves else { panic!("it serves {:?}", asks.serves) };
        tls.clients = ClientCertificates::Required([].into());
        port.listeners.add(Arc::new(asks)).unwrap();
        snapshot
    }

    fn listeners<'s>(&self, specs: impl Iterator<Item = &'s ListenerSpec>) -> Option<PortListeners> {
        let common = |spec: &ListenerSpec| {
            let (filters, policy) = (self.filters.as_slice().into(), self.policy.clone());
            let admission = self.admissions.get(spec.host).unwrap_or(&self.admission).clone();
            Listener { filters, policy, admission, ..listener(spec) }
        };
        let mut listeners = specs.map(|spec| Arc::new(common(spec)));
        let mut port = PortListeners::of(listeners.next()?);
        listeners.for_each(|listener| port.add(listener).unwrap());
        Some(port)
    }

    pub fn address(&self, via: Via) -> SocketAddr {
        if via == Via::Http1 || via == Via::H2c { self.plain } else { self.tls }
    }

    pub async fn send(&self, via: Via, request: &str) -> Reply {
        Client::connect(via, self.address(via), host_of(request)).await.send(request).await
    }
}

fn listener(spec: &ListenerSpec) -> Listener {
    let gateway = ObjectName::new("test", "gateway");
    let routes = Arc::new(route_table(&spec.rules));
    let serves = match &spec.certificates {
        None => Serves::Http(routes),
        Some(certificates) => Serves::Https {
            tls: TlsTermination { certificates: certificates.clone().into(), ..TlsTermination::default() },
            routes,
        },
    };
    // Names are one listener's each.
    let name = match &spec.certificates {
        None => spec.name.into(),
        Some(_) => format!("{} with TLS", spec.name).into(),
    };
    let id = ListenerId { parent: gateway.clone(), gateway, kind: ParentKind::Gateway, name };
    Listener {
        id,
        hostname: HostPattern::parse(spec.host).unwrap_or(HostPattern::Any),
        serves,
        admission: Arc::default(),
        filters: Arc::default(),
        policy: None,
    }
}

pub fn host_of(request: &str) -> &str {
    let line = request.lines().find(|line| line.to_ascii_lowercase().starts_with("host:"));
    line.map_or("any.test", |line| line[5..].trim().split(':').next().unwrap_or_default())
}

/// For longer than a busy machine takes, and less than connections may be idle unless a test says
/// otherwise: what ends them is what the test is about.
const TIMEOUT: Duration = Duration::from_secs(50);

/// Waits for something that another thread brings about.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
