//! The options of `portcullis run`.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use portcullis_gateway::infra::Pods;
use portcullis_node::Beside;
use portcullis_node::vips::{Arp, Host};

use crate::cli::telemetry::TelemetryArgs;
use crate::cli::{AdminSocket, ExternalArgs, HostPortArgs, InputLimits, LogFilter};
use crate::cluster::ClusterArgs;

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Directory of manifests (*.yaml, *.yml, recursively); edits take effect at once [default: a
    /// cluster]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_CONFIG_DIR")]
    pub config_dir: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The way connections find their listener: in the kernel, or by ordinary sockets
    #[arg(long, value_enum, default_value_t, env = "PORTCULLIS_DATAPATH")]
    pub datapath: DatapathChoice,
    /// Address of Gateways without spec.addresses; repeat for several [default: in a cluster, that
    /// of the generated Service; else all addresses of this node]
    #[arg(long, value_name = "IP", env = "PORTCULLIS_ADDRESS", value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    #[command(flatten)]
    pub host_ports: HostPortArgs,
    #[command(flatten)]
    pub external: ExternalArgs,
    /// DNS server that is asked for the names of XBackends; repeat for several [default: those of
    /// /etc/resolv.conf]
    #[arg(
        long = "name-server",
        value_name = "IP:PORT",
        env = "PORTCULLIS_NAME_SERVER",
        value_delimiter = ','
    )]
    pub name_servers: Vec<SocketAddr>,
    /// Cores that serve traffic [default: all]
    #[arg(long, value_name = "N", env = "PORTCULLIS_CORES")]
    pub cores: Option<std::num::NonZeroUsize>,
    /// Interface for the packet guard (XDP), which drops what is refused otherwise; repeat for
    /// several, or "uplinks" for those with a device [default: none]
    #[arg(long, value_name = "IF", env = "PORTCULLIS_INTERFACE", value_delimiter = ',')]
    pub interface: Vec<String>,
    /// Interface on which the kernel reads the server names of TLS connections; repeat for several,
    /// or "uplinks" for those with a device, "all" for those of pods, too [default: none]
    #[arg(long, value_name = "IF", env = "PORTCULLIS_NAME_INTERFACE", value_delimiter = ',')]
    pub name_interface: Vec<String>,
    /// TLS connections a second, and at once, that each port gets for names that no listener of it
    /// has, where names are read: more are reset. 0: any number, and all are answered by an alert
    #[arg(long, value_name = "N", default_value_t = 0, env = "PORTCULLIS_UNKNOWN_NAMES")]
    pub unknown_names: u32,
    /// ARP for the addresses of Gateways that the agent puts on this node [default: ignore on a
    /// node of a cluster; elsewhere nothing is changed, and Linux answers]
    #[arg(long, value_name = "WHAT", env = "PORTCULLIS_VIP_ARP")]
    pub vip_arp: Option<ArpChoice>,
    /// Time for which new connections wait for the next agent when this one has ended, 0 for none
    /// [default: 10 on a node of a cluster, else 0]
    #[arg(long, value_name = "SECONDS", env = "PORTCULLIS_SYN_HOLD", value_parser = clap::value_parser!(u16).range(..=120))]
    pub syn_hold: Option<u16>,
    /// Take over from the agent of the same installation that serves, if there is one: no
    /// connection is lost, and it ends when its own are drained
    #[arg(long, env = "PORTCULLIS_TAKE_OVER", conflicts_with = "beside_others")]
    pub take_over: bool,
    /// Serve beside other agents of this network namespace. No address and port may be served by
    /// both: their kernel programs know nothing of each other's
    #[arg(long, env = "PORTCULLIS_BESIDE_OTHERS")]
    pub beside_others: bool,
    /// Directory in which kernel programs and maps are pinned
    #[arg(long, value_name = "DIR", default_value = portcullis_node::DEFAULT_PIN_DIR, env = "PORTCULLIS_PIN_DIR")]
    pub pin_dir: PathBuf,
    #[command(flatten)]
    pub admin: AdminSocket,
    /// Also answer admin requests on this port of 127.0.0.1 (0: any free port)
    #[arg(long, value_name = "N", env = "PORTCULLIS_ADMIN_PORT")]
    pub admin_port: Option<u16>,
    /// A name under which admin requests may come to that port, besides IP addresses and localhost;
    /// repeat for several
    #[arg(long, value_name = "NAME", env = "PORTCULLIS_ADMIN_HOST", value_delimiter = ',')]
    pub admin_host: Vec<String>,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    /// Directory for objects' statuses as files [default: <config-dir>/.status, in a cluster
    /// <state-dir>/status]
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_STATUS_DIR")]
    pub status_dir: Option<PathBuf>,
    /// GatewayClasses with this controllerName are served
    #[arg(long, value_name = "NAME", default_value = portcullis_gateway::CONTROLLER_NAME, env = "PORTCULLIS_CONTROLLER_NAME")]
    pub controller_name: String,
    #[command(flatten)]
    pub limits: InputLimits,
    /// Proxies in front of this one, load balancers for instance, whose X-Forwarded-For, -Proto and
    /// -Host are believed. Every request must come through them: others could claim anything
    #[arg(long, value_name = "N", default_value_t = 0, env = "PORTCULLIS_TRUSTED_HOPS")]
    pub trusted_hops: usize,
    /// Name of this agent in Via of requests [default: no Via; nginx, for one, sends responses
    /// uncompressed to requests that have it]
    #[arg(long, value_name = "NAME", value_parser = via_name, env = "PORTCULLIS_VIA")]
    pub via: Option<String>,
    /// Memory for bodies that clients do not read or backends do not take, in MiB: when there is
    /// more, those clients are closed that hold the most for longest [default: a quarter of the
    /// control group's limit, or of the machine]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20), env = "PORTCULLIS_BUFFERS")]
    pub buffers: Option<u64>,
    /// Bytes a second at which a client has to send the body that it announced, and to read what
    /// fills its socket; 0: any rate will do. Never for gRPC, upgrades and idle responses
    #[arg(long, value_name = "BYTES", default_value_t = 240, env = "PORTCULLIS_MINIMUM_RATE")]
    pub minimum_rate: u32,
    /// Time for which such a client may do nothing, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600), env = "PORTCULLIS_MINIMUM_RATE_GRACE")]
    pub minimum_rate_grace: u16,
    /// Time without a byte either way after which a connection of a TCP listener, or of TLS that is
    /// not HTTPS, is reset, and so are WebSockets and other upgrades, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..=1 << 22), env = "PORTCULLIS_TCP_IDLE")]
    pub tcp_idle: u32,
    /// Time without a datagram either way after which a session of a UDP listener is over, in
    /// seconds; one that was never answered is over after a sixth of it
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1 << 22), env = "PORTCULLIS_UDP_IDLE")]
    pub udp_idle: u32,
    /// Sessions of a UDP listener on each core and address; when there are as many, those go that
    /// were not answered
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = clap::value_parser!(u32).range(1..=1 << 20), env = "PORTCULLIS_UDP_SESSIONS")]
    pub udp_sessions: u32,
    /// Size of a response's head, in KiB: a backend that sends a larger one has failed (502)
    #[arg(long, value_name = "KIB", default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=1024), env = "PORTCULLIS_MAX_RESPONSE_HEADER")]
    pub max_response_header: u16,
    /// Header fields of a response: a backend that sends more has failed (502)
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000), env = "PORTCULLIS_MAX_RESPONSE_FIELDS")]
    pub max_response_fields: u16,
    /// The code that reads requests of HTTP/1 and writes their responses
    #[arg(long, value_enum, default_value_t, env = "PORTCULLIS_HTTP1")]
    pub http1: Http1Choice,
    /// Durations to measure, as histograms by listener, route and backend; repeat for several, or
    /// "none"
    #[arg(long, value_name = "BY", value_enum, default_values_t = DurationsBy::DEFAULT, env = "PORTCULLIS_DURATIONS_BY", value_delimiter = ',')]
    pub durations_by: Vec<DurationsBy>,
    /// Listeners that have histograms of their own; as many routes, and backends. All others of a
    /// kind share one
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1 << 20), env = "PORTCULLIS_DURATION_SERIES")]
    pub duration_series: u32,
    /// Connections of TCP listeners and datagrams of UDP listeners in the kernel, where nothing
    /// needs user space
    #[arg(long, value_enum, default_value_t, env = "PORTCULLIS_FORWARDING")]
    pub forwarding: ForwardingChoice,
    /// Ports of this node that backends see them come from; no other program may use them
    #[arg(long, value_name = "FIRST-LAST", default_value = "61000-65535", value_parser = port_range, env = "PORTCULLIS_FORWARDING_PORTS")]
    pub forwarding_ports: RangeInclusive<u16>,
    /// Time for connections to finish after SIGTERM, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, env = "PORTCULLIS_DRAIN_TIMEOUT")]
    drain_timeout: u64,
    /// Filter of the log, in tracing's syntax: debug, or portcullis_proxy=trace with info for all
    /// else, …
    #[arg(long, value_name = "FILTER", default_value = "info", env = "PORTCULLIS_LOG")]
    pub log: LogFilter,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t, env = "PORTCULLIS_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// Metrics for scrapers on other machines.
#[derive(Args)]
pub(crate) struct MetricsArgs {
    /// Also answer scrapes of /metrics, and nothing else, on this address and port, [::]:9271 for
    /// instance [default: none]
    #[arg(long, value_name = "IP:PORT", env = "PORTCULLIS_METRICS_ADDRESS")]
    pub metrics_address: Option<SocketAddr>,
    /// File with the token that scrapers have to send (Authorization: Bearer); read at each scrape
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_METRICS_TOKEN_FILE")]
    pub metrics_token_file: Option<PathBuf>,
    /// Serve scrapers in TLS, with this chain of certificates (PEM); read again when it changes
    #[arg(long, value_name = "FILE", requires = "metrics_key", env = "PORTCULLIS_METRICS_CERTIFICATE")]
    pub metrics_certificate: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "metrics_certificate", env = "PORTCULLIS_METRICS_KEY")]
    pub metrics_key: Option<PathBuf>,
    /// Authorities (PEM) one of which scrapers have to have a certificate from
    #[arg(long, value_name = "FILE", requires = "metrics_certificate", env = "PORTCULLIS_METRICS_CLIENT_CA")]
    pub metrics_client_ca: Option<PathBuf>,
    /// Answer all who reach that address: neither token nor certificate is wanted
    #[arg(long, env = "PORTCULLIS_METRICS_OPEN", conflicts_with_all = ["metrics_token_file", "metrics_client_ca"])]
    pub metrics_open: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DatapathChoice {
    /// eBPF if this node allows it, else userspace, saying why
    #[default]
    Auto,
    /// eBPF or nothing
    Ebpf,
    /// Ordinary sockets
    Userspace,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForwardingChoice {
    /// User space forwards
    Off,
    /// The kernel where this node allows it, else user space, saying why
    #[default]
    Auto,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Http1Choice {
    /// The agent's own, as far as requests have nothing unusual; the HTTP library for others
    #[default]
    Own,
    /// The HTTP library
    Library,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurationsBy {
    /// Of requests and TLS handshakes
    Listener,
    /// Of requests
    Route,
    /// Of the responses of backends
    Backend,
    /// Of nothing
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArpChoice {
    /// They are announced by a load balancer, or routed to
    Ignore,
    /// Every node answers
    Answer,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let bounds =
        text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match bounds {
        Some((first, last)) if 1024 <= first && first <= last => Ok(first..=last),
        _ => Err("write the first and the last port, of 1024 to 65535: 61000-65535".to_owned()),
    }
}

/// A pseudonym in `Via` is a token (RFC 9110 section 7.6.3).
fn via_name(name: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err("not a token: letters, digits, - . _ and the like".to_owned());
    }
    Ok(name.to_owned())
}

// === impl DurationsBy ===

impl DurationsBy {
    const DEFAULT: [Self; 3] = [Self::Listener, Self::Route, Self::Backend];
}

// === impl RunArgs ===

impl RunArgs {
    pub(crate) fn beside(&self) -> Beside {
        if self.beside_others { Beside::Agents } else { Beside::OtherUsers }
    }

    /// The installation that this agent belongs to: agents of others do not take over from it.
    pub(crate) fn installation(&self) -> String {
        match &self.config_dir {
            Some(directory) => {
                let directory = directory.canonicalize().unwrap_or_else(|_| directory.clone());
                format!("directory {}", directory.display())
            }
            None => self.cluster.installation(&self.controller_name),
        }
    }

    /// Directory in which agents meet to hand over; those beside others do not.
    pub(crate) fn hand_over(&self) -> Option<PathBuf> {
        (!self.beside_others).then(|| self.cluster.state.hand_over())
    }

    /// Directory of the status files.
    pub(crate) fn statuses(&self) -> PathBuf {
        self.status_dir.clone().unwrap_or_else(|| match &self.config_dir {
            Some(directory) => directory.join(".status"),
            None => self.cluster.state.statuses(),
        })
    }

    pub(crate) fn drain_timeout(&self) -> Duration {
        Duration::from_secs(self.drain_timeout)
    }

    /// Pods of mode Dedicated end and log like agents.
    pub(crate) fn pods(&self) -> Pods {
        let log_format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let (log, drain_seconds) = (self.log.to_string(), self.drain_timeout);
        let (external, telemetry) = (self.external.rule(), self.telemetry.of_pods());
        Pods { log, log_format: log_format.to_owned(), drain_seconds, external, telemetry, ..Pods::new("") }
    }

    pub(crate) fn syn_hold(&self) -> Option<Duration> {
        let seconds = self.syn_hold.unwrap_or_else(|| if self.host() == Host::ClusterNode { 10 } else { 0 });
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    pub(crate) fn arp(&self) -> Arp {
        match self.vip_arp {
            Some(ArpChoice::Ignore) => Arp::Ignored,
            Some(ArpChoice::Answer) => Arp::Answered,
            None => self.host().arp(),
        }
    }

    pub(crate) fn host(&self) -> Host {
        match (&self.config_dir, &self.cluster.gateway) {
            (Some(_), _) => Host::Machine,
            (None, Some(_)) => Host::Pod,
            (None, None) => Host::ClusterNode,
        }
    }
}
