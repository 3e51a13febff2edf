//! Stage: who is whose child.

use portcullis_model::{ObjectName, ParentKind};

use super::Translator;
use super::unit::{Place, Unit};
use crate::ObjectKey;
use crate::child;
use crate::listener::ParentKey;
use crate::selector::Namespaces;

impl Translator {
    pub(super) fn place(&mut self) {
        for key in std::mem::take(&mut self.dirty.places) {
            let Some(place) = self.place_of(&key) else { continue };
            self.set_place(&key, place);
        }
    }

    fn place_of(&self, key: &ParentKey) -> Option<Place> {
        let unit = self.units.get(key)?;
        let namespaces = Namespaces::new(&self.objects);
        let parent = unit.parent.as_ref();
        Some(match key.kind {
            ParentKind::Gateway => {
                let gateway = self.objects.gateways.get(&key.name)?;
                match child::parent_of_gateway(gateway) {
                    None => Place::Root,
                    Some(Err(fault)) => Place::Refused(fault),
                    Some(Ok(name)) => child::refuse_gateway(gateway, self.our_gateway(&name), namespaces)
                        .map_or(Place::Child(name), Place::Refused),
                }
            }
            ParentKind::ListenerSet => match parent.and_then(|name| Some((name, self.our_gateway(name)?))) {
                None => Place::Foreign,
                Some((name, gateway)) => child::refuse_set(&key.name.namespace, gateway, namespaces)
                    .map_or_else(|| Place::Child(name.clone()), Place::Refused),
            },
        })
    }

    fn our_gateway(&self, name: &ObjectName) -> Option<&crate::api::gateways::Gateway> {
        let key = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        self.units.contains_key(&key).then(|| self.objects.gateways.get(name).map(|gateway| &**gateway))?
    }

    fn set_place(&mut self, key: &ParentKey, place: Place) {
        let Some(mut unit) = self.units.remove(key) else { return };
        let rank = child::precedence(unit.declared.created, key.kind, &key.name);
        if unit.place != place {
            self.leave_root(key, &unit);
            (unit.place, unit.rank) = (place, rank);
            unit.verdicts.clear();
            unit.overlapping.clear();
            self.enter_root(key, &unit);
            self.dirty.listeners.extend(unit.listener_keys());
            self.dirty.routes.extend(self.index.routes_by_parent.of(key).cloned());
            self.dirty.statuses.insert(ObjectKey { kind: key.kind(), name: key.name.clone() });
        } else if unit.rank != rank {
            // Created anew with another age: among the children it has another place.
            self.leave_members(&unit);
            unit.rank = rank;
            self.enter_root(key, &unit);
        }
        self.units.insert(key.clone(), unit);
    }

    pub(super) fn leave_root(&mut self, key: &ParentKey, unit: &Unit) {
        if unit.place == Place::Root {
            self.roots.remove(&key.name);
        }
        self.leave_members(unit);
        self.dirty.roots.extend(unit.root().cloned());
    }

    fn leave_members(&mut self, unit: &Unit) {
        if let Place::Child(root) = &unit.place {
            self.roots.get_mut(root).and_then(|root| root.members.remove(&unit.rank));
        }
    }

    fn enter_root(&mut self, key: &ParentKey, unit: &Unit) {
        let Some(name) = unit.root() else { return };
        let root = self.roots.entry(name.clone()).or_default();
        if unit.place != Place::Root {
            root.members.insert(unit.rank.clone(), key.clone());
        }
        self.dirty.roots.insert(name.clone());
    }
}
