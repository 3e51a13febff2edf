//! Prometheus text. Names follow OpenTelemetry's semantic conventions where those have one; `docs/metrics.md` is the list.
//! Nothing is counted here: a scrape reads what data plane, kernel and control side know.

use std::collections::BTreeMap;
use std::time::SystemTime;

use portcullis_control::applier::State;
use portcullis_model::{ListenerId, ParentKind};
use portcullis_node::Reason;
use portcullis_proxy::{HandshakeFailure, Stats};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::cluster::Standing;
use crate::panics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GatewayLabels {
    gateway: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    gateway: String,
    /// The field of `limits`.
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabels {
    gateway: String,
    /// `Gateway` or `ListenerSet`.
    parent_kind: String,
    parent: String,
    listener: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    gateway: String,
    parent_kind: String,
    parent: String,
    listener: String,
    /// `2xx`
    http_response_status_class: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    error_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AgentLabels {
    version: &'static str,
    datapath: &'static str,
}

pub(crate) fn text(
    state: &State,
    standing: Option<&Standing>,
    traffic: &Stats,
    kernel: &[(Reason, u64)],
    is_kernel: bool,
    now: SystemTime,
) -> String {
    let mut registry = Registry::default();
    agent(&mut registry, is_kernel);
    requests(&mut registry, traffic);
    connections(&mut registry, traffic);
    upstream(&mut registry, traffic);
    verdicts(&mut registry, kernel);
    configuration(&mut registry, state, now);
    if let Some(standing) = standing {
        cluster(&mut registry, standing);
    }
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => text,
        Err(error) => format!("# metrics cannot be shown: {error}\n"),
    }
}

fn agent(registry: &mut Registry, is_kernel: bool) {
    let info = Family::<AgentLabels, Gauge>::default();
    let datapath = if is_kernel { "ebpf" } else { "userspace" };
    info.get_or_create(&AgentLabels { version: env!("CARGO_PKG_VERSION"), datapath }).set(1);
    registry.register("portcullis_agent_info", "This agent", info);
    let help = "Panics (bugs) that cost a connection or a change; the log has each";
    counter(registry, "portcullis_panics", help, panics::survived());
}

fn requests(registry: &mut Registry, traffic: &Stats) {
    let requests = Family::<RequestLabels, Counter>::default();
    let connections = Family::<ListenerLabels, Counter>::default();
    for (id, stats) in &traffic.listeners {
        connections.get_or_create(&listener_labels(id)).inc_by(stats.connections);
        for (class, count) in stats.requests.iter().enumerate().filter(|(_, count)| **count > 0) {
            requests.get_or_create(&request_labels(id, class)).inc_by(*count);
        }
    }
    registry.register("http_server_requests", "Answered requests, by listener and status class", requests);
    registry.register("tls_server_connections", "Completed TLS handshakes, by listener", connections);
    let lost = traffic.access_log_lost;
    counter(registry, "http_server_access_log_lost", "Lines of access logs that nobody took in time", lost);
    counter(
        registry,
        "http_server_requests_unrouted",
        "Requests that no listener or route took, or that were refused at the edge",
        traffic.unrouted,
    );
    let answers = Family::<ReasonLabels, Counter>::default();
    for (reason, count) in &traffic.answers {
        answers.get_or_create(&ReasonLabels { reason: reason.name() }).inc_by(*count);
    }
    registry.register(
        "http_server_own_answers",
        "Requests that the gateway answered itself, by reason",
        answers,
    );
}

fn connections(registry: &mut Registry, traffic: &Stats) {
    counter(registry, "network_server_connections", "Accepted client connections", traffic.accepted);
    gateways(registry, traffic);
    counter(
        registry,
        "network_server_accept_errors",
        "Failures to accept a connection (out of file descriptors?)",
        traffic.accept_errors,
    );
    let failures = Family::<ErrorLabels, Counter>::default();
    for (failure, count) in &traffic.handshake_failures {
        failures.get_or_create(&ErrorLabels { error_type: failure_name(*failure) }).inc_by(*count);
    }
    registry.register("tls_server_handshake_failures", "TLS handshakes that failed, by cause", failures);
}

fn gateways(registry: &mut Registry, traffic: &Stats) {
    let open = Family::<GatewayLabels, Gauge>::default();
    let refused = Family::<RefusalLabels, Counter>::default();
    for (name, stats) in &traffic.gateways {
        let gateway = name.to_string();
        for (refusal, count) in &stats.refused {
            let labels = RefusalLabels { gateway: gateway.clone(), reason: refusal.name() };
            refused.get_or_create(&labels).inc_by(*count);
        }
        open.get_or_create(&GatewayLabels { gateway }).set(i64::try_from(stats.open).unwrap_or(i64::MAX));
    }
    registry.register("network_server_connections_open", "Client connections open now, by Gateway", open);
    let help = "Client connections that a limit of their Gateway ended, by the limit";
    registry.register("network_server_connections_refused", help, refused);
}

fn upstream(registry: &mut Registry, traffic: &Stats) {
    let opened = traffic.upstream_connects;
    counter(registry, "http_client_connections_opened", "Connections opened to backends", opened);
    let failed = traffic.upstream_connect_failures;
    let help = "Attempts of requests to get a connection to a backend that failed";
    counter(registry, "http_client_connections_failed", help, failed);
    let retries = traffic.upstream_retries;
    counter(registry, "http_client_retries", "Requests sent again on another connection", retries);
}

fn verdicts(registry: &mut Registry, kernel: &[(Reason, u64)]) {
    let verdicts = Family::<ReasonLabels, Counter>::default();
    for (reason, count) in kernel {
        verdicts.get_or_create(&ReasonLabels { reason: reason.label() }).inc_by(*count);
    }
    let help = "Packets and connections by verdict of the kernel programs";
    registry.register("portcullis_datapath_verdicts", help, verdicts);
}

fn configuration(registry: &mut Registry, state: &State, now: SystemTime) {
    let count = |count: usize| count as u64;
    counter(registry, "portcullis_config_applied", "Changes that took effect", state.applied);
    let time: Counter<f64, std::sync::atomic::AtomicU64> = Counter::default();
    time.inc_by(state.apply_time.as_secs_f64());
    let help = "Time from a change being read to the data plane serving it, summed";
    registry.register_with_unit("portcullis_config_apply_time", help, Unit::Seconds, time);
    let age = state.last_applied.and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
    gauge(registry, "portcullis_config_age_seconds", "Time since the last change took effect", age.as_secs());
    gauge(registry, "portcullis_config_generation", "The snapshot that is served", state.snapshot.generation);
    let problems = state.problems.len() + state.unsaid.len();
    gauge(registry, "portcullis_config_problems", "What is wrong with the input now", count(problems));
    let frontends = state.snapshot.frontends.len();
    gauge(registry, "portcullis_frontends", "Addresses and ports of Gateways", count(frontends));
    let refused = state.refused.len();
    gauge(registry, "portcullis_frontends_refused", "Of those, not served", count(refused));
    gauge(registry, "portcullis_backends", "Service ports in use", count(state.snapshot.backends.len()));
}

fn cluster(registry: &mut Registry, standing: &Standing) {
    let current = u64::from(*standing.current.borrow());
    gauge(registry, "portcullis_cluster_read", "Whether everything was read from the API server", current);
    let leads = u64::from(*standing.leading.borrow());
    gauge(registry, "portcullis_leader", "Whether this agent writes statuses", leads);
    let warned = u64::from(standing.mesh.borrow().warning.is_some());
    let refused = standing.provisioning.borrow().as_ref().map_or(0, BTreeMap::len);
    let refused = u64::try_from(refused).unwrap_or(u64::MAX);
    gauge(
        registry,
        "portcullis_gateways_without_objects",
        "Gateways that cannot have what is generated for them",
        refused,
    );
    gauge(registry, "portcullis_mesh_unclaimed", "Whether no XMesh of the expected name is ours", warned);
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter: Counter = Counter::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    registry.register(name, help, gauge);
}

fn listener_labels(id: &ListenerId) -> ListenerLabels {
    ListenerLabels {
        gateway: id.gateway.to_string(),
        parent_kind: parent_kind(id.kind).to_owned(),
        parent: id.parent.to_string(),
        listener: id.name.to_string(),
    }
}

fn request_labels(id: &ListenerId, class: usize) -> RequestLabels {
    let ListenerLabels { gateway, parent_kind, parent, listener } = listener_labels(id);
    RequestLabels { gateway, parent_kind, parent, listener, http_response_status_class: format!("{class}xx") }
}

fn parent_kind(kind: ParentKind) -> &'static str {
    match kind {
        ParentKind::Gateway => "Gateway",
        ParentKind::ListenerSet => "ListenerSet",
    }
}

fn failure_name(failure: HandshakeFailure) -> &'static str {
    match failure {
        HandshakeFailure::UnknownName => "unknown-name",
        HandshakeFailure::Protocol => "protocol",
        HandshakeFailure::Timeout => "timeout",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_control::kube::MeshState;
    use tokio::sync::watch;

    #[test]
    fn a_mesh_of_somebody_else_is_counted() {
        let mesh = watch::Sender::new(MeshState::default());
        let standing = Standing {
            current: watch::Sender::new(true).subscribe(),
            leading: watch::Sender::new(false).subscribe(),
            mesh: mesh.subscribe(),
            has_one_gateway: false,
            provisioning: watch::Sender::default().subscribe(),
        };
        let scraped = || {
            let (mut registry, mut text) = (Registry::default(), String::new());
            cluster(&mut registry, &standing);
            encode(&mut text, &registry).unwrap();
            text
        };
        assert!(scraped().contains("\nportcullis_mesh_unclaimed 0\n"), "{}", scraped());
        mesh.send_modify(|state| state.warning = Some("it belongs to another controller".to_owned()));
        assert!(scraped().contains("\nportcullis_mesh_unclaimed 1\n"), "{}", scraped());
    }
}
