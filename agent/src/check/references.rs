//! A problem that only an offline check reports: a Gateway whose GatewayClass the input lacks. A
//! cluster may hold it, and the status is not ours to write as long as that is unknown; but the
//! author of a directory needs to know.

use std::collections::BTreeSet;

use portcullis_control::source::Batch;
use portcullis_gateway::{Kind, Object, ObjectKey};
use portcullis_model::ObjectName;

use crate::offline::BUILT_IN_CLASS;

/// One line per Gateway without class.
pub(crate) fn dangling(batch: &Batch) -> Vec<String> {
    let objects: Vec<_> = batch.manifests.iter().filter_map(|manifest| manifest.object.as_ref()).collect();
    let present: BTreeSet<_> =
        objects.iter().map(|object| object.key()).chain([class(BUILT_IN_CLASS)]).collect();
    let classes = objects.iter().filter_map(|object| match object {
        Object::Gateway(gateway) => Some((object.key(), class(&gateway.spec.gateway_class_name))),
        _ => None,
    });
    classes
        .filter(|(_, class)| !present.contains(class))
        .map(|(gateway, class)| format!("{gateway}: {class} is not in the input: nothing is served there"))
        .collect()
}

fn class(name: &str) -> ObjectKey {
    ObjectKey::new(Kind::GatewayClass, ObjectName::new("", name))
}
