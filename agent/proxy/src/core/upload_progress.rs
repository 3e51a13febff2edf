//! The progress of a request's body whose length was announced, on a connection that has others.
//! The body leaves marks, which the sweep of its client's connection looks at.

use std::cell::{Cell, RefCell};
use std::task::Waker;

#[derive(Debug, Default)]
pub(crate) struct UploadProgress {
    received: Cell<u64>,
    /// Of the task that waits for more of the body; `None` while there is more.
    waiting: RefCell<Option<Waker>>,
    is_too_slow: Cell<bool>,
}

impl UploadProgress {
    pub(crate) fn received(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
        self.waiting.take();
    }

    /// More of what was announced would be taken if it were there.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *waiting = Some(waker.clone());
        }
    }

    /// The bytes that came so far, if the client owes more.
    pub(crate) fn owed(&self) -> Option<u64> {
        self.waiting.borrow().as_ref().map(|_| self.received.get())
    }

    /// Breaks the body off.
    pub(crate) fn end(&self) {
        self.is_too_slow.set(true);
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }

    pub(crate) fn is_too_slow(&self) -> bool {
        self.is_too_slow.get()
    }
}
