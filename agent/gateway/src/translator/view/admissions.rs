//! Statuses of ListenerPolicies, and what the statuses of their targets say of them.

use portcullis_model::{ClientAddress, ObjectName, ParentKind};

use super::View;
use crate::listener::{ListenerKey, ParentKey};
use crate::policy::listener::Target;
use crate::protocol::Protocol;
use crate::status::{Status, TargetVerdict, listener_policy_status};
use crate::translator::admissions::{parent_of, whole};
use crate::translator::hierarchy::Attachment;
use crate::{Fault, Reason};

/// The relation of a target to this controller.
enum Found {
    /// Another controller's, or one of an object that is.
    Foreign,
    Missing(Fault),
    Ours,
}

impl View<'_> {
    /// `None` if all targets are other controllers'.
    pub(super) fn listener_policy_status(self, name: &ObjectName) -> Option<Status> {
        let policy = self.admissions.policy(name)?;
        let verdicts = policy.targets.iter().filter_map(|target| {
            let refusal = match self.find(target) {
                Found::Foreign => return None,
                Found::Missing(fault) => Some(fault),
                Found::Ours => self
                    .superseded(name, target)
                    .or_else(|| policy.fault.clone())
                    .or_else(|| policy.terms.proxies().and_then(|_| self.proxies_fault(target))),
            };
            let is_served = self.is_any_served(target);
            let without = policy.terms.proxies().and_then(|_| self.datagrams_of(target));
            Some(TargetVerdict { target, refusal, is_served, without })
        });
        let verdicts: Vec<_> = verdicts.collect();
        let controller = &self.settings.controller_name;
        let status = listener_policy_status(policy.generation, &verdicts, controller);
        (!verdicts.is_empty()).then_some(Status::Policy(status))
    }

    /// Targets that no entry of the status can be about.
    pub(super) fn listener_policy_problems(self, name: &ObjectName) -> Vec<String> {
        let Some(policy) = self.admissions.policy(name) else { return Vec::new() };
        let misnamed = policy.misnamed.iter().map(|fault| fault.message.clone());
        let foreign = policy.targets.iter().filter(|target| matches!(self.find(target), Found::Foreign));
        let foreign = foreign.map(|target| {
            let parent = parent_of(target).object();
            format!("targetRefs: the policy is without effect on {parent}, which is not this controller's")
        });
        misnamed.chain(foreign).collect()
    }

    fn find(self, target: &Target) -> Found {
        let (parent, section) = (&parent_of(target), &target.section);
        let exists = match parent.kind {
            ParentKind::Gateway => self.objects.gateways.contains_key(&parent.name),
            ParentKind::ListenerSet => self.objects.listener_sets.contains_key(&parent.name),
        };
        let missing = |message| Found::Missing(Fault::not_accepted(Reason::TargetNotFound, message));
        if !exists {
            return missing(format!("targetRefs: there is no {}", parent.object()));
        }
        let attachment = self.hierarchy.get(parent).map(|node| &node.attachment);
        let is_foreign_set =
            parent.kind == ParentKind::ListenerSet && attachment == Some(&Attachment::Foreign);
        let Some(declared) = self.listeners.get(parent).filter(|_| !is_foreign_set) else {
            return Found::Foreign;
        };
        let Some(section) = section else { return Found::Ours };
        let names: Vec<_> = declared.listeners.iter().map(|listener| &*listener.name).collect();
        if names.contains(&&**section) {
            return Found::Ours;
        }
        let there = if names.is_empty() { "it has none".to_owned() } else { names.join(", ") };
        missing(format!("targetRefs: {} has no listener {section}; there are: {there}", parent.object()))
    }

    /// The fault of a policy on a target that an older one is in force for.
    fn superseded(self, name: &ObjectName, target: &Target) -> Option<Fault> {
        let in_force = self.admissions.in_force(target).filter(|in_force| *in_force != name)?;
        let message = format!(
            "ListenerPolicy {in_force} is in force for the same target (the oldest is, then the first by name); this \
             one is without effect on it: merge them, or choose another target"
        );
        Some(Fault::not_accepted(Reason::Conflicted, message))
    }

    /// The reason why no proxies can name the clients of a target.
    fn proxies_fault(self, target: &Target) -> Option<Fault> {
        let parent = parent_of(target);
        let gateway = self.hierarchy.gateway_of(&parent)?;
        let invalid = |why: String| {
            let closed = "until that is right, no client is let in at what the policy is about";
            Some(Fault::not_accepted(Reason::Invalid, format!("proxyProtocol: {why}; {closed}")))
        };
        if parent.kind != ParentKind::Gateway || parent.name != *gateway {
            return invalid(format!(
                "{} shares the ports of a Gateway, whose owner alone can say which proxies are in front of them",
                parent.object()
            ));
        }
        let declared = self.listeners.get(&parent).into_iter().flat_map(|it| &it.listeners);
        let covered = declared.filter(|it| target.section.as_ref().is_none_or(|name| it.name == *name));
        for listener in covered {
            if target.section.is_some() && listener.protocol == Protocol::Udp {
                return invalid(format!(
                    "listener {} has protocol UDP, whose datagrams have no header of PROXY protocol: name another \
                     listener",
                    listener.name
                ));
            }
            let port = self.ports.get(gateway, listener.port);
            if port.is_some_and(|port| port.client_address == ClientAddress::Disputed) {
                return invalid(format!(
                    "the listeners of port {} do not agree on it: give all that the Gateway defines there the same, or \
                     the Gateway as a whole",
                    listener.port.number
                ));
            }
        }
        None
    }

    /// The listeners of a target whose clients no proxy can name.
    fn datagrams_of(self, target: &Target) -> Option<String> {
        let declared = self.listeners.get(&parent_of(target)).into_iter().flat_map(|it| &it.listeners);
        let of_udp = declared.filter(|it| target.section.is_none() && it.protocol == Protocol::Udp);
        let names: Vec<_> = of_udp.map(|listener| &*listener.name).collect();
        let names = names.join(", ");
        (!names.is_empty()).then(|| {
            format!(
                "proxyProtocol is without effect on UDP, whose datagrams have no header: listeners {names}"
            )
        })
    }

    /// True if a listener that the target covers is programmed.
    fn is_any_served(self, target: &Target) -> bool {
        let (parent, section) = (&parent_of(target), &target.section);
        let Some((gateway, merged)) = self.gateway_of(parent) else { return false };
        let is_root = parent.kind == ParentKind::Gateway && parent.name == *gateway;
        let children = self.hierarchy.children(gateway).filter(|_| is_root && section.is_none());
        std::iter::once(parent).chain(children).any(|holder| {
            let declared = self.listeners.get(holder).into_iter().flat_map(|it| &it.listeners);
            let mut judged = declared.zip(self.gateways.acceptances(holder));
            judged.any(|(listener, acceptance)| {
                section.as_ref().is_none_or(|section| listener.name == *section)
                    && acceptance.is_accepted()
                    && self.hindrance(gateway, merged, listener.port).is_none()
                    && self.unserved(gateway, holder, listener).is_empty()
            })
        })
    }

    /// The policies that hold for all listeners of an object, as its owner may read it.
    pub(super) fn affecting_parent(self, parent: &ParentKey) -> Option<String> {
        let gateway = self.hierarchy.gateway_of(parent)?;
        let gateway = ParentKey { kind: ParentKind::Gateway, name: gateway.clone() };
        let above = (gateway != *parent).then_some(&gateway);
        let policies = above.into_iter().chain([parent]).filter_map(|holder| {
            let policy = self.admissions.in_force(&whole(holder))?;
            Some(match policy.namespace == parent.name.namespace {
                true => format!("ListenerPolicy {policy}"),
                false => "a ListenerPolicy of the Gateway attached to".to_owned(),
            })
        });
        let policies: Vec<_> = policies.collect();
        (!policies.is_empty()).then(|| format!("for all listeners: {}", policies.join(", ")))
    }

    /// The policy of a listener itself.
    pub(super) fn affecting_listener(self, (parent, name): &ListenerKey) -> Option<String> {
        self.hierarchy.gateway_of(parent)?;
        let target = Target { section: Some(name.clone()), ..whole(parent) };
        self.admissions.in_force(&target).map(|policy| format!("ListenerPolicy {policy}"))
    }
}
