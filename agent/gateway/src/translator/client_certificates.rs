//! Stage: the certificates by which Gateways show backends who they are. An attached Gateway shows
//! its own for what its own listeners serve, and its parent's if it names none.

use std::collections::BTreeSet;

use portcullis_model::{Certificate, ObjectName, ParentKind};

use super::hierarchy::{ChangedHierarchy, Hierarchy};
use super::listeners::{ChangedListeners, Listeners};
use super::snapshot::NextSnapshot;
use crate::listener::{ClientCertificate, ParentKey};

/// The state that certificates follow from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) listeners: &'s Listeners,
    pub(super) hierarchy: &'s Hierarchy,
}

pub(super) fn update(
    judged: &ChangedListeners,
    attached: &ChangedHierarchy,
    sources: Sources<'_>,
    next: &mut NextSnapshot,
) {
    let changed = judged.parents.iter().chain(&attached.moved);
    let gateways = changed.filter(|key| key.kind == ParentKind::Gateway).map(|key| &key.name);
    let mut affected: BTreeSet<_> = gateways.cloned().collect();
    let children = affected.iter().flat_map(|gateway| sources.hierarchy.children(gateway));
    let children = children.filter(|key| key.kind == ParentKind::Gateway).map(|key| key.name.clone());
    affected.extend(children.collect::<Vec<_>>());
    for gateway in affected {
        let now = sources.shown_by(&gateway);
        if next.get().client_certificates.get(&gateway) == now {
            continue;
        }
        match now {
            Some(now) => drop(next.edit().client_certificates.insert(gateway, now.clone())),
            None => drop(next.edit().client_certificates.remove(&gateway)),
        }
    }
}

// === impl Sources ===

impl<'s> Sources<'s> {
    fn shown_by(self, gateway: &ObjectName) -> Option<&'s Certificate> {
        let key = ParentKey { kind: ParentKind::Gateway, name: gateway.clone() };
        let parent = self.hierarchy.gateway_of(&key)?.clone();
        match self.named_by(&key)? {
            ClientCertificate::None => self.named_by(&ParentKey { name: parent, ..key })?.shown(),
            own => own.shown(),
        }
    }

    fn named_by(self, gateway: &ParentKey) -> Option<&'s ClientCertificate> {
        self.listeners.get(gateway).map(|declared| &declared.client_certificate)
    }
}
