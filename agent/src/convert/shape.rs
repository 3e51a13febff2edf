//! Fields of manifests as they are written: of the type that an API server wants, or missing. A
//! field of another type is a fault of its object, as what it would have meant may be what
//! protects.

use std::collections::BTreeMap;

use serde_json::Value;

pub(super) fn text(value: &Value, at: &str) -> Result<Option<String>, String> {
    match value.pointer(at) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("{} is no text: put it in quotation marks", name(at))),
    }
}

pub(super) fn list<'a>(value: &'a Value, at: &str) -> Result<&'a [Value], String> {
    match value.pointer(at) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(format!("{} is no list", name(at))),
    }
}

/// Numbers and words like `true` are taken for their text: quotation marks are easily forgotten,
/// and the annotation may be what protects.
pub(super) fn annotations(manifest: &Value) -> Result<BTreeMap<String, String>, String> {
    let all = match manifest.pointer("/metadata/annotations") {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(all)) => all,
        Some(_) => return Err("metadata.annotations is no map".to_owned()),
    };
    all.iter()
        .map(|(name, value)| match value {
            Value::String(text) => Ok((name.clone(), text.clone())),
            Value::Null => Ok((name.clone(), String::new())),
            Value::Bool(_) | Value::Number(_) => Ok((name.clone(), value.to_string())),
            Value::Array(_) | Value::Object(_) => Err(format!("annotation {name} is no text")),
        })
        .collect()
}

/// True of what an API server takes for the host of a rule.
pub(super) fn is_host(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// `/spec/rules` is `spec.rules` to people.
fn name(at: &str) -> String {
    at.trim_start_matches('/').replace('/', ".")
}
