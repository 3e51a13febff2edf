//! Stage: the backends that rules refer to, with their endpoints.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_model::{Backend, ObjectName};

use super::changes::{ChangedObjects, service_of};
use super::relation::Relation;
use super::routes::{BackendUses, ChangedRoutes};
use super::snapshot::NextSnapshot;
use crate::route::{BackendUse, backend};
use crate::{Kind, ObjectKey, Objects};

#[derive(Debug, Default)]
pub(super) struct Backends {
    slices_by_service: Relation<ObjectName, ObjectName>,
    /// Those in the snapshot.
    live: BTreeSet<BackendUse>,
}

// === impl Backends ===

impl Backends {
    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        routes: &ChangedRoutes,
        uses: &BackendUses,
        objects: &Objects,
        next: &mut NextSnapshot,
    ) {
        let mut services: BTreeSet<_> = changed.of(Kind::Service).chain(&routes.services).cloned().collect();
        services.extend(self.update_slices(changed, objects));
        for used in services.iter().flat_map(|service| self.uses_of(service, uses)).collect::<Vec<_>>() {
            let name = used.name();
            if uses.contains(&used) {
                let now = self.backend(&used, objects);
                if next.get().backends.get(name.as_str()).is_none_or(|before| **before != now) {
                    next.edit().backends.insert(name.0, Arc::new(now));
                }
                self.live.insert(used);
            } else {
                self.live.remove(&used);
                next.edit().backends.remove(name.as_str());
            }
        }
    }

    /// Returns the Services that have other EndpointSlices, or had them.
    fn update_slices(&mut self, changed: &ChangedObjects, objects: &Objects) -> BTreeSet<ObjectName> {
        let mut services = BTreeSet::new();
        for (slice, service) in &changed.left_services {
            self.slices_by_service.remove(service, slice);
            services.insert(service.clone());
        }
        for slice in changed.of(Kind::EndpointSlice) {
            let object = objects.get(&ObjectKey { kind: Kind::EndpointSlice, name: slice.clone() });
            if let Some(service) = object.as_ref().and_then(service_of) {
                self.slices_by_service.insert(service.clone(), slice.clone());
                services.insert(service);
            }
        }
        services
    }

    fn backend(&self, used: &BackendUse, objects: &Objects) -> Backend {
        let service = objects.services.get(&used.service).map(|service| &**service);
        let slices = self.slices_by_service.of(&used.service);
        let slices = slices.filter_map(|name| objects.endpoint_slices.get(name)).map(|slice| &**slice);
        backend(used, service, slices)
    }

    /// The uses of a Service, present and past.
    fn uses_of(&self, service: &ObjectName, uses: &BackendUses) -> BTreeSet<BackendUse> {
        let first = BackendUse { service: service.clone(), port: 0, inferred_h2c: false };
        let of_service = |used: &&BackendUse| used.service == *service;
        let now = uses.from(&first).take_while(of_service);
        now.chain(self.live.range(&first..).take_while(of_service)).cloned().collect()
    }
}
