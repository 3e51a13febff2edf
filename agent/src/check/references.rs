//! What only an offline check can complain about: objects that hang on others which the input lacks. A cluster may hold
//! those, and no status is ours to write there; but whoever checks a directory wants to know.

use std::collections::BTreeSet;

use portcullis_control::source::Batch;
use portcullis_gateway::{GATEWAY_GROUP, Kind, Object, ObjectKey};
use portcullis_model::ObjectName;

use crate::offline::BUILT_IN_CLASS;

/// One line per reference that leads out of the input.
pub(crate) fn dangling(batch: &Batch) -> Vec<String> {
    let objects: Vec<_> = batch.manifests.iter().filter_map(|manifest| manifest.object.as_ref()).collect();
    let built_in = ObjectKey::new(Kind::GatewayClass, ObjectName::new("", BUILT_IN_CLASS));
    let present: BTreeSet<_> = objects.iter().map(|object| object.key()).chain([built_in]).collect();
    let mut lines = Vec::new();
    for object in objects {
        for parent in parents(object).into_iter().filter(|parent| !present.contains(parent)) {
            lines.push(format!("{}: {parent} is not in the input: nothing is served there", object.key()));
        }
    }
    lines
}

/// The Gateway API objects without which an object does nothing.
fn parents(object: &Object) -> Vec<ObjectKey> {
    let namespace = object.key().name.namespace;
    let key = |kind: Kind, parent_namespace: Option<&str>, name: &str| {
        ObjectKey::new(kind, ObjectName::new(parent_namespace.unwrap_or(&namespace), name))
    };
    let references = match object {
        Object::Gateway(gateway) => {
            return vec![key(Kind::GatewayClass, Some(""), &gateway.spec.gateway_class_name)];
        }
        Object::ListenerSet(set) => {
            let parent = &set.spec.parent_ref;
            return vec![key(Kind::Gateway, parent.namespace.as_deref(), &parent.name)];
        }
        Object::HttpRoute(route) => route.spec.parent_refs.as_deref(),
        Object::GrpcRoute(route) => route.spec.parent_refs.as_deref(),
        _ => None,
    };
    let kind = |group: &Option<String>, kind: &Option<String>| {
        Kind::of(group.as_deref().unwrap_or(GATEWAY_GROUP), kind.as_deref().unwrap_or("Gateway"))
    };
    let references = references.unwrap_or_default().iter();
    references
        .filter_map(|it| Some(key(kind(&it.group, &it.kind)?, it.namespace.as_deref(), &it.name)))
        .collect()
}
