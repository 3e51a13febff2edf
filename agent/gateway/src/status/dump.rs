//! Statuses as plain values in a stable order, for golden files. Of a condition that is as it
//! should be, the usual message is left out.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

use super::Status;
use crate::ConditionType;

/// A status with each condition in one line, by type: `False NotAllowed @generation: message`.
pub fn dump_status(status: &Status) -> Value {
    let value = match status {
        Status::GatewayClass(status) => json!(status),
        Status::Gateway(status) => json!(status),
        Status::ListenerSet(status) => json!(status),
        Status::Route(status) => json!(status),
        Status::Policy(status) => json!(status),
        Status::RouteFilter(status) => json!(status),
    };
    shorten(value)
}

/// Conditions, wherever they are, become a map of lines.
fn shorten(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(map.into_iter().map(shorten_field).collect()),
        Value::Array(list) => list.into_iter().map(shorten).collect(),
        other => other,
    }
}

fn shorten_field((name, value): (String, Value)) -> (String, Value) {
    if name != "conditions" {
        return (name, shorten(value));
    }
    let conditions: Vec<Condition> = serde_json::from_value(value).unwrap_or_default();
    let lines = conditions.into_iter().map(|condition| (condition.type_.clone(), json!(line(&condition))));
    (name, Value::Object(lines.collect()))
}

fn line(condition: &Condition) -> String {
    let generation = condition.observed_generation.filter(|generation| *generation > 0);
    let generation = generation.map(|generation| format!(" @{generation}")).unwrap_or_default();
    let is_usual = ConditionType::of(&condition.type_).is_some_and(|known| {
        known.good_status().as_str() == condition.status && known.good_message() == condition.message
    });
    let is_silent = condition.message.is_empty() || is_usual;
    let message = if is_silent { String::new() } else { format!(": {}", condition.message) };
    format!("{} {}{generation}{message}", condition.status, condition.reason)
}
