//! The snapshot under construction: the last one, copied when something is first written.

use std::sync::Arc;

use portcullis_model::Snapshot;

#[derive(Debug)]
pub(super) struct NextSnapshot {
    last: Arc<Snapshot>,
    next: Option<Snapshot>,
}

// === impl NextSnapshot ===

impl NextSnapshot {
    pub(super) fn after(last: &Arc<Snapshot>) -> Self {
        Self { last: last.clone(), next: None }
    }

    /// As it is now.
    pub(super) fn get(&self) -> &Snapshot {
        self.next.as_ref().unwrap_or(&self.last)
    }

    pub(super) fn edit(&mut self) -> &mut Snapshot {
        self.next.get_or_insert_with(|| (*self.last).clone())
    }

    /// The last one if nothing was written.
    pub(super) fn finish(self) -> Arc<Snapshot> {
        match self.next {
            Some(mut next) => {
                next.generation += 1;
                Arc::new(next)
            }
            None => self.last,
        }
    }
}
