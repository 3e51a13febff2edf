//! Metrics of what goes to a collector, and of what does not.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Traffic;
use super::counter;
use super::labels::SignalLabels;

pub(super) fn register(registry: &mut Registry, traffic: &Traffic) {
    let items = Family::<SignalLabels, Counter>::default();
    for (signal, outcome, count) in &traffic.exported {
        items.get_or_create(&SignalLabels { signal, outcome }).inc_by(*count);
    }
    let help = "Spans, and lines of access logs, for the collector, by what became of them";
    registry.register("portcullis_otlp_items", help, items);
    let help = "Requests that were to be recorded, and were not: there were more spans than --trace-spans";
    counter(registry, "portcullis_traces_over_budget", help, traffic.traces_over_budget);
}
