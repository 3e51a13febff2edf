//! Metadata of the API server's objects, and the parts of objects that are no configuration.

use portcullis_api::{Kind, ObjectKey, StatusUse};
use portcullis_model::ObjectName;
use serde_json::Value;

pub(crate) fn key_of(kind: Kind, manifest: &Value) -> Option<ObjectKey> {
    let metadata = manifest.get("metadata")?;
    let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    Some(ObjectKey::new(kind, ObjectName::new(namespace, metadata.get("name")?.as_str()?)))
}

pub(crate) fn version_of(manifest: &Value) -> String {
    manifest["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// Resource versions are numbers, although for long clients were not to rely on it. If one is not,
/// what came last counts.
pub(crate) fn is_older(new: &str, old: &str) -> bool {
    matches!((new.parse::<u64>(), old.parse::<u64>()), (Ok(new), Ok(old)) if new < old)
}

/// Bookkeeping that would make every write of a status a change of configuration.
pub(crate) fn strip(kind: Kind, manifest: &mut Value) {
    if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
        if matches!(kind, Kind::Node | Kind::Pod) {
            metadata.retain(|field, _| field == "name" || field == "namespace");
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    if kind.status() != StatusUse::Read
        && let Some(manifest) = manifest.as_object_mut()
    {
        manifest.remove("status");
    }
}
