//! The structural schemas of the Gateway API's CRDs, so that without an API server an object meets
//! the same defaults and the same refusals as with one.

mod review;
mod rules;

use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, OnceLock};

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

pub(crate) use review::QUOTE_WORDS;
pub use review::{LEFT_OUT, Review, Violation};
use rules::Rule;

/// Every kind that has a CRD here.
#[derive(Debug, Default)]
pub struct Schemas {
    kinds: HashMap<String, Definition>,
}

/// One custom resource.
#[derive(Debug, Deserialize)]
pub struct Definition {
    pub group: String,
    pub kind: String,
    /// The plural, in lower case.
    pub resource: String,
    pub namespaced: bool,
    /// The served versions.
    pub versions: BTreeMap<String, Schema>,
}

/// A node of a structural schema.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Schema {
    #[serde(rename = "type")]
    kind: Option<Type>,
    format: Option<String>,
    nullable: bool,
    properties: BTreeMap<String, Schema>,
    additional_properties: Option<Box<Schema>>,
    items: Option<Box<Schema>>,
    required: Vec<String>,
    default: Option<Value>,
    #[serde(rename = "enum")]
    allowed: Vec<Value>,
    pattern: Option<Pattern>,
    min_length: Option<usize>,
    max_length: Option<usize>,
    min_items: Option<usize>,
    max_items: Option<usize>,
    min_properties: Option<usize>,
    max_properties: Option<usize>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Box<Schema>>,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    preserve_unknown_fields: bool,
    #[serde(rename = "x-kubernetes-list-type")]
    list_type: Option<ListType>,
    #[serde(rename = "x-kubernetes-list-map-keys")]
    list_map_keys: Vec<String>,
    #[serde(rename = "x-kubernetes-validations")]
    rules: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ListType {
    Atomic,
    Set,
    Map,
}

/// A regular expression, compiled when first used.
#[derive(Debug, Deserialize)]
#[serde(from = "String")]
struct Pattern {
    text: String,
    compiled: OnceLock<Option<Regex>>,
}

// === impl Schemas ===

impl Schemas {
    /// The CRDs this version was built with. A test proves that they parse.
    pub fn embedded() -> &'static Self {
        static EMBEDDED: LazyLock<Schemas> = LazyLock::new(|| {
            let definitions: Vec<Definition> =
                serde_json::from_slice(include_bytes!(concat!(env!("OUT_DIR"), "/schemas.json")))
                    .unwrap_or_default();
            Schemas { kinds: definitions.into_iter().map(|d| (key(&d.group, &d.kind), d)).collect() }
        });
        &EMBEDDED
    }

    pub fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.kinds.values()
    }

    pub fn get(&self, group: &str, kind: &str) -> Option<&Definition> {
        self.kinds.get(&key(group, kind))
    }
}

// === impl Schema ===

impl Schema {
    /// The API paths of all fields without fields of their own, in order; `[]` stands for the items
    /// of a list, `{}` for the values of a map.
    pub fn leaves(&self) -> Vec<String> {
        let mut leaves = Vec::new();
        self.add_leaves("", &mut leaves);
        leaves
    }

    fn add_leaves(&self, path: &str, leaves: &mut Vec<String>) {
        if let Some(items) = &self.items {
            return items.add_leaves(&format!("{path}[]"), leaves);
        }
        if let Some(values) = &self.additional_properties {
            return values.add_leaves(&format!("{path}{{}}"), leaves);
        }
        if self.properties.is_empty() {
            leaves.push(path.to_owned());
        }
        for (name, field) in &self.properties {
            let dot = if path.is_empty() { "" } else { "." };
            field.add_leaves(&format!("{path}{dot}{name}"), leaves);
        }
    }
}

fn key(group: &str, kind: &str) -> String {
    format!("{group}/{kind}")
}

// === impl Definition ===

impl Definition {
    /// `v1, v1beta1`
    pub fn served(&self) -> String {
        self.versions.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

// === impl Pattern ===

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Self { text, compiled: OnceLock::new() }
    }
}

impl Pattern {
    /// A pattern this regex library cannot compile permits everything.
    fn permits(&self, text: &str) -> bool {
        let regex = self.compiled.get_or_init(|| Regex::new(&self.text).ok());
        regex.as_ref().is_none_or(|regex| regex.is_match(text))
    }
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
