//! Stage: the listeners of an object, judged on their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use portcullis_model::{Certificate, ObjectName, ParentKind};

use super::Translator;
use super::unit::{Place, Unit};
use crate::certificate::{self, CertificateError};
use crate::child;
use crate::listener::{Certificates, Declared, Listener, ParentKey};
use crate::{Granted, Grants, ObjectKey, created, generation};

/// Certificates by Secret, each read once however many listeners refer to it.
#[derive(Debug, Default)]
pub(super) struct CertificateCache {
    read: BTreeMap<ObjectName, Result<Certificate, CertificateError>>,
}

struct CertificateLookup<'t> {
    cache: &'t mut CertificateCache,
    secrets: &'t BTreeMap<ObjectName, Arc<Secret>>,
}

impl Translator {
    pub(super) fn declare(&mut self) {
        for key in std::mem::take(&mut self.dirty.declared) {
            match self.declared(&key) {
                Some(declared) => self.set_declared(key.clone(), declared),
                None => self.forget(&key),
            }
            if key.kind == ParentKind::Gateway {
                self.dirty_children(&key.name);
            }
            self.dirty.statuses.insert(ObjectKey { kind: key.kind(), name: key.name.clone() });
            self.dirty.places.insert(key);
        }
    }

    fn dirty_children(&mut self, gateway: &ObjectName) {
        for child in self.index.children.of(gateway) {
            self.dirty.places.insert(child.clone());
            // Whether the Gateway exists at all is something to tell its would-be children.
            self.dirty.statuses.insert(ObjectKey { kind: child.kind(), name: child.name.clone() });
        }
    }

    /// `None` if the object is gone or not ours.
    fn declared(&mut self, key: &ParentKey) -> Option<Declared> {
        let (metadata, specs) = match key.kind {
            ParentKind::Gateway => {
                let gateway = self.objects.gateways.get(&key.name)?;
                self.is_ours(&gateway.spec.gateway_class_name).then_some(())?;
                (&gateway.metadata, gateway.spec.listeners.as_deref().unwrap_or_default())
            }
            ParentKind::ListenerSet => {
                let set = self.objects.listener_sets.get(&key.name)?;
                child::parent_of_set(set)?;
                (&set.metadata, set.spec.listeners.as_slice())
            }
        };
        let versions = (generation(metadata), created(metadata));
        let grants = Grants::new(&self.objects);
        let mut lookup = CertificateLookup { cache: &mut self.certificates, secrets: &self.objects.secrets };
        Some(Declared::new(key.clone(), versions, specs, grants, &mut lookup))
    }

    fn is_ours(&self, class: &str) -> bool {
        let class = self.objects.gateway_classes.get(&ObjectName::new("", class));
        class.is_some_and(|class| class.spec.controller_name == self.settings.controller_name)
    }

    fn set_declared(&mut self, key: ParentKey, declared: Declared) {
        let parent = self.asked_parent(&key);
        let rank = child::precedence(declared.created, key.kind, &key.name);
        let before = self.units.remove(&key);
        self.update_references(&key, before.as_ref(), Some((&declared, parent.as_ref())));
        let Some(mut unit) = before else {
            self.dirty.routes.extend(self.index.routes_by_parent.of(&key).cloned());
            let declared = Arc::new(declared);
            let place = Place::Foreign;
            let unit = Unit {
                declared,
                parent,
                place,
                rank,
                verdicts: Vec::new(),
                overlapping: Vec::new(),
                attached: BTreeMap::new(),
            };
            self.units.insert(key, unit);
            return;
        };
        self.listeners_changed(&key, &unit, &declared);
        unit.parent = parent;
        unit.declared = Arc::new(declared);
        self.units.insert(key, unit);
    }

    /// Hands on what is different: to the merge what other listeners may be judged by, to routes what they attach by.
    fn listeners_changed(&mut self, key: &ParentKey, unit: &Unit, now: &Declared) {
        let before = &unit.declared.listeners;
        if *before != now.listeners {
            let names = before.iter().chain(&now.listeners).map(|listener| listener.name.clone());
            self.dirty.listeners.extend(names.map(|name| (key.clone(), name)));
        }
        // A Gateway has more to say in the merge than its listeners: addresses, policies.
        if key.kind == ParentKind::Gateway || !same(before, &now.listeners, same_in_merge) {
            self.dirty.roots.extend(unit.root().cloned());
        }
        if unit.declared.secrets != now.secrets {
            self.dirty.generated.extend(unit.root().cloned());
        }
        if !same(before, &now.listeners, same_to_routes) {
            self.dirty.routes.extend(self.index.routes_by_parent.of(key).cloned());
        }
    }

    fn forget(&mut self, key: &ParentKey) {
        self.dirty.routes.extend(self.index.routes_by_parent.of(key).cloned());
        let Some(unit) = self.units.remove(key) else { return };
        self.update_references(key, Some(&unit), None);
        self.leave_root(key, &unit);
        self.dirty.listeners.extend(unit.listener_keys());
    }

    fn asked_parent(&self, key: &ParentKey) -> Option<ObjectName> {
        match key.kind {
            ParentKind::Gateway => child::parent_of_gateway(&self.objects.gateways[&key.name])?.ok(),
            ParentKind::ListenerSet => child::parent_of_set(&self.objects.listener_sets[&key.name]),
        }
    }

    fn update_references(
        &mut self,
        key: &ParentKey,
        before: Option<&Unit>,
        now: Option<(&Declared, Option<&ObjectName>)>,
    ) {
        let secrets_of = |declared: &Declared| declared.secrets.union(&declared.foreign).cloned().collect();
        let secrets_before: BTreeSet<_> = before.map(|unit| secrets_of(&unit.declared)).unwrap_or_default();
        let secrets_now = now.map(|(declared, _)| secrets_of(declared)).unwrap_or_default();
        self.index.secrets.update(key, &secrets_before, &secrets_now);
        let parent_before = before.and_then(|unit| unit.parent.clone()).into_iter().collect();
        let parent_now = now.and_then(|(_, parent)| parent.cloned()).into_iter().collect();
        self.index.children.update(key, &parent_before, &parent_now);
    }
}

fn same(before: &[Listener], now: &[Listener], equal: fn(&Listener, &Listener) -> bool) -> bool {
    before.len() == now.len() && before.iter().zip(now).all(|(a, b)| equal(a, b))
}

fn same_in_merge(a: &Listener, b: &Listener) -> bool {
    (&a.name, a.port, a.protocol, &a.hostname, &a.refusal)
        == (&b.name, b.port, b.protocol, &b.hostname, &b.refusal)
}

fn same_to_routes(a: &Listener, b: &Listener) -> bool {
    (&a.name, a.port, &a.hostname, &a.kinds, &a.namespaces)
        == (&b.name, b.port, &b.hostname, &b.kinds, &b.namespaces)
}

// === impl CertificateCache ===

impl CertificateCache {
    pub(super) fn forget(&mut self, secret: &ObjectName) {
        self.read.remove(secret);
    }
}

impl Certificates for CertificateLookup<'_> {
    fn certificate(&mut self, name: &Granted<ObjectName>) -> Option<Result<Certificate, CertificateError>> {
        let secret = self.secrets.get(&**name)?;
        if let Some(read) = self.cache.read.get(&**name) {
            return Some(read.clone());
        }
        let read = certificate::read(secret);
        self.cache.read.insert(ObjectName::clone(name), read.clone());
        Some(read)
    }
}
