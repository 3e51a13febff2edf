//! Manifests of tenants: from YAML to what is served and to statuses. Translation is total, so any
//! text has an outcome, and the same one each time.

use portcullis_control::offline::translate_manifests;
use portcullis_control::source::document;
use portcullis_gateway::Settings;
use serde_json::Value;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let documents = document::split(text);
    let lines = text.lines().count();
    let mut manifests = Vec::new();
    for document in &documents {
        assert!(document.line >= 1 && document.line <= lines, "line {} of {lines}", document.line);
        manifests.extend(document::manifests(document.text).unwrap_or_default());
    }
    let outcome = statuses(&manifests);
    assert_eq!(outcome, statuses(&manifests), "once more");
    // As JSON, which is YAML, too, they are the same objects.
    let printed = manifests.iter().map(|manifest| document::manifests(&manifest.to_string()));
    let again: Vec<_> = printed.filter_map(Result::ok).flatten().collect();
    if again == manifests {
        assert_eq!(outcome, statuses(&again), "from JSON");
    }
}

fn statuses(manifests: &[Value]) -> Vec<Value> {
    translate_manifests(manifests.to_vec(), Settings::default()).with_statuses()
}
