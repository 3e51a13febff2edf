//! Stage: the listeners of every Gateway and ListenerSet, each object judged on its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use portcullis_api::{Kind, Objects, created, generation};
use portcullis_model::{Certificate, ObjectName, ParentKind};

use super::changes::ChangedObjects;
use super::relation::Relation;
use crate::feedback::Observations;
use crate::infra;
use crate::listener::{
    CertificateError, Certificates, Declared, Held, Listener, ListenerKey, ParentKey, read_certificate,
};
use crate::parent;
use crate::{Granted, Grants, Settings};

#[derive(Debug, Default)]
pub(super) struct Listeners {
    declared: BTreeMap<ParentKey, Arc<Declared>>,
    /// Objects by the Secrets that they refer to.
    by_secret: Relation<ObjectName, ParentKey>,
    certificates: CertificateCache,
}

#[derive(Debug, Default)]
pub(super) struct ChangedListeners {
    /// The objects that were judged again, or are gone.
    pub(super) parents: BTreeSet<ParentKey>,
    /// Those with something that other listeners of the port are judged by.
    pub(super) for_merge: BTreeSet<ParentKey>,
    /// Those with something that routes attach by.
    pub(super) for_routes: BTreeSet<ParentKey>,
    /// Listeners that came, changed or went.
    pub(super) listeners: BTreeSet<ListenerKey>,
}

/// The fate of TLS at a listener, or of whatever else it is that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tls {
    Ended,
    PassedOn,
}

/// Certificates by Secret, each read once however many listeners refer to it.
#[derive(Debug, Default)]
struct CertificateCache {
    read: BTreeMap<ObjectName, Result<Certificate, CertificateError>>,
}

struct CertificateLookup<'t> {
    cache: &'t mut CertificateCache,
    secrets: &'t BTreeMap<ObjectName, Arc<Secret>>,
    observations: &'t Observations,
}

/// The state that declared listeners follow from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'s> {
    pub(super) objects: &'s Objects,
    pub(super) settings: &'s Settings,
    pub(super) observations: &'s Observations,
}

// === impl Listeners ===

impl Listeners {
    pub(super) fn get(&self, parent: &ParentKey) -> Option<&Arc<Declared>> {
        self.declared.get(parent)
    }

    /// True if the Gateway exists and is ours, or the ListenerSet exists.
    pub(super) fn contains(&self, parent: &ParentKey) -> bool {
        self.declared.contains_key(parent)
    }

    pub(super) fn tls(&self, (parent, name): &ListenerKey) -> Tls {
        let listeners = self.declared.get(parent).map(|declared| &declared.listeners);
        let listener = listeners.and_then(|all| all.iter().find(|listener| listener.name == *name));
        match listener {
            Some(listener) if listener.protocol.ends_tls() => Tls::Ended,
            _ => Tls::PassedOn,
        }
    }

    pub(super) fn keys_of(&self, parent: &ParentKey) -> impl Iterator<Item = ListenerKey> {
        self.declared.get(parent).into_iter().flat_map(|declared| declared.listener_keys())
    }

    pub(super) fn update(
        &mut self,
        changed: &ChangedObjects,
        recertified: &BTreeSet<ObjectName>,
        sources: Sources<'_>,
    ) -> ChangedListeners {
        let mut now_changed = ChangedListeners::default();
        let mut affected = self.affected(changed, sources.objects);
        affected.extend(recertified.iter().flat_map(|secret| self.by_secret.of(secret)).cloned());
        for key in affected {
            let now = self.declare(&key, sources).map(Arc::new);
            let before = match &now {
                Some(now) => self.declared.insert(key.clone(), now.clone()),
                None => self.declared.remove(&key),
            };
            self.update_references(&key, before.as_deref(), now.as_deref());
            now_changed.note(key, before.as_deref(), now.as_deref());
        }
        now_changed
    }

    fn affected(&mut self, changed: &ChangedObjects, objects: &Objects) -> BTreeSet<ParentKey> {
        let gateway = |name: &ObjectName| ParentKey { kind: ParentKind::Gateway, name: name.clone() };
        let set = |name: &ObjectName| ParentKey { kind: ParentKind::ListenerSet, name: name.clone() };
        let mut affected: BTreeSet<_> = changed.of(Kind::Gateway).map(gateway).collect();
        affected.extend(changed.of(Kind::ListenerSet).map(set));
        affected.extend(gateways_of(changed.of(Kind::GatewayClass), objects).map(gateway));
        for secret in changed.of(Kind::Secret) {
            self.certificates.read.remove(secret);
            affected.extend(self.by_secret.of(secret).cloned());
        }
        for namespace in changed.granting_namespaces() {
            affected.extend(self.by_secret.in_namespace(&namespace).cloned());
        }
        affected
    }

    /// `None` if the object is gone or not ours.
    fn declare(&mut self, key: &ParentKey, sources: Sources<'_>) -> Option<Declared> {
        let Sources { objects, settings, observations } = sources;
        let mut client_certificate = None;
        let (metadata, specs) = match key.kind {
            ParentKind::Gateway => {
                let gateway = objects.gateways.get(&key.name)?;
                let class = ObjectName::new("", gateway.spec.gateway_class_name.as_str());
                let class = objects.gateway_classes.get(&class)?;
                (class.spec.controller_name == settings.controller_name).then_some(())?;
                let backend = gateway.spec.tls.as_ref().and_then(|tls| tls.backend.as_ref());
                client_certificate = backend.and_then(|backend| backend.client_certificate_ref.as_ref());
                (&gateway.metadata, gateway.spec.listeners.as_deref().unwrap_or_default())
            }
            ParentKind::ListenerSet => {
                let set = objects.listener_sets.get(&key.name)?;
                if parent::parent_of_set(set).is_none() {
                    parent::unsupported_parent(set)?;
                }
                (&set.metadata, set.spec.listeners.as_slice())
            }
        };
        let versions = (generation(metadata), created(metadata));
        let (cache, secrets) = (&mut self.certificates, &objects.secrets);
        let mut lookup = CertificateLookup { cache, secrets, observations };
        let grants = Grants::new(objects);
        let mut declared = Declared::new(key.clone(), versions, specs, grants, &mut lookup);
        if let Some(reference) = client_certificate {
            declared.follow_client_certificate(reference, grants, &mut lookup);
        }
        Some(declared)
    }

    fn update_references(&mut self, key: &ParentKey, before: Option<&Declared>, now: Option<&Declared>) {
        let secrets = |declared: Option<&Declared>| -> BTreeSet<ObjectName> {
            let of = |it: &Declared| {
                let listeners = it.secrets.union(&it.foreign);
                listeners.chain(&it.client_secret).cloned().collect::<Vec<_>>()
            };
            declared.map(of).into_iter().flatten().collect()
        };
        self.by_secret.update(key, &secrets(before), &secrets(now));
    }
}

/// The Gateways of some GatewayClasses.
pub(super) fn gateways_of<'o>(
    classes: impl Iterator<Item = &'o ObjectName>,
    objects: &'o Objects,
) -> impl Iterator<Item = &'o ObjectName> {
    let classes: BTreeSet<&str> = classes.map(|class| &*class.name).collect();
    // Most changes are of no class; then no Gateway has to be looked at.
    let gateways = (!classes.is_empty()).then(|| objects.gateways.iter());
    let gateways = gateways.into_iter().flatten();
    let of_classes =
        gateways.filter(move |(_, gateway)| classes.contains(gateway.spec.gateway_class_name.as_str()));
    of_classes.map(|(name, _)| name)
}

/// The GatewayClasses that changed, or whose parameters did.
pub(super) fn changed_classes(changed: &ChangedObjects, objects: &Objects) -> BTreeSet<ObjectName> {
    let mut classes: BTreeSet<_> = changed.of(Kind::GatewayClass).cloned().collect();
    for parameters in changed.of(Kind::GatewayParameters) {
        let referring = objects.gateway_classes.iter();
        let referring = referring.filter(|(_, class)| infra::class_refers(class, parameters));
        classes.extend(referring.map(|(name, _)| name.clone()));
    }
    classes
}

// === impl ChangedListeners ===

impl ChangedListeners {
    fn note(&mut self, key: ParentKey, before: Option<&Declared>, now: Option<&Declared>) {
        match (before, now) {
            (Some(before), Some(now)) => self.note_listeners(&key, before, now),
            (before, now) => {
                self.for_merge.insert(key.clone());
                self.for_routes.insert(key.clone());
                let declared = before.into_iter().chain(now);
                self.listeners.extend(declared.flat_map(Declared::listener_keys));
            }
        }
        self.parents.insert(key);
    }

    fn note_listeners(&mut self, key: &ParentKey, before: &Declared, now: &Declared) {
        let (old, new) = (&before.listeners, &now.listeners);
        if old != new {
            self.listeners.extend(before.listener_keys().chain(now.listener_keys()));
        }
        // A Gateway has more to say in the merge than its listeners: addresses, policies.
        if key.kind == ParentKind::Gateway || !same(old, new, same_in_merge) {
            self.for_merge.insert(key.clone());
        }
        if !same(old, new, same_to_routes) {
            self.for_routes.insert(key.clone());
        }
    }
}

fn same(before: &[Listener], now: &[Listener], equal: fn(&Listener, &Listener) -> bool) -> bool {
    before.len() == now.len() && before.iter().zip(now).all(|(a, b)| equal(a, b))
}

fn same_in_merge(a: &Listener, b: &Listener) -> bool {
    (&a.name, a.port, a.protocol, &a.hostname, &a.refusal, &a.no_certificate)
        == (&b.name, b.port, b.protocol, &b.hostname, &b.refusal, &b.no_certificate)
}

fn same_to_routes(a: &Listener, b: &Listener) -> bool {
    (&a.name, a.port, a.protocol, &a.hostname, &a.kinds, &a.namespaces)
        == (&b.name, b.port, b.protocol, &b.hostname, &b.kinds, &b.namespaces)
}

// === impl CertificateLookup ===

impl Certificates for CertificateLookup<'_> {
    fn held(&mut self, name: &Granted<ObjectName>) -> Held {
        let Some(secret) = self.secrets.get(&**name) else { return Held::Nothing };
        let read = self.cache.read.entry(ObjectName::clone(name)).or_insert_with(|| read_certificate(secret));
        match (read.clone(), self.observations.kept_certificate(name)) {
            (Ok(certificate), _) => Held::Certificate(certificate),
            (Err(error), Some(kept)) => Held::Kept(kept.clone(), error),
            (Err(error), None) => Held::Broken(error),
        }
    }
}
