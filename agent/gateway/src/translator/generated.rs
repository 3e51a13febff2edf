//! Stage: what is to be generated for Gateways in a cluster. Only Gateways with addresses of their
//! own get something; children are served on their parents'.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_model::ObjectName;

use super::frontends::ChangedFrontends;
use super::needs::Needs;
use super::view::View;
use crate::infra::{self, DesiredObjects, Merged, Mode};

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
        needing: BTreeSet<ObjectName>,
        frontends: &ChangedFrontends,
        needs: &Needs,
        view: View<'_>,
    ) -> ChangedGenerated {
        let mut now_changed = ChangedGenerated::new();
        let mut affected = frontends.claimants.clone();
        affected.extend(needing);
        for name in affected {
            let now = view.desired(&name, needs);
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
    fn desired(self, name: &ObjectName, needs: &Needs) -> Option<DesiredObjects> {
        let (merged, gateway) = (self.gateways.get(name)?, self.objects.gateways.get(name)?);
        if merged.refusal.is_some() {
            return infra::untouched(gateway);
        }
        let needs = match merged.parameters.mode {
            Mode::Dedicated => needs.of_gateway(name, self),
            // Only pods of its own have rights to them.
            Mode::Node => BTreeSet::new(),
        };
        let members = Merged { ports: self.ports.of(name).collect(), needs };
        infra::plan(gateway, &members, &merged.parameters, &self.settings.controller_name)
    }
}
