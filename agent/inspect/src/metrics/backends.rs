//! Metrics of backends whose policies are about the health of their endpoints, or about limits.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::durations::OTHER;
use super::labels::{BackendLabels, BackendLimitLabels, BackendOutcomeLabels, EndpointLabels};
use super::{BackendTraffic, Traffic, gauge};

/// Endpoints with a series of their own, of one backend and of all: tenants have as many as they
/// like.
const MOST_OF_BACKEND: usize = 50;
const MOST: usize = 1000;

/// `limit` is the number of backends that may have series of their own; all others share one.
pub(super) fn register(registry: &mut Registry, traffic: &Traffic, limit: usize) {
    let out = Family::<EndpointLabels, Gauge>::default();
    let ejections = Family::<BackendLabels, Counter>::default();
    let checks = Family::<BackendOutcomeLabels, Counter>::default();
    let open = Family::<BackendLimitLabels, Gauge>::default();
    let refused = Family::<BackendLimitLabels, Counter>::default();
    let mut named = 0;
    for (at, (name, traffic)) in traffic.backends.iter().filter(|(_, it)| !it.is_idle()).enumerate() {
        let backend = if at < limit { name.to_string() } else { OTHER.to_owned() };
        if traffic.ejections > 0 {
            ejections.get_or_create(&BackendLabels { backend: backend.clone() }).inc_by(traffic.ejections);
        }
        for (place, (endpoint, reason)) in traffic.out.iter().enumerate() {
            let is_named = place < MOST_OF_BACKEND && named < MOST;
            named += usize::from(is_named);
            let endpoint = if is_named { endpoint.to_string() } else { "other".to_owned() };
            out.get_or_create(&EndpointLabels { backend: backend.clone(), endpoint, reason }).inc();
        }
        for (outcome, count) in &traffic.checks {
            let labels = BackendOutcomeLabels { backend: backend.clone(), outcome };
            checks.get_or_create(&labels).inc_by(*count);
        }
        for (reason, count) in traffic.open.iter().filter(|(_, count)| *count > 0) {
            let labels = BackendLimitLabels { backend: backend.clone(), reason };
            open.get_or_create(&labels).inc_by(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        for (reason, count) in &traffic.refused {
            let labels = BackendLimitLabels { backend: backend.clone(), reason };
            refused.get_or_create(&labels).inc_by(*count);
        }
    }
    let help = "Endpoints that are asked only if there is no other, and why";
    registry.register("portcullis_endpoint_out", help, out);
    registry.register("portcullis_endpoint_ejections", "Ejections of endpoints, by backend", ejections);
    let help = "Checks of endpoints, by backend and outcome";
    registry.register("portcullis_endpoint_checks", help, checks);
    let help = "Endpoints that are being checked";
    gauge(registry, "portcullis_endpoints_checked", help, traffic.checked_endpoints as u64);
    let help = "Requests and connections that limited backends have now, by the limit";
    registry.register("portcullis_backend_in_use", help, open);
    let help = "Requests and connections that a limit of their backend refused, by the limit";
    registry.register("portcullis_backend_refused", help, refused);
}

impl BackendTraffic {
    /// True if there is nothing to tell of it.
    fn is_idle(&self) -> bool {
        let mut counts = self.checks.iter().chain(&self.open).chain(&self.refused);
        self.out.is_empty() && self.ejections == 0 && counts.all(|(_, count)| *count == 0)
    }
}
