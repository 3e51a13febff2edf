//! Stage: what is to be generated for Gateways in a cluster. Only Gateways with addresses of their
//! own get something; children are served on their parents'.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_model::{ObjectName, ParentKind};

use super::changes::ChangedObjects;
use super::frontends::ChangedFrontends;
use super::gateways::{ChangedGateways, Gateways};
use super::hierarchy::Hierarchy;
use super::listeners::{ChangedListeners, Listeners};
use super::ports::Ports;
use crate::infra::{self, Merged, Wanted};
use crate::listener::ParentKey;
use crate::{Kind, Objects, Settings};

#[derive(Debug, Default)]
pub(super) struct Generated {
    wanted: BTreeMap<ObjectName, Wanted>,
}

/// By Gateway, what is wanted now; `None`: nothing any more.
pub(super) type ChangedGenerated = BTreeMap<ObjectName, Option<Wanted>>;

/// The state that generated objects follow from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) listeners: &'s Listeners,
    pub(super) hierarchy: &'s Hierarchy,
    pub(super) gateways: &'s Gateways,
    pub(super) ports: &'s Ports,
    pub(super) objects: &'s Objects,
    pub(super) settings: &'s Settings,
}

// === impl Generated ===

impl Generated {
    pub(super) fn update(
        &mut self,
        mut affected: BTreeSet<ObjectName>,
        frontends: &ChangedFrontends,
        sources: Sources<'_>,
    ) -> ChangedGenerated {
        let mut now_changed = ChangedGenerated::new();
        affected.extend(frontends.claimants.iter().cloned());
        for name in affected {
            let now = sources.wanted(&name);
            let before = match &now {
                Some(wanted) => self.wanted.insert(name.clone(), wanted.clone()),
                None => self.wanted.remove(&name),
            };
            if before != now {
                now_changed.insert(name, now);
            }
        }
        now_changed
    }
}

impl Sources<'_> {
    /// The Gateways whose references, or those of what is attached to them, may be others. Routes
    /// have no part in that.
    pub(super) fn referring(
        self,
        changed: &ChangedObjects,
        listeners: &ChangedListeners,
        merged: &ChangedGateways,
    ) -> BTreeSet<ObjectName> {
        let mut affected: BTreeSet<_> =
            merged.merged.iter().chain(changed.of(Kind::Gateway)).cloned().collect();
        let gateway_of = |key: &ParentKey| self.hierarchy.gateway_of(key).cloned();
        affected.extend(listeners.secrets.iter().filter_map(gateway_of));
        let gateways = changed.of(Kind::Gateway).cloned();
        let gateways = gateways.map(|name| ParentKey { kind: ParentKind::Gateway, name });
        affected.extend(gateways.filter_map(|key| gateway_of(&key)));
        if changed.any_of(Kind::ReferenceGrant) {
            affected.extend(self.gateways.names().cloned());
        }
        affected
    }

    fn wanted(self, name: &ObjectName) -> Option<Wanted> {
        let (merged, gateway) = (self.gateways.get(name)?, self.objects.gateways.get(name)?);
        match &merged.refusal {
            Some(_) => infra::untouched(gateway),
            None => {
                infra::plan(gateway, &self.merged(name), &merged.parameters, &self.settings.controller_name)
            }
        }
    }

    fn merged(self, name: &ObjectName) -> Merged {
        Merged { ports: self.ports.of(name).collect(), secrets: self.secrets(name) }
    }

    /// Those that its own listeners and its children's refer to with permission.
    pub(super) fn secrets(self, name: &ObjectName) -> BTreeSet<ObjectName> {
        let own = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let members = std::iter::once(&own).chain(self.hierarchy.children(name));
        let declared = members.filter_map(|key| self.listeners.get(key));
        declared.flat_map(|declared| &declared.secrets).cloned().collect()
    }
}
