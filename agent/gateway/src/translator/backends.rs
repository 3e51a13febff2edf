//! Stage: the backends that rules refer to, with their endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_model::{Backend, ObjectName, Snapshot};

use super::Translator;
use super::index::only_in;
use crate::route::{BackendUse, backend};

/// How many routes use a backend.
#[derive(Debug, Default)]
pub(super) struct Backends {
    uses: BTreeMap<BackendUse, usize>,
    live: BTreeSet<BackendUse>,
}

impl Translator {
    pub(super) fn update_backends(&mut self, next: &mut Option<Snapshot>) {
        for service in std::mem::take(&mut self.dirty.services) {
            for used in self.backends.of(&service) {
                let now = self.backends.uses.contains_key(&used).then(|| self.backend(&used));
                self.set_backend(used, now, next);
            }
        }
    }

    fn backend(&self, used: &BackendUse) -> Backend {
        let service = self.objects.services.get(&used.service).map(|service| &**service);
        let slices = self.index.slices_by_service.of(&used.service);
        let slices = slices.filter_map(|name| self.objects.endpoint_slices.get(name)).map(|slice| &**slice);
        backend(used, service, slices)
    }

    fn set_backend(&mut self, used: BackendUse, now: Option<Backend>, next: &mut Option<Snapshot>) {
        let name = used.name();
        match now {
            Some(now) => {
                self.backends.live.insert(used);
                if self.snapshot.backends.get(name.as_str()).is_none_or(|before| **before != now) {
                    self.next(next).backends.insert(name.0, Arc::new(now));
                }
            }
            None => {
                self.backends.live.remove(&used);
                self.next(next).backends.remove(name.as_str());
            }
        }
    }
}

// === impl Backends ===

impl Backends {
    /// Counts a route's backends anew; returns the Services whose backends came or went.
    pub(super) fn update(&mut self, before: &[BackendUse], now: &[BackendUse]) -> BTreeSet<ObjectName> {
        let mut changed = BTreeSet::new();
        for used in only_in(now, before) {
            let count = self.uses.entry(used.clone()).or_default();
            *count += 1;
            if *count == 1 {
                changed.insert(used.service.clone());
            }
        }
        for used in only_in(before, now) {
            let count = self.uses.get(used).copied().unwrap_or_default();
            if count > 1 {
                self.uses.insert(used.clone(), count - 1);
            } else {
                self.uses.remove(used);
                changed.insert(used.service.clone());
            }
        }
        changed
    }

    /// The uses of a Service, present and past.
    fn of(&self, service: &ObjectName) -> BTreeSet<BackendUse> {
        let first = BackendUse { service: service.clone(), port: 0, inferred_h2c: false };
        let of_service = |used: &&BackendUse| used.service == *service;
        let now = self.uses.range(first.clone()..).map(|(used, _)| used).take_while(of_service);
        now.chain(self.live.range(first..).take_while(of_service)).cloned().collect()
    }
}
