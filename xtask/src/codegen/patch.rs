//! Our additive fields: JSON merge patches (RFC 7386) of a CRD's schema, one readable file per kind
//! in `deploy/crds/patches`.

use std::fs;

use anyhow::{Context, Result};
use portcullis_testbed::workspace;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{CRDS, yaml};

#[derive(Deserialize)]
struct Patch {
    /// The API versions whose schema it changes; those a release does not have are left out.
    versions: Vec<String>,
    schema: Value,
}

/// Changes the CRD if there is a patch for it.
pub(super) fn apply(crd: &mut Value, plural: &str) -> Result<()> {
    let Some(patch) = read(plural)? else { return Ok(()) };
    let versions = crd.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.with_context(|| format!("the CRD {plural} has no spec.versions"))? {
        let name = version["name"].as_str().unwrap_or_default();
        if patch.versions.iter().any(|wanted| wanted == name) {
            merge(&mut version["schema"]["openAPIV3Schema"], &patch.schema);
        }
    }
    Ok(())
}

fn read(plural: &str) -> Result<Option<Patch>> {
    let name = plural.split('.').next().unwrap_or(plural);
    let path = workspace::root().join(CRDS).join("patches").join(name).with_extension("yaml");
    if !path.exists() {
        return Ok(None);
    }
    let patch = yaml::parse(&fs::read_to_string(&path)?).and_then(|value| Ok(serde_json::from_value(value)?));
    patch.map(Some).with_context(|| format!("{} is not a patch", path.display()))
}

/// RFC 7386: objects merge, null removes, everything else replaces.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merges_as_the_rfc_says() {
        let mut target = json!({"keep": 1, "list": [1, 2], "drop": true, "deep": {"a": 1}});
        let patch = json!({"list": [3], "drop": null, "deep": {"b": {"c": 2}}});
        merge(&mut target, &patch);
        assert_eq!(target, json!({"keep": 1, "list": [3], "deep": {"a": 1, "b": {"c": 2}}}));
        let once = target.clone();
        merge(&mut target, &patch);
        assert_eq!(target, once, "a second time changes nothing");
    }
}
