//! A CRD's schema as shapes: what a value looks like, without names and descriptions. Two places
//! with equal shapes can share one Rust type.

use anyhow::{Context, Result, bail};
use serde_json::Value;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    /// A Rust type that needs no definition of ours.
    Plain(&'static str),
    List(Box<Shape>),
    /// From text to a shape.
    Map(Box<Shape>),
    Struct(Vec<Field>),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Field {
    /// As in YAML.
    pub(super) key: String,
    pub(super) required: bool,
    pub(super) shape: Shape,
}

impl Shape {
    pub(super) fn of(schema: &Value) -> Result<Self> {
        match schema["type"].as_str().unwrap_or_default() {
            // Enumerations too: a value that is new in a newer CRD is not a parse error.
            "string" => Ok(Self::Plain("String")),
            "boolean" => Ok(Self::Plain("bool")),
            "integer" => Ok(Self::Plain(integer(schema))),
            "array" if is_conditions(schema) => Ok(Self::List(Box::new(Self::Plain("Condition")))),
            "array" => Ok(Self::List(Box::new(Self::of(&schema["items"])?))),
            "object" if schema["additionalProperties"].is_object() => {
                Ok(Self::Map(Box::new(Self::of(&schema["additionalProperties"])?)))
            }
            "object" => fields(schema).map(Self::Struct),
            other => bail!("a schema of type {other:?}, which codegen does not know"),
        }
    }

    /// The struct that this is, is a list of, or maps to.
    pub(super) fn inner_struct(&self) -> Option<&[Field]> {
        match self {
            Self::Plain(_) => None,
            Self::List(inner) | Self::Map(inner) => inner.inner_struct(),
            Self::Struct(fields) => Some(fields),
        }
    }
}

fn fields(schema: &Value) -> Result<Vec<Field>> {
    let properties = schema["properties"].as_object().context("an object without properties")?;
    let required: Vec<_> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut fields = Vec::with_capacity(properties.len());
    for (key, schema) in properties {
        let shape = Shape::of(schema).with_context(|| format!("in {key}"))?;
        fields.push(Field { key: key.clone(), required: required.contains(&key.as_str()), shape });
    }
    Ok(fields)
}

fn integer(schema: &Value) -> &'static str {
    match schema["format"].as_str() {
        Some("int32") => "i32",
        _ => "i64",
    }
}

/// Conditions are Kubernetes' own type everywhere.
fn is_conditions(schema: &Value) -> bool {
    schema["items"]["properties"]["lastTransitionTime"].is_object()
}
