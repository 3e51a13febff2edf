//! Listeners whose connections and datagrams the kernel forwards, and the reasons for which user
//! space serves the others: a pure function of the snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use portcullis_model::{
    Admission, ClientAddress, FrontendKey, L4Action, L4Rule, L4Target, Listener, ListenerId, Port,
    PortListeners, Snapshot,
};
use portcullis_node::{Affinity, ForwardTable, L4Frontends, NotForwarding};

/// The part of a node that serves a frontend's connections or datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    Kernel,
    UserSpace(Why),
}

/// A reason for which user space serves a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Node(NotForwarding),
    /// The node's setting that lets packets through is off.
    NotARouter(&'static str),
    Everywhere,
    /// No other host reaches its address.
    Loopback,
    AccessLog,
    ConnectionLimit,
    Admission,
    /// A header comes before the bytes that are the backend's.
    ProxyProtocol,
    NoBackend,
    /// A BackendPolicy looks at connections, or counts them.
    BackendPolicy(String),
    /// The backend is told whose connections they are.
    ProxyHeader(String),
    /// A part of the connections is refused.
    Refused(String),
    NoEndpoints(String),
    NoEndpointsOfFamily(String, &'static str),
    /// The kernel's maps are full, or could not be made.
    NoRoom,
}

/// The tables for the kernel programs, and who serves each frontend of a TCP or UDP listener.
#[derive(Debug, Default)]
pub(crate) struct Forwarding {
    pub tables: Vec<ForwardTable>,
    pub mechanisms: BTreeMap<FrontendKey, Mechanism>,
}

/// Settings of the node on which forwarding depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub programs: Result<(), NotForwarding>,
    pub routes_v4: bool,
    pub routes_v6: bool,
}

/// Weights are shared among a backend's endpoints, without fractions.
const PARTS: u64 = 10_000;

/// Sorts the frontends that are served by who is to serve them.
pub(crate) fn forwarding(
    snapshot: &Snapshot,
    abilities: &Abilities,
    is_served: impl Fn(&FrontendKey) -> bool,
) -> Forwarding {
    let mut forwarding = Forwarding::default();
    for (frontend, port) in snapshot.frontends.iter().filter(|(frontend, _)| is_served(frontend)) {
        let (PortListeners::Tcp(listener) | PortListeners::Udp(listener)) = &port.listeners else { continue };
        let backends = abilities
            .check(frontend)
            .and_then(|()| allows(port, listener))
            .and_then(|rule| backends(snapshot, rule, frontend.address));
        let mechanism = match backends {
            Ok((backends, affinity)) => {
                forwarding.add(*frontend, backends, affinity);
                Mechanism::Kernel
            }
            Err(why) => Mechanism::UserSpace(why),
        };
        forwarding.mechanisms.insert(*frontend, mechanism);
    }
    forwarding
}

/// All frontends of TCP and UDP listeners. Sessions of UDP are judged when a ListenerPolicy comes,
/// connections when they begin.
pub(crate) fn listeners(snapshot: &Snapshot) -> L4Frontends {
    let mut listeners = L4Frontends::default();
    for (frontend, port) in &snapshot.frontends {
        match &port.listeners {
            PortListeners::Tcp(_) => {}
            PortListeners::Udp(listener) if *listener.admission == Admission::default() => {}
            PortListeners::Udp(_) => _ = listeners.judged.insert(*frontend),
            PortListeners::Http(_) | PortListeners::Tls(_) => continue,
        }
        listeners.served.insert(*frontend);
    }
    listeners
}

/// A listener that another part of the node serves than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub listener: ListenerId,
    pub frontends: Vec<FrontendKey>,
    pub before: Mechanism,
    pub after: Mechanism,
}

/// Listeners that have come into the kernel, or back from there. What is served for the first time
/// has not moved.
pub(crate) fn moves(
    snapshot: &Snapshot,
    before: &BTreeMap<FrontendKey, Mechanism>,
    after: &BTreeMap<FrontendKey, Mechanism>,
) -> Vec<Move> {
    let mut moves: Vec<Move> = Vec::new();
    for (frontend, after) in after {
        let Some(before) = before.get(frontend) else { continue };
        if (*before == Mechanism::Kernel) == (*after == Mechanism::Kernel) {
            continue;
        }
        for listener in snapshot.frontends.get(frontend).into_iter().flat_map(|port| port.listeners.iter()) {
            let is_same =
                |it: &&mut Move| it.listener == listener.id && it.before == *before && it.after == *after;
            match moves.iter_mut().find(is_same) {
                Some(same) => same.frontends.push(*frontend),
                None => moves.push(Move {
                    listener: listener.id.clone(),
                    frontends: vec![*frontend],
                    before: before.clone(),
                    after: after.clone(),
                }),
            }
        }
    }
    moves
}

/// The listener's rule, if no setting needs user space. Whatever looks at a connection, or counts
/// it, is to be named here.
fn allows<'l>(port: &Port, listener: &'l Listener) -> Result<&'l L4Rule, Why> {
    if port.gateway.access_log.is_some() {
        return Err(Why::AccessLog);
    }
    if port.gateway.limits.connections.is_some() {
        return Err(Why::ConnectionLimit);
    }
    if port.client_address != ClientAddress::OfPeer {
        return Err(Why::ProxyProtocol);
    }
    if *listener.admission != Admission::default() {
        return Err(Why::Admission);
    }
    listener.serves.only_rule().map(AsRef::as_ref).ok_or(Why::NoBackend)
}

/// The endpoints of the address's family with their weights: the preferred ones where there are
/// any. If one of the rule's Services wants a client's connections at one endpoint, all are given
/// by the client's address.
fn backends(
    snapshot: &Snapshot,
    rule: &L4Rule,
    address: IpAddr,
) -> Result<(BTreeMap<SocketAddr, u32>, Affinity), Why> {
    let split = match &rule.action {
        L4Action::Forward(split) => split,
        L4Action::Refuse(reason) => return Err(Why::Refused(reason.to_string())),
    };
    let mut weights: BTreeMap<_, u64> = BTreeMap::new();
    let mut affinity = Affinity::Connection;
    for share in split.backends().iter().filter(|share| share.weight > 0) {
        let name = match &share.target {
            L4Target::Known(name) => name,
            L4Target::Refuse(reason) => return Err(Why::Refused(reason.to_string())),
        };
        let backend = snapshot.backends.get(name.as_str());
        if backend.is_some_and(|backend| backend.balancing.is_by_address()) {
            affinity = Affinity::Address;
        }
        if backend.is_some_and(|backend| backend.resilience.is_some()) {
            return Err(Why::BackendPolicy(name.to_string()));
        }
        if backend.is_some_and(|backend| backend.proxy_header.is_some()) {
            return Err(Why::ProxyHeader(name.to_string()));
        }
        let endpoints = backend.map_or(&[][..], |backend| &backend.endpoints);
        let of_family = |of: &[SocketAddr]| {
            of.iter().copied().filter(|it| it.is_ipv4() == address.is_ipv4()).collect::<Vec<_>>()
        };
        let mut usable = of_family(backend.map_or(&[][..], |backend| backend.preferred()));
        if usable.is_empty() {
            usable = of_family(endpoints);
        }
        if usable.is_empty() {
            let (name, family) = (name.to_string(), if address.is_ipv4() { "IPv4" } else { "IPv6" });
            return Err(match endpoints.is_empty() {
                true => Why::NoEndpoints(name),
                false => Why::NoEndpointsOfFamily(name, family),
            });
        }
        let each = (u64::from(share.weight) * PARTS / usable.len() as u64).max(1);
        usable.into_iter().for_each(|it| *weights.entry(it).or_default() += each);
    }
    if weights.is_empty() {
        return Err(Why::NoBackend);
    }
    // Weights are relative.
    let most = weights.values().copied().max().unwrap_or(1);
    let scale = most.div_ceil(u64::from(u32::MAX));
    let fit = |weight: u64| u32::try_from(weight / scale).unwrap_or(u32::MAX).max(1);
    Ok((weights.into_iter().map(|(endpoint, weight)| (endpoint, fit(weight))).collect(), affinity))
}

impl Abilities {
    fn check(&self, frontend: &FrontendKey) -> Result<(), Why> {
        self.programs.clone().map_err(Why::Node)?;
        if frontend.address.is_unspecified() {
            return Err(Why::Everywhere);
        }
        if frontend.address.is_loopback() {
            return Err(Why::Loopback);
        }
        match frontend.address {
            IpAddr::V4(_) if !self.routes_v4 => Err(Why::NotARouter("net.ipv4.ip_forward")),
            IpAddr::V6(_) if !self.routes_v6 => Err(Why::NotARouter("net.ipv6.conf.all.forwarding")),
            _ => Ok(()),
        }
    }
}

impl Forwarding {
    /// Frontends with the same backends share a table.
    fn add(&mut self, frontend: FrontendKey, backends: BTreeMap<SocketAddr, u32>, affinity: Affinity) {
        let is_same = |table: &&mut ForwardTable| table.backends == backends && table.affinity == affinity;
        match self.tables.iter_mut().find(is_same) {
            Some(table) => _ = table.frontends.insert(frontend),
            None => {
                let frontends = BTreeSet::from([frontend]);
                self.tables.push(ForwardTable { frontends, backends, affinity });
            }
        }
    }
}

impl Why {
    /// For metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Node(reason) => reason.label(),
            Self::NotARouter(_) => "no-router",
            Self::Everywhere => "all-addresses",
            Self::Loopback => "loopback",
            Self::AccessLog => "access-log",
            Self::ConnectionLimit => "connection-limit",
            Self::Admission => "listener-policy",
            Self::ProxyProtocol => "proxy-protocol",
            Self::NoBackend => "no-backend",
            Self::BackendPolicy(_) | Self::ProxyHeader(_) => "backend-policy",
            Self::Refused(_) => "refused",
            Self::NoEndpoints(_) | Self::NoEndpointsOfFamily(..) => "no-endpoints",
            Self::NoRoom => "no-room",
        }
    }
}

/// `Gateway infra/edge listener db at tcp/10.9.0.1:53 moves from the kernel (…) to user space (…)`
impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |mechanism: &Mechanism| match mechanism {
            Mechanism::Kernel => "the kernel (nothing needs user space)".to_owned(),
            Mechanism::UserSpace(why) => format!("user space ({why})"),
        };
        let frontends: Vec<_> = self.frontends.iter().map(ToString::to_string).collect();
        let (before, after) = (side(&self.before), side(&self.after));
        write!(f, "{} at {} moves from {before} to {after}", self.listener, frontends.join(", "))
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("kernel"),
            Self::UserSpace(why) => write!(f, "user space: {why}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(reason) => write!(f, "{reason}"),
            Self::NotARouter(setting) => write!(f, "{setting} is 0 on this node"),
            Self::Everywhere => f.write_str("the listener is served on all addresses of the node"),
            Self::Loopback => f.write_str("only this node reaches a loopback address"),
            Self::AccessLog => f.write_str("the Gateway writes an access log"),
            Self::ConnectionLimit => f.write_str("the Gateway limits its connections"),
            Self::Admission => f.write_str("a ListenerPolicy says which clients are let in"),
            Self::ProxyProtocol => {
                f.write_str("a ListenerPolicy has clients named by headers of PROXY protocol")
            }
            Self::NoBackend => f.write_str("no backend has a weight"),
            Self::BackendPolicy(name) => {
                write!(f, "a BackendPolicy is about the endpoints or limits of backend {name}")
            }
            Self::ProxyHeader(name) => {
                write!(f, "a BackendPolicy has connections to backend {name} begin with PROXY protocol")
            }
            Self::NoRoom => {
                f.write_str("the kernel has no room for its table of backends (the log says more)")
            }
            Self::Refused(reason) => write!(f, "connections are refused: {reason}"),
            Self::NoEndpoints(name) => write!(f, "backend {name} has no endpoints"),
            Self::NoEndpointsOfFamily(name, family) => {
                write!(f, "backend {name} has no endpoints with {family}, as the listener's address has")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portcullis_model::{
        AccessLog, Backend, BackendName, Balancing, ClientRules, Gateway, HashKey, HostPattern, L4Backend,
        L4Protocol, ObjectName, ParentKind, PortKey, ProxyHeader, Serves, Split,
    };

    use super::*;

    const FRONTEND: &str = "10.9.0.1:5432";

    fn name(service: &str) -> BackendName {
        BackendName::new("infra", service, PortKey::tcp(80))
    }

    fn world(gateway: Gateway, targets: Vec<(u32, L4Target)>, at: &str) -> (Snapshot, FrontendKey) {
        let backends = targets.into_iter().map(|(weight, target)| L4Backend { weight, target });
        let rule = L4Rule { id: None, action: L4Action::Forward(Split::new(backends.collect()).unwrap()) };
        let owner = ObjectName::new("infra", "edge");
        let id = ListenerId {
            gateway: owner.clone(),
            kind: ParentKind::Gateway,
            parent: owner,
            name: "db".into(),
        };
        let listener = Listener {
            id,
            hostname: HostPattern::Any,
            serves: Serves::Tcp(Arc::new(rule)),
            admission: Arc::default(),
            filters: Arc::default(),
            policy: None,
        };
        let frontend = FrontendKey::tcp(at.parse().unwrap());
        let listeners = PortListeners::of(Arc::new(listener));
        let key = PortKey::tcp(frontend.port);
        let port = Port::new(Arc::new(gateway), key, listeners);
        let mut snapshot = Snapshot::default();
        snapshot.frontends.insert(frontend, Arc::new(port));
        for (service, endpoints) in [
            ("one", &["10.2.0.1:80"][..]),
            ("three", &["10.2.0.1:80", "10.2.0.2:80", "[fd02::1]:80"]),
            ("none", &[]),
            ("sticky", &["10.2.0.3:80", "10.2.0.4:80"]),
            ("told", &["10.2.0.5:80"]),
        ] {
            let endpoints = endpoints.iter().map(|it| it.parse().unwrap()).collect();
            let mut backend = Backend::new(name(service), endpoints);
            if service == "sticky" {
                backend.balancing = Balancing::Hash(HashKey::ClientAddress);
            }
            backend.proxy_header = (service == "told").then_some(ProxyHeader::V2);
            snapshot.backends.insert(name(service).0, Arc::new(backend));
        }
        (snapshot, frontend)
    }

    fn gateway() -> Gateway {
        Gateway::new(ObjectName::new("infra", "edge"))
    }

    fn able() -> Abilities {
        Abilities { programs: Ok(()), routes_v4: true, routes_v6: true }
    }

    fn mechanism(gateway: Gateway, abilities: &Abilities, at: &str, targets: &[(u32, &str)]) -> String {
        let targets = targets.iter().map(|(weight, service)| (*weight, L4Target::Known(name(service))));
        let (snapshot, frontend) = world(gateway, targets.collect(), at);
        let forwarding = forwarding(&snapshot, abilities, |_| true);
        let mechanism = &forwarding.mechanisms[&frontend];
        assert_eq!(forwarding.tables.is_empty(), *mechanism != Mechanism::Kernel);
        mechanism.to_string()
    }

    #[test]
    fn weights_are_shared_among_endpoints_of_the_family() {
        let targets = vec![(1, L4Target::Known(name("one"))), (3, L4Target::Known(name("three")))];
        let (snapshot, frontend) = world(gateway(), targets, FRONTEND);
        let forwarding = forwarding(&snapshot, &able(), |_| true);
        assert_eq!(forwarding.mechanisms[&frontend], Mechanism::Kernel);
        let weights = &forwarding.tables[0].backends;
        assert_eq!(weights.values().copied().collect::<Vec<_>>(), [25_000, 15_000]);
    }

    #[test]
    fn what_needs_user_space_is_said() {
        let plain = |abilities: &Abilities, at, targets: &[_]| mechanism(gateway(), abilities, at, targets);
        assert_eq!(plain(&able(), FRONTEND, &[(1, "three")]), "kernel");
        assert_eq!(plain(&able(), FRONTEND, &[(1, "one"), (0, "none")]), "kernel");
        assert_eq!(
            plain(&able(), FRONTEND, &[(1, "one"), (1, "none")]),
            "user space: backend infra/none:80 has no endpoints"
        );
        assert_eq!(
            plain(&able(), FRONTEND, &[(1, "one"), (1, "told")]),
            "user space: a BackendPolicy has connections to backend infra/told:80 begin with PROXY protocol"
        );
        assert_eq!(
            plain(&able(), "[fd09::1]:80", &[(1, "one")]),
            "user space: backend infra/one:80 has no endpoints with IPv6, as the listener's address has"
        );
        assert_eq!(
            plain(&able(), "0.0.0.0:80", &[(1, "one")]),
            "user space: the listener is served on all addresses of the node"
        );
        assert_eq!(
            plain(&able(), "127.0.0.1:80", &[(1, "one")]),
            "user space: only this node reaches a loopback address"
        );
        let off = Abilities { programs: Err(NotForwarding::Off), ..able() };
        assert_eq!(plain(&off, FRONTEND, &[(1, "one")]), "user space: --forwarding is off");
        let host = Abilities { routes_v4: false, ..able() };
        assert_eq!(
            plain(&host, FRONTEND, &[(1, "one")]),
            "user space: net.ipv4.ip_forward is 0 on this node"
        );

        let logging = Gateway { access_log: Some(AccessLog::default()), ..gateway() };
        let said = mechanism(logging, &able(), FRONTEND, &[(1, "one")]);
        assert_eq!(said, "user space: the Gateway writes an access log");
        let mut limited = gateway();
        limited.limits.connections = Some(100);
        let said = mechanism(limited, &able(), FRONTEND, &[(1, "one")]);
        assert_eq!(said, "user space: the Gateway limits its connections");
    }

    #[test]
    fn a_listener_that_moves_is_told_with_both_reasons() {
        let (snapshot, frontend) = world(gateway(), vec![(1, L4Target::Known(name("one")))], FRONTEND);
        let of = |mechanism| BTreeMap::from([(frontend, mechanism)]);
        let (kernel, user_space) = (of(Mechanism::Kernel), of(Mechanism::UserSpace(Why::AccessLog)));
        let told =
            |before: &_, after: &_| moves(&snapshot, before, after).iter().map(ToString::to_string).collect();
        let moved: Vec<String> = told(&kernel, &user_space);
        assert_eq!(
            moved,
            [
                "Gateway infra/edge listener db at tcp/10.9.0.1:5432 moves from the kernel (nothing needs user space) \
              to user space (the Gateway writes an access log)"
            ]
        );
        let moved: Vec<String> = told(&user_space, &kernel);
        assert!(moved[0].ends_with("to the kernel (nothing needs user space)"), "{moved:?}");
        let other_reason = of(Mechanism::UserSpace(Why::NoRoom));
        for (before, after) in [(&kernel, &kernel), (&user_space, &other_reason), (&BTreeMap::new(), &kernel)]
        {
            let moved: Vec<String> = told(before, after);
            assert_eq!(moved, [""; 0]);
        }
    }

    #[test]
    fn a_service_whose_clients_keep_their_endpoint_is_given_clients() {
        let affinity = |services: &[&str]| {
            let targets = services.iter().map(|service| (1, L4Target::Known(name(service))));
            let (snapshot, _) = world(gateway(), targets.collect(), FRONTEND);
            forwarding(&snapshot, &able(), |_| true).tables[0].affinity
        };
        assert_eq!(affinity(&["three"]), Affinity::Connection);
        assert_eq!(affinity(&["sticky"]), Affinity::Address);
        assert_eq!(affinity(&["three", "sticky"]), Affinity::Address);
    }

    #[test]
    fn a_share_that_is_refused_is_user_spaces() {
        let targets =
            vec![(1, L4Target::Known(name("one"))), (1, L4Target::Refuse("no such Service".into()))];
        let (snapshot, frontend) = world(gateway(), targets, FRONTEND);
        let said = forwarding(&snapshot, &able(), |_| true).mechanisms[&frontend].to_string();
        assert_eq!(said, "user space: connections are refused: no such Service");
        assert!(forwarding(&snapshot, &able(), |_| false).mechanisms.is_empty(), "not served at all");
    }

    /// Flows that the kernel has let in would go on for the drain time.
    #[test]
    fn datagrams_that_a_policy_is_about_are_judged_anew() {
        let (mut snapshot, tcp) = world(gateway(), vec![(1, L4Target::Known(name("one")))], FRONTEND);
        let PortListeners::Tcp(listener) = &snapshot.frontends[&tcp].listeners else { unreachable!() };
        let mut listener = (**listener).clone();
        let Serves::Tcp(rule) = listener.serves else { unreachable!() };
        listener.serves = Serves::Udp(rule);
        let key = PortKey { protocol: L4Protocol::Udp, number: 53 };
        let udp = FrontendKey::new(tcp.address, key);
        let port = |listener: &Listener| {
            let listeners = PortListeners::of(Arc::new(listener.clone()));
            Arc::new(Port::new(Arc::new(gateway()), key, listeners))
        };
        snapshot.frontends.insert(udp, port(&listener));
        let served = BTreeSet::from([tcp, udp]);
        let judged = BTreeSet::new();
        assert_eq!(listeners(&snapshot), L4Frontends { served: served.clone(), judged });

        let clients = Some(Arc::new(ClientRules::new(Vec::new())));
        listener.admission = Arc::new(Admission { clients, ..Admission::default() });
        snapshot.frontends.insert(udp, port(&listener));
        assert_eq!(listeners(&snapshot), L4Frontends { served, judged: [udp].into() });
    }
}
