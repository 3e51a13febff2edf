//! Builders for snapshots, and a started proxy with one core whose sockets are reached directly.

use std::net::SocketAddr;
use std::sync::Arc;

use super::settings::settings;
use portcullis_model as model;
use portcullis_model::{
    Action, Backend, BackendName, BackendTarget, Certificate, Entry, Filter, FrontendKey, HostPattern,
    Listener, ListenerId, ObjectName, ParentKind, PathMatch, PathTable, Port, PortListeners, Precedence,
    RouteMatch, RouteOrigin, RouteTable, Rule, RuleId, Serves, Snapshot, Split, Timeouts, TlsTermination,
    WeightedBackend,
};
use portcullis_proxy::{Proxy, Settings, SocketMode};

pub struct Gateway {
    pub proxy: Proxy,
    pub address: SocketAddr,
}

/// One rule of a listener: host, path prefix, what happens.
#[derive(Clone)]
pub struct RouteSpec {
    pub host: &'static str,
    pub path: PathMatch,
    pub filters: Vec<Filter>,
    pub action: Action,
    pub timeouts: Timeouts,
}

pub struct ListenerSpec {
    pub name: &'static str,
    pub host: &'static str,
    pub tls: bool,
    pub routes: Vec<RouteSpec>,
}

impl Gateway {
    pub fn start() -> Self {
        let settings = Settings { cores: 1, sockets: SocketMode::Steered, ..settings() };
        let proxy = Proxy::start(settings).unwrap();
        let address = proxy.sockets()[0].v4.local_addr().unwrap();
        Self { proxy, address }
    }

    pub async fn serve(&self, listeners: Vec<ListenerSpec>, backends: &[(&str, &[SocketAddr])]) {
        let snapshot = snapshot(self.address, listeners.into_iter().map(ListenerSpec::build), backends);
        assert!(self.proxy.apply(Arc::new(snapshot)).await.is_empty());
    }
}

pub fn snapshot(
    at: SocketAddr,
    listeners: impl IntoIterator<Item = Listener>,
    backends: &[(&str, &[SocketAddr])],
) -> Snapshot {
    let frontend = FrontendKey::tcp(at);
    let mut listeners = listeners.into_iter().map(Arc::new);
    let mut port = PortListeners::of(listeners.next().unwrap());
    listeners.for_each(|listener| port.add(listener).unwrap());
    let listeners = port;
    let gateway = Arc::new(model::Gateway::new(ObjectName::new("infra", "web")));
    let port = Arc::new(Port::new(gateway, frontend.port_key(), listeners));
    let backends = backends.iter().map(|(name, endpoints)| {
        let name = BackendName((*name).into());
        (name.0.clone(), Arc::new(Backend::new(name, endpoints.to_vec())))
    });
    let frontends = [(frontend, port)].into();
    Snapshot { generation: 1, frontends, backends: backends.collect(), ..Snapshot::default() }
}

impl ListenerSpec {
    pub fn new(name: &'static str, host: &'static str, tls: bool, routes: Vec<RouteSpec>) -> Self {
        Self { name, host, tls, routes }
    }

    pub fn build(self) -> Listener {
        let gateway = ObjectName::new("infra", "web");
        let id = ListenerId {
            gateway: gateway.clone(),
            kind: ParentKind::Gateway,
            parent: gateway,
            name: self.name.into(),
        };
        let routes = Arc::new(table(self.routes));
        let serves = if self.tls {
            Serves::Https { tls: termination(self.host), routes }
        } else {
            Serves::Http(routes)
        };
        Listener {
            id,
            hostname: pattern(self.host),
            serves,
            admission: Arc::default(),
            filters: Arc::default(),
            policy: None,
        }
    }
}

impl RouteSpec {
    pub fn to(path: &str, backend: &str) -> Self {
        Self::action(path, forward(backend))
    }

    pub fn action(path: &str, action: Action) -> Self {
        let path = PathMatch::prefix(path);
        Self { host: "*", path, filters: Vec::new(), action, timeouts: Timeouts::default() }
    }

    pub fn filter(mut self, filter: Filter) -> Self {
        self.filters.push(filter);
        self
    }
}

pub fn forward(backend: &str) -> Action {
    let target = BackendTarget::Known(BackendName(backend.into()));
    Action::Forward(Split::new(vec![WeightedBackend { weight: 1, target, filters: Vec::new() }]).unwrap())
}

fn table(routes: Vec<RouteSpec>) -> RouteTable {
    let mut hosts = std::collections::BTreeMap::<HostPattern, Vec<Entry>>::new();
    for (index, route) in routes.into_iter().enumerate() {
        hosts.entry(pattern(route.host)).or_default().push(entry(index, route));
    }
    let mut table = RouteTable::default();
    hosts.into_iter().for_each(|(host, entries)| table.insert(&host, Arc::new(PathTable::new(entries))));
    table
}

fn entry(index: usize, route: RouteSpec) -> Entry {
    let name = Arc::new(ObjectName::new("app", "route"));
    let matches = RouteMatch { path: route.path, ..RouteMatch::default() };
    let precedence = Precedence::of(&matches, &RouteOrigin { created: 0, name: name.clone() }, index, 0);
    let id = RuleId { kind: "HTTPRoute", route: name, index, name: None, parent: None };
    let rule = Rule {
        id: id.into(),
        filters: route.filters,
        action: route.action,
        timeouts: route.timeouts,
        retry: None,
        session: None,
        policy: None,
    };
    Entry { precedence, matches: Arc::new(matches), rule: Arc::new(rule) }
}

pub fn pattern(host: &str) -> HostPattern {
    if host == "*" { HostPattern::Any } else { HostPattern::parse(host).unwrap() }
}

pub fn termination(host: &str) -> TlsTermination {
    let name = if host == "*" { "any.example.com" } else { host };
    TlsTermination { certificates: vec![certificate(&[name])].into(), ..TlsTermination::default() }
}

pub fn certificate(names: &[&str]) -> Certificate {
    certificate_with(&rcgen::PKCS_ECDSA_P256_SHA256, names)
}

/// A certificate whose key is of this kind.
pub fn certificate_with(algorithm: &'static rcgen::SignatureAlgorithm, names: &[&str]) -> Certificate {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let pair = rcgen::KeyPair::generate_for(algorithm).unwrap();
    let made = rcgen::CertificateParams::new(names.clone()).unwrap().self_signed(&pair).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
    let fingerprint = std::array::from_fn(|_| fastrand::u8(..));
    let names = names.into_iter().map(String::into_boxed_str).collect();
    let key = Arc::new(rustls::sign::CertifiedKey::new(vec![made.der().clone()], key));
    Certificate { fingerprint, names, not_after: i64::MAX, key }
}
