//! A core's part of tracing: the choice of requests, the budget of spans, and those that are to be
//! handed over.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use http::HeaderValue;
use portcullis_model::Share;
use tokio::sync::mpsc;

use crate::core::clock;
use crate::core::counter::Counter;
use crate::core::head::Fields;
use crate::core::otlp::{Parents, Traces};
use crate::core::stats::TraceStats;
use crate::trace::context::{SpanId, TRACESTATE, TraceContext};
use crate::trace::request::RequestTrace;
use crate::trace::span::{ActiveSpan, Side, Span};

/// Spans that a core gathers at most before it hands them over.
const BATCH: usize = 128;

pub(crate) struct Tracer {
    traces: Traces,
    budget: Budget,
    gathered: RefCell<Vec<Span>>,
    exporter: mpsc::Sender<Vec<Span>>,
    /// Requests that would have been recorded.
    over_budget: Counter,
    lost: Counter,
}

/// Spans that may be recorded now: those of a second at most. They are counted in parts of a span,
/// of which each tick of the clock brings as many as there are spans a second.
struct Budget {
    per_second: i64,
    left: Cell<i64>,
    filled: Cell<u32>,
}

/// The parts of a span: ticks of a second.
const PARTS: i64 = clock::PER_SECOND as i64;

// === impl Tracer ===

impl Tracer {
    /// With its share of what all cores may record.
    pub(crate) fn new(traces: Traces, cores: usize, exporter: mpsc::Sender<Vec<Span>>) -> Rc<Self> {
        let cores = u32::try_from(cores.max(1)).unwrap_or(u32::MAX);
        let budget = Budget::new(traces.spans.div_ceil(cores));
        Rc::new(Self {
            traces,
            budget,
            gathered: RefCell::default(),
            exporter,
            over_budget: Counter::default(),
            lost: Counter::default(),
        })
    }

    pub(crate) fn parents(&self) -> Parents {
        self.traces.parents
    }

    /// The trace of a request that came with these fields. `parent` is the context among them, if
    /// that is to be followed; `sampling` the share that a policy has recorded of requests that
    /// follow none.
    pub(crate) fn trace(
        self: &Rc<Self>,
        fields: &impl Fields,
        parent: Option<TraceContext>,
        sampling: Option<Share>,
    ) -> Box<RequestTrace> {
        let wants_record = match parent {
            Some(parent) => parent.is_sampled(),
            None => {
                let random = fastrand::u32(..);
                let Traces { sampling: default, most, .. } = self.traces;
                sampling.map_or(default.takes(random), |own| own.takes(random) && most.takes(random))
            }
        };
        let is_recorded = wants_record && self.budget.take();
        if wants_record && !is_recorded {
            self.over_budget.increment();
        }
        let began = || parent.unwrap_or_else(TraceContext::begin);
        if !is_recorded {
            return Box::new(match parent {
                Some(parent) if !wants_record => RequestTrace::as_it_came(parent),
                // "The parent-id field MUST be set to a new value with the sampled flag update."
                _ => RequestTrace::unrecorded(began().unsampled().with_span(SpanId::random()), parent),
            });
        }
        let context = began().sampled().with_span(SpanId::random());
        let state = parent.and_then(|_| state(fields));
        let span =
            ActiveSpan::begin(self, Side::Server, context, parent.map(|parent| parent.span), state.clone());
        Box::new(RequestTrace::recorded(self.clone(), context, parent, state, span))
    }

    /// Notes that a request that is recorded has one more span.
    pub(super) fn charge(&self) {
        self.budget.charge();
    }

    pub(super) fn take(&self, span: Span) {
        let mut gathered = self.gathered.borrow_mut();
        gathered.push(span);
        if gathered.len() >= BATCH {
            self.hand_over(&mut gathered);
        }
    }

    pub(crate) fn flush(&self) {
        let mut gathered = self.gathered.borrow_mut();
        if !gathered.is_empty() {
            self.hand_over(&mut gathered);
        }
    }

    fn hand_over(&self, gathered: &mut Vec<Span>) {
        let batch = std::mem::take(gathered);
        let spans = batch.len() as u64;
        if self.exporter.try_send(batch).is_err() {
            self.lost.add(spans);
        }
    }

    pub(crate) fn read(&self) -> TraceStats {
        TraceStats { over_budget: self.over_budget.get(), lost: self.lost.get() }
    }
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

// === impl Budget ===

impl Budget {
    fn new(per_second: u32) -> Self {
        let per_second = i64::from(per_second);
        Self { per_second, left: Cell::new(per_second * PARTS), filled: Cell::new(clock::now()) }
    }

    /// Takes a span, if there is one.
    fn take(&self) -> bool {
        let now = clock::now();
        let ticks = i64::from(now.wrapping_sub(self.filled.replace(now)));
        let most = self.per_second * PARTS;
        let left = self.left.get().saturating_add(ticks.saturating_mul(self.per_second)).min(most);
        let is_there = left >= PARTS;
        self.left.set(if is_there { left - PARTS } else { left });
        is_there
    }

    /// Takes one that may not be there.
    fn charge(&self) {
        self.left.set(self.left.get() - PARTS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    fn tracer(sampling: Share, most: Share, spans: u32) -> (Rc<Tracer>, mpsc::Receiver<Vec<Span>>) {
        let (exporter, spans_of) = mpsc::channel(1);
        let traces = Traces { sampling, most, spans, parents: Parents::Any };
        (Tracer::new(traces, 1, exporter), spans_of)
    }

    fn part(percent: u32) -> Share {
        Share::new(percent, 100).unwrap()
    }

    fn recorded(tracer: &Rc<Tracer>, parent: Option<TraceContext>, sampling: Option<Share>) -> usize {
        let fields = PlainFields::default();
        (0..1000).filter(|_| tracer.trace(&fields, parent, sampling).is_recorded()).count()
    }

    #[test]
    fn policies_choose_the_share_up_to_what_the_operator_permits() {
        let (tracer, _spans) = tracer(part(0), part(20), 1_000_000);
        let any = TraceContext::begin();
        assert_eq!(recorded(&tracer, None, None), 0);
        assert!((100..300).contains(&recorded(&tracer, None, Some(Share::ALL))));
        assert!((20..180).contains(&recorded(&tracer, None, Some(part(10)))));
        // A trace that goes on is its beginner's.
        assert_eq!(recorded(&tracer, Some(any.sampled()), None), 1000);
        assert_eq!(recorded(&tracer, Some(any), Some(Share::ALL)), 0);
    }

    #[test]
    fn no_more_is_recorded_than_the_budget_has() {
        let (tracer, mut spans) = tracer(Share::ALL, Share::ALL, 10);
        let sampled = TraceContext::begin().sampled();
        assert_eq!(recorded(&tracer, Some(sampled), None), 10);
        assert_eq!(tracer.read().over_budget, 990);
        // Their trace goes on, and is not sampled any more.
        let fields = PlainFields::default();
        let over = tracer.trace(&fields, Some(sampled), None);
        let sent = over.context();
        assert!(sent.trace == sampled.trace && sent.span != sampled.span && !sent.is_sampled());
        clock::advance();
        assert_eq!(recorded(&tracer, None, None), 2, "a quarter of a second's");
        tracer.charge();
        clock::advance();
        assert_eq!(recorded(&tracer, None, None), 2, "and a half was left, of which one was charged");
        tracer.flush();
        assert_eq!(spans.try_recv().unwrap().len(), 14);
    }

    #[test]
    fn spans_that_nobody_takes_are_counted() {
        let (tracer, spans) = tracer(Share::ALL, Share::ALL, 1_000_000);
        assert_eq!(recorded(&tracer, None, None), 1000);
        tracer.flush();
        assert_eq!(tracer.read(), TraceStats { over_budget: 0, lost: 1000 - BATCH as u64 });
        drop(spans);
    }
}
