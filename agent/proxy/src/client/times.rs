//! The times that a client has for what it is to do: those of its Gateway, or shorter ones of
//! listeners.

use std::time::Duration;

use portcullis_model::{Limits, ListenerLimits};

use crate::client::connection::Version;
use crate::core::clock;
use crate::core::stats::ExceededLimit;

/// The times that a client has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Ticks that a head may take.
    pub head: u32,
    pub idle: IdleLimit,
}

/// The time that a client may do nothing when it is its turn, and the limit that sets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleLimit {
    pub ticks: u32,
    pub limit: ExceededLimit,
}

// === impl Times ===

impl Times {
    pub(crate) fn of(version: Version, gateway: &Limits, listener: Option<&ListenerLimits>) -> Self {
        let (idle, of_listener, limit) = match version {
            Version::Http1 => (
                gateway.idle_timeout,
                listener.and_then(|limits| limits.idle_timeout),
                ExceededLimit::IdleTimeout,
            ),
            Version::Http2 => (
                gateway.http2_idle_timeout,
                listener.and_then(|limits| limits.http2_idle_timeout),
                ExceededLimit::Http2IdleTimeout,
            ),
        };
        let ticks = |gateway: Duration, listener: Option<Duration>| {
            clock::ticks(listener.map_or(gateway, |time| time.min(gateway)))
        };
        let head = ticks(gateway.header_timeout, listener.and_then(|limits| limits.header_timeout));
        Self { head, idle: IdleLimit { ticks: ticks(idle, of_listener), limit } }
    }

    pub(crate) fn longest(self, other: Self) -> Self {
        let ticks = self.idle.ticks.max(other.idle.ticks);
        Self { head: self.head.max(other.head), idle: IdleLimit { ticks, ..self.idle } }
    }
}
