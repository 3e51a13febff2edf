//! Durations of requests and handshakes, as histograms, and requests by route and backend.

use std::fmt;
use std::time::Duration;

use portcullis_model::{BackendName, ListenerId, ObjectName};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::labels::{
    BackendClassLabels, BackendLabels, ListenerLabels, RouteClassLabels, RouteLabels, SeriesLabels,
    class_label, listener_labels,
};

/// The value of labels of the series that everything without one of its own shares.
pub(super) const OTHER: &str = "other";

/// Durations by name; `None` names the series of all that have none of their own. Empty where
/// nothing is measured.
#[derive(Debug, Default)]
pub struct Durations {
    pub listeners: Vec<(Option<ListenerId>, ListenerDurations)>,
    pub routes: Vec<(Option<RouteSeries>, Requests)>,
    pub backends: Vec<(Option<BackendName>, Requests)>,
    /// Listeners that may have series of their own; as many routes and backends.
    pub limit: usize,
}

#[derive(Debug)]
pub struct RouteSeries {
    pub kind: &'static str,
    pub route: ObjectName,
    /// The route that it is included by.
    pub parent: Option<ObjectName>,
}

#[derive(Debug, Default)]
pub struct ListenerDurations {
    pub requests: Histogram,
    pub handshakes: Histogram,
}

#[derive(Debug, Default)]
pub struct Requests {
    /// By status class: index 2 counts 200 to 299, index 0 those that got no response, index 6
    /// those whose clients did not wait for one.
    pub requests: [u64; 7],
    pub durations: Histogram,
}

#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Upper bounds with the durations up to each and above the one before it; those beyond all
    /// come last, and their bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    pub sum: Duration,
}

/// A histogram for each set of labels.
#[derive(Debug)]
struct Histograms<L> {
    name: &'static str,
    help: &'static str,
    series: Vec<(L, Histogram)>,
}

pub(super) fn register(registry: &mut Registry, durations: &Durations) {
    of_listeners(registry, durations);
    of_routes(registry, durations);
    of_backends(registry, durations);
    let series = Family::<SeriesLabels, Gauge>::default();
    let numbers = [
        ("listener", own(&durations.listeners)),
        ("route", own(&durations.routes)),
        ("backend", own(&durations.backends)),
    ];
    for (of, number) in numbers {
        series.get_or_create(&SeriesLabels { of }).set(number as i64);
    }
    let help = "Listeners, routes and backends that have histograms of their own";
    registry.register("portcullis_duration_series", help, series);
    let limit = Gauge::<i64>::default();
    limit.set(i64::try_from(durations.limit).unwrap_or(i64::MAX));
    registry.register("portcullis_duration_series_limit", "As many as may have", limit);
}

fn own<K, V>(series: &[(Option<K>, V)]) -> usize {
    series.iter().filter(|(name, _)| name.is_some()).count()
}

fn of_listeners(registry: &mut Registry, durations: &Durations) {
    let other = || ListenerLabels { gateway: OTHER.to_owned(), ..ListenerLabels::default() };
    let of_all = |histogram: fn(&ListenerDurations) -> &Histogram| {
        let all = durations.listeners.iter().filter(|(_, it)| histogram(it).count() > 0);
        all.map(|(id, it)| (id.as_ref().map_or_else(other, listener_labels), histogram(it).clone())).collect()
    };
    histograms(
        registry,
        "http_server_request_duration",
        "Time from a request's head to the end of its response, by listener",
        of_all(|it| &it.requests),
    );
    histograms(
        registry,
        "tls_server_handshake_duration",
        "Time from a ClientHello to the end of its handshake, by listener",
        of_all(|it| &it.handshakes),
    );
}

fn of_routes(registry: &mut Registry, durations: &Durations) {
    let counts = Family::<RouteClassLabels, Counter>::default();
    let mut series = Vec::new();
    for (route, requests) in durations.routes.iter().filter(|(_, it)| it.durations.count() > 0) {
        let labels = route_labels(route.as_ref());
        for (http_response_status_class, count) in requests.by_class() {
            let RouteLabels { route_kind, route, parent_route } = labels.clone();
            let labels = RouteClassLabels { route_kind, route, parent_route, http_response_status_class };
            counts.get_or_create(&labels).inc_by(count);
        }
        series.push((labels, requests.durations.clone()));
    }
    let help = "Answered requests, by route and status class";
    registry.register("portcullis_route_requests", help, counts);
    let help = "Time from a request's head to the end of its response, by route";
    histograms(registry, "portcullis_route_request_duration", help, series);
}

fn of_backends(registry: &mut Registry, durations: &Durations) {
    let counts = Family::<BackendClassLabels, Counter>::default();
    let mut series = Vec::new();
    for (name, requests) in durations.backends.iter().filter(|(_, it)| it.durations.count() > 0) {
        let backend = name.as_ref().map_or_else(|| OTHER.to_owned(), ToString::to_string);
        for (http_response_status_class, count) in requests.by_class() {
            let labels = BackendClassLabels { backend: backend.clone(), http_response_status_class };
            counts.get_or_create(&labels).inc_by(count);
        }
        series.push((BackendLabels { backend }, requests.durations.clone()));
    }
    let help = "Requests that were sent on, by backend and status class of its response";
    registry.register("http_client_requests", help, counts);
    let help = "Time until a backend's response began, with connecting and retries";
    histograms(registry, "http_client_request_duration", help, series);
}

fn route_labels(name: Option<&RouteSeries>) -> RouteLabels {
    match name {
        Some(RouteSeries { kind, route, parent }) => RouteLabels {
            route_kind: (*kind).to_owned(),
            route: route.to_string(),
            parent_route: parent.as_ref().map(ToString::to_string).unwrap_or_default(),
        },
        None => {
            RouteLabels { route_kind: String::new(), route: OTHER.to_owned(), parent_route: String::new() }
        }
    }
}

fn histograms<L>(registry: &mut Registry, name: &'static str, help: &'static str, series: Vec<(L, Histogram)>)
where
    L: EncodeLabelSet + fmt::Debug + Send + Sync + 'static,
{
    registry.register_collector(Box::new(Histograms { name, help, series }));
}

// === impl Requests ===

impl Requests {
    /// By label, as far as there are any.
    fn by_class(&self) -> impl Iterator<Item = (String, u64)> {
        let counts = self.requests.iter().copied().enumerate().filter(|(_, count)| *count > 0);
        counts.map(|(class, count)| (class_label(class), count))
    }
}

// === impl Histogram ===

impl Histogram {
    fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

// === impl Histograms ===

impl<L> Collector for Histograms<L>
where
    L: EncodeLabelSet + fmt::Debug + Send + Sync + 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder =
            encoder.encode_descriptor(self.name, self.help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, histogram) in &self.series {
            let Histogram { buckets, sum } = histogram;
            let mut encoder = encoder.encode_family(labels)?;
            encoder.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), histogram.count(), buckets, None)?;
        }
        Ok(())
    }
}
