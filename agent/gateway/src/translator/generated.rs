//! Stage: what is to be generated for Gateways in a cluster. Only Gateways with addresses of their
//! own get something; children are served on their parents'.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_model::{ObjectName, ParentKind};

use super::frontends::ChangedFrontends;
use super::listeners::ChangedListeners;
use super::view::View;
use crate::infra::{self, DesiredObjects, Merged, Mode};
use crate::listener::ParentKey;

#[derive(Debug, Default)]
pub(super) struct Generated {
    desired: BTreeMap<ObjectName, DesiredObjects>,
}

/// By Gateway, what is desired now; `None`: nothing any more.
pub(super) type ChangedGenerated = BTreeMap<ObjectName, Option<DesiredObjects>>;

// === impl Generated ===

impl Generated {
    pub(super) fn update(
        &mut self,
        judged: &ChangedListeners,
        frontends: &ChangedFrontends,
        view: View<'_>,
    ) -> ChangedGenerated {
        let mut now_changed = ChangedGenerated::new();
        let mut affected = frontends.claimants.clone();
        affected.extend(judged.secrets.iter().filter_map(|key| view.hierarchy.gateway_of(key)).cloned());
        for name in affected {
            let now = view.desired(&name);
            let before = match &now {
                Some(desired) => self.desired.insert(name.clone(), desired.clone()),
                None => self.desired.remove(&name),
            };
            if before != now {
                now_changed.insert(name, now);
            }
        }
        now_changed
    }
}

impl View<'_> {
    fn desired(self, name: &ObjectName) -> Option<DesiredObjects> {
        let (merged, gateway) = (self.gateways.get(name)?, self.objects.gateways.get(name)?);
        if merged.refusal.is_some() {
            return infra::untouched(gateway);
        }
        let secrets = match merged.parameters.mode {
            Mode::Dedicated => self.secrets(name),
            // Only pods of its own have rights to them.
            Mode::Node => BTreeSet::new(),
        };
        let members = Merged { ports: self.ports.of(name).collect(), secrets };
        infra::plan(gateway, &members, &merged.parameters, &self.settings.controller_name)
    }

    /// Those that its own listeners and its children's refer to with permission.
    fn secrets(self, name: &ObjectName) -> BTreeSet<ObjectName> {
        let own = ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let members = std::iter::once(&own).chain(self.hierarchy.children(name));
        let declared = members.filter_map(|key| self.listeners.get(key));
        declared.flat_map(|declared| &declared.secrets).cloned().collect()
    }
}
