//! Stage: the listeners of a Gateway and its children, all together.

use std::collections::BTreeMap;

use portcullis_model::{ObjectName, ParentKind, PortKey};

use super::Translator;
use super::hosts::Hosts;
use super::unit::{Summary, Unit};
use crate::address::Addresses;
use crate::api::gateways::Gateway;
use crate::infra::Parameters;
use crate::listener::{Listener, ParentKey, Protocol};
use crate::merge::{Merge, Verdict};
use crate::policy::Policies;
use crate::selector::NamespaceRule;
use crate::{Fault, ObjectKey, Reason, child};

impl Translator {
    pub(super) fn merge(&mut self) {
        for name in std::mem::take(&mut self.dirty.roots) {
            self.dirty.frontends.insert(name.clone());
            if self.roots.contains_key(&name) {
                self.merge_root(&name);
            }
        }
    }

    fn merge_root(&mut self, name: &ObjectName) {
        let Some(gateway) = self.objects.gateways.get(name).cloned() else { return };
        self.update_whole(name, &gateway);
        let own = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let members: Vec<_> = self.roots[name].members.values().cloned().collect();
        let mut merge = Merge::default();
        let mut summary =
            Summary { valid_anywhere: self.judge(&mut merge, &gateway, &own).any, ..Summary::default() };
        for member in &members {
            let judged = self.judge(&mut merge, &gateway, member);
            summary.count(member.kind, &judged);
        }
        self.mark_overlaps(std::iter::once(&own).chain(&members));
        self.dirty.statuses.insert(ObjectKey { kind: own.kind(), name: name.clone() });
        // Who is a child decides about the pods' rights.
        self.dirty.generated.insert(name.clone());
        if let Some(root) = self.roots.get_mut(name) {
            root.summary = summary;
        }
    }

    /// "Controllers MUST detect the presence of overlapping hostnames" among listeners that terminate TLS
    /// (`OverlappingTLSConfig`): clients may reuse a connection for either.
    fn mark_overlaps<'k>(&mut self, members: impl Iterator<Item = &'k ParentKey> + Clone) {
        let mut ports: BTreeMap<PortKey, Hosts<'_>> = BTreeMap::new();
        for unit in members.clone().filter_map(|key| self.units.get(key)) {
            terminating(unit).for_each(|listener| {
                ports.entry(listener.port).or_default().add(&listener.hostname);
            });
        }
        let overlaps = |listener: &&Listener| {
            ports.get(&listener.port).is_some_and(|hosts| hosts.overlap_another(&listener.hostname))
        };
        let mut changed = Vec::new();
        for unit in members.filter_map(|key| self.units.get(key)) {
            let now: Vec<_> =
                terminating(unit).filter(overlaps).map(|listener| listener.name.clone()).collect();
            if now != unit.overlapping {
                changed.push((unit.declared.key.clone(), now));
            }
        }
        for (key, now) in changed {
            self.dirty.statuses.insert(ObjectKey { kind: key.kind(), name: key.name.clone() });
            if let Some(unit) = self.units.get_mut(&key) {
                unit.overlapping = now;
            }
        }
    }

    /// Addresses and whatever else concerns the Gateway as a whole; if that changes, everything merged into it is concerned.
    fn update_whole(&mut self, name: &ObjectName, gateway: &Gateway) {
        let addresses = Addresses::of(gateway, &self.settings);
        let parameters = Parameters::of(gateway, &self.objects, &self.settings.generated);
        let refusal = refusal(gateway, &addresses, parameters.as_ref().err());
        let parameters = parameters.unwrap_or_default();
        let Some(root) = self.roots.get_mut(name) else { return };
        if root.parameters != parameters {
            if root.parameters.served(name) != parameters.served(name) {
                self.dirty.served.insert(name.clone());
            }
            root.parameters = parameters;
            self.dirty.generated.insert(name.clone());
        }
        if (&root.addresses, &root.refusal) == (&addresses, &refusal) {
            return;
        }
        (root.addresses, root.refusal) = (addresses, refusal);
        self.dirty_members(name);
    }

    /// The statuses and listeners of a Gateway and all its children.
    pub(super) fn dirty_members(&mut self, name: &ObjectName) {
        let Some(root) = self.roots.get(name) else { return };
        let own = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        for key in std::iter::once(&own).chain(root.members.values()) {
            self.dirty.statuses.insert(ObjectKey { kind: key.kind(), name: key.name.clone() });
            if let Some(unit) = self.units.get(key) {
                self.dirty.listeners.extend(unit.listener_keys());
            }
        }
    }

    /// Adds an object's listeners to the merged list.
    fn judge(&mut self, merge: &mut Merge, root: &Gateway, key: &ParentKey) -> Judged {
        let Some(unit) = self.units.get_mut(key) else { return Judged::default() };
        let child = (key.kind == ParentKind::Gateway).then(|| self.objects.gateways.get(&key.name)).flatten();
        let definer = child.map(|gateway| &**gateway).filter(|gateway| {
            gateway.metadata.name != root.metadata.name
                || gateway.metadata.namespace != root.metadata.namespace
        });
        let refuse = |listener: &Listener| {
            listener.refusal.clone().or_else(|| unsupported_policy(root, definer, listener))
        };
        let verdicts = merge.add(&unit.declared.listeners, refuse);
        let judged = Judged {
            any: verdicts.iter().any(Verdict::is_accepted),
            all: verdicts.iter().all(Verdict::is_accepted) && unit.declared.duplicates.is_empty(),
        };
        if unit.verdicts != verdicts {
            unit.verdicts = verdicts;
            self.dirty.listeners.extend(unit.listener_keys());
            self.dirty.statuses.insert(ObjectKey { kind: key.kind(), name: key.name.clone() });
        }
        judged
    }
}

/// The listeners of an object that are served with TLS.
fn terminating(unit: &Unit) -> impl Iterator<Item = &Listener> {
    let listeners = unit.declared.listeners.iter().zip(&unit.verdicts);
    let accepted = listeners.filter(|(_, verdict)| verdict.is_accepted()).map(|(listener, _)| listener);
    accepted.filter(|listener| listener.protocol == Protocol::Https)
}

/// Whether any, and whether all listeners of an object are valid.
#[derive(Default)]
struct Judged {
    any: bool,
    all: bool,
}

impl Summary {
    fn count(&mut self, kind: ParentKind, judged: &Judged) {
        self.valid_anywhere |= judged.any;
        match kind {
            ParentKind::ListenerSet => self.attached_sets += usize::from(judged.any),
            ParentKind::Gateway => {
                self.attached_gateways += usize::from(judged.any);
                self.invalid_below |= !judged.all;
            }
        }
    }
}

/// Why the Gateway as a whole is not accepted.
fn refusal(gateway: &Gateway, addresses: &Addresses, parameters: Option<&Fault>) -> Option<Fault> {
    let fault = parameters.or(addresses.unsupported.as_ref()).cloned();
    fault.or_else(|| cannot_have_listeners(gateway))
}

/// "If, and only if, they have done so, the same Gateway is also permitted to leave listeners empty."
fn cannot_have_listeners(gateway: &Gateway) -> Option<Fault> {
    let none = gateway.spec.listeners.as_ref().is_none_or(Vec::is_empty);
    let no_children = matches!(child::allowed_children(gateway), Ok(None))
        && child::allowed_sets(gateway) == NamespaceRule::None;
    let message = "the Gateway has no listeners, and allows none to be attached: add listeners, or set spec.allowedListeners";
    (none && no_children).then(|| Fault::not_accepted(Reason::ListenersNotValid, message))
}

/// A listener that could not enforce a policy must not be served without it.
fn unsupported_policy(root: &Gateway, definer: Option<&Gateway>, listener: &Listener) -> Option<Fault> {
    let applies =
        listener.protocol == Protocol::Https && !Policies::of(root, definer, listener.port.number).is_empty();
    let message =
        "client certificate validation (spec.tls.frontend) applies to the listener, but is not supported yet";
    applies.then(|| Fault::unsupported(message))
}
