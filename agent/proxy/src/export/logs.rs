//! Lines of the access log as OTLP has them: a record each, whose attributes are the fields of the
//! line. Cores write them as JSON, as for any other destination; they are taken apart here.

use bytes::Bytes;
use jiff::Timestamp;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value as OtlpValue;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use prost::{DecodeError, Message};
use serde_json::{Map, Value};

use crate::export::message::{SCHEMA, Sender, attribute, encoded};
use crate::export::signal::Signal;

pub(super) struct Logs(pub Sender);

impl Signal for Logs {
    /// Lines with their ends.
    type Batch = Vec<u8>;
    const NAME: &'static str = "lines of the access log";

    fn count(batch: &Vec<u8>) -> usize {
        memchr::memchr_iter(b'\n', batch).count()
    }

    fn message(&self, batches: Vec<Vec<u8>>) -> Bytes {
        let Self(Sender { resource, scope }) = self;
        let lines = batches.iter().flat_map(|batch| batch.split(|byte| *byte == b'\n'));
        let log_records = lines.filter(|line| !line.is_empty()).map(record).collect();
        let scope_logs = ScopeLogs { scope: Some(scope.clone()), log_records, schema_url: SCHEMA.to_owned() };
        let of_resource = ResourceLogs {
            resource: Some(resource.clone()),
            scope_logs: vec![scope_logs],
            schema_url: SCHEMA.to_owned(),
        };
        encoded(&ExportLogsServiceRequest { resource_logs: vec![of_resource] })
    }

    fn rejected(answer: Bytes) -> Result<Option<(u64, String)>, DecodeError> {
        let Some(partial) = ExportLogsServiceResponse::decode(answer)?.partial_success else {
            return Ok(None);
        };
        let rejected = u64::try_from(partial.rejected_log_records).ok().filter(|rejected| *rejected > 0);
        Ok(rejected.map(|rejected| (rejected, partial.error_message)))
    }
}

fn record(line: &[u8]) -> LogRecord {
    let mut fields: Map<String, Value> = serde_json::from_slice(line).unwrap_or_default();
    let mut take = |name| match fields.remove(name) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    };
    let time = take("time").and_then(|time| time.parse::<Timestamp>().ok()).unwrap_or_else(Timestamp::now);
    let time = u64::try_from(time.as_nanosecond()).unwrap_or_default();
    let [trace_id, span_id] = ["trace_id", "span_id"].map(|name| take(name).map(|id| bytes(&id)));
    let attributes = fields.into_iter().filter_map(|(name, value)| Some(attribute(&name, typed(value)?)));
    LogRecord {
        time_unix_nano: time,
        observed_time_unix_nano: time,
        severity_number: SeverityNumber::Info.into(),
        severity_text: "INFO".to_owned(),
        attributes: attributes.collect(),
        flags: u32::from(span_id.is_some()),
        trace_id: trace_id.unwrap_or_default(),
        span_id: span_id.unwrap_or_default(),
        event_name: "portcullis.access".to_owned(),
        ..LogRecord::default()
    }
}

/// `None` of what lines do not have.
fn typed(value: Value) -> Option<OtlpValue> {
    Some(match value {
        Value::String(text) => OtlpValue::StringValue(text),
        Value::Bool(is_so) => OtlpValue::BoolValue(is_so),
        Value::Number(number) => match number.as_i64() {
            Some(number) => OtlpValue::IntValue(number),
            None => OtlpValue::DoubleValue(number.as_f64()?),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    })
}

/// The bytes of an id in hexadecimal digits.
fn bytes(id: &str) -> Vec<u8> {
    let pairs = id.as_bytes().chunks_exact(2).map_while(|pair| std::str::from_utf8(pair).ok());
    pairs.map_while(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_server_is_none_of_a_collector() {
        assert!(Logs::rejected(Bytes::from_static(b"<html>garbage")).is_err());
        assert!(Logs::rejected(Bytes::new()).unwrap().is_none(), "all is taken");
    }

    #[test]
    fn the_fields_of_a_line_are_attributes() {
        let line = br#"{"time":"2026-11-29T10:00:00.250Z","trace_id":"0af7651916cd43dd8448eb211c80319c","status":200,
            "span_id":"b7ad6b7169203331","target":"/a","duration":0.25,"complete":true}"#;
        let record = record(line);
        assert_eq!(record.time_unix_nano, 1_795_946_400_250_000_000);
        assert_eq!((record.trace_id[0], record.trace_id.len(), record.span_id.len()), (0x0a, 16, 8));
        let value = |name: &str| {
            let attribute = record.attributes.iter().find(|attribute| attribute.key == name);
            attribute.and_then(|attribute| attribute.value.clone()?.value)
        };
        assert_eq!(value("status"), Some(OtlpValue::IntValue(200)));
        assert_eq!(value("duration"), Some(OtlpValue::DoubleValue(0.25)));
        assert_eq!(value("target"), Some(OtlpValue::StringValue("/a".to_owned())));
        assert_eq!(value("complete"), Some(OtlpValue::BoolValue(true)));
        assert!(value("trace_id").is_none() && value("time").is_none());
    }
}
