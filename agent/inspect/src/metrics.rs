//! OpenMetrics text, or Prometheus' older one for what does not ask for it. Names follow
//! OpenTelemetry's semantic conventions where those have one; `docs/metrics.md` is the list.
//! Nothing is counted here: a scrape is given what data plane, kernel and control side know.

mod backends;
mod durations;
mod key_sets;
mod labels;
mod process;
mod telemetry;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use portcullis_model::{BackendName, BudgetOwner, ListenerId, ObjectName, RemoteKeySet};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use labels::{
    AgentLabels, BudgetLabels, BudgetRefusalLabels, BytesLabels, CoreLabels, EnforcementLabels, ErrorLabels,
    ExceededLimitLabels, GatewayLabels, InterfaceLabels, ListenerLabels, ListenerReasonLabels,
    LocalityLabels, MechanismLabels, OutcomeLabels, ReasonLabels, RequestLabels, budget_labels,
    listener_labels, request_labels, with_reason,
};

pub use durations::{Durations, Histogram, ListenerDurations, Requests, RouteSeries};
pub use process::Process;

/// All that a scrape shows.
#[derive(Debug)]
pub struct Metrics {
    pub agent: Agent,
    pub process: Process,
    pub traffic: Traffic,
    pub durations: Durations,
    /// The earliest end of a certificate that a listener serves, in seconds since 1970.
    pub certificate_expiries: Vec<(ListenerId, i64)>,
    /// Packets and connections, by the label of the kernel programs' verdict; empty without them.
    pub verdicts: Vec<(&'static str, u64)>,
    /// Interfaces that should have the packet guard, and have not, with the reason.
    pub unguarded: Vec<(String, &'static str)>,
    /// Interfaces on which server names should be read, and are not, with the reason.
    pub unread: Vec<(String, &'static str)>,
    /// Numbers of listeners at addresses by the kind of their terms and the earliest place at which
    /// those hold.
    pub enforced: Vec<(&'static str, &'static str, usize)>,
    /// Frontends of TCP and UDP listeners.
    pub forwarding: Forwarding,
    pub configuration: Configuration,
    /// Of an agent in a cluster.
    pub cluster: Option<Cluster>,
}

#[derive(Debug)]
pub struct Agent {
    pub version: &'static str,
    /// `ebpf` or `userspace`.
    pub datapath: &'static str,
    /// The reason for which it is `userspace`.
    pub without_programs: Option<&'static str>,
    pub panics: u64,
}

/// Totals of the proxy. Reasons, limits and causes are the labels of their metrics.
#[derive(Debug, Default)]
pub struct Traffic {
    pub gateways: Vec<(ObjectName, GatewayTraffic)>,
    pub listeners: Vec<(ListenerId, ListenerTraffic)>,
    pub budgets: Vec<BudgetTraffic>,
    pub accepted: u64,
    pub accept_errors: u64,
    /// Connections, tunnels and sessions of UDP that each core has now.
    pub cores: Vec<usize>,
    /// By cause.
    pub handshake_failures: Vec<(&'static str, u64)>,
    /// Own answers because no listener or route took the request, or because it was refused at the
    /// edge.
    pub unrouted: u64,
    /// By reason.
    pub own_answers: Vec<(&'static str, u64)>,
    /// Questions to external auth services, by outcome.
    pub auth: Vec<(&'static str, u64)>,
    pub access_log_lost: u64,
    /// Requests of HTTP/1 that the HTTP library read.
    pub http1_by_library: u64,
    pub upstream_connects: u64,
    pub upstream_connect_failures: u64,
    pub upstream_retries: u64,
    /// Copies of requests for mirrors, by outcome.
    pub mirrored: Vec<(&'static str, u64)>,
    /// Choices of endpoints, by their distance.
    pub chosen: Vec<(&'static str, u64)>,
    /// Of backends whose policies are about health or limits.
    pub backends: Vec<(BackendName, BackendTraffic)>,
    /// Endpoints that are being checked now.
    pub checked_endpoints: usize,
    /// Key sets that are fetched.
    pub key_sets: Vec<(RemoteKeySet, KeySetTraffic)>,
    /// Spans and lines of access logs for a collector, by kind and outcome; empty without one.
    pub exported: Vec<(&'static str, &'static str, u64)>,
    /// Requests.
    pub traces_over_budget: u64,
}

/// A key set that is fetched.
#[derive(Debug, Default)]
pub struct KeySetTraffic {
    /// The time since it was fetched; `None` if there is none that is good.
    pub age: Option<Duration>,
    /// By outcome.
    pub fetches: Vec<(&'static str, u64)>,
}

/// The endpoints of a backend, as all cores see them, and what it is asked.
#[derive(Debug, Default)]
pub struct BackendTraffic {
    /// Endpoints that are asked only if there is no other, and why.
    pub out: Vec<(SocketAddr, &'static str)>,
    pub ejections: u64,
    /// Checks of endpoints, by outcome.
    pub checks: Vec<(&'static str, u64)>,
    /// Requests now, those that wait, and connections now, by the field of the limit.
    pub open: Vec<(&'static str, u64)>,
    /// The same that were refused.
    pub refused: Vec<(&'static str, u64)>,
}

#[derive(Debug, Default)]
pub struct GatewayTraffic {
    /// Client connections open now.
    pub open: u64,
    /// Connections by the limit that ended them.
    pub refused: Vec<(&'static str, u64)>,
    /// Clients that were kept out before it was known which listener they meant, by reason.
    pub not_admitted: Vec<(&'static str, u64)>,
}

#[derive(Debug, Default)]
pub struct ListenerTraffic {
    pub tls_connections: u64,
    /// By status class: index 2 counts 200 to 299, index 6 those whose clients did not wait for an
    /// answer.
    pub requests: [u64; 7],
    /// Of a listener that forwards bytes as they are.
    pub forwarded: ForwardedTraffic,
    /// Clients that were kept out, by reason.
    pub not_admitted: Vec<(&'static str, u64)>,
}

/// New connections that a budget was asked for.
#[derive(Debug)]
pub struct BudgetTraffic {
    pub owner: BudgetOwner,
    /// By user space, to which everything comes that the kernel lets in.
    pub taken: u64,
    pub refused: u64,
    /// They never came to user space.
    pub refused_by_kernel: u64,
}

/// Connections and sessions whose bytes are forwarded as they are.
#[derive(Debug, Default)]
pub struct ForwardedTraffic {
    pub begun: u64,
    /// Open now.
    pub open: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes to clients.
    pub sent: u64,
    /// By the reason why they ended.
    pub endings: Vec<(&'static str, u64)>,
}

/// Frontends of TCP and UDP listeners by the part of the node that serves them.
#[derive(Debug, Default)]
pub struct Forwarding {
    pub kernel: usize,
    /// By reason.
    pub userspace: Vec<(&'static str, usize)>,
    /// Confirmed flows in the kernel, when they were last looked at.
    pub flows: u64,
}

/// The configuration in force.
#[derive(Debug, Default)]
pub struct Configuration {
    pub applied: u64,
    /// From a change being read to the data plane serving it, summed.
    pub apply_time: Duration,
    /// Time since the last change took effect.
    pub age: Duration,
    pub generation: u64,
    /// Number of things that are wrong with the input.
    pub problems: usize,
    pub frontends: usize,
    /// Of those, not served.
    pub refused: usize,
    pub backends: usize,
    /// Of those, hosts outside the cluster.
    pub externals: usize,
    /// Of those, without an address that may be sent to.
    pub unreachable: usize,
}

/// The agent's part in a cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    /// Everything was read from the API server, and applied.
    pub is_read: bool,
    /// `None` for a pod of one Gateway, which has no part in it.
    pub duties: Option<Duties>,
}

/// The part that one agent has for the whole cluster.
#[derive(Debug, Default)]
pub struct Duties {
    /// This agent writes statuses.
    pub leads: bool,
    /// Gateways that cannot have what is generated for them.
    pub refused: usize,
    /// No XMesh of the expected name is ours.
    pub mesh_unclaimed: bool,
}

/// The text that a scrape is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    OpenMetrics,
    /// Prometheus' text format, which everything reads.
    Text,
}

impl MetricsFormat {
    /// As `Accept` of a scrape wants it: OpenMetrics if that is named and nothing is preferred.
    pub fn accepted(accept: &str) -> Self {
        let ranges = || accept.split(',').map(quality);
        let best = |names: &[&str]| {
            ranges().filter(|(name, _)| names.contains(&&**name)).map(|(_, quality)| quality).max()
        };
        match best(&["application/openmetrics-text"]) {
            Some(wanted) if wanted > 0 && Some(wanted) >= best(&["text/plain", "text/*", "*/*"]) => {
                Self::OpenMetrics
            }
            _ => Self::Text,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The name of a media range in lower case, and its `q` (RFC 9110 section 12.4.2) in thousandths.
fn quality(range: &str) -> (String, u32) {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    let weight = parts.find_map(|it| it.strip_prefix("q=").or_else(|| it.strip_prefix("Q=")));
    let weight: f32 = weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
    (name, (weight.clamp(0.0, 1.0) * 1000.0) as u32)
}

/// The answer to a scrape.
pub fn metrics(metrics: &Metrics, format: MetricsFormat) -> String {
    let text = open_metrics(metrics);
    match format {
        MetricsFormat::OpenMetrics => text,
        MetricsFormat::Text => prometheus_text(&text),
    }
}

/// OpenMetrics names a counter without the `_total` of its samples, and has lines of its own for
/// units and the end. To what reads the older format, the counter would be of no type.
fn prometheus_text(open: &str) -> String {
    let types = open.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"));
    let counters: BTreeSet<_> = types.collect();
    let mut text = String::with_capacity(open.len());
    for line in open.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        let described = ["# HELP ", "# TYPE "].into_iter().find_map(|it| Some((it, line.strip_prefix(it)?)));
        match described.and_then(|(keyword, rest)| Some((keyword, rest.split_once(' ')?))) {
            Some((keyword, (name, rest))) if counters.contains(name) => {
                text.extend([keyword, name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

fn open_metrics(metrics: &Metrics) -> String {
    let mut registry = Registry::default();
    agent(&mut registry, &metrics.agent);
    process::register(&mut registry, &metrics.process);
    requests(&mut registry, &metrics.traffic);
    durations::register(&mut registry, &metrics.durations);
    certificates(&mut registry, &metrics.certificate_expiries);
    connections(&mut registry, &metrics.traffic);
    forwarded(&mut registry, &metrics.traffic);
    not_admitted(&mut registry, &metrics.traffic);
    budgets(&mut registry, &metrics.traffic.budgets);
    upstream(&mut registry, &metrics.traffic);
    backends::register(&mut registry, &metrics.traffic, metrics.durations.limit);
    key_sets::register(&mut registry, &metrics.traffic);
    telemetry::register(&mut registry, &metrics.traffic);
    let help = "Packets and connections by verdict of the kernel programs";
    let verdicts = by_reason(&metrics.verdicts);
    registry.register("portcullis_datapath_verdicts", help, verdicts);
    let help = "Interfaces that should have the packet guard, and have not";
    interfaces(&mut registry, "portcullis_interface_unguarded", help, &metrics.unguarded);
    let help = "Interfaces on which server names should be read, and are not";
    interfaces(&mut registry, "portcullis_interface_unread", help, &metrics.unread);
    forwarding(&mut registry, &metrics.forwarding);
    enforced(&mut registry, &metrics.enforced);
    configuration(&mut registry, &metrics.configuration);
    if let Some(part) = &metrics.cluster {
        cluster(&mut registry, part);
    }
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => text,
        Err(error) => format!("# metrics cannot be shown: {error}\n"),
    }
}

fn interfaces(registry: &mut Registry, name: &str, help: &str, interfaces: &[(String, &'static str)]) {
    let family = Family::<InterfaceLabels, Gauge>::default();
    for (interface, reason) in interfaces {
        family.get_or_create(&InterfaceLabels { interface: interface.clone(), reason }).set(1);
    }
    registry.register(name, help, family);
}

fn forwarding(registry: &mut Registry, forwarding: &Forwarding) {
    let family = Family::<MechanismLabels, Gauge>::default();
    let userspace = forwarding.userspace.iter().map(|(reason, frontends)| ("userspace", *reason, *frontends));
    for (mechanism, reason, frontends) in std::iter::once(("kernel", "", forwarding.kernel)).chain(userspace)
    {
        family.get_or_create(&MechanismLabels { mechanism, reason }).set(frontends as i64);
    }
    let help = "Frontends of TCP and UDP listeners by the part of the node that serves them";
    registry.register("portcullis_l4_frontends", help, family);
    let flows = Gauge::<i64>::default();
    flows.set(i64::try_from(forwarding.flows).unwrap_or(i64::MAX));
    let help = "Connections and clients of UDP that the kernel forwards, without those that just began";
    registry.register("portcullis_forwarded_flows", help, flows);
}

fn enforced(registry: &mut Registry, enforced: &[(&'static str, &'static str, usize)]) {
    let family = Family::<EnforcementLabels, Gauge>::default();
    for (terms, enforced_by, listeners) in enforced {
        family.get_or_create(&EnforcementLabels { terms, enforced_by }).set(*listeners as i64);
    }
    let help = "Listeners at addresses by the earliest place at which their terms hold";
    registry.register("portcullis_terms_enforced", help, family);
}

fn certificates(registry: &mut Registry, expiries: &[(ListenerId, i64)]) {
    let family = Family::<ListenerLabels, Gauge>::default();
    for (id, expiry) in expiries {
        family.get_or_create(&listener_labels(id)).set(*expiry);
    }
    let help = "The earliest end of a certificate that a listener serves, or of one of its chain";
    registry.register("tls_certificate_expiry_timestamp_seconds", help, family);
}

fn agent(registry: &mut Registry, agent: &Agent) {
    let without_programs = Family::<ReasonLabels, Gauge>::default();
    if let Some(reason) = agent.without_programs {
        without_programs.get_or_create(&ReasonLabels { reason }).set(1);
    }
    let help = "The reason for which no kernel programs are in use";
    registry.register("portcullis_datapath_without_programs", help, without_programs);
    let info = Family::<AgentLabels, Gauge>::default();
    info.get_or_create(&AgentLabels { version: agent.version, datapath: agent.datapath }).set(1);
    registry.register("portcullis_agent_info", "This agent", info);
    let help = "Panics (bugs) that cost a connection or a change; the log has each";
    counter(registry, "portcullis_panics", help, agent.panics);
}

fn requests(registry: &mut Registry, traffic: &Traffic) {
    let requests = Family::<RequestLabels, Counter>::default();
    let connections = Family::<ListenerLabels, Counter>::default();
    for (id, traffic) in &traffic.listeners {
        connections.get_or_create(&listener_labels(id)).inc_by(traffic.tls_connections);
        for (class, count) in traffic.requests.iter().enumerate().filter(|(_, count)| **count > 0) {
            requests.get_or_create(&request_labels(id, class)).inc_by(*count);
        }
    }
    registry.register("http_server_requests", "Answered requests, by listener and status class", requests);
    registry.register("tls_server_connections", "Completed TLS handshakes, by listener", connections);
    let lost = traffic.access_log_lost;
    counter(
        registry,
        "http_server_access_log_lost",
        "Lines of access logs that were not taken in time",
        lost,
    );
    let by_library = traffic.http1_by_library;
    let help = "Requests of HTTP/1 that the HTTP library read, not the agent's own code";
    counter(registry, "portcullis_http1_by_library", help, by_library);
    counter(
        registry,
        "http_server_requests_unrouted",
        "Requests that no listener or route took, or that were refused at the edge",
        traffic.unrouted,
    );
    let help = "Requests that the gateway answered itself, by reason";
    registry.register("http_server_own_answers", help, by_reason(&traffic.own_answers));
    let help = "Questions to external auth services, by outcome";
    let questions = Family::<OutcomeLabels, Counter>::default();
    for (outcome, count) in &traffic.auth {
        questions.get_or_create(&OutcomeLabels { outcome }).inc_by(*count);
    }
    registry.register("http_server_external_auth", help, questions);
}

fn connections(registry: &mut Registry, traffic: &Traffic) {
    counter(registry, "network_server_connections", "Accepted client connections", traffic.accepted);
    gateways(registry, traffic);
    counter(
        registry,
        "network_server_accept_errors",
        "Failures to accept a connection (out of file descriptors?)",
        traffic.accept_errors,
    );
    let cores = Family::<CoreLabels, Gauge>::default();
    for (core, open) in traffic.cores.iter().enumerate() {
        cores.get_or_create(&CoreLabels { core: core as u64 }).set(*open as i64);
    }
    let help = "Connections of clients, tunnels and sessions of UDP open now, by the core that serves them";
    registry.register("portcullis_core_connections", help, cores);
    let failures = Family::<ErrorLabels, Counter>::default();
    for (failure, count) in &traffic.handshake_failures {
        failures.get_or_create(&ErrorLabels { error_type: failure }).inc_by(*count);
    }
    registry.register("tls_server_handshake_failures", "TLS handshakes that failed, by cause", failures);
}

/// Of listeners that had such traffic.
fn forwarded(registry: &mut Registry, traffic: &Traffic) {
    let begun = Family::<ListenerLabels, Counter>::default();
    let open = Family::<ListenerLabels, Gauge>::default();
    let bytes = Family::<BytesLabels, Counter>::default();
    let endings = Family::<ListenerReasonLabels, Counter>::default();
    for (id, ListenerTraffic { forwarded, .. }) in &traffic.listeners {
        let labels = listener_labels(id);
        for (reason, count) in &forwarded.endings {
            endings.get_or_create(&with_reason(labels.clone(), reason)).inc_by(*count);
        }
        if forwarded.begun == 0 {
            continue;
        }
        begun.get_or_create(&labels).inc_by(forwarded.begun);
        open.get_or_create(&labels).set(i64::try_from(forwarded.open).unwrap_or(i64::MAX));
        for (network_io_direction, count) in [("receive", forwarded.received), ("transmit", forwarded.sent)] {
            let ListenerLabels { gateway, parent_kind, parent, listener } = labels.clone();
            let labels = BytesLabels { gateway, parent_kind, parent, listener, network_io_direction };
            bytes.get_or_create(&labels).inc_by(count);
        }
    }
    let help = "Connections and UDP sessions that were forwarded as they are";
    registry.register("l4_server_connections", help, begun);
    registry.register("l4_server_connections_open", "Of those, open now", open);
    registry.register("l4_server_io_bytes", "Bytes of those, from clients and to them", bytes);
    let help = "Ends of those, and what could not be forwarded, by reason";
    registry.register("l4_server_connections_ended", help, endings);
}

/// Without a listener where it was not known yet which one a client meant.
fn not_admitted(registry: &mut Registry, traffic: &Traffic) {
    let family = Family::<ListenerReasonLabels, Counter>::default();
    let of_gateways = traffic.gateways.iter().flat_map(|(name, traffic)| {
        let labels = ListenerLabels { gateway: name.to_string(), ..ListenerLabels::default() };
        traffic.not_admitted.iter().map(move |count| (labels.clone(), count))
    });
    let of_listeners = traffic.listeners.iter().flat_map(|(id, traffic)| {
        let labels = listener_labels(id);
        traffic.not_admitted.iter().map(move |count| (labels.clone(), count))
    });
    for (labels, (reason, count)) in of_gateways.chain(of_listeners) {
        family.get_or_create(&with_reason(labels, reason)).inc_by(*count);
    }
    let help = "Connections, requests and datagrams of clients that a listener's terms kept out, by reason";
    registry.register("network_server_clients_not_admitted", help, family);
}

fn budgets(registry: &mut Registry, budgets: &[BudgetTraffic]) {
    let taken = Family::<BudgetLabels, Counter>::default();
    let refused = Family::<BudgetRefusalLabels, Counter>::default();
    for budget in budgets {
        let labels = budget_labels(&budget.owner);
        for (enforced_by, count) in [("kernel", budget.refused_by_kernel), ("userspace", budget.refused)] {
            let BudgetLabels { parent_kind, parent, listener } = labels.clone();
            let labels = BudgetRefusalLabels { parent_kind, parent, listener, enforced_by };
            refused.get_or_create(&labels).inc_by(count);
        }
        taken.get_or_create(&labels).inc_by(budget.taken);
    }
    let help = "New connections that a budget let in, by whose it is";
    registry.register("network_server_budget_taken", help, taken);
    let help = "New connections that a budget refused, by whose it is and by what refused them";
    registry.register("network_server_budget_refused", help, refused);
}

fn gateways(registry: &mut Registry, traffic: &Traffic) {
    let open = Family::<GatewayLabels, Gauge>::default();
    let refused = Family::<ExceededLimitLabels, Counter>::default();
    for (name, traffic) in &traffic.gateways {
        let gateway = name.to_string();
        for (limit, count) in &traffic.refused {
            let labels = ExceededLimitLabels { gateway: gateway.clone(), reason: limit };
            refused.get_or_create(&labels).inc_by(*count);
        }
        open.get_or_create(&GatewayLabels { gateway }).set(i64::try_from(traffic.open).unwrap_or(i64::MAX));
    }
    registry.register("network_server_connections_open", "Client connections open now, by Gateway", open);
    let help = "Client connections that a limit of their Gateway ended, by the limit";
    registry.register("network_server_connections_refused", help, refused);
}

fn upstream(registry: &mut Registry, traffic: &Traffic) {
    let opened = traffic.upstream_connects;
    counter(registry, "http_client_connections_opened", "Connections opened to backends", opened);
    let failed = traffic.upstream_connect_failures;
    let help = "Attempts of requests to get a connection to a backend that failed";
    counter(registry, "http_client_connections_failed", help, failed);
    let retries = traffic.upstream_retries;
    let mirrored = Family::<OutcomeLabels, Counter>::default();
    for (outcome, count) in &traffic.mirrored {
        mirrored.get_or_create(&OutcomeLabels { outcome }).inc_by(*count);
    }
    let help = "Copies of requests for mirrors, by what became of them";
    registry.register("http_client_mirrored_requests", help, mirrored);
    counter(registry, "http_client_retries", "Requests sent again to a backend", retries);
    let chosen = Family::<LocalityLabels, Counter>::default();
    for (locality, count) in &traffic.chosen {
        chosen.get_or_create(&LocalityLabels { locality }).inc_by(*count);
    }
    let help = "Endpoints chosen for requests, connections and sessions of UDP, by where they are";
    registry.register("portcullis_endpoints_chosen", help, chosen);
}

fn configuration(registry: &mut Registry, configuration: &Configuration) {
    counter(registry, "portcullis_config_applied", "Changes that took effect", configuration.applied);
    let time: Counter<f64, std::sync::atomic::AtomicU64> = Counter::default();
    time.inc_by(configuration.apply_time.as_secs_f64());
    let help = "Time from a change being read to the data plane serving it, summed";
    registry.register_with_unit("portcullis_config_apply_time", help, Unit::Seconds, time);
    let Configuration { age, generation, problems, frontends, refused, .. } = *configuration;
    let Configuration { backends, externals, unreachable, .. } = *configuration;
    gauge(registry, "portcullis_config_age_seconds", "Time since the last change took effect", age.as_secs());
    gauge(registry, "portcullis_config_generation", "The snapshot that is served", generation);
    for (name, help, count) in [
        ("portcullis_config_problems", "What is wrong with the input now", problems),
        ("portcullis_frontends", "Addresses and ports of Gateways", frontends),
        ("portcullis_frontends_refused", "Of those, not served", refused),
        ("portcullis_backends", "Service ports and hosts outside the cluster in use", backends),
        ("portcullis_external_hosts", "Of those, hosts outside the cluster", externals),
        (
            "portcullis_external_hosts_without_address",
            "Of those, without an address that may be sent to",
            unreachable,
        ),
    ] {
        gauge(registry, name, help, count as u64);
    }
}

fn cluster(registry: &mut Registry, cluster: &Cluster) {
    let help = "Whether everything was read from the API server";
    gauge(registry, "portcullis_cluster_read", help, cluster.is_read.into());
    let Some(duties) = &cluster.duties else { return };
    for (name, help, value) in [
        ("portcullis_leader", "Whether this agent writes statuses", duties.leads.into()),
        (
            "portcullis_gateways_without_objects",
            "Gateways that cannot have what is generated for them",
            duties.refused as u64,
        ),
        (
            "portcullis_mesh_unclaimed",
            "Whether no XMesh of the expected name is ours",
            duties.mesh_unclaimed.into(),
        ),
    ] {
        gauge(registry, name, help, value);
    }
}

fn by_reason(counts: &[(&'static str, u64)]) -> Family<ReasonLabels, Counter> {
    let family = Family::<ReasonLabels, Counter>::default();
    for (reason, count) in counts {
        family.get_or_create(&ReasonLabels { reason }).inc_by(*count);
    }
    family
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

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
