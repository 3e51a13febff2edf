//! The part of the node that serves each listener, the way to it, and the places at which its terms
//! hold, each with the reason for which it is no earlier one: a pure function of the snapshot and
//! of what the node says.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::SystemTime;

use portcullis_inspect::{Part, ServedListener};
use portcullis_model::{
    Admission, Budget, ClientAddress, ClientRules, FrontendKey, HostPattern, Listener, Port, PortListeners,
    Serves, Snapshot, Unserved,
};
use portcullis_node::{Coverage, EnforcedAt, Enforcement};

use crate::expiry::{self, expiries};
use crate::forwarding::Mechanism;

/// The snapshot that the data plane serves, and what it made of it.
#[derive(Clone, Default)]
pub(crate) struct Served {
    pub snapshot: Arc<Snapshot>,
    pub refused: Unserved,
    /// Of frontends of TCP and UDP listeners.
    pub mechanisms: BTreeMap<FrontendKey, Mechanism>,
}

/// The node's parts that are at work.
pub(crate) struct Parts {
    pub is_steered: bool,
    pub guard: Coverage,
    pub names: Coverage,
}

/// The place at which user space can tell for the first time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Accept,
    ClientHello,
    Request,
    Datagram,
}

/// The clients that a listener refuses, of which its port, and so each of its listeners, refuses
/// these before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OfPort {
    All,
    Some,
    None,
}

/// The place of all terms of ports whose proxies say who the client is.
const NAMED: &str = "user space, after the header of PROXY protocol";

/// Each listener, in the order of ports and names.
pub(crate) fn listeners(
    served: &Served,
    parts: &Parts,
    now: SystemTime,
    enforcement: impl Fn(&FrontendKey, &HostPattern) -> Enforcement,
) -> Vec<ServedListener> {
    let expiries = expiries(&served.snapshot);
    let mut listeners = BTreeMap::<_, Vec<ServedListener>>::new();
    for (frontend, port) in &served.snapshot.frontends {
        let common_budgets: Vec<_> = port.listeners.common_budgets().collect();
        for listener in port.listeners.iter() {
            let places = enforcement(frontend, &listener.hostname);
            let (served_by, steered_by) = served.by(frontend, listener, parts);
            let terms = &listener.admission;
            let is_named = port.client_address != ClientAddress::OfPeer;
            let named = || Part::new(NAMED, "the kernel does not know whom proxies speak for");
            let entry = ServedListener {
                addresses: vec![frontend.address],
                served_by,
                steered_by,
                clients: match &terms.clients {
                    Some(_) if is_named => Some(named()),
                    Some(rules) => Some(parts.clients(port, rules, &places)),
                    None => terms.listed.as_ref().and_then(|listed| {
                        let why = "the kernel does not know whom proxies list";
                        listed.rules().next().map(|_| Moment::Request.part(why))
                    }),
                },
                budgets: (!terms.budgets.is_empty()).then(|| {
                    if is_named {
                        return named();
                    }
                    let moment = Moment::of_charge(&port.listeners, &common_budgets, &terms.budgets);
                    parts.budgets(moment, places.budgets)
                }),
                certificate: expiries.get(&listener.id).and_then(|expiry| expiry::told(*expiry, now)),
                ..ServedListener::new(&listener.id, port.key)
            };
            let known = listeners.entry((port.key, listener.id.clone())).or_default();
            match known.iter_mut().find(|it| it.is_same(&entry)) {
                Some(same) => same.addresses.push(frontend.address),
                None => known.push(entry),
            }
        }
    }
    listeners.into_values().flatten().collect()
}

/// Numbers of listeners at frontends, by their kind of terms and the earliest place at which those
/// hold.
pub(crate) fn places(
    served: &Served,
    enforcement: impl Fn(&FrontendKey, &HostPattern) -> Enforcement,
) -> BTreeMap<(&'static str, &'static str), usize> {
    let mut places = BTreeMap::new();
    for (frontend, port) in &served.snapshot.frontends {
        for listener in port.listeners.iter().filter(|it| *it.admission != Admission::default()) {
            let enforced = enforcement(frontend, &listener.hostname);
            let terms = &listener.admission;
            let of_connections = terms.clients.as_ref().map(|rules| match of_port(port, rules) {
                OfPort::All if enforced.port_clients != EnforcedAt::Accept => &enforced.port_clients,
                _ => &enforced.clients,
            });
            let of_requests = terms.listed.iter().flat_map(|listed| listed.rules());
            let clients = of_connections.or_else(|| of_requests.map(|_| &EnforcedAt::Accept).next());
            let budgets = (!terms.budgets.is_empty()).then_some(&enforced.budgets);
            for (kind, place) in [("clients", clients), ("budgets", budgets)] {
                if let Some(place) = place {
                    *places.entry((kind, place.label())).or_default() += 1;
                }
            }
        }
    }
    places
}

/// `on eth0, eth1; not on eth2: there is no interface of this name`
pub(crate) fn coverage_text(coverage: &Coverage, option: &str) -> String {
    let on = match &coverage.on[..] {
        [] if !coverage.is_wanted => format!("on no interface: {option} names none"),
        [] => "on no interface".to_owned(),
        on => format!("on {}", on.join(", ")),
    };
    let missing = coverage.missing.iter().map(|it| format!("; not on {}: {}", it.interface, it.reason));
    std::iter::once(on).chain(missing).collect()
}

/// The treatment of server names that no listener has, where a rate for them is given.
pub(crate) fn unknown_names_text(rate: Option<NonZeroU32>, names: &Coverage) -> Option<String> {
    let rate = rate?;
    Some(match &names.on[..] {
        [] => format!("--unknown-names {rate} is without effect: names are read on no interface"),
        _ => format!("{rate} connections a second and port for names that no listener has"),
    })
}

// === impl Served ===

impl Served {
    /// The part that serves a listener, and the way to it.
    fn by(&self, frontend: &FrontendKey, listener: &Listener, parts: &Parts) -> (Part, Part) {
        let refused = self.refused.frontends.get(frontend);
        let refused = refused.or_else(|| self.refused.listeners.get(&(*frontend, listener.id.clone())));
        if let Some(why) = refused {
            return (Part::new("nothing", why.as_str()), Part::default());
        }
        let socket = if !frontend.is_tcp() {
            Part::new("its own socket", "answers of UDP leave from the port of their socket")
        } else if parts.is_steered {
            Part::new("sk_lookup", "")
        } else {
            Part::new("its own socket", "no kernel programs are in use")
        };
        let why = match self.mechanisms.get(frontend) {
            Some(Mechanism::Kernel) => {
                let rest = format!("what it leaves comes by {}", socket.by);
                return (Part::new("kernel", "nothing needs user space"), Part::new("tcx", rest));
            }
            Some(Mechanism::UserSpace(why)) => why.to_string(),
            None => String::new(),
        };
        let served_by = match &listener.serves {
            Serves::Http(_) => Part::new("user space (HTTP)", "requests are read"),
            Serves::Https { .. } => Part::new("user space (TLS, HTTP)", "TLS ends here, requests are read"),
            Serves::TlsTerminated { .. } => Part::new("user space (TLS)", "TLS ends here"),
            Serves::TlsPassthrough(_) => Part::new("user space (splice)", "the ClientHello is read"),
            Serves::Tcp(_) => Part::new("user space (splice)", why),
            Serves::Udp(_) => Part::new("user space (UDP)", why),
            Serves::NoCertificate => Part::new("nothing", "it has no certificate that can be used"),
        };
        (served_by, socket)
    }
}

// === impl Parts ===

impl Parts {
    /// Those that the listener refuses: all that its port does, and others where another listener
    /// permits those.
    fn clients(&self, port: &Port, rules: &ClientRules, places: &Enforcement) -> Part {
        let of_port = of_port(port, rules);
        let moment = match &port.listeners {
            PortListeners::Udp(_) => Moment::Datagram,
            _ if of_port == OfPort::All => Moment::Accept,
            PortListeners::Http(_) => Moment::Request,
            PortListeners::Tls(_) | PortListeners::Tcp(_) => Moment::ClientHello,
        };
        let of_none = |place: &str| format!("; whom no listener of the port permits: {place}");
        let rest = match (of_port, &places.port_clients) {
            (OfPort::All, place @ EnforcedAt::Xdp(_)) => {
                return Part::new(place.to_string(), "elsewhere sk_lookup");
            }
            (OfPort::All, place @ EnforcedAt::SkLookup) => {
                return Part::new(place.to_string(), format!("the packet guard is {}", self.no_guard()));
            }
            (OfPort::Some, EnforcedAt::Accept) if self.is_steered => {
                of_none("user space, at accept (the kernel's maps have no room for them)")
            }
            (OfPort::Some, EnforcedAt::Accept) => of_none("user space, at accept"),
            (OfPort::Some, place) => of_none(&place.to_string()),
            (OfPort::All | OfPort::None, _) => String::new(),
        };
        if let EnforcedAt::Tc(_) = places.clients {
            let elsewhere = "elsewhere user space, after the ClientHello".to_owned();
            return Part::new(places.clients.to_string(), elsewhere + &rest);
        }
        let why = match moment {
            Moment::Request => "the port's listeners permit others".to_owned(),
            _ if !self.is_steered => "no kernel programs are in use".to_owned(),
            Moment::Accept | Moment::Datagram => "the kernel's maps have no room for them".to_owned(),
            Moment::ClientHello => self.no_names("the port's listeners permit others"),
        };
        moment.part(why + &rest)
    }

    fn budgets(&self, moment: Moment, place: EnforcedAt) -> Part {
        if let EnforcedAt::Tc(_) = place {
            return Part::new(place.to_string(), "elsewhere user space, after the ClientHello");
        }
        match moment {
            Moment::ClientHello if !self.is_steered => moment.part("no kernel programs are in use"),
            Moment::ClientHello => moment.part(self.no_names("")),
            Moment::Request => moment.part("some are not those of all listeners of the port"),
            Moment::Accept | Moment::Datagram => {
                moment.part("only connections with a server name are counted before")
            }
        }
    }

    fn no_guard(&self) -> &'static str {
        if self.guard.is_wanted { "on no interface" } else { "not asked for (--interface)" }
    }

    fn no_names(&self, and: &str) -> String {
        let separator = if and.is_empty() { "" } else { ", and " };
        let why = match (self.names.is_wanted, self.names.on.is_empty()) {
            (false, _) => "the kernel is not asked to read names (--name-interface)",
            (true, true) => "names are read on no interface",
            (true, false) => "the kernel's maps have no room for them",
        };
        format!("{why}{separator}{and}")
    }
}

/// The part of the refusals of a listener that are those of its port.
fn of_port(port: &Port, rules: &ClientRules) -> OfPort {
    match &port.clients {
        None => OfPort::None,
        Some(clients) if clients == rules.ranges() => OfPort::All,
        Some(_) => OfPort::Some,
    }
}

// === impl Moment ===

impl Moment {
    /// At which user space has taken a connection from all budgets of a listener.
    fn of_charge(listeners: &PortListeners, common: &[&Budget], budgets: &[Budget]) -> Self {
        match listeners {
            PortListeners::Tls(_) => Self::ClientHello,
            PortListeners::Udp(_) => Self::Datagram,
            PortListeners::Tcp(_) => Self::Accept,
            PortListeners::Http(_) if budgets.iter().all(|it| common.contains(&it)) => Self::Accept,
            PortListeners::Http(_) => Self::Request,
        }
    }

    fn part(self, why: impl Into<String>) -> Part {
        let by = match self {
            Self::Accept => "user space, at accept",
            Self::ClientHello => "user space, after the ClientHello",
            Self::Request => "user space, at the request",
            Self::Datagram => "user space, at the datagram",
        };
        Part::new(by, why)
    }
}

#[cfg(test)]
mod tests {
    use portcullis_model::{
        Budget, BudgetOwner, ClientList, ClientRules, Gateway, ListenerId, ObjectName, ParentKind, Port,
        PortKey,
    };
    use portcullis_node::Unguarded;

    use super::*;
    use crate::forwarding::Why;

    fn admission(ranges: &[&str]) -> Admission {
        let owner =
            BudgetOwner { kind: ParentKind::Gateway, name: ObjectName::new("infra", "web"), listener: None };
        let budget = Budget { owner, per_second: NonZeroU32::MIN, burst: NonZeroU32::MIN };
        let allow = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let clients = ClientRules::new(vec![ClientList { allow, deny: vec![] }]);
        Admission { budgets: vec![budget], clients: Some(Arc::new(clients)), ..Admission::default() }
    }

    fn listener(name: &str, serves: Serves, admission: Admission) -> Arc<Listener> {
        let owner = ObjectName::new("infra", "web");
        let id = ListenerId {
            gateway: owner.clone(),
            kind: ParentKind::Gateway,
            parent: owner,
            name: name.into(),
        };
        let hostname = HostPattern::parse(name).unwrap();
        Arc::new(Listener {
            id,
            hostname,
            serves,
            admission: Arc::new(admission),
            filters: Arc::default(),
            policy: None,
        })
    }

    fn served(key: PortKey, listeners: Vec<Arc<Listener>>) -> Served {
        let mut listeners = listeners.into_iter();
        let mut all = PortListeners::of(listeners.next().unwrap());
        listeners.for_each(|listener| all.add(listener).unwrap());
        let gateway = Arc::new(Gateway::new(ObjectName::new("infra", "web")));
        let port = Arc::new(Port::new(gateway, key, all));
        let mut snapshot = Snapshot::default();
        for address in ["10.9.0.1", "fd09::1"] {
            snapshot.frontends.insert(FrontendKey::new(address.parse().unwrap(), key), port.clone());
        }
        Served { snapshot: Arc::new(snapshot), ..Served::default() }
    }

    fn parts(is_steered: bool, names: Coverage) -> Parts {
        Parts { is_steered, guard: Coverage::default(), names }
    }

    fn at_accept(_: &FrontendKey, _: &HostPattern) -> Enforcement {
        Enforcement::USER_SPACE
    }

    /// Clients of ports are refused here.
    fn port_at(place: EnforcedAt) -> Enforcement {
        Enforcement { port_clients: place, ..Enforcement::USER_SPACE }
    }

    /// Text of all four parts.
    fn said(served: &Served, parts: &Parts, places: Enforcement) -> Vec<[String; 4]> {
        let enforcement = |_: &_, _: &_| places.clone();
        let text = |part: Option<Part>| part.map(|it| it.to_string()).unwrap_or_default();
        listeners(served, parts, SystemTime::UNIX_EPOCH, enforcement)
            .into_iter()
            .map(|it| {
                assert_eq!(it.addresses.len(), 2, "it is the same at both: {it:?}");
                [it.served_by.to_string(), it.steered_by.to_string(), text(it.clients), text(it.budgets)]
            })
            .collect()
    }

    #[test]
    fn listeners_that_differ_are_told_apart_by_user_space() {
        let http = |name, ranges: &[&str]| listener(name, Serves::Http(Arc::default()), admission(ranges));
        let two = served(PortKey::tcp(80), vec![http("a.b", &["10.0.0.0/8"]), http("c.d", &["fd00::/8"])]);
        let steering = parts(true, Coverage::default());
        let [first, _] = &said(&two, &steering, port_at(EnforcedAt::SkLookup))[..] else { panic!() };
        assert_eq!(
            first,
            &[
                "user space (HTTP): requests are read",
                "sk_lookup",
                "user space, at the request: the port's listeners permit others; whom no listener of the port permits: sk_lookup",
                "user space, at accept: only connections with a server name are counted before",
            ]
        );
        let one = served(PortKey::tcp(80), vec![http("a.b", &["10.0.0.0/8"])]);
        let steered = said(&one, &steering, port_at(EnforcedAt::SkLookup));
        assert_eq!(steered[0][2], "sk_lookup: the packet guard is not asked for (--interface)");
        let guarded = said(&one, &steering, port_at(EnforcedAt::Xdp(vec!["eth0".into()])));
        assert_eq!(guarded[0][2], "xdp on eth0: elsewhere sk_lookup");
        let bound = said(&one, &parts(false, Coverage::default()), Enforcement::USER_SPACE);
        assert_eq!(bound[0][1], "its own socket: no kernel programs are in use");
        assert_eq!(bound[0][2], "user space, at accept: no kernel programs are in use");
        let full = said(&one, &steering, Enforcement::USER_SPACE);
        assert_eq!(full[0][2], "user space, at accept: the kernel's maps have no room for them");
    }

    #[test]
    fn a_listener_that_permits_all_that_its_neighbours_do_has_the_terms_of_the_port() {
        let http = |name, ranges: &[&str]| listener(name, Serves::Http(Arc::default()), admission(ranges));
        let two = served(PortKey::tcp(80), vec![http("a.b", &["10.0.0.0/8"]), http("c.d", &["10.1.0.0/16"])]);
        let [wide, narrow] =
            &said(&two, &parts(true, Coverage::default()), port_at(EnforcedAt::SkLookup))[..]
        else {
            panic!()
        };
        assert_eq!(wide[2], "sk_lookup: the packet guard is not asked for (--interface)");
        assert!(narrow[2].starts_with("user space, at the request: "), "{}", narrow[2]);
        let places = places(&two, |_, _| port_at(EnforcedAt::SkLookup));
        let clients = [(("clients", "sk_lookup"), 2), (("clients", "userspace"), 2)];
        assert!(clients.iter().all(|(place, count)| places[place] == *count), "{places:?}");
        let everyone =
            served(PortKey::tcp(80), vec![http("a.b", &["10.0.0.0/8"]), http("c.d", &["0.0.0.0/0", "::/0"])]);
        let first = &said(&everyone, &parts(true, Coverage::default()), Enforcement::USER_SPACE)[0][2];
        assert_eq!(first, "user space, at the request: the port's listeners permit others");
    }

    #[test]
    fn names_that_are_not_read_are_given_as_the_reason() {
        let tls =
            |name, ranges: &[&str]| listener(name, Serves::TlsPassthrough(Arc::default()), admission(ranges));
        let two = served(PortKey::tcp(443), vec![tls("a.b", &["10.0.0.0/8"]), tls("c.d", &["fd00::/8"])]);
        let nowhere = Coverage { is_wanted: true, ..Coverage::default() };
        let on = Coverage { on: vec!["eth0".into()], ..nowhere.clone() };
        for (names, why) in [
            (Coverage::default(), "the kernel is not asked to read names (--name-interface)"),
            (nowhere, "names are read on no interface"),
            (on, "the kernel's maps have no room for them"),
        ] {
            let said = said(&two, &parts(true, names), Enforcement::USER_SPACE);
            assert_eq!(said[0][0], "user space (splice): the ClientHello is read");
            let clients = format!(
                "user space, after the ClientHello: {why}, and the port's listeners permit others; whom no listener \
                 of the port permits: user space, at accept (the kernel's maps have no room for them)"
            );
            assert_eq!(said[0][2..], [clients, format!("user space, after the ClientHello: {why}")]);
        }
        let read = Enforcement {
            clients: EnforcedAt::Tc(vec!["eth0".into()]),
            ..port_at(EnforcedAt::Xdp(vec!["eth1".into()]))
        };
        let read = said(&two, &parts(true, Coverage::default()), read);
        let elsewhere =
            "elsewhere user space, after the ClientHello; whom no listener of the port permits: xdp on eth1";
        assert_eq!(read[0][2], format!("tc on eth0: {elsewhere}"));
        let [v4, v6] = ["10.9.0.1", "fd09::1"]
            .map(|address| FrontendKey::new(address.parse().unwrap(), PortKey::tcp(443)));
        let places = places(&two, |frontend, _| match *frontend == v4 {
            true => {
                Enforcement { clients: EnforcedAt::Tc(vec!["eth0".into()]), ..port_at(EnforcedAt::SkLookup) }
            }
            false => at_accept(&v6, &HostPattern::Any),
        });
        let expected = [(("budgets", "userspace"), 4), (("clients", "tc"), 2), (("clients", "userspace"), 2)];
        assert_eq!(places, expected.into());
    }

    #[test]
    fn addresses_that_are_served_otherwise_have_an_entry_of_their_own() {
        let tcp = listener("a.b", Serves::Tcp(Arc::new(no_rule())), Admission::default());
        let key = PortKey::tcp(5432);
        let [v4, v6] = ["10.9.0.1", "fd09::1"].map(|it| FrontendKey::new(it.parse().unwrap(), key));
        let mut served = served(key, vec![tcp]);
        served.mechanisms = [(v4, Mechanism::Kernel), (v6, Mechanism::UserSpace(Why::AccessLog))].into();
        let told = |served: &Served| {
            let listeners =
                listeners(served, &parts(true, Coverage::default()), SystemTime::UNIX_EPOCH, at_accept);
            listeners.into_iter().map(|it| (it.addresses, it.served_by.to_string())).collect::<Vec<_>>()
        };
        let kernel = (vec![v4.address], "kernel: nothing needs user space".to_owned());
        let splice = "user space (splice): the Gateway writes an access log".to_owned();
        assert_eq!(told(&served), [kernel.clone(), (vec![v6.address], splice)]);
        served.refused.frontends.insert(v6, "another process listens".into());
        assert_eq!(told(&served), [kernel, (vec![v6.address], "nothing: another process listens".into())]);
    }

    #[test]
    fn interfaces_that_are_missing_are_named_with_the_reason() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage_text(&coverage, "--interface"), "on no interface: --interface names none");
        coverage.is_wanted = true;
        let reason = "there is no interface of this name".to_owned();
        coverage.missing = vec![Unguarded { interface: "eth1".into(), reason, label: "no-interface" }];
        let missing = "; not on eth1: there is no interface of this name";
        assert_eq!(coverage_text(&coverage, "--interface"), format!("on no interface{missing}"));
        coverage.on = vec!["eth0".into()];
        assert_eq!(coverage_text(&coverage, "--interface"), format!("on eth0{missing}"));
    }

    fn no_rule() -> portcullis_model::L4Rule {
        portcullis_model::L4Rule { id: None, action: portcullis_model::L4Action::Refuse("none".into()) }
    }
}
