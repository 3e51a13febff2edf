//! A counter in a plain cell: each core has its own.

use std::cell::Cell;

#[derive(Debug, Default)]
pub(crate) struct Counter(Cell<u64>);

// === impl Counter ===

impl Counter {
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.set(self.0.get() + count);
    }

    pub(crate) fn decrement(&self) {
        self.0.set(self.0.get().saturating_sub(1));
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }
}
