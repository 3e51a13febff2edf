//! Stage: the filters of listeners, with the services that they refer to. Those of a ListenerSet
//! hold for its own listeners, those of a Gateway for the Gateway's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::Kind;
use portcullis_model::{ListenerFilter, ObjectName};

use super::attachments::Parents;
use super::changes::ChangedObjects;
use super::hierarchy::ChangedHierarchy;
use super::listeners::ChangedListeners;
use super::policies::ChangedPolicies;
use super::relation::Relation;
use crate::Fault;
use crate::listener::{ListenerKey, ParentKey};
use crate::route::{BackendUse, ResolvedFilters, resolve_filters};

#[derive(Debug, Default)]
pub(super) struct ListenerFilters {
    /// Of listeners that have filters.
    resolved: BTreeMap<ListenerKey, ResolvedFilters>,
    by_service: Relation<ObjectName, ParentKey>,
    none: Arc<[ListenerFilter]>,
}

#[derive(Debug, Default)]
pub(super) struct ChangedFilters {
    /// Objects with a listener that has other filters.
    pub(super) parents: BTreeSet<ParentKey>,
    /// Services that filters refer to, or did, of objects that changed.
    pub(super) services: BTreeSet<ObjectName>,
    /// The backends that came into use by one more listener, and those that went out of use by one.
    pub(super) used: Vec<BackendUse>,
    pub(super) unused: Vec<BackendUse>,
}

// === impl ListenerFilters ===

impl ListenerFilters {
    pub(super) fn of(&self, listener: &ListenerKey) -> &Arc<[ListenerFilter]> {
        self.resolved.get(listener).map_or(&self.none, |resolved| &resolved.filters)
    }

    /// The fault that `ResolvedRefs=False` of the listener reports.
    pub(super) fn fault(&self, listener: &ListenerKey) -> Option<&Fault> {
        self.resolved.get(listener)?.fault.as_ref()
    }

    /// The objects with a listener whose filters refer to a Service, found or not.
    pub(super) fn referring_to(&self, service: &ObjectName) -> impl Iterator<Item = &ParentKey> {
        self.by_service.of(service)
    }

    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        judged: &ChangedListeners,
        attached: &ChangedHierarchy,
        targeted: &ChangedPolicies,
        parents: Parents<'_>,
    ) -> ChangedFilters {
        let mut affected: BTreeSet<_> = judged.parents.union(&attached.moved).cloned().collect();
        for service in changed.of(Kind::Service).chain(&targeted.services) {
            affected.extend(self.by_service.of(service).cloned());
        }
        for namespace in changed.granting_namespaces() {
            affected.extend(self.by_service.in_namespace(&namespace).cloned());
        }
        if targeted.all {
            affected.extend(self.resolved.keys().map(|(parent, _)| parent.clone()));
        }
        let mut now_changed = ChangedFilters::default();
        for parent in affected {
            self.replace(&parent, parents, &mut now_changed);
        }
        now_changed
    }

    fn replace(&mut self, parent: &ParentKey, parents: Parents<'_>, changed: &mut ChangedFilters) {
        let first = (parent.clone(), Arc::from(""));
        let of_parent = self.resolved.range(first..).take_while(|((of, _), _)| of == parent);
        let keys: Vec<_> = of_parent.map(|(key, _)| key.clone()).collect();
        let before: BTreeMap<_, _> =
            keys.into_iter().filter_map(|key| self.resolved.remove_entry(&key)).collect();
        let declared = parents.listeners.get(parent);
        let filtered = declared.iter().flat_map(|it| &it.listeners).filter(|it| !it.filters.is_empty());
        let now: BTreeMap<_, _> = filtered
            .map(|listener| {
                let resolved = resolve_filters(parent.kind(), &listener.filters, &parents.services);
                ((parent.clone(), listener.name.clone()), resolved)
            })
            .collect();
        let [old, new] = [&before, &now].map(|all| {
            all.values().flat_map(|resolved| &resolved.services).cloned().collect::<BTreeSet<_>>()
        });
        self.by_service.update(parent, &old, &new);
        changed.services.extend(old);
        changed.services.extend(new);
        if before != now {
            changed.parents.insert(parent.clone());
            let uses = |all: &BTreeMap<_, ResolvedFilters>| -> Vec<_> {
                all.values().flat_map(|resolved| &resolved.backends).cloned().collect()
            };
            changed.used.extend(uses(&now));
            changed.unused.extend(uses(&before));
        }
        self.resolved.extend(now);
    }
}
