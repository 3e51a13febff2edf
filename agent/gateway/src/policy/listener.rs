//! ListenerPolicy: the terms on which clients are let in at the listeners of a Gateway or a
//! ListenerSet, or at one of them. What a policy cannot mean protects all the same: no client is
//! let in. Nothing here knows which listeners there are.

use std::num::NonZeroU32;
use std::slice;
use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_api::types::listenerpolicies::{
    ListenerPolicy, ListenerPolicyClientAddress, ListenerPolicyConnections, ListenerPolicyProxyProtocol,
};
use portcullis_model::{
    AddressRange, Admission, Budget, BudgetOwner, ClientList, ClientRules, ListenerLimits, LogPatch,
    ObjectName, OpenLimit, OtherPeers, ParentKind, TrustedProxies,
};

use super::declared::Target;
use super::listener_settings;
use crate::protocol::Protocol;
use crate::{Fault, Reason};

/// The most that a list has. The schema says so, too; the kernel's maps have room for all lists
/// together.
const MOST_RANGES: usize = 128;
/// New connections a second, and at once.
const MOST_CONNECTIONS: i32 = 1_000_000;
/// Connections at a time.
const MOST_OPEN: i32 = 10_000_000;
/// Proxies that a request may have passed.
const MOST_HOPS: usize = 16;

/// A ListenerPolicy as it was read.
pub(crate) type Declared = super::declared::Declared<Terms>;

/// The say of one policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Terms {
    rate: Option<Rate>,
    /// Connections at a time.
    open: Option<NonZeroU32>,
    clients: Option<ClientList>,
    proxies: Option<Proxies>,
    listed: Option<Listed>,
    limits: Option<ListenerLimits>,
    log: Option<LogPatch>,
}

/// A field that some listeners cannot heed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unfit {
    pub(crate) field: &'static str,
    /// The reason, as words about the listener, and about the places where it is so.
    pub(crate) listener: &'static str,
    pub(crate) places: &'static str,
}

/// Proxies that list the clients of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) by: TrustedProxies,
    /// The peers that may connect, if others than the proxies may not.
    pub(crate) only: Option<ClientList>,
}

/// Proxies that say who the client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proxies {
    pub(crate) from: Vec<AddressRange>,
    pub(crate) others: OtherPeers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    per_second: NonZeroU32,
    burst: NonZeroU32,
}

pub(crate) fn declared(name: &ObjectName, policy: &ListenerPolicy) -> Declared {
    let kinds = Kind::ListenerPolicy.targets();
    let references = &policy.spec.target_refs;
    Declared::new(&policy.metadata, name, references, kinds, Terms::of(policy), Terms::closed)
}

// === impl Terms ===

impl Terms {
    fn of(policy: &ListenerPolicy) -> Result<Self, Fault> {
        let spec = &policy.spec;
        if let Some(reasons) = &spec.refused {
            return Err(closing(slice::from_ref(reasons)));
        }
        let list = |field, texts: &Option<Vec<String>>| ranges(field, texts.as_deref().unwrap_or_default());
        let (allow, deny) = (list("allow", &spec.allow), list("deny", &spec.deny));
        let connections = spec.connections.as_ref().map(connections).transpose();
        let limits = spec.limits.as_ref().map(listener_settings::limits).transpose();
        let log = spec.access_log.as_ref().map(listener_settings::log).transpose();
        let proxies = spec.proxy_protocol.as_ref().map(Proxies::of).transpose();
        let listed = spec.client_address.as_ref().map(Listed::of).transpose();
        let faults = [
            allow.clone().err(),
            deny.clone().err(),
            connections.clone().err(),
            proxies.clone().err(),
            listed.clone().err(),
            limits.clone().err(),
            log.clone().err(),
        ];
        let texts: Vec<_> = faults.into_iter().flatten().collect();
        let (Ok(allow), Ok(deny), Ok(connections), Ok(proxies)) = (allow, deny, connections, proxies) else {
            return Err(closing(&texts));
        };
        let (Ok(listed), Ok(limits), Ok(log)) = (listed, limits, log) else { return Err(closing(&texts)) };
        let is_any = allow.is_empty() && deny.is_empty();
        let (rate, open) = connections.unwrap_or_default();
        let clients = (!is_any).then_some(ClientList { allow, deny });
        let terms = Self { rate, open, clients, proxies, listed, limits, log };
        if terms == Self::default() {
            let empty = "the policy's lists are empty, and it says nothing: fill them, or remove it";
            return Err(closing(&[empty.to_owned()]));
        }
        Ok(terms)
    }

    /// No client is let in.
    pub(crate) fn closed() -> Self {
        let all = vec![AddressRange::ANY_V4, AddressRange::ANY_V6];
        Self { clients: Some(ClientList { allow: Vec::new(), deny: all }), ..Self::default() }
    }

    /// The terms of a listener that lets no client in.
    pub(crate) fn without_clients() -> Admission {
        let clients = Self::closed().clients.map(|list| Arc::new(ClientRules::new(vec![list])));
        Admission { clients, ..Admission::default() }
    }

    /// True if no client is let in, whatever its address.
    pub(crate) fn are_closed(&self) -> bool {
        *self == Self::closed()
    }

    pub(crate) fn clients(&self) -> Option<&ClientList> {
        self.clients.as_ref()
    }

    pub(crate) fn proxies(&self) -> Option<&Proxies> {
        self.proxies.as_ref()
    }

    pub(crate) fn listed(&self) -> Option<&Listed> {
        self.listed.as_ref()
    }

    /// The fields that listeners of a protocol cannot heed.
    pub(crate) fn unfit(&self, protocol: Protocol) -> impl Iterator<Item = Unfit> {
        let proxies = self.proxies.as_ref().filter(|_| protocol == Protocol::Udp).map(|_| Unfit {
            field: "proxyProtocol",
            listener: "has protocol UDP, whose datagrams have no header of PROXY protocol",
            places: "on UDP, whose datagrams have no header",
        });
        let is_http = matches!(protocol, Protocol::Http | Protocol::Https | Protocol::Unknown);
        let unfit = |field| Unfit {
            field,
            listener: "is none of HTTP or HTTPS, and has no requests that it could be about",
            places: "where there are no requests of HTTP",
        };
        let listed = self.listed.as_ref().filter(|_| !is_http).map(|_| unfit("clientAddress"));
        let limits = self.limits.as_ref().filter(|_| !is_http).map(|_| unfit("limits"));
        let open = self.open.filter(|_| protocol == Protocol::Udp).map(|_| Unfit {
            field: "connections.open",
            listener: "has protocol UDP, which has no connections",
            places: "on UDP, which has no connections",
        });
        proxies.into_iter().chain(listed).chain(limits).chain(open)
    }

    pub(crate) fn limits(&self) -> Option<&ListenerLimits> {
        self.limits.as_ref()
    }

    pub(crate) fn log(&self) -> Option<LogPatch> {
        self.log
    }

    pub(crate) fn budget(&self, target: &Target) -> Option<Budget> {
        let Rate { per_second, burst } = self.rate?;
        Some(Budget { owner: owner(target)?, per_second, burst })
    }

    pub(crate) fn open(&self, target: &Target) -> Option<OpenLimit> {
        Some(OpenLimit { most: self.open?, owner: owner(target)? })
    }
}

fn closing(faults: &[String]) -> Fault {
    let closed = "until that is right, no client is let in at what the policy is about";
    Fault::not_accepted(Reason::Invalid, format!("{}; {closed}", faults.join("; ")))
}

fn owner(target: &Target) -> Option<BudgetOwner> {
    let kind = match target.object.kind {
        Kind::Gateway => ParentKind::Gateway,
        Kind::ListenerSet => ParentKind::ListenerSet,
        _ => return None,
    };
    let (name, listener) = (target.object.name.clone(), target.section.clone());
    Some(BudgetOwner { kind, name, listener })
}

/// New connections, and those at a time.
fn connections(given: &ListenerPolicyConnections) -> Result<(Option<Rate>, Option<NonZeroU32>), String> {
    let number = |field, value: i32, most| {
        let number = u32::try_from(value).ok().and_then(NonZeroU32::new).filter(|_| value <= most);
        number.ok_or_else(|| format!("connections.{field} is {value}: write 1 to {most}"))
    };
    let per_second = given.per_second.map(|it| number("perSecond", it, MOST_CONNECTIONS)).transpose()?;
    let burst = given.burst.map(|it| number("burst", it, MOST_CONNECTIONS)).transpose()?;
    let open = given.open.map(|it| number("open", it, MOST_OPEN)).transpose()?;
    match (per_second, burst) {
        (None, Some(_)) => Err("connections.burst needs perSecond".to_owned()),
        (None, None) if open.is_none() => Err("connections: write perSecond or open".to_owned()),
        (None, None) => Ok((None, open)),
        (Some(per_second), burst) => {
            Ok((Some(Rate { per_second, burst: burst.unwrap_or(per_second) }), open))
        }
    }
}

impl Proxies {
    fn of(given: &ListenerPolicyProxyProtocol) -> Result<Self, String> {
        let from = proxies("proxyProtocol.from", &given.from)?;
        Ok(Self { from, others: others("proxyProtocol.others", given.others.as_deref())? })
    }
}

impl Listed {
    fn of(given: &ListenerPolicyClientAddress) -> Result<Self, String> {
        let others = others("clientAddress.others", given.others.as_deref())?;
        match (given.trusted_hops, &given.trusted_proxies) {
            (Some(hops), None) => {
                let few = usize::try_from(hops).ok().filter(|hops| *hops <= MOST_HOPS);
                let hops = few
                    .ok_or_else(|| format!("clientAddress.trustedHops is {hops}: write 0 to {MOST_HOPS}"))?;
                match others {
                    OtherPeers::Accept => Ok(Self { by: TrustedProxies::Hops(hops), only: None }),
                    OtherPeers::Refuse => {
                        Err("clientAddress.others is Refuse, and trustedHops do not say which \
                                               peers are others: write trustedProxies"
                            .to_owned())
                    }
                }
            }
            (None, Some(texts)) => {
                let ranges = proxies("clientAddress.trustedProxies", texts)?;
                let only = ClientList { allow: ranges.clone(), deny: Vec::new() };
                let only = (others == OtherPeers::Refuse).then_some(only);
                Ok(Self { by: TrustedProxies::Ranges(ranges.into()), only })
            }
            (None, None) | (Some(_), Some(_)) => {
                Err("clientAddress: write trustedHops or trustedProxies, and one of them".to_owned())
            }
        }
    }
}

/// The addresses of proxies in front.
fn proxies(field: &str, texts: &[String]) -> Result<Vec<AddressRange>, String> {
    let all = ranges(field, texts)?;
    if all.is_empty() {
        return Err(format!("{field} is empty: name the proxies in front"));
    }
    match all.iter().find(|range| range.bits().1 == 0) {
        Some(any) => Err(format!(
            "{field}: {any} is every address, and any client could say that it is another: name the proxies in front"
        )),
        None => Ok(all),
    }
}

fn others(field: &str, given: Option<&str>) -> Result<OtherPeers, String> {
    match given {
        None | Some("Accept") => Ok(OtherPeers::Accept),
        Some("Refuse") => Ok(OtherPeers::Refuse),
        Some(other) => Err(format!("{field} is {other:?}: write Accept or Refuse")),
    }
}

/// Clients that reach an IPv6 socket by IPv4 are seen under their IPv4 addresses: a range of the
/// mapped ones would be without effect.
pub(super) fn ranges(field: &str, texts: &[String]) -> Result<Vec<AddressRange>, String> {
    if texts.len() > MOST_RANGES {
        return Err(format!("{field} has {} entries, {MOST_RANGES} is the most", texts.len()));
    }
    let range = |text: &String| {
        let range: AddressRange = text.parse().map_err(|syntax| format!("{field}: {text:?}: {syntax}"))?;
        if range.is_of_mapped() {
            return Err(format!("{field}: {text:?}: write an IPv4 address as such"));
        }
        Ok(range)
    };
    texts.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use portcullis_api::{GATEWAY_GROUP, ObjectKey};
    use serde_json::json;

    use super::*;

    fn declared(spec: serde_json::Value) -> Declared {
        let policy = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "ListenerPolicy",
            "metadata": {"name": "p"}, "spec": spec});
        super::declared(&ObjectName::new("shop", "p"), &serde_json::from_value(policy).unwrap())
    }

    #[test]
    fn targets_are_parents_of_the_policys_namespace_or_their_listeners() {
        let reference = |group: &str, kind: &str, section: Option<&str>| json!({"group": group, "kind": kind, "name": "web", "sectionName": section});
        let references = [
            reference(GATEWAY_GROUP, "Gateway", None),
            reference(GATEWAY_GROUP, "ListenerSet", Some("https")),
            reference(GATEWAY_GROUP, "Gateway", None),
            reference("", "Service", None),
            reference("example.com", "Gateway", None),
        ];
        let declared = declared(json!({"targetRefs": references, "deny": ["10.0.0.0/8"]}));
        let name = ObjectName::new("shop", "web");
        assert_eq!(
            *declared.targets,
            [
                Target::whole(ObjectKey::new(Kind::Gateway, name.clone())),
                Target { object: ObjectKey::new(Kind::ListenerSet, name), section: Some("https".into()) },
            ]
        );
        assert_eq!(declared.misnamed.len(), 2);
    }

    #[test]
    fn terms_that_cannot_be_meant_let_no_client_in() {
        for (spec, told) in [
            (json!({"allow": ["10.0.0.0/33"]}), "allow: \"10.0.0.0/33\": write a range of addresses"),
            (
                json!({"deny": ["::ffff:10.0.0.1"]}),
                "deny: \"::ffff:10.0.0.1\": write an IPv4 address as such",
            ),
            (json!({"allow": [], "deny": []}), "the policy's lists are empty, and it says nothing"),
            (json!({"deny": ["::ffff:0:0/96"]}), "write an IPv4 address as such"),
            (json!({"deny": ["::ffff:0:0/95"]}), "deny: \"::ffff:0:0/95\": write an IPv4 address as such"),
            (json!({"allow": ["::ffff:10.0.0.0/8"]}), "write an IPv4 address as such"),
            (json!({"deny": vec!["10.0.0.1"; 129]}), "deny has 129 entries, 128 is the most"),
            (json!({"proxyProtocol": {"from": []}}), "proxyProtocol.from is empty"),
            (json!({"proxyProtocol": {"from": ["10.0.0.1", "::/0"]}}), "::/0 is every address"),
            (
                json!({"proxyProtocol": {"from": ["10.0.0.1"], "others": "Ask"}}),
                "proxyProtocol.others is \"Ask\": write Accept or Refuse",
            ),
            (json!({"clientAddress": {}}), "clientAddress: write trustedHops or trustedProxies"),
            (
                json!({"clientAddress": {"trustedHops": 1, "trustedProxies": ["10.0.0.1"]}}),
                "clientAddress: write trustedHops or trustedProxies, and one of them",
            ),
            (json!({"clientAddress": {"trustedHops": 17}}), "clientAddress.trustedHops is 17: write 0 to 16"),
            (json!({"clientAddress": {"trustedHops": -1}}), "clientAddress.trustedHops is -1"),
            (
                json!({"clientAddress": {"trustedHops": 1, "others": "Refuse"}}),
                "trustedHops do not say which peers are others",
            ),
            (json!({"clientAddress": {"trustedProxies": []}}), "clientAddress.trustedProxies is empty"),
            (json!({"clientAddress": {"trustedProxies": ["0.0.0.0/0"]}}), "0.0.0.0/0 is every address"),
            (
                json!({"clientAddress": {"trustedProxies": ["10.0.0.1"], "others": "Ask"}}),
                "clientAddress.others is \"Ask\": write Accept or Refuse",
            ),
            (json!({"connections": {"perSecond": 0}}), "connections.perSecond is 0: write 1 to 1000000"),
            (json!({"connections": {"perSecond": 1, "burst": -1}}), "connections.burst is -1"),
            (json!({"connections": {}}), "connections: write perSecond or open"),
            (json!({"connections": {"open": 1, "burst": 1}}), "connections.burst needs perSecond"),
            (json!({"connections": {"open": 0}}), "connections.open is 0: write 1 to 10000000"),
            (json!({"limits": {}}), "limits is empty"),
            (
                json!({"limits": {"headerBytes": 1}}),
                "limits.headerBytes 1 is out of range: use 1024 to 65536",
            ),
            (
                json!({"limits": {"idleTimeout": "1ms"}}),
                "limits.idleTimeout 1ms is out of range: use 1s to 24h",
            ),
            (
                json!({"limits": {"requestsPerConnection": 0}}),
                "limits.requestsPerConnection 0 is out of range",
            ),
            (json!({"accessLog": {"format": "XML"}}), "accessLog.format \"XML\" is not supported"),
            (json!({"accessLog": {"minimumStatus": 600}}), "accessLog.minimumStatus 600 is out of range"),
            (json!({"connections": {"perSecond": 1_000_001}}), "connections.perSecond is 1000001"),
        ] {
            let mut spec = spec;
            spec["targetRefs"] = json!([]);
            let declared = declared(spec);
            let message = declared.fault.unwrap().message;
            assert!(message.contains(told) && message.contains("no client is let in"), "{message}");
            assert_eq!(declared.terms, Terms::closed());
        }
    }

    #[test]
    fn the_burst_is_what_comes_in_a_second_unless_it_is_said() {
        let target = Target::whole(ObjectKey::new(Kind::Gateway, ObjectName::new("shop", "web")));
        let budget = |connections: serde_json::Value| {
            let declared = declared(json!({"targetRefs": [], "connections": connections}));
            let budget = declared.terms.budget(&target).unwrap();
            (budget.per_second.get(), budget.burst.get())
        };
        assert_eq!(budget(json!({"perSecond": 7})), (7, 7));
        assert_eq!(budget(json!({"perSecond": 7, "burst": 100})), (7, 100));
        let beside = declared(json!({"targetRefs": [], "allow": [], "connections": {"open": 1}}));
        assert_eq!((beside.fault, beside.terms.clients), (None, None));
    }
}
