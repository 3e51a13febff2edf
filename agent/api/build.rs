//! Turns the CRDs of `deploy/crds` and of the Helm chart into the compact form that `schema`
//! embeds: per kind and version the structural schema without descriptions, as JSON.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::{Map, Value, json};

const CRDS: [&str; 2] = ["../../deploy/crds", "../../deploy/helm/portcullis/files"];

/// The keywords that the walker in `schema` understands.
const KEYWORDS: &[&str] = &[
    "type",
    "format",
    "properties",
    "additionalProperties",
    "items",
    "required",
    "default",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "nullable",
    "anyOf",
    "oneOf",
    "not",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
];

fn main() -> Result<(), Box<dyn Error>> {
    CRDS.iter().for_each(|directory| println!("cargo::rerun-if-changed={directory}"));
    println!("cargo::rerun-if-changed=build.rs");
    let mut kinds = Vec::new();
    for directory in CRDS {
        for file in yaml_files(Path::new(directory))? {
            let text = fs::read_to_string(&file)?;
            kinds.push(kind(&text).map_err(|error| format!("{}: {error}", file.display()))?);
        }
    }
    let out = PathBuf::from(env::var("OUT_DIR")?).join("schemas.json");
    Ok(fs::write(out, serde_json::to_vec(&kinds)?)?)
}

fn yaml_files(dir: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut files =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    Ok(files)
}

fn kind(text: &str) -> Result<Value, Box<dyn Error>> {
    let crd: Value = serde_saphyr::from_str(text)?;
    let versions = crd["spec"]["versions"].as_array().ok_or("spec.versions is no list")?;
    let schemas: Map<String, Value> = versions
        .iter()
        .filter(|version| version["served"] == json!(true))
        .filter_map(|version| Some((version["name"].as_str()?.to_owned(), schema_of(version))))
        .collect();
    Ok(json!({
        "group": crd["spec"]["group"],
        "kind": crd["spec"]["names"]["kind"],
        "resource": crd["spec"]["names"]["plural"],
        "namespaced": crd["spec"]["scope"] == json!("Namespaced"),
        "versions": schemas,
    }))
}

/// Status is the controllers' to write: what a file says there is carried along, not judged.
fn schema_of(version: &Value) -> Value {
    let mut schema = pruned(&version["schema"]["openAPIV3Schema"]);
    schema["properties"]["status"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    schema["properties"]["metadata"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    schema
}

fn pruned(schema: &Value) -> Value {
    let Some(fields) = schema.as_object() else { return schema.clone() };
    fields
        .iter()
        .filter(|(keyword, _)| KEYWORDS.contains(&keyword.as_str()))
        .map(|(keyword, value)| (keyword.clone(), pruned_value(keyword, value)))
        .collect::<Map<_, _>>()
        .into()
}

fn pruned_value(keyword: &str, value: &Value) -> Value {
    match (keyword, value) {
        ("properties", Value::Object(properties)) => properties
            .iter()
            .map(|(name, schema)| (name.clone(), pruned(schema)))
            .collect::<Map<_, _>>()
            .into(),
        ("items" | "additionalProperties" | "not", schema) => pruned(schema),
        ("anyOf" | "oneOf", Value::Array(schemas)) => schemas.iter().map(pruned).collect::<Vec<_>>().into(),
        _ => value.clone(),
    }
}
