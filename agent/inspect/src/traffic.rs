//! Counters as they are at one moment. A client takes two samples and computes rates and quantiles
//! from their difference: an agent that is not asked computes nothing.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::metrics::{Durations, Histogram, Requests, Traffic};
use crate::routes::named_route;

/// The index of requests that got no response, in counts by class.
const UNANSWERED: usize = 0;
/// The class of responses that say that a server failed.
const SERVER_ERROR: usize = 5;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrafficSample {
    /// Seconds since 1970.
    pub at: f64,
    /// Upper bounds of durations, in seconds; a last bucket is of those beyond.
    pub bounds: Vec<f64>,
    pub connections: ConnectionCounts,
    pub listeners: Vec<Counts>,
    /// Requests are counted by route, not by rule.
    pub routes: Vec<Counts>,
    pub backends: Vec<Counts>,
    /// Entries that the question's limit leaves out, the least busy ones.
    pub left_out: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionCounts {
    pub accepted: u64,
    /// Open now, at all Gateways.
    pub open: u64,
    pub failed_handshakes: u64,
}

/// Counters since the agent began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Of the listener, route or backend; `other` for all that have no counters of their own.
    pub name: String,
    /// Of a listener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// By status class: index 2 counts 200 to 299, index 0 those that got no response, index 6
    /// those whose clients did not wait for one.
    pub requests: [u64; 7],
    /// By bucket; empty ones at the end are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub durations: Vec<u64>,
    /// Connections and sessions that are forwarded as they are, and their bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarded: Option<ForwardedCounts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForwardedCounts {
    pub begun: u64,
    /// Open now.
    pub open: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes to clients.
    pub sent: u64,
}

/// Traffic between two samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    pub seconds: f64,
    pub open_connections: u64,
    pub connections_per_second: f64,
    pub listeners: Vec<Rate>,
    pub routes: Vec<Rate>,
    pub backends: Vec<Rate>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    pub requests_per_second: f64,
    /// Responses of 500 and more, and requests without a response.
    pub errors_per_second: f64,
    /// In seconds; `None` without requests that were measured.
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    /// Connections and sessions that are forwarded as they are.
    pub connections_per_second: f64,
    /// Bytes that are forwarded as they are, in both directions.
    pub bytes_per_second: f64,
}

/// A sample with at most `limit` entries of each kind. `at` is the agent's time.
pub fn traffic_sample(traffic: &Traffic, durations: &Durations, at: f64, limit: usize) -> TrafficSample {
    let measured: HashMap<_, _> =
        durations.listeners.iter().filter_map(|(id, it)| Some((id.as_ref()?, it))).collect();
    let listeners = traffic.listeners.iter().map(|(id, counts)| {
        let forwarded = &counts.forwarded;
        Counts {
            name: id.to_string(),
            gateway: Some(id.gateway.to_string()),
            requests: counts.requests,
            durations: measured.get(id).map(|it| trimmed(&it.requests)).unwrap_or_default(),
            forwarded: (forwarded.begun > 0).then_some(ForwardedCounts {
                begun: forwarded.begun,
                open: forwarded.open,
                received: forwarded.received,
                sent: forwarded.sent,
            }),
        }
    });
    let counts = |name: String, of: &Requests| Counts {
        name,
        requests: of.requests,
        durations: trimmed(&of.durations),
        ..Counts::default()
    };
    let routes = durations.routes.iter().map(|(route, it)| {
        let name = route.as_ref().map(|it| named_route(it.kind, &it.route, it.parent.as_ref()));
        counts(name.unwrap_or_else(other), it)
    });
    let backends = durations.backends.iter();
    let backends =
        backends.map(|(name, it)| counts(name.as_ref().map_or_else(other, ToString::to_string), it));
    let mut left_out = 0;
    let mut busiest = |counts: &mut dyn Iterator<Item = Counts>| {
        let mut all: Vec<_> = counts.filter(Counts::is_used).collect();
        if all.len() > limit {
            all.sort_by_key(|it| std::cmp::Reverse(it.requests.iter().sum::<u64>()));
            left_out += all.len() - limit;
            all.truncate(limit);
        }
        all
    };
    let (listeners, routes, backends) =
        (busiest(&mut { listeners }), busiest(&mut { routes }), busiest(&mut { backends }));
    TrafficSample {
        at,
        bounds: bounds(durations),
        connections: ConnectionCounts {
            accepted: traffic.accepted,
            open: traffic.gateways.iter().map(|(_, gateway)| gateway.open).sum(),
            failed_handshakes: traffic.handshake_failures.iter().map(|(_, count)| count).sum(),
        },
        listeners,
        routes,
        backends,
        left_out,
    }
}

fn other() -> String {
    "other".to_owned()
}

fn bounds(durations: &Durations) -> Vec<f64> {
    let listeners = durations.listeners.iter().map(|(_, it)| &it.requests);
    let routes = durations.routes.iter().map(|(_, it)| &it.durations);
    let backends = durations.backends.iter().map(|(_, it)| &it.durations);
    let any = listeners.chain(routes).chain(backends).find(|it| !it.buckets.is_empty());
    let bounds = any.into_iter().flat_map(|it| &it.buckets).map(|(bound, _)| *bound);
    bounds.filter(|bound| bound.is_finite()).collect()
}

fn trimmed(histogram: &Histogram) -> Vec<u64> {
    let mut counts: Vec<_> = histogram.buckets.iter().map(|(_, count)| *count).collect();
    let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts.truncate(used);
    counts
}

/// The duration that a share of them does not exceed, as far as buckets tell; `None` without any.
pub fn quantile(bounds: &[f64], counts: &[u64], share: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let rank = share * total as f64;
    let mut below = 0;
    for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        if (below + count) as f64 >= rank {
            // Those beyond the last bound are at least that long.
            let Some(upper) = bounds.get(at) else { return bounds.last().copied() };
            let lower = at.checked_sub(1).and_then(|before| bounds.get(before)).copied().unwrap_or(0.0);
            return Some(lower + (upper - lower) * (rank - below as f64) / *count as f64);
        }
        below += count;
    }
    None
}

// === impl Counts ===

impl Counts {
    fn is_used(&self) -> bool {
        self.requests.iter().any(|count| *count > 0) || self.forwarded.is_some()
    }

    fn rate_since(&self, before: Option<&Self>, seconds: f64, bounds: &[f64]) -> Rate {
        let since = |now: u64, then: Option<u64>| now.saturating_sub(then.unwrap_or(0));
        let per_second = |count: u64| count as f64 / seconds;
        let requests: Vec<_> = self
            .requests
            .iter()
            .enumerate()
            .map(|(class, now)| since(*now, before.map(|it| it.requests[class])))
            .collect();
        let durations: Vec<_> = self
            .durations
            .iter()
            .enumerate()
            .map(|(at, now)| since(*now, before.and_then(|it| it.durations.get(at).copied())))
            .collect();
        let forwarded = self.forwarded.unwrap_or_default();
        let forwarded_before = before.and_then(|it| it.forwarded).unwrap_or_default();
        let bytes = |it: ForwardedCounts| it.received + it.sent;
        Rate {
            name: self.name.clone(),
            gateway: self.gateway.clone(),
            requests_per_second: per_second(requests.iter().sum()),
            errors_per_second: per_second(requests[SERVER_ERROR] + requests[UNANSWERED]),
            p50: quantile(bounds, &durations, 0.5),
            p99: quantile(bounds, &durations, 0.99),
            connections_per_second: per_second(since(forwarded.begun, Some(forwarded_before.begun))),
            bytes_per_second: per_second(since(bytes(forwarded), Some(bytes(forwarded_before)))),
        }
    }
}

// === impl Rates ===

impl Rates {
    /// The busiest first. What the first sample does not have has begun since.
    pub fn between(before: &TrafficSample, after: &TrafficSample) -> Self {
        let seconds = (after.at - before.at).max(0.001);
        let rates = |before: &[Counts], now: &[Counts]| {
            let key = |counts: &Counts| (counts.gateway.clone(), counts.name.clone());
            let known: BTreeMap<_, _> = before.iter().map(|it| (key(it), it)).collect();
            let mut rates: Vec<_> = now
                .iter()
                .map(|it| it.rate_since(known.get(&key(it)).copied(), seconds, &after.bounds))
                .collect();
            let busy = |rate: &Rate| rate.requests_per_second + rate.connections_per_second;
            rates.sort_by(|a, b| busy(b).total_cmp(&busy(a)).then_with(|| a.name.cmp(&b.name)));
            rates
        };
        let accepted = after.connections.accepted.saturating_sub(before.connections.accepted);
        Self {
            seconds,
            open_connections: after.connections.open,
            connections_per_second: accepted as f64 / seconds,
            listeners: rates(&before.listeners, &after.listeners),
            routes: rates(&before.routes, &after.routes),
            backends: rates(&before.backends, &after.backends),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(requests: [u64; 7], durations: &[u64]) -> Counts {
        Counts { name: "a".to_owned(), requests, durations: durations.to_vec(), ..Counts::default() }
    }

    #[test]
    fn quantiles_are_within_the_bucket_of_their_rank() {
        let bounds = [0.1, 0.2, 0.4];
        for (counts, share, expected) in [
            (&[][..], 0.5, None),
            (&[0, 0], 0.5, None),
            (&[10], 0.5, Some(0.05)),
            (&[0, 10], 0.5, Some(0.15)),
            (&[90, 0, 10], 0.95, Some(0.3)),
            (&[0, 0, 0, 5], 0.5, Some(0.4)),
        ] {
            let found = quantile(&bounds, counts, share);
            let is_it = match (found, expected) {
                (Some(found), Some(expected)) => (found - expected).abs() < 1e-9,
                (found, expected) => found == expected,
            };
            assert!(is_it, "{counts:?} {share}: {found:?}");
        }
    }

    #[test]
    fn rates_are_differences_and_what_is_new_counts_from_nothing() {
        let before = TrafficSample {
            at: 10.0,
            bounds: vec![0.1, 0.2],
            routes: vec![counts([0, 0, 100, 0, 0, 5, 0], &[100, 5])],
            ..TrafficSample::default()
        };
        let mut new = counts([2, 0, 0, 0, 0, 0, 0], &[]);
        new.name = "b".to_owned();
        let after = TrafficSample {
            at: 12.0,
            routes: vec![new, counts([0, 0, 120, 0, 0, 9, 0], &[100, 29])],
            ..before.clone()
        };
        let rates = Rates::between(&before, &after);
        let shown: Vec<_> = rates
            .routes
            .iter()
            .map(|it| (it.name.as_str(), it.requests_per_second, it.errors_per_second))
            .collect();
        assert_eq!(shown, [("a", 12.0, 2.0), ("b", 1.0, 1.0)]);
        assert!(rates.routes[0].p50.unwrap() > 0.1);
        assert_eq!(rates.routes[1].p99, None);
    }
}
