//! Stage: which Gateways are default ones (GEP-3793). "Gateways MUST NOT attempt to enforce a
//! single default Gateway": there may be several, and a route that asks for them is attached to
//! each that admits it.

use std::collections::BTreeMap;

use portcullis_api::Objects;
use portcullis_model::{ObjectName, ParentKind};

use super::listeners::{ChangedListeners, Listeners};
use crate::default_scope::DefaultScope;
use crate::parent;

/// As many as a route's status has room for. Each of them can multiply what is served for every
/// route that asks for default ones, and who may make Gateways may make default ones.
pub(super) const MOST: usize = 32;

/// Age, namespace and name.
type Rank = (i64, String, ParentKind);

#[derive(Debug, Default)]
pub(super) struct DefaultGateways {
    /// All that say so, in order of precedence.
    asking: BTreeMap<Rank, ObjectName>,
    ranks: BTreeMap<ObjectName, Rank>,
    /// Those that are.
    gateways: Box<[ObjectName]>,
}

/// Default Gateways, compared with those before.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangedDefaults {
    /// Gateways that are no default ones any more, or came to be.
    pub(super) gateways: Vec<ObjectName>,
}

// === impl DefaultGateways ===

impl DefaultGateways {
    /// The default Gateways in order of precedence.
    pub(super) fn all(&self) -> &[ObjectName] {
        &self.gateways
    }

    /// True for a Gateway that asks to be a default one.
    pub(super) fn is_asking(&self, gateway: &ObjectName) -> bool {
        self.ranks.contains_key(gateway)
    }

    /// True for one that is, because there are not enough older ones.
    pub(super) fn contains(&self, gateway: &ObjectName) -> bool {
        self.gateways.contains(gateway)
    }

    pub(super) fn update(
        &mut self,
        judged: &ChangedListeners,
        listeners: &Listeners,
        objects: &Objects,
    ) -> ChangedDefaults {
        let mut is_changed = false;
        for key in judged.parents.iter().filter(|key| key.kind == ParentKind::Gateway) {
            let gateway = objects.gateways.get(&key.name);
            let scope = gateway.map(|gateway| DefaultScope::parse(gateway.spec.default_scope.as_deref()));
            let declared = listeners.get(key).filter(|_| scope == Some(Ok(DefaultScope::All)));
            let rank = declared.map(|it| parent::precedence(it.created, key.kind, &key.name));
            if self.ranks.get(&key.name) == rank.as_ref() {
                continue;
            }
            is_changed = true;
            if let Some(before) = self.ranks.remove(&key.name) {
                self.asking.remove(&before);
            }
            if let Some(rank) = rank {
                self.asking.insert(rank.clone(), key.name.clone());
                self.ranks.insert(key.name.clone(), rank);
            }
        }
        if !is_changed {
            return ChangedDefaults::default();
        }
        let now: Box<[_]> = self.asking.values().take(MOST).cloned().collect();
        let before = std::mem::replace(&mut self.gateways, now);
        let gone = before.iter().filter(|gateway| !self.gateways.contains(gateway));
        let new = self.gateways.iter().filter(|gateway| !before.contains(gateway));
        ChangedDefaults { gateways: gone.chain(new).cloned().collect() }
    }
}
