//! The first step: objects come, change and go. What that means for anything else is decided by the
//! stages.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_model::ObjectName;

use crate::{Change, Kind, Object, ObjectKey, Objects};

/// The label by which an EndpointSlice names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The objects that are not what they were.
#[derive(Debug, Default)]
pub(super) struct ChangedObjects {
    keys: BTreeSet<ObjectKey>,
    /// EndpointSlices with the Services that they belonged to before.
    pub(super) left_services: Vec<(ObjectName, ObjectName)>,
}

// === impl ChangedObjects ===

impl ChangedObjects {
    pub(super) fn apply(changes: impl Iterator<Item = Change>, objects: &mut Objects) -> Self {
        let mut changed = Self::default();
        for change in changes {
            let key = change.key();
            let before = (key.kind == Kind::EndpointSlice).then(|| objects.get(&key)).flatten();
            if !objects.apply(change) {
                continue;
            }
            if let Some(service) = before.as_ref().and_then(service_of) {
                changed.left_services.push((key.name.clone(), service));
            }
            changed.keys.insert(key);
        }
        changed
    }

    /// The names of those of a kind.
    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &ObjectName> {
        let first = ObjectKey { kind, name: ObjectName::new("", "") };
        self.keys.range(first..).take_while(move |key| key.kind == kind).map(|key| &key.name)
    }

    pub(super) fn any_of(&self, kind: Kind) -> bool {
        self.of(kind).next().is_some()
    }

    pub(super) fn routes(&self) -> impl Iterator<Item = &ObjectKey> {
        self.keys.iter().filter(|key| key.kind.is_route())
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

/// The Service that an EndpointSlice belongs to.
pub(super) fn service_of(object: &Object) -> Option<ObjectName> {
    let metadata = object.metadata();
    let service = metadata.labels.as_ref()?.get(SERVICE_LABEL)?;
    Some(ObjectName::new(metadata.namespace.as_deref()?, service.as_str()))
}
