//! Settings for the operator, with defaults that are safe at the edge.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use crate::core::memory;
use crate::core::otlp::Otlp;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Threads, each with sockets, pools and counters of its own.
    pub cores: usize,
    pub sockets: SocketMode,
    pub placement: Placement,
    pub upstream: Upstream,
    /// Destination of access logs.
    pub access_log: LogOutput,
    /// `None`: nothing goes to a collector, and no request has a trace.
    pub otlp: Option<Otlp>,
    /// The time that open connections have to finish after a drain began.
    pub drain: Duration,
    /// Trusted proxies that every request passes before this one: as many addresses of
    /// `X-Forwarded-For` are kept. 0: the field is replaced.
    pub trusted_hops: usize,
    /// The agent's name in `Via` of requests; without one it sends none.
    pub via: Option<Box<str>>,
    /// Bytes of all buffers together, for bodies that clients do not read or backends do not take.
    pub buffers: u64,
    pub minimum_rate: MinimumRate,
    pub l4: L4,
    pub http1: Http1,
    pub measure: Measure,
    /// Descriptors of the process from which on no client is taken in, so that there are some left
    /// for connections to backends and for the rest of the agent.
    pub client_descriptors: u64,
}

/// The code that reads requests of HTTP/1, and writes their responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http1 {
    /// The agent's own, as far as requests have nothing unusual; the library for others.
    Own,
    /// The HTTP library for all of them.
    Library,
}

/// The durations that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Of requests and TLS handshakes, by listener.
    pub listeners: bool,
    /// Of requests, by route.
    pub routes: bool,
    /// Of the responses of backends.
    pub backends: bool,
    /// Listeners that have series of their own, and as many routes, and backends; the others share
    /// one.
    pub series: usize,
}

/// The rate at which a client has to send the body that it announced, and to read what fills its
/// socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumRate {
    /// 0: any rate will do.
    pub bytes_per_second: u32,
    /// The time that a client may do nothing.
    pub grace: Duration,
}

/// Limits of connections, tunnels and sessions whose bytes are forwarded as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L4 {
    /// The time without a byte either way after which a connection or a tunnel is reset.
    pub idle: Duration,
    /// The time without a datagram either way after which a session of UDP is over.
    pub udp_idle: Duration,
    /// The same for one that was never answered.
    pub udp_unanswered: Duration,
    /// Sessions of a UDP frontend on a core.
    pub udp_sessions: usize,
    /// Sessions of UDP, all together. Each takes a port and a descriptor.
    pub udp_all_sessions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    /// One socket pair per core on loopback; the kernel steers every VIP's connections there.
    Steered,
    /// Every frontend is bound on every core with `SO_REUSEPORT`.
    Bound,
}

/// The core that serves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The one that accepts it, or another one that clearly has less to do.
    Spread,
    /// The one that accepts it, for those who choose the core by its socket.
    AsAccepted,
}

#[derive(Clone, Debug)]
pub enum LogOutput {
    Stdout,
    File(Arc<File>),
    Rotated(LogFile),
    /// The collector of [`Settings::otlp`]. Lines are JSON then, whatever form they are wanted in.
    Collector,
}

/// A file that is rotated when it is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    pub path: PathBuf,
    /// Of the file, and of each old one.
    pub bytes: u64,
    /// Old ones that are kept.
    pub old: u32,
}

/// Budgets of the connections to backends. Budgets of clients are each Gateway's own
/// ([`Limits`](portcullis_model::Limits)).
#[derive(Clone, Debug)]
pub struct Upstream {
    pub connect: Duration,
    /// The time without any sign of life of a peer after which its connection counts as broken.
    pub vanished: Duration,
    /// Idle connections per endpoint and core.
    pub idle_connections: usize,
    pub idle: Duration,
    /// Bytes of a response's head.
    pub header_bytes: usize,
    /// Header fields of a response.
    pub header_fields: usize,
    /// The time for which a backend may take nothing of a request's body that waits for it.
    pub stalled: Duration,
    /// The time that an external auth service has for its answer.
    pub auth: Duration,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            sockets: SocketMode::Bound,
            placement: Placement::Spread,
            upstream: Upstream::default(),
            access_log: LogOutput::Stdout,
            otlp: None,
            drain: Duration::from_secs(30),
            trusted_hops: 0,
            via: None,
            buffers: memory::limit() / 4,
            minimum_rate: MinimumRate::default(),
            l4: L4::default(),
            http1: Http1::Own,
            measure: Measure::default(),
            client_descriptors: client_descriptors(),
        }
    }
}

// === impl Measure ===

impl Default for Measure {
    fn default() -> Self {
        Self { listeners: true, routes: true, backends: true, series: 500 }
    }
}

// === impl MinimumRate ===

impl Default for MinimumRate {
    fn default() -> Self {
        Self { bytes_per_second: 240, grace: Duration::from_secs(5) }
    }
}

// === impl L4 ===

impl Default for L4 {
    fn default() -> Self {
        let [idle, udp_idle, udp_unanswered] = [3600, 60, 10].map(Duration::from_secs);
        Self { idle, udp_idle, udp_unanswered, udp_sessions: 16 << 10, udp_all_sessions: udp_all_sessions() }
    }
}

/// Half of the ports that the kernel gives out on this machine, so that other programs find some,
/// and a third of the descriptors that clients may have.
fn udp_all_sessions() -> usize {
    const PORTS: usize = 60_999 - 32_767;
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = range.split_whitespace().filter_map(|number| number.parse::<usize>().ok());
    let ports = ends.next().zip(ends.next()).and_then(|(first, last)| (last + 1).checked_sub(first));
    let descriptors = usize::try_from(client_descriptors() / 3).unwrap_or(usize::MAX);
    (ports.unwrap_or(PORTS) / 2).min(descriptors).max(1)
}

/// Three quarters of what the process may have.
fn client_descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit / 4 * 3)
}

// === impl Upstream ===

impl Default for Upstream {
    fn default() -> Self {
        let [connect, vanished, idle, stalled, auth] = [5, 20, 60, 60, 5].map(Duration::from_secs);
        let (header_bytes, header_fields) = (64 << 10, 100);
        Self { connect, vanished, idle_connections: 256, idle, header_bytes, header_fields, stalled, auth }
    }
}
