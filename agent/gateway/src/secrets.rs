//! Which Secrets a Gateway is served with: those that it and the children it admits refer to with permission. For a pod that
//! serves one Gateway and may read these and no others; the translator comes to the same by its own stages, which have more
//! to say about each.

use std::collections::BTreeSet;

use portcullis_model::{Certificate, ObjectName, ParentKind};

use crate::api::shared::ListenerSpec;
use crate::certificate::CertificateError;
use crate::child::{self, AttachTo};
use crate::listener::{Certificates, Declared, ParentKey};
use crate::selector::Namespaces;
use crate::{Granted, Grants, Objects};

/// From scratch.
pub fn secrets_of(name: &ObjectName, objects: &Objects) -> BTreeSet<ObjectName> {
    let Some(gateway) = objects.gateways.get(name) else { return BTreeSet::new() };
    let namespaces = Namespaces::new(objects);
    let sets = objects.listener_sets.iter().filter(|(key, set)| {
        child::parent_of_set(set).as_ref() == Some(name)
            && child::refuse_set(&key.namespace, gateway, namespaces).is_none()
    });
    let gateways = objects.gateways.iter().filter(|(_, child)| {
        matches!(child::parent_of_gateway(child), AttachTo::Gateway(parent) if parent == *name)
            && child::refuse_gateway(child, Some(gateway), namespaces).is_none()
    });
    let of = |kind, name: &ObjectName, specs: &[ListenerSpec]| referred(kind, name, specs, objects);
    let sets = sets.map(|(key, set)| of(ParentKind::ListenerSet, key, &set.spec.listeners));
    let gateways = gateways.chain(std::iter::once((name, gateway)));
    let gateways = gateways.map(|(key, gateway)| {
        of(ParentKind::Gateway, key, gateway.spec.listeners.as_deref().unwrap_or_default())
    });
    sets.chain(gateways).flatten().collect()
}

fn referred(
    kind: ParentKind,
    name: &ObjectName,
    specs: &[ListenerSpec],
    objects: &Objects,
) -> BTreeSet<ObjectName> {
    let key = ParentKey { kind, name: name.clone() };
    Declared::new(key, (0, 0), specs, Grants::new(objects), &mut Unread).secrets
}

/// What the Secrets hold is of no interest here.
struct Unread;

impl Certificates for Unread {
    fn certificate(&mut self, _: &Granted<ObjectName>) -> Option<Result<Certificate, CertificateError>> {
        None
    }
}
