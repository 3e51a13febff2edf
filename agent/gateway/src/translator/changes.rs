//! The first step: objects come, change and go. What that means for anything else is decided by the
//! stages.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_api::{Change, Kind, Object, ObjectKey, Objects};
use portcullis_model::ObjectName;

use crate::infra;

/// The label by which an EndpointSlice names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The objects that are not what they were, but for routes.
#[derive(Debug, Default)]
pub(super) struct ChangedObjects {
    keys: BTreeSet<ObjectKey>,
    /// EndpointSlices with the Services that they belonged to before.
    pub(super) left_services: Vec<(ObjectName, ObjectName)>,
    /// Gateways whose generated Service came, changed or went.
    pub(super) generated_for: BTreeSet<ObjectName>,
}

// === impl ChangedObjects ===

impl ChangedObjects {
    /// Returns the routes that are not what they were apart: from scratch they are most of all
    /// objects, and the stage that reads them takes them with it.
    pub(super) fn apply(
        changes: impl Iterator<Item = Change>,
        objects: &mut Objects,
    ) -> (Self, BTreeSet<ObjectKey>) {
        let (mut changed, mut routes) = (Self::default(), BTreeSet::new());
        for change in changes {
            let key = change.key();
            let before = matches!(key.kind, Kind::EndpointSlice | Kind::Service).then(|| objects.get(&key));
            let before = before.flatten();
            if !objects.apply(change) {
                continue;
            }
            if let Some(service) = before.as_ref().and_then(service_of) {
                changed.left_services.push((key.name.clone(), service));
            }
            if key.kind == Kind::Service {
                let versions = before.into_iter().chain(objects.get(&key));
                changed.generated_for.extend(versions.filter_map(|service| gateway_of(&service)));
            }
            let keys = if key.kind.is_route() { &mut routes } else { &mut changed.keys };
            keys.insert(key);
        }
        (changed, routes)
    }

    /// The names of those of a kind, which is not one of routes.
    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &ObjectName> {
        let first = ObjectKey { kind, name: ObjectName::new("", "") };
        self.keys.range(first..).take_while(move |key| key.kind == kind).map(|key| &key.name)
    }

    pub(super) fn any_of(&self, kind: Kind) -> bool {
        self.of(kind).next().is_some()
    }

    /// The namespaces with another ReferenceGrant: references into them may be permitted now, or no
    /// longer.
    pub(super) fn granting_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.of(Kind::ReferenceGrant).map(|name| name.namespace.clone()).collect()
    }

    /// The namespaces with other labels, by which rules may admit what is in them.
    pub(super) fn relabelled_namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.of(Kind::Namespace).map(|name| &name.name)
    }
}

/// The Gateway that a Service was generated for.
fn gateway_of(object: &Object) -> Option<ObjectName> {
    match object {
        Object::Service(service) => infra::generated_for(service),
        _ => None,
    }
}

/// The Service that an EndpointSlice belongs to.
pub(super) fn service_of(object: &Object) -> Option<ObjectName> {
    if object.kind() != Kind::EndpointSlice {
        return None;
    }
    let metadata = object.metadata();
    let service = metadata.labels.as_ref()?.get(SERVICE_LABEL)?;
    Some(ObjectName::new(metadata.namespace.as_deref()?, service.as_str()))
}
