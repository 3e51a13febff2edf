//! Last stage: what the statuses should say.

use std::net::IpAddr;

use portcullis_model::{FrontendKey, ObjectName, ParentKind, PortKey};

use super::unit::{Attached, Place, Root, Unit};
use super::{Outcome, Translator};
use crate::api::gatewayclasses::GatewayClass;
use crate::api::shared::ClassStatus;
use crate::listener::{Listener, ParentKey};
use crate::merge::Verdict;
use crate::status::{
    ChildView, ListenerView, Overlap, RootView, SetView, Status, child_status, class_status, root_status,
    set_status,
};
use crate::{Fault, Kind, ObjectKey, Reason, bundle, child, infra};

impl Translator {
    pub(super) fn plan(&mut self) -> Outcome {
        let mut outcome = Outcome { snapshot: self.snapshot.clone(), ..Outcome::default() };
        for key in std::mem::take(&mut self.dirty.statuses) {
            self.plan_status(&key, &mut outcome);
            self.plan_problems(key, &mut outcome);
        }
        for key in std::mem::take(&mut self.dirty.families) {
            let bound = self.routes.get(&key).filter(|unit| unit.parsed.is_parent());
            let family = bound.and_then(|unit| Some(unit.bound.as_ref()?.family.clone()));
            outcome.ephemeral.insert(key, family);
        }
        outcome.generated = self.generate();
        outcome
    }

    fn plan_status(&mut self, key: &ObjectKey, outcome: &mut Outcome) {
        match self.status_of(key) {
            Some(now) if self.told.tell(key, &now) => drop(outcome.statuses.insert(key.clone(), now)),
            Some(_) => {}
            None if self.told.knows(key) => self.plan_last_word(key, outcome),
            None => {}
        }
    }

    fn plan_last_word(&mut self, key: &ObjectKey, outcome: &mut Outcome) {
        match self.orphan_status(key) {
            Some(last) if self.told.tell(key, &last) => drop(outcome.orphaned.insert(key.clone(), last)),
            Some(_) => {}
            None => {
                self.told.forget(key);
                outcome.forgotten.insert(key.clone());
            }
        }
    }

    /// Of a ListenerSet whose Gateway is gone: nobody else would take back what we said of it.
    fn orphan_status(&self, key: &ObjectKey) -> Option<Status> {
        let set = (key.kind == Kind::ListenerSet).then(|| key.name.clone())?;
        let unit = self.units.get(&ParentKey { kind: ParentKind::ListenerSet, name: set })?;
        let gateway = unit.parent.as_ref().filter(|parent| !self.objects.gateways.contains_key(parent))?;
        let message = format!("there is no Gateway {gateway}: create it, or delete the set");
        let refusal = Fault::not_accepted(Reason::ParentNotAccepted, message);
        Some(Status::ListenerSet(set_status(&SetView {
            generation: unit.declared.generation,
            refusal: Some(&refusal),
            parent_refusal: None,
            parent_unprovisioned: None,
            listeners: Vec::new(),
        })))
    }

    fn plan_problems(&mut self, key: ObjectKey, outcome: &mut Outcome) {
        let now = self.problems_of(&key);
        let before = self.problems.get(&key).map(Vec::as_slice).unwrap_or_default();
        if before == now {
            return;
        }
        outcome.problems.insert(key.clone(), now.clone());
        if now.is_empty() {
            self.problems.remove(&key);
        } else {
            self.problems.insert(key, now);
        }
    }

    /// What an object's status should say; `None` if the object is gone or not ours to speak about.
    pub fn status_of(&self, key: &ObjectKey) -> Option<Status> {
        match key.kind {
            Kind::GatewayClass => {
                let class = self.objects.gateway_classes.get(&key.name)?;
                let ours = class.spec.controller_name == self.settings.controller_name;
                ours.then(|| Status::GatewayClass(self.class_status(class)))
            }
            Kind::Gateway => self.gateway_status(&key.name),
            Kind::ListenerSet => self.listener_set_status(&key.name),
            Kind::HttpRoute | Kind::GrpcRoute => {
                let unit = self.routes.get(key)?;
                Some(Status::Route(self.route_status_of(key, unit)))
            }
            _ => None,
        }
    }

    fn gateway_status(&self, name: &ObjectName) -> Option<Status> {
        let unit = self.units.get(&ParentKey { kind: ParentKind::Gateway, name: name.clone() })?;
        let generation = unit.declared.generation;
        let refusal = match &unit.place {
            Place::Root => return self.root_status(name, unit),
            Place::Refused(fault) => Some(fault),
            Place::Child(_) | Place::Foreign => None,
        };
        let root = unit.root().and_then(|root| self.roots.get(root));
        let view = ChildView {
            generation,
            refusal,
            parent_refusal: root.and_then(parent_refusal),
            parent: root.map(|root| &root.addresses),
            own: self.views(unit),
        };
        Some(Status::Gateway(child_status(&view)))
    }

    fn root_status(&self, name: &ObjectName, unit: &Unit) -> Option<Status> {
        let root = self.roots.get(name)?;
        let accepting = parent_refusal(root).is_none();
        let opted_in = !matches!(child::allowed_children(self.objects.gateways.get(name)?), Ok(None));
        let view = RootView {
            generation: unit.declared.generation,
            addresses: &root.addresses,
            refusal: root.refusal.as_ref(),
            own: self.views(unit),
            invalid_below: root.summary.invalid_below,
            valid_anywhere: root.summary.valid_anywhere,
            lost: lost(root),
            unserved: self.observations.unserved(name).map(|(_, line)| line).collect(),
            unprovisioned: self.observations.unprovisioned(name),
            attached_sets: if accepting { root.summary.attached_sets } else { 0 },
            attached_gateways: opted_in.then_some(if accepting { root.summary.attached_gateways } else { 0 }),
        };
        Some(Status::Gateway(root_status(&view)))
    }

    fn listener_set_status(&self, name: &ObjectName) -> Option<Status> {
        let unit = self.units.get(&ParentKey { kind: ParentKind::ListenerSet, name: name.clone() })?;
        let refusal = match &unit.place {
            Place::Foreign => return None,
            Place::Refused(fault) => Some(fault),
            Place::Root | Place::Child(_) => None,
        };
        let root = unit.root().and_then(|root| self.roots.get(root));
        let view = SetView {
            generation: unit.declared.generation,
            refusal,
            parent_refusal: root.and_then(parent_refusal),
            parent_unprovisioned: unit.root().and_then(|root| self.parent_unprovisioned(root)),
            listeners: self.views(unit),
        };
        Some(Status::ListenerSet(set_status(&view)))
    }

    fn views<'a>(&self, unit: &'a Unit) -> Vec<ListenerView<'a>> {
        let root = unit.root().and_then(|name| Some((name, self.roots.get(name)?)));
        let unserved = |port: PortKey| {
            let lines = root.into_iter().flat_map(|(name, _)| self.observations.unserved(name));
            lines.filter(move |(frontend, _)| frontend.port_key() == port).map(|(_, line)| line)
        };
        let listeners = unit.declared.listeners.iter().zip(&unit.verdicts);
        let view = |(listener, verdict): (&'a Listener, &'a Verdict)| ListenerView {
            listener,
            verdict,
            attached_routes: unit.attached.get(&listener.name).map_or(0, Attached::accepted),
            hindrance: root.and_then(|(_, root)| hindrance(root, listener.port)),
            unserved: unserved(listener.port).collect(),
            overlap: overlap(unit, listener),
        };
        listeners.map(view).collect()
    }

    /// The words for ListenerSets, whose owners may not see the parent: that, not why. "Programmed ... only reflects the
    /// listeners in that ListenerSet", except when those of "the parent Gateway ... transition to False" (GEP-1713).
    fn parent_unprovisioned(&self, gateway: &ObjectName) -> Option<Fault> {
        let message = "the Gateway attached to is not programmed";
        let unprovisioned = self.observations.unprovisioned(gateway);
        unprovisioned.map(|_| Fault::not_programmed(Reason::ParentNotProgrammed, message))
    }

    fn class_status(&self, class: &GatewayClass) -> ClassStatus {
        let parameters = infra::of_class(class, &self.objects).err();
        class_status(class, parameters.as_ref(), bundle::supported_version(&self.objects))
    }

    /// The statuses of a Gateway and all its children.
    pub(super) fn dirty_member_statuses(&mut self, name: &ObjectName) {
        let members = self.roots.get(name).into_iter().flat_map(|root| root.members.values());
        let keys = members.map(|member| ObjectKey { kind: member.kind(), name: member.name.clone() });
        self.dirty.statuses.extend(keys);
        self.dirty.statuses.insert(ObjectKey { kind: Kind::Gateway, name: name.clone() });
    }

    fn problems_of(&self, key: &ObjectKey) -> Vec<String> {
        match key.kind {
            Kind::Gateway => self.gateway_problems(&key.name),
            Kind::ListenerSet => self.listener_set_problems(&key.name),
            Kind::HttpRoute | Kind::GrpcRoute => self.route_problems(key),
            _ => Vec::new(),
        }
    }

    fn gateway_problems(&self, name: &ObjectName) -> Vec<String> {
        let gateway = self.objects.gateways.get(name);
        let annotation = child::ALLOWED_CHILDREN;
        let wrong = gateway.and_then(|gateway| child::allowed_children(gateway).err());
        let wrong = wrong
            .map(|error| format!("annotation {annotation}: write Same, All or Selector:LABELS; {error}"));
        let unit = self.units.get(&ParentKey { kind: ParentKind::Gateway, name: name.clone() });
        wrong.into_iter().chain(unit.into_iter().flat_map(duplicates)).collect()
    }

    /// A parent that does not exist has nobody to write a status for it.
    fn route_problems(&self, key: &ObjectKey) -> Vec<String> {
        let parents = self.routes.get(key).into_iter().flat_map(|unit| &unit.references.parents);
        let missing = parents.filter(|parent| match parent.kind {
            ParentKind::Gateway => !self.objects.gateways.contains_key(&parent.name),
            ParentKind::ListenerSet => !self.objects.listener_sets.contains_key(&parent.name),
        });
        missing.map(|parent| format!("parentRefs: there is no {} {}", parent.kind(), parent.name)).collect()
    }

    fn listener_set_problems(&self, name: &ObjectName) -> Vec<String> {
        let Some(unit) = self.units.get(&ParentKey { kind: ParentKind::ListenerSet, name: name.clone() })
        else {
            return Vec::new();
        };
        let missing = unit.parent.as_ref().filter(|parent| !self.objects.gateways.contains_key(parent));
        missing
            .map(|parent| format!("parentRef: there is no Gateway {parent}"))
            .into_iter()
            .chain(duplicates(unit))
            .collect()
    }
}

fn duplicates(unit: &Unit) -> impl Iterator<Item = String> {
    unit.declared
        .duplicates
        .iter()
        .map(|name| format!("listener name {name} is used more than once; only the first counts"))
}

fn overlap(unit: &Unit, listener: &Listener) -> Overlap {
    if unit.overlapping.contains(&listener.name) { Overlap::Some } else { Overlap::None }
}

/// Why an accepted listener is not served.
fn hindrance(root: &Root, port: PortKey) -> Option<Fault> {
    if root.refusal.is_some() {
        return Some(Fault::not_programmed(Reason::Invalid, "the Gateway is not accepted"));
    }
    if root.addresses.usable.is_empty() {
        return Some(Fault::not_programmed(Reason::Pending, "the Gateway has no address"));
    }
    let lost =
        root.lost.get(&port).filter(|lost| root.addresses.usable.iter().all(|it| lost.contains(it)))?;
    Some(Fault::not_programmed(Reason::PortUnavailable, in_use(port, lost.iter())))
}

fn lost(root: &Root) -> Option<Fault> {
    let by_port = root.lost.iter().map(|(port, lost)| in_use(*port, lost.iter()));
    let message = by_port.collect::<Vec<_>>().join("; ");
    (!message.is_empty()).then(|| Fault::not_programmed(Reason::AddressNotUsable, message))
}

fn in_use<'a>(port: PortKey, addresses: impl Iterator<Item = &'a IpAddr>) -> String {
    let frontends = addresses.map(|address| FrontendKey::new(*address, port));
    let addresses: Vec<_> = frontends.map(|it| it.socket_address().to_string()).collect();
    format!("{} is in use by an older Gateway: use another address or port", addresses.join(", "))
}

/// The words for children, whose owners may not see the parent: that it is not accepted, not why.
fn parent_refusal(root: &Root) -> Option<Fault> {
    let refusal = root.refusal.as_ref()?;
    let is_own_matter = refusal.reason == Reason::ListenersNotValid;
    let message = refusal.for_others().unwrap_or("the Gateway attached to is not accepted");
    (!is_own_matter).then(|| Fault::not_accepted(Reason::ParentNotAccepted, message))
}
