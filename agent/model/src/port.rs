//! A port of a Gateway: the listeners that share it, and how each of them is found. Listeners that
//! cannot be told apart do not come this far: merging has refused them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::{
    Admission, Budget, ClientAddress, ClientRanges, Gateway, HostMap, Listener, ListenerLimits, OpenLimit,
    ParentKind, PortKey, Serves,
};

#[derive(Clone, Debug)]
pub struct Port {
    /// Shared by successive versions of the port as long as nothing of it changes.
    pub gateway: Arc<Gateway>,
    pub key: PortKey,
    pub listeners: PortListeners,
    /// The addresses that some of the listeners permits: others need not be told apart by what they
    /// come for. `None` if all may connect.
    pub clients: Option<Arc<ClientRanges>>,
    pub client_address: ClientAddress,
}

/// The listeners of a port: those that are accepted, and those that keep their name without being
/// served. It is never without one.
#[derive(Clone, Debug)]
pub enum PortListeners {
    /// Requests find their listener by host. A request belongs to the listener with the most
    /// specific hostname that matches, and to no other (listener isolation).
    Http(HostMap<Arc<Listener>>),
    /// Connections find their listener by the server name of the ClientHello: HTTPS, terminated TLS
    /// and TLS that is passed through share the table.
    Tls(HostMap<Arc<Listener>>),
    /// Connections can only be for the one listener.
    Tcp(Arc<Listener>),
    /// Datagrams can only be for the one listener.
    Udp(Arc<Listener>),
}

/// Those who may send the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpeaksFirst {
    /// Servers have nothing to say before they are asked.
    Client,
    Either,
}

/// A listener that is found in another way than those that have the port.
#[derive(Debug, PartialEq)]
pub struct Mismatch {
    /// The protocols of the listeners that have the port.
    port: String,
    listener: Arc<Listener>,
}

// === impl Port ===

impl Port {
    pub fn new(gateway: Arc<Gateway>, key: PortKey, listeners: PortListeners) -> Self {
        let clients = listeners.clients();
        let client_address = listeners.client_address();
        Self { gateway, key, listeners, clients, client_address }
    }

    /// The streams that an HTTP/2 connection without TLS has, whichever listeners it has requests
    /// for: a server's SETTINGS come before the first request. `None` where there are none such.
    pub fn streams_without_tls(&self) -> Option<u32> {
        let PortListeners::Http(_) = self.listeners else { return None };
        let common = self.listeners.common_limits().unwrap_or_default();
        Some(common.beside(&self.gateway.limits).http2_streams)
    }
}

// === impl PortListeners ===

impl PortListeners {
    /// A port's first listener.
    pub fn of(listener: Arc<Listener>) -> Self {
        let named = |listener: Arc<Listener>| {
            let mut map = HostMap::default();
            map.insert(&listener.hostname.clone(), listener);
            map
        };
        match &listener.serves {
            Serves::Http(_) => Self::Http(named(listener)),
            Serves::Https { .. }
            | Serves::TlsTerminated { .. }
            | Serves::TlsPassthrough(_)
            | Serves::NoCertificate => Self::Tls(named(listener)),
            Serves::Tcp(_) => Self::Tcp(listener),
            Serves::Udp(_) => Self::Udp(listener),
        }
    }

    /// Adds a listener, in the place of one with the same hostname.
    ///
    /// # Errors
    /// When the listener is found in another way than those of the port; the port is as it was.
    pub fn add(&mut self, listener: Arc<Listener>) -> Result<(), Mismatch> {
        if !self.suits(&listener.serves) {
            return Err(Mismatch { port: self.to_string(), listener });
        }
        match self {
            Self::Http(map) | Self::Tls(map) => drop(map.insert(&listener.hostname.clone(), listener)),
            Self::Tcp(only) | Self::Udp(only) => *only = listener,
        }
        Ok(())
    }

    /// The addresses that some listener permits, or more; `None` if that is all of them.
    fn clients(&self) -> Option<Arc<ClientRanges>> {
        let mut distinct = BTreeMap::new();
        for listener in self.iter() {
            let ranges = listener.admission.clients.as_ref()?.ranges();
            distinct.insert(Arc::as_ptr(ranges), ranges);
        }
        if distinct.len() == 1 {
            return distinct.into_values().next().cloned();
        }
        let any = ClientRanges::of_any(distinct.into_values().map(|ranges| &**ranges));
        (!any.permit_all()).then(|| Arc::new(any))
    }

    /// The Gateway's owner decides: listeners of ListenerSets and attached Gateways, which share
    /// the port by grace, follow what its own say.
    fn client_address(&self) -> ClientAddress {
        if matches!(self, Self::Udp(_)) {
            // Datagrams have no header.
            return ClientAddress::OfPeer;
        }
        let (mut of_gateway, mut of_children) = (None, None);
        for listener in self.iter() {
            let said = listener.admission.proxies.as_ref();
            let id = &listener.id;
            let is_own = id.kind == ParentKind::Gateway && id.parent == id.gateway;
            let known = if is_own { &mut of_gateway } else { &mut of_children };
            if *known.get_or_insert(said) != said {
                return ClientAddress::Disputed;
            }
        }
        match of_gateway.or(of_children).flatten() {
            Some(proxies) => ClientAddress::OfProxies(proxies.clone()),
            None => ClientAddress::OfPeer,
        }
    }

    /// The budgets that all listeners have, in the order of one of them: those of what is above
    /// them all. One that a listener has of its own leaves the others in common.
    pub fn common_budgets(&self) -> impl Iterator<Item = &Budget> {
        self.common(|admission| &admission.budgets)
    }

    /// The same of limits of open connections.
    pub fn common_open(&self) -> impl Iterator<Item = &OpenLimit> {
        self.common(|admission| &admission.open)
    }

    fn common<'p, T: PartialEq + 'p>(&'p self, of: fn(&Admission) -> &Vec<T>) -> impl Iterator<Item = &'p T> {
        let first = self.iter().next().map(|listener| &listener.admission);
        let have_all = move |term: &&T| {
            let has = |it: &Arc<Admission>| {
                first.is_some_and(|first| Arc::ptr_eq(it, first)) || of(it).contains(term)
            };
            self.iter().all(|listener| has(&listener.admission))
        };
        first.into_iter().flat_map(move |admission| of(admission)).filter(have_all)
    }

    /// The limits to which connections are held before it is known for which listener they are: the
    /// loosest of all, where each has one.
    pub fn common_limits(&self) -> Option<ListenerLimits> {
        let mut all = self.iter().map(|listener| listener.admission.limits.as_deref());
        let first = all.next()??.clone();
        all.try_fold(first, |loosest, limits| Some(loosest.or(limits?)))
    }

    /// In the protocols of the listeners.
    pub const fn speaks_first(&self) -> SpeaksFirst {
        match self {
            Self::Http(_) | Self::Tls(_) => SpeaksFirst::Client,
            Self::Tcp(_) | Self::Udp(_) => SpeaksFirst::Either,
        }
    }

    /// True of a listener that is found in the same way.
    pub const fn suits(&self, serves: &Serves) -> bool {
        match serves {
            Serves::Http(_) => matches!(self, Self::Http(_)),
            Serves::Https { .. }
            | Serves::TlsTerminated { .. }
            | Serves::TlsPassthrough(_)
            | Serves::NoCertificate => matches!(self, Self::Tls(_)),
            Serves::Tcp(_) => matches!(self, Self::Tcp(_)),
            Serves::Udp(_) => matches!(self, Self::Udp(_)),
        }
    }

    /// Without the listener that has this one's hostname; `None` if it was the last.
    #[must_use]
    pub fn without(mut self, listener: &Listener) -> Option<Self> {
        match &mut self {
            Self::Http(map) | Self::Tls(map) => {
                map.remove(&listener.hostname);
                (!map.is_empty()).then_some(self)
            }
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// The listeners by the name that finds them, where a name does.
    pub fn by_name(&self) -> Option<&HostMap<Arc<Listener>>> {
        match self {
            Self::Http(map) | Self::Tls(map) => Some(map),
            Self::Tcp(_) | Self::Udp(_) => None,
        }
    }

    /// All listeners, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Listener>> {
        let (named, only) = match self {
            Self::Http(map) | Self::Tls(map) => (Some(map), None),
            Self::Tcp(listener) | Self::Udp(listener) => (None, Some(listener)),
        };
        named.into_iter().flat_map(HostMap::values).chain(only)
    }

    /// All listeners, the one with the most specific hostname first.
    pub fn sorted(&self) -> Vec<&Arc<Listener>> {
        let mut listeners: Vec<_> = self.iter().collect();
        listeners.sort_by(|a, b| a.hostname.cmp(&b.hostname));
        listeners
    }
}

/// The protocols of the listeners: `HTTPS`, or `HTTPS, TLS`.
impl fmt::Display for PortListeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut protocols: Vec<_> = self.iter().map(|listener| listener.serves.protocol()).collect();
        protocols.sort_unstable();
        protocols.dedup();
        f.write_str(&protocols.join(", "))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, listener } = self;
        write!(f, "{} has protocol {}, its port {port}", listener.id, listener.serves.protocol())
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Access, ClientList, ClientRules, HostPattern, ListenerId, ObjectName, OtherPeers, ParentKind,
        ProxyProtocol, TlsTermination,
    };

    fn listener(hostname: &str, serves: Serves) -> Arc<Listener> {
        admitting(hostname, serves, None)
    }

    fn admitting(hostname: &str, serves: Serves, clients: Option<ClientRules>) -> Arc<Listener> {
        let gateway = ObjectName::new("infra", "web");
        let id =
            ListenerId { parent: gateway.clone(), gateway, kind: ParentKind::Gateway, name: hostname.into() };
        let hostname = HostPattern::parse(hostname).unwrap_or(HostPattern::Any);
        let admission = Arc::new(Admission { clients: clients.map(Arc::new), ..Admission::default() });
        Arc::new(Listener { id, hostname, serves, admission, filters: Arc::default(), policy: None })
    }

    fn https(hostname: &str) -> Arc<Listener> {
        listener(hostname, Serves::Https { tls: TlsTermination::default(), routes: Arc::default() })
    }

    #[test]
    fn https_and_tls_share_a_port_by_server_name() {
        let passed = listener("b.com", Serves::TlsPassthrough(Arc::default()));
        let mut port = PortListeners::of(https("a.com"));
        port.add(passed.clone()).unwrap();
        port.add(https("*")).unwrap();
        assert_eq!(port.to_string(), "HTTPS, TLS");
        let found = port.by_name().unwrap().for_sni(Some("b.com")).unwrap();
        assert!(Arc::ptr_eq(found, &passed));
        let names: Vec<_> = port.sorted().iter().map(|listener| listener.hostname.to_string()).collect();
        assert_eq!(names, ["a.com", "b.com", "*"]);
        let left = port.without(&passed).unwrap().without(&https("*")).unwrap();
        assert!(left.without(&https("a.com")).is_none());
    }

    #[test]
    fn a_listener_that_is_found_in_another_way_is_refused() {
        let mut port = PortListeners::of(https("a.com"));
        let refused = port.add(listener("b.com", Serves::Http(Arc::default()))).unwrap_err();
        assert_eq!(refused.to_string(), "Gateway infra/web listener b.com has protocol HTTP, its port HTTPS");
        assert_eq!(port.to_string(), "HTTPS");
    }

    #[test]
    fn clients_that_no_listener_permits_are_none_of_the_ports() {
        let rules = |allow: &[&str], deny: &[&str]| {
            let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
            Some(ClientRules::new(vec![ClientList { allow: ranges(allow), deny: ranges(deny) }]))
        };
        let port = |clients: Vec<Option<ClientRules>>| {
            let mut listeners = clients
                .into_iter()
                .zip(["a.com", "b.com"])
                .map(|(clients, name)| admitting(name, Serves::Http(Arc::default()), clients));
            let mut port = PortListeners::of(listeners.next().unwrap());
            listeners.for_each(|listener| port.add(listener).unwrap());
            let gateway = Arc::new(Gateway::new(ObjectName::new("infra", "web")));
            Port::new(gateway, PortKey::tcp(80), port).clients
        };
        let denied = |clients: &ClientRanges| {
            let all = ["10.0.0.1", "10.1.0.1", "192.0.2.1", "fd00::1"];
            let is_denied = |client: &&str| clients.access(&client.parse().unwrap()) == Access::Denied;
            all.into_iter().filter(is_denied).collect::<Vec<_>>()
        };
        let of_both =
            port(vec![rules(&["10.0.0.0/8"], &["10.1.0.0/16"]), rules(&[], &["10.1.0.1", "192.0.2.1"])]);
        assert_eq!(denied(&of_both.unwrap()), ["10.1.0.1", "192.0.2.1"], "by different lists");
        let tighter = port(vec![rules(&["10.0.0.0/8"], &[]), rules(&["10.1.0.0/16"], &[])]).unwrap();
        assert_eq!(Some(&*tighter), rules(&["10.0.0.0/8"], &[]).as_ref().map(|it| &**it.ranges()));
        assert_eq!(port(vec![rules(&[], &["10.0.0.0/8"]), None]), None);
        assert_eq!(port(vec![rules(&["10.0.0.0/8"], &[]), rules(&[], &["10.0.0.0/8"])]), None);
    }

    #[test]
    fn no_tenant_has_a_say_about_the_proxies_of_a_port() {
        let said = |range: &str| {
            let levels = vec![vec![range.parse().unwrap()]];
            Some(Arc::new(ProxyProtocol { levels, others: OtherPeers::Accept }))
        };
        let of = |all: &[(&str, Option<Arc<ProxyProtocol>>)]| {
            let mut listeners = all.iter().zip(["a.com", "b.com"]).map(|((parent, proxies), host)| {
                let mut listener = Listener::clone(&listener(host, Serves::Http(Arc::default())));
                listener.id.parent = ObjectName::new("infra", *parent);
                listener.admission = Arc::new(Admission { proxies: proxies.clone(), ..Admission::default() });
                Arc::new(listener)
            });
            let mut port = PortListeners::of(listeners.next().unwrap());
            listeners.for_each(|listener| port.add(listener).unwrap());
            port.client_address()
        };
        let (own, other) = (said("10.0.0.1"), said("10.0.0.2"));
        let agreed = ClientAddress::OfProxies(own.clone().unwrap());
        assert_eq!(of(&[("web", None)]), ClientAddress::OfPeer);
        assert_eq!(of(&[("web", own.clone()), ("web", own.clone())]), agreed);
        assert_eq!(of(&[("web", own.clone()), ("web", other.clone())]), ClientAddress::Disputed);
        assert_eq!(of(&[("web", own.clone()), ("web", None)]), ClientAddress::Disputed);
        assert_eq!(of(&[("web", None), ("web", own.clone())]), ClientAddress::Disputed);
        for of_tenant in [None, other] {
            assert_eq!(of(&[("tenant", of_tenant.clone()), ("web", own.clone())]), agreed);
            assert_eq!(of(&[("tenant", of_tenant), ("web", None)]), ClientAddress::OfPeer);
        }
        assert_eq!(of(&[("tenant", own)]), agreed, "the Gateway's, inherited");
    }
}
