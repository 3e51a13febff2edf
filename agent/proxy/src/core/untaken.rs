//! The bytes of request bodies that came on a client's connection and that no backend has taken
//! yet: memory that is in use because backends are slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Only the connection's core touches it; it is atomic because the stream of an upgraded connection
/// must be `Send`.
#[derive(Debug, Default)]
pub(crate) struct Untaken {
    bodies: AtomicU32,
    bytes: AtomicUsize,
}

/// A body of the connection. With the last one, what was not taken goes, too: how much of it was
/// which body's is not known here.
#[derive(Debug)]
pub(crate) struct TakenBody(Arc<Untaken>);

// === impl Untaken ===

impl Untaken {
    /// Bytes of a body came.
    pub(crate) fn came(&self, bytes: usize) {
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        if self.bodies.load(Relaxed) == 0 { 0 } else { self.bytes.load(Relaxed) }
    }
}

// === impl TakenBody ===

impl TakenBody {
    pub(crate) fn begin(connection: &Arc<Untaken>) -> Self {
        connection.bodies.store(connection.bodies.load(Relaxed) + 1, Relaxed);
        Self(connection.clone())
    }

    pub(crate) fn take(&self, bytes: usize) {
        self.0.bytes.store(self.0.bytes.load(Relaxed).saturating_sub(bytes), Relaxed);
    }
}

impl Drop for TakenBody {
    fn drop(&mut self) {
        let left = self.0.bodies.load(Relaxed) - 1;
        self.0.bodies.store(left, Relaxed);
        if left == 0 {
            self.0.bytes.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_or_given_up_is_gone() {
        let connection = Arc::new(Untaken::default());
        connection.came(10);
        assert_eq!(connection.bytes(), 0, "there is no body that would keep them");
        let (one, other) = (TakenBody::begin(&connection), TakenBody::begin(&connection));
        connection.came(10);
        one.take(5);
        drop(one);
        assert_eq!(connection.bytes(), 15);
        other.take(20);
        assert_eq!(connection.bytes(), 0);
        connection.came(1);
        drop(other);
        assert_eq!(connection.bytes(), 0);
    }
}
