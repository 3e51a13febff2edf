//! Limits of a backend: requests and connections that it has at once, and requests that wait. The
//! numbers are those of the agent: its cores count in the same cells.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use portcullis_model::BackendLimits;
use tokio::sync::Notify;

use crate::core::stats::BackendStats;
use crate::upstream::health::BackendHealth;

#[derive(Debug, Default)]
pub(crate) struct Places {
    requests: Room,
    connections: Room,
    waiting: Room,
    /// A request has ended, or more may come.
    freed: Notify,
    refused_requests: AtomicU64,
    refused_connections: AtomicU64,
}

/// A number that is limited.
#[derive(Debug, Default)]
struct Room {
    taken: AtomicU32,
    limit: AtomicU32,
}

/// The backend has as many requests or connections as it may have.
#[derive(Debug)]
pub(crate) struct Full;

/// The place of a request, until its response has ended.
pub(crate) struct RequestPlace(Arc<BackendHealth>);

pub(crate) struct ConnectionPlace(Arc<BackendHealth>);

/// The place of a request that waits for one.
struct Waiting<'p>(&'p Places);

// === impl Places ===

impl Places {
    pub(super) fn limit(&self, limits: &BackendLimits) {
        let BackendLimits { connections, requests, pending_requests } = *limits;
        self.connections.limit.store(connections.map_or(u32::MAX, Into::into), Relaxed);
        self.requests.limit.store(requests.map_or(u32::MAX, Into::into), Relaxed);
        self.waiting.limit.store(pending_requests, Relaxed);
        self.freed.notify_waiters();
    }

    pub(super) fn stats(&self) -> BackendStats {
        BackendStats {
            requests: self.requests.taken.load(Relaxed).into(),
            pending: self.waiting.taken.load(Relaxed).into(),
            connections: self.connections.taken.load(Relaxed).into(),
            refused_requests: self.refused_requests.load(Relaxed),
            refused_connections: self.refused_connections.load(Relaxed),
            ..BackendStats::default()
        }
    }
}

// === impl BackendHealth ===

impl BackendHealth {
    /// A place for a request, for which it may have to wait.
    pub(crate) async fn request(self: &Arc<Self>) -> Result<RequestPlace, Full> {
        let places = &self.places;
        if places.requests.take() {
            return Ok(RequestPlace(self.clone()));
        }
        if !places.waiting.take() {
            places.refused_requests.fetch_add(1, Relaxed);
            return Err(Full);
        }
        let _waiting = Waiting(places);
        loop {
            let mut freed = std::pin::pin!(places.freed.notified());
            // From here on no end of another goes unnoticed.
            freed.as_mut().enable();
            if places.requests.take() {
                return Ok(RequestPlace(self.clone()));
            }
            freed.await;
        }
    }

    pub(crate) fn connection(self: &Arc<Self>) -> Result<ConnectionPlace, Full> {
        if self.places.connections.take() {
            Ok(ConnectionPlace(self.clone()))
        } else {
            self.places.refused_connections.fetch_add(1, Relaxed);
            Err(Full)
        }
    }
}

// === impl Room ===

impl Room {
    /// False if there is none.
    fn take(&self) -> bool {
        let limit = self.limit.load(Relaxed);
        let more = |taken| if taken < limit { Some(taken + 1) } else { None };
        self.taken.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_back(&self) {
        self.taken.fetch_sub(1, Relaxed);
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        self.0.places.requests.give_back();
        // Where more come than have places, the first would get theirs just before their time is
        // over, and none would be answered.
        self.0.places.freed.notify_last();
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.0.places.connections.give_back();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.give_back();
    }
}
