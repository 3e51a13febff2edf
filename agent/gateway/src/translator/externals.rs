//! Stage: hosts outside the cluster (XBackends) as they are declared, and the names that they have.
//! Where a name leads, and who may be sent to there, is a later stage's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey};
use portcullis_model::ObjectName;

use super::changes::ChangedObjects;
use super::relation::Relation;
use crate::Settings;
use crate::external::{Declared, ExternalHost};
use crate::policy::authorities::{HOLDERS, Holders};

#[derive(Debug, Default)]
pub(super) struct Externals {
    declared: BTreeMap<ObjectName, Arc<Declared>>,
    /// XBackends by the objects with their authorities and client certificates.
    by_holder: Relation<ObjectKey, ObjectName>,
    by_host: Relation<Arc<str>, ObjectName>,
}

// === impl Externals ===

impl Externals {
    /// Reads what changed. Returns the XBackends that are other than they were.
    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        sources: Holders<'_>,
        settings: &Settings,
    ) -> BTreeSet<ObjectName> {
        let mut affected: BTreeSet<_> = changed.of(Kind::XBackend).cloned().collect();
        for kind in HOLDERS {
            for name in changed.of(kind) {
                affected.extend(self.by_holder.of(&ObjectKey { kind, name: name.clone() }).cloned());
            }
        }
        affected.retain(|name| self.replace(name, sources, settings));
        affected
    }

    fn replace(&mut self, name: &ObjectName, sources: Holders<'_>, settings: &Settings) -> bool {
        let backend = sources.objects.x_backends.get(name);
        let now = backend.map(|backend| Declared::of(name, backend, sources, &settings.external));
        let before = self.declared.remove(name);
        let [hosts_before, hosts_now] = [before.as_deref(), now.as_ref()]
            .map(|declared| hosts(declared).map(|host| host.name.clone()).collect());
        self.by_host.update(name, &hosts_before, &hosts_now);
        let [holders_before, holders_now] = [before.as_deref(), now.as_ref()]
            .map(|declared| declared.map(|it| it.holders.clone()).unwrap_or_default());
        self.by_holder.update(name, &holders_before, &holders_now);
        let is_same = before.as_deref() == now.as_ref();
        let kept = before.filter(|_| is_same).or_else(|| now.map(Arc::new));
        if let Some(kept) = kept {
            self.declared.insert(name.clone(), kept);
        }
        !is_same
    }

    pub(super) fn get(&self, backend: &ObjectName) -> Option<&Declared> {
        self.declared.get(backend).map(|declared| &**declared)
    }

    /// The host of an XBackend; `None` if nothing may be sent to it.
    pub(super) fn host(&self, backend: &ObjectName) -> Option<&ExternalHost> {
        hosts(self.get(backend)).next()
    }

    /// The XBackends with a name.
    pub(super) fn with_host(&self, name: &Arc<str>) -> impl Iterator<Item = &ObjectName> {
        self.by_host.of(name)
    }
}

fn hosts(declared: Option<&Declared>) -> impl Iterator<Item = &ExternalHost> {
    declared.into_iter().filter_map(|declared| declared.host.as_ref().ok())
}
