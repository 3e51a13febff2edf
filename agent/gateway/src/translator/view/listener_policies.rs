//! Statuses of ListenerPolicies, and what the statuses of their targets say of them.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_api::Kind;
use portcullis_model::{LogLines, ObjectName, ParentKind};

use super::View;
use crate::conditions::Affected;
use crate::listener::{Listener, ListenerKey, ParentKey};
use crate::policy::declared::Target;
use crate::policy::listener::{Terms, Unfit};
use crate::status::{Effect, Status};
use crate::translator::admissions::whole;
use crate::{ConditionType, Fault, Reason};

/// The places at which the data plane enforces a policy. What kernel programs refuse earlier, they
/// refuse by the same terms; which do is different on each node, and `portcullis status` there
/// tells.
const ENFORCED: &str = "enforced by every agent, in user space at the latest: clients and connections at accept, else after the \
    ClientHello or at the request, datagrams as they come; kernel programs of a node may refuse them earlier";

impl<'s> View<'s> {
    /// `None` if all targets are other controllers'.
    pub(super) fn listener_policy_status(self, name: &ObjectName) -> Option<Status> {
        let policies = self.admissions.policies();
        let terms = policies.get(name).map(|policy| &policy.terms);
        self.targeted_status(Kind::ListenerPolicy, name, policies, |target| {
            if let Some(fault) = terms.and_then(|terms| self.unfit_target(target, terms)) {
                return Effect::Unfit(fault);
            }
            if !self.is_any_served(target, |_| true) {
                return Effect::nothing("listener of the target");
            }
            match terms.and_then(|terms| self.without_effect(target, terms)) {
                Some(without) => Effect::Partly { places: ENFORCED, without },
                None => Effect::Enforced(ENFORCED),
            }
        })
    }

    /// The reason why a policy cannot hold at a target.
    fn unfit_target(self, target: &Target, terms: &Terms) -> Option<Fault> {
        let parent = ParentKey::of(&target.object)?;
        let gateway = self.hierarchy.gateway_of(&parent)?;
        let invalid = |why: String| {
            let closed = "until that is right, no client is let in at what the policy is about";
            Some(Fault::not_accepted(Reason::Invalid, format!("{why}; {closed}")))
        };
        if terms.proxies().is_some() && !self.is_of_gateway(target) {
            return invalid(format!(
                "proxyProtocol: {} shares the ports of a Gateway, whose owner alone can say which proxies are in front of \
                 them",
                target.object
            ));
        }
        for listener in self.covered_by(target) {
            let mut unfit = terms.unfit(listener.protocol).filter(|_| target.section.is_some());
            if let Some(Unfit { field, listener: why, .. }) = unfit.next() {
                return invalid(format!("{field}: listener {} {why}: name another listener", listener.name));
            }
            if terms.proxies().is_some() && self.ports.is_disputed(gateway, listener.port) {
                return invalid(format!(
                    "proxyProtocol: the listeners of port {} do not agree on it: give all that the Gateway defines there \
                     the same, or the Gateway as a whole",
                    listener.port.number
                ));
            }
        }
        None
    }

    /// The fields that some listeners of a whole target cannot heed, with their names; what is the
    /// Gateway's owner's to say; and what a connection has before it is known for which listener.
    fn without_effect(self, target: &Target, terms: &Terms) -> Option<String> {
        let mut names = BTreeMap::<_, Vec<&str>>::new();
        for listener in self.covered_by(target).filter(|_| target.section.is_none()) {
            for unfit in terms.unfit(listener.protocol) {
                names.entry(unfit).or_default().push(&listener.name);
            }
        }
        let texts = names.into_iter().map(|(Unfit { field, places, .. }, names)| {
            format!("{field} is without effect {places}: listeners {}", names.join(", "))
        });
        let is_silent = terms.log().is_some_and(|log| log.lines == LogLines::None);
        let log = (is_silent && !self.is_of_gateway(target)).then(|| {
            "accessLog.enabled false takes no line away from the Gateway's log, which only the Gateway's owner can \
             switch off"
                .to_owned()
        });
        let streams = self.looser_streams(target, terms);
        let texts: Vec<_> = texts.chain(log).chain(streams).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// The ports at which connections have more streams than the policy says, since another
    /// listener there lets them.
    fn looser_streams(self, target: &Target, terms: &Terms) -> Option<String> {
        let own = terms.limits()?.http2_streams?;
        let parent = ParentKey::of(&target.object)?;
        let gateway = self.hierarchy.gateway_of(&parent)?;
        let ports: BTreeSet<_> = self.covered_by(target).map(|listener| listener.port).collect();
        let looser = ports.into_iter().filter_map(|key| {
            let streams = self.ports.get(gateway, key)?.streams_without_tls()?;
            (streams > own).then(|| format!("{streams} on port {}", key.number))
        });
        let looser: Vec<_> = looser.collect();
        (!looser.is_empty()).then(|| {
            let ports = looser.join(", ");
            format!(
                "limits.http2Streams is without effect on connections without TLS, which may be for other listeners that \
                 allow more: they have {ports}"
            )
        })
    }

    /// True of a Gateway that has addresses of its own, and of its listeners.
    fn is_of_gateway(self, target: &Target) -> bool {
        ParentKey::of(&target.object).is_none_or(|parent| {
            let gateway = self.hierarchy.gateway_of(&parent);
            parent.kind == ParentKind::Gateway && gateway.is_none_or(|gateway| *gateway == parent.name)
        })
    }

    /// The listeners of a target's own definition.
    pub(super) fn covered_by(self, target: &Target) -> impl Iterator<Item = &'s Listener> {
        let declared = ParentKey::of(&target.object).and_then(|parent| self.listeners.get(&parent));
        let declared = declared.into_iter().flat_map(|it| &it.listeners);
        declared.filter(|it| target.section.as_ref().is_none_or(|name| it.name == *name))
    }

    /// The policies that hold for all listeners of an object, as its owner may read it.
    pub(super) fn affecting_parent(self, parent: &ParentKey) -> Vec<Affected> {
        let by_kind = [
            (ConditionType::ListenerPolicyAffected, self.admitting_to_parent(parent)),
            (ConditionType::TrafficPolicyAffected, self.traffic_of_parent(parent)),
        ];
        affected(by_kind)
    }

    /// The policies of a listener itself.
    pub(super) fn affecting_listener(self, listener: &ListenerKey) -> Vec<Affected> {
        let by_kind = [
            (ConditionType::ListenerPolicyAffected, self.admitting_to_listener(listener)),
            (ConditionType::TrafficPolicyAffected, self.traffic_of_listener(listener)),
        ];
        affected(by_kind)
    }

    fn admitting_to_parent(self, parent: &ParentKey) -> Option<String> {
        let gateway = self.hierarchy.gateway_of(parent)?;
        let gateway = ParentKey { kind: ParentKind::Gateway, name: gateway.clone() };
        let above = (gateway != *parent).then_some(&gateway);
        let policies = above.into_iter().chain([parent]).filter_map(|holder| {
            let policy = self.admissions.policies().on(&whole(holder))?;
            Some(match policy.namespace == parent.name.namespace {
                true => format!("ListenerPolicy {policy}"),
                false => "a ListenerPolicy of the Gateway attached to".to_owned(),
            })
        });
        let policies: Vec<_> = policies.collect();
        (!policies.is_empty()).then(|| format!("for all listeners: {}", policies.join(", ")))
    }

    fn admitting_to_listener(self, (parent, name): &ListenerKey) -> Option<String> {
        self.hierarchy.gateway_of(parent)?;
        let target = Target { section: Some(name.clone()), ..whole(parent) };
        self.admissions.policies().on(&target).map(|policy| format!("ListenerPolicy {policy}"))
    }
}

fn affected(by_kind: [(ConditionType, Option<String>); 2]) -> Vec<Affected> {
    let present = by_kind.into_iter().filter_map(|(r#type, policies)| Some((r#type, policies?)));
    present.map(|(r#type, policies)| Affected { r#type, policies }).collect()
}
