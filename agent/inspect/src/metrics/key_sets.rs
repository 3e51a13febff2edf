//! Metrics of key sets that are fetched. Where there is none that is good, there is no age; where
//! policies want it fetched at different intervals, it is the oldest one's.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::Traffic;
use super::labels::{KeySetLabels, KeySetOutcomeLabels};

pub(super) fn register(registry: &mut Registry, traffic: &Traffic) {
    let ages = Family::<KeySetLabels, Gauge>::default();
    let fetches = Family::<KeySetOutcomeLabels, Counter>::default();
    for (set, traffic) in &traffic.key_sets {
        let (backend, path) = (set.backend.to_string(), set.shown_path().to_owned());
        if let Some(age) = traffic.age {
            let age = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
            let labels = KeySetLabels { backend: backend.clone(), path: path.clone() };
            let shown = ages.get_or_create(&labels);
            shown.set(age.max(shown.get()));
        }
        for (outcome, count) in &traffic.fetches {
            let labels = KeySetOutcomeLabels { backend: backend.clone(), path: path.clone(), outcome };
            fetches.get_or_create(&labels).inc_by(*count);
        }
    }
    let help = "Time since a key set was fetched";
    registry.register_with_unit("portcullis_key_set_age", help, Unit::Seconds, ages);
    let help = "Fetches of key sets, by outcome";
    registry.register("portcullis_key_set_fetches", help, fetches);
}
