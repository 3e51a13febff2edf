//! The second input of translation beside the objects: what became of what it handed out. The data
//! plane says what it does not serve, the cluster what it did not give; statuses follow from
//! objects and feedback alike. Nothing here knows who observes, or when.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_model::{FrontendKey, ObjectName, Snapshot};

use crate::Fault;

/// An observation. Each replaces the earlier one of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// The frontends that the data plane cannot serve, with the reason of each; it serves all
    /// others of the snapshot.
    Unserved(BTreeMap<FrontendKey, String>),
    /// The Gateways that could not get what is generated for them; all others have it.
    Unprovisioned(BTreeMap<ObjectName, Fault>),
}

/// The newest observations, and the Gateways that they concern.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    unserved: BTreeMap<FrontendKey, String>,
    unprovisioned: BTreeMap<ObjectName, Fault>,
    /// The frontends that are not served, by the Gateway that the snapshot has for the frontend.
    by_gateway: BTreeMap<ObjectName, BTreeMap<FrontendKey, String>>,
    /// Gateways of which something else was observed since [`Self::assign`].
    changed: BTreeSet<ObjectName>,
}

// === impl Observations ===

impl Observations {
    pub(crate) fn observe(&mut self, feedback: Feedback) {
        match feedback {
            Feedback::Unserved(now) => self.unserved = now,
            Feedback::Unprovisioned(now) => {
                self.changed.extend(different(&self.unprovisioned, &now));
                self.unprovisioned = now;
            }
        }
    }

    /// The same observations, for a translation from scratch.
    pub(crate) fn restart(self) -> Self {
        Self { by_gateway: BTreeMap::new(), changed: BTreeSet::new(), ..self }
    }

    /// Assigns what is not served to Gateways. Returns those of which something else is known than
    /// after the last call.
    pub(crate) fn assign(&mut self, snapshot: &Snapshot) -> BTreeSet<ObjectName> {
        let mut by_gateway = BTreeMap::<ObjectName, BTreeMap<_, _>>::new();
        for (frontend, why) in &self.unserved {
            if let Some(port) = snapshot.frontends.get(frontend) {
                by_gateway.entry(port.gateway.name.clone()).or_default().insert(*frontend, why.clone());
            }
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.extend(different(&self.by_gateway, &by_gateway));
        self.by_gateway = by_gateway;
        changed
    }

    /// One line for each frontend of a Gateway that is not served.
    pub(crate) fn unserved<'o>(
        &'o self,
        gateway: &ObjectName,
    ) -> impl Iterator<Item = (&'o FrontendKey, String)> {
        let frontends = self.by_gateway.get(gateway).into_iter().flatten();
        frontends.map(|(frontend, why)| (frontend, format!("{frontend}: {why}")))
    }

    /// The reason why a Gateway did not get what is generated for it.
    pub(crate) fn unprovisioned(&self, gateway: &ObjectName) -> Option<&Fault> {
        self.unprovisioned.get(gateway)
    }
}

/// The keys under which two maps differ.
fn different<'m, V: PartialEq>(
    before: &'m BTreeMap<ObjectName, V>,
    after: &'m BTreeMap<ObjectName, V>,
) -> impl Iterator<Item = ObjectName> + 'm {
    let keys = before.keys().chain(after.keys());
    keys.filter(|key| before.get(*key) != after.get(*key)).cloned()
}

#[cfg(test)]
#[path = "feedback_tests.rs"]
mod tests;
