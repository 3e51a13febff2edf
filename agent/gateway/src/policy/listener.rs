//! ListenerPolicy: the terms on which clients are let in at the listeners of a Gateway or a
//! ListenerSet, or at one of them. What a policy cannot mean protects all the same: no client is
//! let in. Nothing here knows which listeners there are.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use portcullis_api::types::listenerpolicies::{
    ListenerPolicy, ListenerPolicyConnections, ListenerPolicyProxyProtocol,
};
use portcullis_api::types::shared::PolicyTargetReference;
use portcullis_api::{GATEWAY_GROUP, Kind, created, generation};
use portcullis_model::{
    AddressRange, Admission, Budget, BudgetOwner, ClientList, ClientRules, ObjectName, OtherPeers, ParentKind,
};

use crate::{Fault, Reason};

/// The most that a list has. The schema says so, too; the kernel's maps have room for all lists
/// together.
const MOST_RANGES: usize = 128;
/// New connections a second, and at once.
const MOST_CONNECTIONS: i32 = 1_000_000;

/// An object that defines listeners, or one of these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) kind: ParentKind,
    pub(crate) name: ObjectName,
    /// The name of a listener; `None` for all of them.
    pub(crate) section: Option<Arc<str>>,
}

/// A policy as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declared {
    pub(crate) generation: i64,
    /// Older ones take precedence.
    pub(crate) created: i64,
    pub(crate) targets: Box<[Target]>,
    /// The faults of `targetRefs` that are none.
    pub(crate) misnamed: Vec<Fault>,
    pub(crate) terms: Terms,
    /// The fault for which no client is let in.
    pub(crate) fault: Option<Fault>,
}

/// The say of one policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Terms {
    rate: Option<Rate>,
    clients: Option<ClientList>,
    proxies: Option<Proxies>,
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

// === impl Declared ===

impl Declared {
    pub(crate) fn of(name: &ObjectName, policy: &ListenerPolicy) -> Self {
        let (mut targets, mut misnamed) = (Vec::new(), Vec::new());
        for reference in &policy.spec.target_refs {
            match target(&name.namespace, reference) {
                Ok(target) if targets.contains(&target) => {}
                Ok(target) => targets.push(target),
                Err(fault) => misnamed.push(fault),
            }
        }
        let read = Terms::of(policy);
        let fault = read.as_ref().err().cloned();
        Self {
            generation: generation(&policy.metadata),
            created: created(&policy.metadata),
            targets: targets.into(),
            misnamed,
            terms: read.unwrap_or_else(|_| Terms::closed()),
            fault,
        }
    }
}

fn target(namespace: &Arc<str>, reference: &PolicyTargetReference) -> Result<Target, Fault> {
    let PolicyTargetReference { group, kind, name, section_name } = reference;
    let kind = match Kind::of(group, kind) {
        Some(Kind::Gateway) => ParentKind::Gateway,
        Some(Kind::ListenerSet) => ParentKind::ListenerSet,
        _ => {
            let message = format!(
                "targetRefs: {kind:?} of group {group:?} is no target: name a Gateway or a ListenerSet of group \
                 {GATEWAY_GROUP}"
            );
            return Err(Fault::not_accepted(Reason::TargetNotFound, message));
        }
    };
    let name = ObjectName::new(namespace.clone(), name.as_str());
    let section = section_name.as_deref().filter(|section| !section.is_empty()).map(Arc::from);
    Ok(Target { kind, name, section })
}

// === impl Terms ===

impl Terms {
    fn of(policy: &ListenerPolicy) -> Result<Self, Fault> {
        let spec = &policy.spec;
        let list = |field, texts: &Option<Vec<String>>| ranges(field, texts.as_deref().unwrap_or_default());
        let (allow, deny) = (list("allow", &spec.allow), list("deny", &spec.deny));
        let rate = spec.connections.as_ref().map(Rate::of).transpose();
        let proxies = spec.proxy_protocol.as_ref().map(Proxies::of).transpose();
        let faults = [allow.clone().err(), deny.clone().err(), rate.clone().err(), proxies.clone().err()];
        let texts: Vec<_> = faults.into_iter().flatten().collect();
        let (Ok(allow), Ok(deny), Ok(rate), Ok(proxies)) = (allow, deny, rate, proxies) else {
            let message = format!(
                "{}; until that is right, no client is let in at what the policy is about",
                texts.join("; ")
            );
            return Err(Fault::not_accepted(Reason::Invalid, message));
        };
        let is_any = allow.is_empty() && deny.is_empty();
        Ok(Self { rate, clients: (!is_any).then_some(ClientList { allow, deny }), proxies })
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

    pub(crate) fn clients(&self) -> Option<&ClientList> {
        self.clients.as_ref()
    }

    pub(crate) fn proxies(&self) -> Option<&Proxies> {
        self.proxies.as_ref()
    }

    pub(crate) fn budget(&self, target: &Target) -> Option<Budget> {
        let Rate { per_second, burst } = self.rate?;
        let Target { kind, name, section } = target.clone();
        let owner = BudgetOwner { kind, name, listener: section };
        Some(Budget { owner, per_second, burst })
    }
}

impl Rate {
    fn of(connections: &ListenerPolicyConnections) -> Result<Self, String> {
        let number = |field, value: i32| {
            let number = u32::try_from(value).ok().and_then(NonZeroU32::new);
            let number = number.filter(|_| value <= MOST_CONNECTIONS);
            number.ok_or_else(|| format!("connections.{field} is {value}: write 1 to {MOST_CONNECTIONS}"))
        };
        let per_second = number("perSecond", connections.per_second)?;
        let burst = connections.burst.map(|burst| number("burst", burst)).transpose()?;
        Ok(Self { per_second, burst: burst.unwrap_or(per_second) })
    }
}

impl Proxies {
    fn of(given: &ListenerPolicyProxyProtocol) -> Result<Self, String> {
        let from = ranges("proxyProtocol.from", &given.from)?;
        if from.is_empty() {
            return Err("proxyProtocol.from is empty: name the proxies in front".to_owned());
        }
        if let Some(all) = from.iter().find(|range| range.bits().1 == 0) {
            return Err(format!(
                "proxyProtocol.from: {all} is every address, and any client could say that it is another: name the proxies \
                 in front"
            ));
        }
        let others = match given.others.as_deref() {
            None | Some("Accept") => OtherPeers::Accept,
            Some("Refuse") => OtherPeers::Refuse,
            Some(other) => {
                return Err(format!("proxyProtocol.others is {other:?}: write Accept or Refuse"));
            }
        };
        Ok(Self { from, others })
    }
}

/// Clients that reach an IPv6 socket by IPv4 are seen under their IPv4 addresses: a range of the
/// mapped ones would be without effect.
fn ranges(field: &str, texts: &[String]) -> Result<Vec<AddressRange>, String> {
    if texts.len() > MOST_RANGES {
        return Err(format!("{field} has {} entries, {MOST_RANGES} is the most", texts.len()));
    }
    let range = |text: &String| {
        let range: AddressRange = text.parse().map_err(|syntax| format!("{field}: {text:?}: {syntax}"))?;
        match range.bits() {
            (IpAddr::V6(first), prefix) if first.to_ipv4_mapped().is_some() && prefix >= 96 => {
                Err(format!("{field}: {text:?}: write an IPv4 address as such"))
            }
            _ => Ok(range),
        }
    };
    texts.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn declared(spec: serde_json::Value) -> Declared {
        let policy = json!({"apiVersion": "portcullis.dev/v1alpha1", "kind": "ListenerPolicy",
            "metadata": {"name": "p"}, "spec": spec});
        Declared::of(&ObjectName::new("shop", "p"), &serde_json::from_value(policy).unwrap())
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
                Target { kind: ParentKind::Gateway, name: name.clone(), section: None },
                Target { kind: ParentKind::ListenerSet, name, section: Some("https".into()) },
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
            (json!({"deny": ["::ffff:0:0/96"]}), "write an IPv4 address as such"),
            (json!({"deny": vec!["10.0.0.1"; 129]}), "deny has 129 entries, 128 is the most"),
            (json!({"proxyProtocol": {"from": []}}), "proxyProtocol.from is empty"),
            (json!({"proxyProtocol": {"from": ["10.0.0.1", "::/0"]}}), "::/0 is every address"),
            (
                json!({"proxyProtocol": {"from": ["10.0.0.1"], "others": "Ask"}}),
                "proxyProtocol.others is \"Ask\": write Accept or Refuse",
            ),
            (json!({"connections": {"perSecond": 0}}), "connections.perSecond is 0: write 1 to 1000000"),
            (json!({"connections": {"perSecond": 1, "burst": -1}}), "connections.burst is -1"),
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
        let target =
            Target { kind: ParentKind::Gateway, name: ObjectName::new("shop", "web"), section: None };
        let budget = |connections: serde_json::Value| {
            let declared = declared(json!({"targetRefs": [], "connections": connections}));
            let budget = declared.terms.budget(&target).unwrap();
            (budget.per_second.get(), budget.burst.get())
        };
        assert_eq!(budget(json!({"perSecond": 7})), (7, 7));
        assert_eq!(budget(json!({"perSecond": 7, "burst": 100})), (7, 100));
        assert_eq!(declared(json!({"targetRefs": [], "allow": []})).terms, Terms::default());
    }
}
