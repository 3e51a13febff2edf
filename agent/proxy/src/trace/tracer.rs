//! The choice of requests that are recorded, and what goes on of a trace.

use std::rc::Rc;

use http::HeaderValue;
use portcullis_model::Share;

use crate::core::head::Fields;
use crate::core::otlp::{Parents, Traces};
use crate::trace::active::ActiveSpan;
use crate::trace::context::{SpanId, TRACESTATE, TraceContext};
use crate::trace::queue::SpanQueue;
use crate::trace::recorder::Recorder;
use crate::trace::request::RequestTrace;
use crate::trace::span::Side;
use crate::trace::takers::Takers;
use crate::trace::watch::Watched;

pub(crate) struct Tracer {
    traces: Traces,
    pub recorder: Rc<Recorder>,
}

// === impl Tracer ===

impl Tracer {
    /// With its share of what all cores may record.
    pub(crate) fn new(traces: Traces, cores: usize, exporter: SpanQueue) -> Rc<Self> {
        let cores = u32::try_from(cores.max(1)).unwrap_or(u32::MAX);
        let recorder = Recorder::new(traces.spans.div_ceil(cores), exporter);
        Rc::new(Self { traces, recorder })
    }

    pub(crate) fn parents(&self) -> Parents {
        self.traces.parents
    }

    /// The trace of a request that came with these fields. `parent` is the context among them, if
    /// that is to be followed; `sampling` the share that a policy has recorded of requests that
    /// follow none. Either has its record up to what the operator permits. An operator may wait for
    /// it, sampled or not.
    pub(crate) fn trace(
        &self,
        fields: &impl Fields,
        parent: Option<TraceContext>,
        sampling: Option<Share>,
        watched: Option<Rc<Watched>>,
    ) -> Box<RequestTrace> {
        let random = fastrand::u32(..);
        let Traces { sampling: default, most, .. } = self.traces;
        let wants_record = match parent {
            Some(parent) => parent.is_sampled() && most.takes(random),
            None => sampling.map_or(default.takes(random), |own| own.takes(random) && most.takes(random)),
        };
        let is_recorded = wants_record && self.recorder.admit();
        let began = || parent.unwrap_or_else(TraceContext::begin);
        let trace = match parent {
            _ if is_recorded => {
                RequestTrace::unrecorded(began().sampled().with_span(SpanId::random()), parent)
            }
            Some(parent) if !parent.is_sampled() => RequestTrace::as_it_came(parent),
            // "The parent-id field MUST be set to a new value with the sampled flag update."
            _ => RequestTrace::unrecorded(began().unsampled().with_span(SpanId::random()), parent),
        };
        if !is_recorded && watched.is_none() {
            return Box::new(trace);
        }
        if let Some(watched) = &watched {
            watched.is_in(trace.context().trace);
        }
        let recorder = is_recorded.then(|| self.recorder.clone());
        let takers = Takers { recorder, watched };
        let state = parent.and_then(|_| state(fields));
        let parent = parent.map(|parent| parent.span);
        let span = ActiveSpan::begin(takers.clone(), Side::Server, trace.context(), parent, state.clone());
        Box::new(trace.recorded(takers, state, span))
    }
}

/// The record of a request without a trace, for an operator alone.
pub(crate) fn watched_alone(watched: Rc<Watched>) -> Box<RequestTrace> {
    let trace = RequestTrace::untouched();
    let takers = Takers { recorder: None, watched: Some(watched) };
    let span = ActiveSpan::begin(takers.clone(), Side::Server, trace.context(), None, None);
    Box::new(trace.recorded(takers, None, span))
}

/// "Vendors may combine" several fields; what is longer than all must carry is left to backends.
fn state(fields: &impl Fields) -> Option<HeaderValue> {
    const LONGEST: usize = 512;
    let name = TRACESTATE;
    let mut values = fields.get_all(&name);
    let value = values.next().filter(|value| value.len() <= LONGEST)?;
    if values.next().is_some() {
        return None;
    }
    HeaderValue::from_bytes(value).ok()
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::core::clock;
    use crate::core::head::plain::PlainFields;
    use crate::core::stats::TraceStats;
    use crate::trace::span::Span;

    fn tracer(sampling: Share, most: Share, spans: u32) -> (Rc<Tracer>, mpsc::Receiver<Vec<Span>>) {
        let (exporter, spans_of) = SpanQueue::new(512);
        let traces = Traces { sampling, most, spans, parents: Parents::Any };
        (Tracer::new(traces, 1, exporter), spans_of)
    }

    fn part(percent: u32) -> Share {
        Share::new(percent, 100).unwrap()
    }

    fn recorded(tracer: &Rc<Tracer>, parent: Option<TraceContext>, sampling: Option<Share>) -> usize {
        let fields = PlainFields::default();
        (0..1000).filter(|_| tracer.trace(&fields, parent, sampling, None).is_recorded()).count()
    }

    #[test]
    fn policies_choose_the_share_up_to_what_the_operator_permits() {
        let (tracer, _spans) = tracer(part(0), part(20), 1_000_000);
        let any = TraceContext::begin();
        assert_eq!(recorded(&tracer, None, None), 0);
        assert!((100..300).contains(&recorded(&tracer, None, Some(Share::ALL))));
        assert!((20..180).contains(&recorded(&tracer, None, Some(part(10)))));
        // A trace that goes on is its beginner's, up to the same.
        assert!((100..300).contains(&recorded(&tracer, Some(any.sampled()), None)));
        assert_eq!(recorded(&tracer, Some(any), Some(Share::ALL)), 0);
    }

    #[test]
    fn a_limit_of_nothing_is_one_for_traces_that_go_on() {
        let (tracer, _spans) = tracer(part(0), part(0), 1_000_000);
        let sampled = TraceContext::begin().sampled();
        assert_eq!(recorded(&tracer, Some(sampled), Some(Share::ALL)), 0);
        let sent = tracer.trace(&PlainFields::default(), Some(sampled), None, None).context();
        assert!(sent.trace == sampled.trace && sent.span != sampled.span && !sent.is_sampled());
        assert_eq!(tracer.recorder.read().over_budget, 0);
    }

    #[test]
    fn no_more_is_recorded_than_the_budget_has() {
        let (tracer, mut spans) = tracer(Share::ALL, Share::ALL, 10);
        let sampled = TraceContext::begin().sampled();
        assert_eq!(recorded(&tracer, Some(sampled), None), 10);
        assert_eq!(tracer.recorder.read().over_budget, 990);
        // Their trace goes on, and is not sampled any more.
        let fields = PlainFields::default();
        let over = tracer.trace(&fields, Some(sampled), None, None);
        let sent = over.context();
        assert!(sent.trace == sampled.trace && sent.span != sampled.span && !sent.is_sampled());
        clock::advance();
        assert_eq!(recorded(&tracer, None, None), 2, "a quarter of a second's");
        tracer.recorder.charge();
        clock::advance();
        assert_eq!(recorded(&tracer, None, None), 2, "and a half was left, of which one was charged");
        tracer.recorder.flush();
        assert_eq!(spans.try_recv().unwrap().len(), 14);
    }

    #[test]
    fn small_batches_fill_no_more_room_than_large_ones() {
        let (tracer, mut spans) = tracer(Share::ALL, Share::ALL, 1_000_000);
        for _ in 0..512 {
            drop(tracer.trace(&PlainFields::default(), None, None, None));
            tracer.recorder.flush();
        }
        assert_eq!(tracer.recorder.read().lost, 0);
        drop(tracer.trace(&PlainFields::default(), None, None, None));
        tracer.recorder.flush();
        assert_eq!(tracer.recorder.read().lost, 1);
        assert_eq!(std::iter::from_fn(|| spans.try_recv().ok()).count(), 512);
    }

    #[test]
    fn spans_that_are_not_taken_are_counted() {
        let (tracer, spans) = tracer(Share::ALL, Share::ALL, 1_000_000);
        assert_eq!(recorded(&tracer, None, None), 1000);
        tracer.recorder.flush();
        assert_eq!(tracer.recorder.read(), TraceStats { over_budget: 0, lost: 1000 - 512 });
        drop(spans);
    }
}
