//! The trace of a request: what goes on of it, and its span if it is recorded.

use std::cell::Cell;
use std::rc::Rc;

use http::HeaderValue;

use crate::core::head::FieldsMut;
use crate::trace::active::ActiveSpan;
use crate::trace::attempt::{Asked, Attempts};
use crate::trace::context::{SpanId, TRACEPARENT, TRACESTATE, TraceContext};
use crate::trace::recorder::Recorder;

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
}

struct Recording {
    recorder: Rc<Recorder>,
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

    pub(super) fn recorded(
        recorder: Rc<Recorder>,
        context: TraceContext,
        parent: Option<TraceContext>,
        state: Option<HeaderValue>,
        span: Box<ActiveSpan>,
    ) -> Self {
        let recording = Recording { recorder, state, span: Cell::new(Some(span)) };
        Self { context, came: Came::of(parent), recording: Some(recording) }
    }

    /// The parent of what comes next.
    pub(crate) fn context(&self) -> TraceContext {
        self.context
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// The id of the request's span.
    pub(crate) fn span_id(&self) -> Option<SpanId> {
        self.recording.as_ref().map(|_| self.context.span)
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
        let Recording { recorder, state, .. } = self.recording.as_ref()?;
        Some(Box::new(Attempts::new(recorder.clone(), self.context, state.clone(), asked)))
    }

    /// Makes the fields those that are sent on. The state that came belongs to the trace that came.
    pub(crate) fn edit(&self, fields: &mut impl FieldsMut) {
        if self.came == Came::Whole {
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
