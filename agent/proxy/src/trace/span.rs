//! Spans: what is recorded of a request, or of an attempt at an answer.

use std::borrow::Cow;
use std::time::SystemTime;

use http::HeaderValue;

use crate::trace::context::{SpanId, TraceContext};

/// Bytes of a text: clients choose some.
const LONGEST: usize = 1 << 10;

/// A span that has come to its end.
#[derive(Debug)]
pub(crate) struct Span {
    /// With the span's own id.
    pub context: TraceContext,
    pub parent: Option<SpanId>,
    pub state: Option<HeaderValue>,
    pub side: Side,
    pub name: String,
    pub begun: SystemTime,
    pub ended: SystemTime,
    /// Named as OpenTelemetry's conventions do.
    pub attributes: Vec<(&'static str, Value)>,
    pub status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Unset,
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(Cow<'static, str>),
    Number(i64),
}

pub(super) fn shortened(text: Cow<'static, str>) -> Cow<'static, str> {
    if text.len() <= LONGEST {
        return text;
    }
    let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    Cow::Owned(text.get(..end).unwrap_or_default().to_owned())
}
