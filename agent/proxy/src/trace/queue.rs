//! Spans on their way from cores to the thread that exports them.

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::core::waiting_room::WaitingRoom;
use crate::trace::span::Span;

#[derive(Clone, Debug)]
pub(crate) struct SpanQueue {
    batches: mpsc::Sender<Vec<Span>>,
    /// In spans.
    pub room: Arc<WaitingRoom>,
}

// === impl SpanQueue ===

impl SpanQueue {
    /// Of so many spans at most; a batch has one at least.
    pub(crate) fn new(most: usize) -> (Self, mpsc::Receiver<Vec<Span>>) {
        let (batches, batches_of) = mpsc::channel(most);
        (Self { batches, room: WaitingRoom::new(most) }, batches_of)
    }

    /// False if the batch is lost.
    pub(super) fn hand_over(&self, batch: Vec<Span>) -> bool {
        let spans = batch.len();
        if self.room.take(spans) {
            let is_taken = self.batches.try_send(batch).is_ok();
            if !is_taken {
                self.room.leave(spans);
            }
            return is_taken;
        }
        if self.room.is_log_due() {
            tracing::warn!(
                "spans are lost, and counted: as many wait for the collector as may; look whether it keeps up"
            );
        }
        false
    }
}
