//! Limits of a listener's clients beside those of its Gateway: each level can set smaller ones,
//! none larger ones.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::Limits;

/// The limits of requests and of their connections, of all levels together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Requests to listeners with such a limit on one connection.
    pub requests: Option<NonZeroU32>,
    pub header_timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub http2_idle_timeout: Option<Duration>,
    pub http2_streams: Option<u32>,
    pub target_bytes: Option<u32>,
    pub header_bytes: Option<u32>,
    pub header_fields: Option<u32>,
}

// === impl ListenerLimits ===

impl ListenerLimits {
    /// Those of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            requests: smaller(self.requests, other.requests),
            header_timeout: smaller(self.header_timeout, other.header_timeout),
            idle_timeout: smaller(self.idle_timeout, other.idle_timeout),
            http2_idle_timeout: smaller(self.http2_idle_timeout, other.http2_idle_timeout),
            http2_streams: smaller(self.http2_streams, other.http2_streams),
            target_bytes: smaller(self.target_bytes, other.target_bytes),
            header_bytes: smaller(self.header_bytes, other.header_bytes),
            header_fields: smaller(self.header_fields, other.header_fields),
        }
    }

    /// The looser of both, where both have one.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            requests: larger(self.requests, other.requests),
            header_timeout: larger(self.header_timeout, other.header_timeout),
            idle_timeout: larger(self.idle_timeout, other.idle_timeout),
            http2_idle_timeout: larger(self.http2_idle_timeout, other.http2_idle_timeout),
            http2_streams: larger(self.http2_streams, other.http2_streams),
            target_bytes: larger(self.target_bytes, other.target_bytes),
            header_bytes: larger(self.header_bytes, other.header_bytes),
            header_fields: larger(self.header_fields, other.header_fields),
        }
    }

    /// A Gateway's limits with these beside them.
    pub fn beside(&self, limits: &Limits) -> Limits {
        let least = |given: Option<u32>, limit: u32| given.map_or(limit, |given| given.min(limit));
        let shortest = |given: Option<Duration>, limit: Duration| given.map_or(limit, |it| it.min(limit));
        Limits {
            header_timeout: shortest(self.header_timeout, limits.header_timeout),
            idle_timeout: shortest(self.idle_timeout, limits.idle_timeout),
            http2_idle_timeout: shortest(self.http2_idle_timeout, limits.http2_idle_timeout),
            http2_streams: least(self.http2_streams, limits.http2_streams),
            target_bytes: least(self.target_bytes, limits.target_bytes),
            header_bytes: least(self.header_bytes, limits.header_bytes),
            header_fields: least(self.header_fields, limits.header_fields),
            ..limits.clone()
        }
    }

    /// Names and values of those that there are, as policies write them.
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, String)> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let time = |time: Option<Duration>| time.map(|time| format!("{time:?}"));
        let all = [
            ("requestsPerConnection", number(self.requests.map(NonZeroU32::get))),
            ("headerTimeout", time(self.header_timeout)),
            ("idleTimeout", time(self.idle_timeout)),
            ("http2IdleTimeout", time(self.http2_idle_timeout)),
            ("http2Streams", number(self.http2_streams)),
            ("targetBytes", number(self.target_bytes)),
            ("headerBytes", number(self.header_bytes)),
            ("headerFields", number(self.header_fields)),
        ];
        all.into_iter().filter_map(|(name, text)| Some((name, text?)))
    }
}

fn smaller<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    one.into_iter().chain(other).min()
}

fn larger<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    one.zip(other).map(|(one, other)| one.max(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_of_all_levels_holds() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let wide = ListenerLimits {
            header_bytes: Some(4096),
            idle_timeout: seconds(5),
            ..ListenerLimits::default()
        };
        let narrow = ListenerLimits {
            header_bytes: Some(8192),
            http2_streams: Some(1000),
            ..ListenerLimits::default()
        };
        let both = wide.and(&narrow);
        assert_eq!(
            (both.header_bytes, both.idle_timeout, both.http2_streams),
            (Some(4096), seconds(5), Some(1000))
        );
        let loosest = ListenerLimits { header_bytes: Some(8192), ..ListenerLimits::default() };
        assert_eq!(wide.or(&narrow), loosest, "what only one has does not hold for both");
        let limits = both.beside(&Limits { idle_timeout: Duration::from_secs(2), ..Limits::default() });
        assert_eq!((limits.header_bytes, limits.idle_timeout), (4096, Duration::from_secs(2)));
        assert_eq!(limits.http2_streams, Limits::default().http2_streams, "no level can have more");
    }
}
