//! The trace of a request: what goes on of it, and its span if it is recorded.

use std::borrow::Cow;
use std::cell::Cell;

use http::HeaderValue;

use crate::core::head::FieldsMut;
use crate::trace::active::ActiveSpan;
use crate::trace::attempt::{Asked, Attempts};
use crate::trace::context::{SpanId, TRACEPARENT, TRACESTATE, TraceContext, TraceId};
use crate::trace::takers::Takers;

pub(crate) struct RequestTrace {
    context: TraceContext,
    came: Came,
    /// Of one that is recorded.
    recording: Option<Recording>,
}

/// The part of the context that came in what goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// All of it.
    Whole,
    /// The trace, with another parent.
    Trace,
    /// Nothing: the trace begins here.
    Nothing,
    /// No trace goes on: the request is watched alone, and sent as if it were not.
    Untouched,
}

struct Recording {
    takers: Takers,
    state: Option<HeaderValue>,
    /// Until there is an answer.
    span: Cell<Option<Box<ActiveSpan>>>,
}

// === impl RequestTrace ===

impl RequestTrace {
    /// Goes on as it came.
    pub(super) fn as_it_came(context: TraceContext) -> Self {
        Self { context, came: Came::Whole, recording: None }
    }

    pub(super) fn unrecorded(context: TraceContext, parent: Option<TraceContext>) -> Self {
        Self { context, came: Came::of(parent), recording: None }
    }

    /// Is watched, and no part of a trace that would be this agent's matter.
    pub(super) fn untouched() -> Self {
        Self { context: TraceContext::begin(), came: Came::Untouched, recording: None }
    }

    /// Has its record taken.
    pub(super) fn recorded(self, takers: Takers, state: Option<HeaderValue>, span: Box<ActiveSpan>) -> Self {
        let recording = Recording { takers, state, span: Cell::new(Some(span)) };
        Self { recording: Some(recording), ..self }
    }

    /// The parent of what comes next.
    pub(crate) fn context(&self) -> TraceContext {
        self.context
    }

    /// Returns `false` if the request is watched alone.
    pub(crate) fn goes_on(&self) -> bool {
        self.came != Came::Untouched
    }

    /// Its ids for the access log: the trace's, and that of the request's span.
    pub(crate) fn ids(&self) -> Option<(TraceId, Option<SpanId>)> {
        let recorder = self.recording.as_ref().and_then(|recording| recording.takers.recorder.as_ref());
        self.goes_on().then(|| (self.context.trace, recorder.map(|_| self.context.span)))
    }

    /// True if an operator waits for the request.
    pub(crate) fn is_watched(&self) -> bool {
        self.recording.as_ref().is_some_and(|recording| recording.takers.watched.is_some())
    }

    /// Tells that operator.
    pub(crate) fn step<T: Into<Cow<'static, str>>>(&self, subject: &'static str, text: impl FnOnce() -> T) {
        if let Some(recording) = &self.recording {
            recording.takers.step(subject, text);
        }
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Adds to the span, if there is one.
    pub(crate) fn note(&self, note: impl FnOnce(&mut ActiveSpan)) {
        let Some(Recording { span: cell, .. }) = &self.recording else { return };
        if let Some(mut span) = cell.take() {
            note(&mut span);
            cell.set(Some(span));
        }
    }

    /// The span, which lasts as long as the response.
    pub(crate) fn take_span(&self) -> Option<Box<ActiveSpan>> {
        self.recording.as_ref()?.span.take()
    }

    /// Spans of attempts at an answer. `None` if none are recorded.
    pub(crate) fn attempts(&self, asked: Asked) -> Option<Box<Attempts>> {
        let Recording { takers, state, .. } = self.recording.as_ref()?;
        Some(Box::new(Attempts::new(takers.clone(), self.context, state.clone(), asked)))
    }

    /// Makes the fields those that are sent on. The state that came belongs to the trace that came.
    pub(crate) fn edit(&self, fields: &mut impl FieldsMut) {
        if matches!(self.came, Came::Whole | Came::Untouched) {
            return;
        }
        fields.insert(TRACEPARENT, self.context.to_value());
        if self.came == Came::Nothing {
            fields.remove(&TRACESTATE);
        }
    }
}

// === impl Came ===

impl Came {
    fn of(parent: Option<TraceContext>) -> Self {
        if parent.is_some() { Self::Trace } else { Self::Nothing }
    }
}
