//! Spans as OTLP has them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as OtlpValue;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span as OtlpSpan, Status as OtlpStatus,
};
use prost::{DecodeError, Message};

use crate::core::waiting_room::WaitingRoom;
use crate::export::message::{SCHEMA, Sender, attribute, encoded};
use crate::export::signal::Signal;
use crate::trace::span::{Side, Span, Status, Value};

pub(super) struct Traces {
    pub sender: Sender,
    /// Room of the spans that wait.
    pub room: Arc<WaitingRoom>,
}

impl Signal for Traces {
    type Batch = Vec<Span>;
    const NAME: &'static str = "spans";

    fn count(batch: &Vec<Span>) -> usize {
        batch.len()
    }

    fn gathered(&self, items: usize) {
        self.room.leave(items);
    }

    fn message(&self, batches: Vec<Vec<Span>>) -> Bytes {
        let Sender { resource, scope } = &self.sender;
        let spans = batches.into_iter().flatten().map(span).collect();
        let scope_spans = ScopeSpans { scope: Some(scope.clone()), spans, schema_url: SCHEMA.to_owned() };
        let of_resource = ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans: vec![scope_spans],
            schema_url: SCHEMA.to_owned(),
        };
        encoded(&ExportTraceServiceRequest { resource_spans: vec![of_resource] })
    }

    fn rejected(answer: Bytes) -> Result<Option<(u64, String)>, DecodeError> {
        let Some(partial) = ExportTraceServiceResponse::decode(answer)?.partial_success else {
            return Ok(None);
        };
        let rejected = u64::try_from(partial.rejected_spans).ok().filter(|rejected| *rejected > 0);
        Ok(rejected.map(|rejected| (rejected, partial.error_message)))
    }
}

fn span(span: Span) -> OtlpSpan {
    let Span { context, parent, state, side, name, begun, ended, attributes, status } = span;
    let attributes = attributes.into_iter().map(|(name, value)| {
        attribute(
            name,
            match value {
                Value::Text(text) => OtlpValue::StringValue(text.into_owned()),
                Value::Number(number) => OtlpValue::IntValue(number),
            },
        )
    });
    OtlpSpan {
        trace_id: context.trace.to_bytes().to_vec(),
        span_id: context.span.to_bytes().to_vec(),
        trace_state: state.and_then(|state| state.to_str().ok().map(str::to_owned)).unwrap_or_default(),
        parent_span_id: parent.map_or_else(Vec::new, |parent| parent.to_bytes().to_vec()),
        flags: context.flags().into(),
        name,
        kind: match side {
            Side::Server => SpanKind::Server,
            Side::Client => SpanKind::Client,
        }
        .into(),
        start_time_unix_nano: nanoseconds(begun),
        end_time_unix_nano: nanoseconds(ended),
        attributes: attributes.collect(),
        status: Some(OtlpStatus {
            code: match status {
                Status::Unset => StatusCode::Unset,
                Status::Error => StatusCode::Error,
            }
            .into(),
            message: String::new(),
        }),
        ..OtlpSpan::default()
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
