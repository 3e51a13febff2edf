//! Statuses of ListenerPolicies, and what the statuses of their targets say of them.

use portcullis_api::Kind;
use portcullis_model::{ObjectName, ParentKind};

use super::View;
use crate::ConditionType;
use crate::conditions::Affected;
use crate::listener::{ListenerKey, ParentKey};
use crate::policy::declared::Target;
use crate::status::{Effect, Status};
use crate::translator::admissions::whole;

/// The places at which the data plane enforces a policy. What kernel programs refuse earlier, they
/// refuse by the same terms; which do is different on each node, and `portcullis status` there
/// tells.
const ENFORCED: &str = "enforced by every agent, in user space at the latest: clients and connections at accept, else after the \
    ClientHello or at the request, datagrams as they come; kernel programs of a node may refuse them earlier";

impl View<'_> {
    /// `None` if all targets are other controllers'.
    pub(super) fn listener_policy_status(self, name: &ObjectName) -> Option<Status> {
        self.targeted_status(Kind::ListenerPolicy, name, self.admissions.policies(), |target| {
            match self.is_any_served(target) {
                true => Effect::Enforced(ENFORCED),
                false => Effect::nothing("listener of the target"),
            }
        })
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
