//! Spans that a core records: as many as its budget has, until they are handed over.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::core::clock;
use crate::core::counter::Counter;
use crate::core::stats::TraceStats;
use crate::trace::queue::SpanQueue;
use crate::trace::span::Span;

/// Spans that a core gathers at most before it hands them over.
const BATCH: usize = 128;

pub(crate) struct Recorder {
    budget: Budget,
    gathered: RefCell<Vec<Span>>,
    exporter: SpanQueue,
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

// === impl Recorder ===

impl Recorder {
    pub(super) fn new(per_second: u32, exporter: SpanQueue) -> Rc<Self> {
        Rc::new(Self {
            budget: Budget::new(per_second),
            gathered: RefCell::default(),
            exporter,
            over_budget: Counter::default(),
            lost: Counter::default(),
        })
    }

    /// True if a request can be recorded; then its span is charged. It counts otherwise.
    pub(super) fn admit(&self) -> bool {
        let is_admitted = self.budget.take();
        if !is_admitted {
            self.over_budget.increment();
        }
        is_admitted
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
        if !self.exporter.hand_over(batch) {
            self.lost.add(spans);
        }
    }

    pub(crate) fn read(&self) -> TraceStats {
        TraceStats { over_budget: self.over_budget.get(), lost: self.lost.get() }
    }
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
