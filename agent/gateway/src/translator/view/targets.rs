//! Targets of own policies, as they are to this controller: what every kind of policy says of them
//! in its status, and as problems.

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::{ObjectName, ParentKind};

use super::View;
use crate::listener::ParentKey;
use crate::policy::declared::{Declared, Target};
use crate::protocol::Protocol;
use crate::status::{Effect, Status, TargetVerdict, targeted_status};
use crate::translator::hierarchy::Attachment;
use crate::translator::in_force::InForce;
use crate::{Fault, Reason};

/// The relation of a target to this controller.
pub(super) enum Found {
    /// Another controller's, or one of an object that is.
    Foreign,
    Missing(Fault),
    Ours,
}

impl<'s> View<'s> {
    /// The status of a policy of `kind`; `None` if all its targets are other controllers'.
    pub(super) fn targeted_status<T>(
        self,
        kind: Kind,
        name: &ObjectName,
        policies: &InForce<T>,
        effect: impl Fn(&Target) -> Effect,
    ) -> Option<Status> {
        let policy = policies.get(name)?;
        let verdicts = policy.targets.iter().filter_map(|target| {
            let refusal = match self.find(target) {
                Found::Foreign => return None,
                Found::Missing(fault) => Some(fault),
                Found::Ours => superseded(kind, name, policies.on(target), "the same target")
                    .or_else(|| policy.fault.clone()),
            };
            Some(TargetVerdict { target, refusal, effect: effect(target) })
        });
        let verdicts: Vec<_> = verdicts.collect();
        let status = targeted_status(policy.generation, &verdicts, &self.settings.controller_name);
        (!verdicts.is_empty()).then_some(Status::Policy(status))
    }

    /// The reason why a policy of `kind` is without effect on one of its targets.
    pub(super) fn fault_of_target<T>(
        self,
        kind: Kind,
        name: &ObjectName,
        policies: &InForce<T>,
        target: &Target,
    ) -> Option<Fault> {
        if let Some(fault) = self.missing(target) {
            return Some(fault);
        }
        let section = target.section.as_deref().map(|section| format!(" port {section}"));
        let what = format!("{}{}", target.object, section.unwrap_or_default());
        superseded(kind, name, policies.on(target), &what)
    }

    /// True if a policy is in force for a target that is there and this controller's, or comes next
    /// there. Any other is without effect, whatever it refers to.
    pub(in crate::translator) fn is_in_line<T>(self, name: &ObjectName, policies: &InForce<T>) -> bool {
        let targets = policies.get(name).into_iter().flat_map(|policy| &policy.targets);
        let mut targets = targets.filter(|target| policies.is_in_line(name, target));
        targets.any(|target| matches!(self.find(target), Found::Ours))
    }

    /// Targets that no entry of the status can be about.
    pub(super) fn targets_left_out<T>(self, policy: &Declared<T>) -> Vec<String> {
        let misnamed = policy.misnamed.iter().map(|fault| fault.message.clone());
        let foreign = policy.targets.iter().filter(|target| matches!(self.find(target), Found::Foreign));
        let foreign = foreign.map(|target| {
            let object = &target.object;
            format!("targetRefs: the policy is without effect on {object}, which is not this controller's")
        });
        misnamed.chain(foreign).collect()
    }

    /// The fault of a target that is not there.
    pub(super) fn missing(self, target: &Target) -> Option<Fault> {
        match self.find(target) {
            Found::Missing(fault) => Some(fault),
            Found::Foreign | Found::Ours => None,
        }
    }

    /// True if the target is there, and this controller's.
    pub(super) fn is_ours(self, target: &Target) -> bool {
        matches!(self.find(target), Found::Ours)
    }

    fn find(self, target: &Target) -> Found {
        let object = &target.object;
        if self.objects.get(object).is_none() {
            return missing(format!("targetRefs: there is no {object}"));
        }
        match ParentKey::of(object) {
            Some(parent) => self.find_parent(&parent, target),
            None if object.kind.is_route() => self.find_route(object, target),
            None => self.find_other(object, target),
        }
    }

    fn find_parent(self, parent: &ParentKey, target: &Target) -> Found {
        let attachment = self.hierarchy.get(parent).map(|node| &node.attachment);
        let is_foreign_set =
            parent.kind == ParentKind::ListenerSet && attachment == Some(&Attachment::Foreign);
        let Some(declared) = self.listeners.get(parent).filter(|_| !is_foreign_set) else {
            return Found::Foreign;
        };
        let names: Vec<_> = declared.listeners.iter().map(|listener| &*listener.name).collect();
        find_section(target, "listener", &names)
    }

    /// A route's sections are its rules.
    fn find_route(self, object: &ObjectKey, target: &Target) -> Found {
        let Some(state) = self.routes.get(object).filter(|_| self.is_route_of_ours(object)) else {
            return Found::Foreign;
        };
        let names: Vec<_> = state.parsed.rules.iter().filter_map(|rule| rule.id.name.as_deref()).collect();
        find_section(target, "rule", &names)
    }

    /// A Service's sections are its ports.
    fn find_other(self, object: &ObjectKey, target: &Target) -> Found {
        let service = self.objects.services.get(&object.name).filter(|_| object.kind == Kind::Service);
        let ports = service.iter().filter_map(|service| service.spec.as_ref());
        let ports = ports.flat_map(|spec| spec.ports.iter().flatten());
        let names: Vec<_> = ports.filter_map(|port| port.name.as_deref()).collect();
        find_section(target, "port", &names)
    }

    /// The objects whose listeners a target covers: itself, and what is attached to it, if it is a
    /// Gateway with addresses of its own and covered as a whole.
    pub(super) fn holders_of(self, target: &Target) -> impl Iterator<Item = ParentKey> + use<'s> {
        let parent = ParentKey::of(&target.object);
        let gateway = parent.as_ref().and_then(|parent| self.gateway_of(parent)).map(|(gateway, _)| gateway);
        let is_root = |gateway: &ObjectName| {
            let is_itself =
                |parent: &ParentKey| parent.kind == ParentKind::Gateway && parent.name == *gateway;
            target.section.is_none() && parent.as_ref().is_some_and(is_itself)
        };
        let root = gateway.filter(|gateway| is_root(gateway));
        let children = root.into_iter().flat_map(move |gateway| self.hierarchy.children(gateway));
        parent.into_iter().chain(children.cloned())
    }

    /// True if a listener of a protocol that is `meant`, and that the target covers, is programmed.
    pub(super) fn is_any_served(self, target: &Target, meant: fn(Protocol) -> bool) -> bool {
        let parent = ParentKey::of(&target.object);
        let Some((gateway, merged)) = parent.and_then(|parent| self.gateway_of(&parent)) else {
            return false;
        };
        self.holders_of(target).any(|holder| {
            let declared = self.listeners.get(&holder).into_iter().flat_map(|it| &it.listeners);
            let mut judged = declared.zip(self.gateways.acceptances(&holder));
            judged.any(|(listener, acceptance)| {
                target.section.as_ref().is_none_or(|section| listener.name == *section)
                    && meant(listener.protocol)
                    && acceptance.is_accepted()
                    && self.hindrance(gateway, merged, listener.port).is_none()
                    && self.unserved(gateway, &holder, listener).is_empty()
            })
        })
    }
}

fn missing(message: String) -> Found {
    Found::Missing(Fault::not_accepted(Reason::TargetNotFound, message))
}

fn find_section(target: &Target, what: &str, names: &[&str]) -> Found {
    let Some(section) = target.section.as_deref() else { return Found::Ours };
    if names.contains(&section) {
        return Found::Ours;
    }
    let there = match names.is_empty() {
        true => format!("no {what} of it has a name"),
        false => format!("there are: {}", names.join(", ")),
    };
    missing(format!("targetRefs: {} has no {what} {section}; {there}", target.object))
}

/// The fault of a policy on a target, `what`, that an older one is in force for.
fn superseded(kind: Kind, name: &ObjectName, in_force: Option<&ObjectName>, what: &str) -> Option<Fault> {
    let in_force = in_force.filter(|in_force| *in_force != name)?;
    let message = format!(
        "{kind} {in_force} is in force for {what} (the oldest is, then the first by name); this one is without \
         effect on it: merge them, or choose another target"
    );
    Some(Fault::not_accepted(Reason::Conflicted, message))
}
