//! The parts that messages of all kinds have.

use bytes::Bytes;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

/// The version of OpenTelemetry's conventions that names of attributes follow.
pub(super) const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";

/// The sender of messages.
#[derive(Clone)]
pub(super) struct Sender {
    pub resource: Resource,
    pub scope: InstrumentationScope,
}

// === impl Sender ===

impl Sender {
    pub(super) fn new(attributes: &[(String, String)]) -> Self {
        let attributes = attributes.iter();
        let attributes =
            attributes.map(|(name, value)| attribute(name, Value::StringValue(value.clone()))).collect();
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        Self { resource: Resource { attributes, ..Resource::default() }, scope }
    }
}

pub(super) fn attribute(name: &str, value: Value) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

pub(super) fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}
