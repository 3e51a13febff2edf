//! Stage: the backends that rules refer to, with their endpoints.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::{Kind, ObjectKey, Objects};
use portcullis_model::{Backend, ObjectName, PortKey};

use super::changes::{ChangedObjects, service_of};
use super::counts::Counts;
use super::relation::Relation;
use super::snapshot::NextSnapshot;
use crate::route::{BackendUse, ProtocolSource, backend};

#[derive(Debug, Default)]
pub(super) struct Backends {
    slices_by_service: Relation<ObjectName, ObjectName>,
    /// Those in the snapshot.
    live: BTreeSet<BackendUse>,
}

// === impl Backends ===

impl Backends {
    /// `used_otherwise` are Services of which another port came into use, or went out of use.
    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        used_otherwise: &BTreeSet<ObjectName>,
        uses: &Counts<BackendUse>,
        objects: &Objects,
        next: &mut NextSnapshot,
    ) {
        let mut services: BTreeSet<_> = changed.of(Kind::Service).chain(used_otherwise).cloned().collect();
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
    fn uses_of(&self, service: &ObjectName, uses: &Counts<BackendUse>) -> BTreeSet<BackendUse> {
        let first =
            BackendUse { service: service.clone(), port: PortKey::tcp(0), protocol: ProtocolSource::Service };
        let of_service = |used: &&BackendUse| used.service == *service;
        let now = uses.from(&first).take_while(of_service);
        now.chain(self.live.range(&first..).take_while(of_service)).cloned().collect()
    }
}
