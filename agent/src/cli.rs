//! The command line. Every option of `run` has an environment variable `PORTCULLIS_<OPTION>`, but
//! for the collector, whose is OpenTelemetry's.

mod log_filter;
mod run;
mod telemetry;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use portcullis_gateway::ExternalRule;
use portcullis_gateway::infra::{HostPortGrant, HostPortRights, PortRange};
use portcullis_model::{AddressRange, HostPattern};

use crate::cleanup::CleanupArgs;
use crate::output::{Colour, Format, View};
use crate::watch_limits::{LONGEST_TIME, MOST_REQUESTS, USUAL_TIME};

pub(crate) use log_filter::LogFilter;
pub(crate) use run::{
    DatapathChoice, DurationsBy, ForwardingChoice, Http1Choice, LogFormat, MetricsArgs, RunArgs,
};

/// A Kubernetes Gateway API gateway that steers traffic with eBPF.
#[derive(Parser)]
#[command(name = "portcullis", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Colours of tables and help
    #[arg(long, value_enum, default_value_t, global = true, value_name = "WHEN")]
    pub color: Colour,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve the Gateways of a cluster, or of a directory of manifests
    Run(Box<RunArgs>),
    /// Say what manifests would do: their statuses, or what they become (offline)
    ///
    /// Exit status: 0 all is well, 1 some object has a problem or is an Ingress, which is not
    /// served, 2 input cannot be read, or there is no object in it.
    Check(CheckArgs),
    /// Write what serves the Ingresses of ingress-nginx here, and list what differs (offline)
    ///
    /// Exit status: 0 all that protects is kept, 1 something is closed, 2 input cannot be read.
    Convert(ConvertArgs),
    /// Show the statuses of a running agent's objects
    Status(StatusArgs),
    /// List routes in the order they are matched: listener, host, match, rule, backends
    Routes(RoutesArgs),
    /// Say which listener, rule and backend take a request, and why not the others
    Explain(ExplainArgs),
    /// Wait for the next request for a host or path, and show what becomes of it step by step
    ///
    /// Exit status: 0 such a request came, 1 none did.
    Watch(WatchArgs),
    /// Print the configuration that the data plane runs
    Dump(DumpArgs),
    /// Show listeners, routes and backends by their requests a second, live
    Top(TopArgs),
    /// Open the page of a running agent in a browser, by a port that is there as long as this runs
    Ui(UiArgs),
    /// Ask whether a running agent is ready; exit status 2 if not
    Ready(ReadyArgs),
    /// Write all that a running agent tells of itself into an archive, without secrets
    Bugreport(BugreportArgs),
    /// Remove what agents leave behind: programs, maps and VIPs of this node, or objects of a
    /// cluster
    Cleanup(CleanupArgs),
    /// Print a script by which a shell completes commands and options
    Completions(CompletionsArgs),
    /// Print or write manual pages
    Man(ManArgs),
}

#[derive(Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub input: Input,
    /// The part of the outcome to print
    #[arg(long, value_enum, default_value_t)]
    pub show: Show,
    /// Input without any object is no fault: an agent may begin with an empty directory
    #[arg(long)]
    pub allow_empty: bool,
    /// Format of the output [default: of statuses a table of what is not well, else YAML]
    #[arg(short, long, value_enum)]
    pub output: Option<CheckFormat>,
}

#[derive(Args)]
pub(crate) struct ConvertArgs {
    /// Manifests of Ingresses, and of Services, Secrets and ConfigMaps that they refer to: files,
    /// directories or - for standard input
    #[arg(required = true, value_name = "FILE")]
    pub filename: Vec<PathBuf>,
    /// The Gateway to write
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "default/web")]
    pub gateway: String,
    /// Its port of HTTP
    #[arg(long, value_name = "N", default_value_t = 80)]
    pub http_port: u16,
    /// Its port of HTTPS
    #[arg(long, value_name = "N", default_value_t = 443)]
    pub https_port: u16,
    #[command(flatten)]
    pub limits: InputLimits,
    /// Format of the objects
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// Write the list of what became of each annotation into this file, too, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Read the status files of this directory instead of asking the agent
    #[arg(long, value_name = "DIR")]
    pub status_dir: Option<PathBuf>,
    #[command(flatten)]
    pub admin: AdminSocket,
    /// Only objects of this kind, by its name, plural or short name, or of several: gw,httproute;
    /// `listeners`: which part of the node serves each, and why
    pub kind: Option<String>,
    /// Only the object NAME or NAMESPACE/NAME
    pub name: Option<String>,
    /// Only objects that are not well, with what is wrong with each
    #[arg(long)]
    pub problems: bool,
    #[command(flatten)]
    pub scope: Scope,
    /// A table, or whole objects
    #[arg(short, long, value_enum, default_value_t)]
    pub output: View,
}

/// The namespaces that are asked about. An agent serves all of them; unlike kubectl, it knows of no
/// current one.
#[derive(Args)]
pub(crate) struct Scope {
    /// Only objects of this namespace [default: of all]
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Objects of all namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
}

#[derive(Args)]
pub(crate) struct RoutesArgs {
    #[command(flatten)]
    pub from: From,
    #[command(flatten)]
    pub scope: Scope,
    /// A table, or the same as values
    #[arg(short, long, value_enum, default_value_t)]
    pub output: View,
}

// A URL that stands behind a path is no path.
#[derive(Args)]
#[command(mut_arg("filename", |filename| filename.num_args(1).help("Manifests: a file, a directory or - for standard input; repeat for several [default: ask the running agent]")))]
pub(crate) struct ExplainArgs {
    /// The request's URL; or that of a connection, as tls://NAME, tcp://ADDRESS:PORT or
    /// udp://ADDRESS:PORT
    pub url: String,
    /// A request header, as "Name: value"; repeat for several
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
    /// The request's method
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    pub method: String,
    /// List every candidate, not only the nearest
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub from: From,
    /// Lines of text, or the same as values
    #[arg(short, long, value_enum, default_value_t)]
    pub output: View,
}

#[derive(Args)]
pub(crate) struct WatchArgs {
    /// The request's host [default: any]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// The request's path, without a query; /cart* for all that begin so [default: any]
    #[arg(long = "path", value_name = "PATH")]
    pub of_path: Option<String>,
    /// The request's method [default: any]
    #[arg(short = 'X', long, value_name = "METHOD")]
    pub method: Option<String>,
    /// A request header, as "Name: value", or a name for any value; repeat for several
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
    /// The listener: its name, or all of "Gateway infra/web listener https" [default: any]
    #[arg(long, value_name = "NAME")]
    pub listener: Option<String>,
    /// Seconds to wait
    #[arg(long, value_name = "N", default_value_t = USUAL_TIME, value_parser = clap::value_parser!(u64).range(1..=LONGEST_TIME))]
    pub seconds: u64,
    /// Requests to wait for
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=MOST_REQUESTS))]
    pub count: u64,
    #[command(flatten)]
    pub admin: AdminSocket,
    /// Steps as text, or the same as values
    #[arg(short, long, value_enum, default_value_t)]
    pub output: View,
}

#[derive(Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    pub from: From,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

#[derive(Args)]
pub(crate) struct TopArgs {
    /// Seconds between two samples
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub interval: u16,
    /// Lines of each table
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub lines: u16,
    /// Show it once, and end
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub admin: AdminSocket,
    /// A table, or the same as values
    #[arg(short, long, value_enum, default_value_t)]
    pub output: View,
}

#[derive(Args)]
pub(crate) struct UiArgs {
    /// Port of 127.0.0.1 to serve the page on [default: one that is free, at a random address of
    /// loopback]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Print the address, and open no browser
    #[arg(long)]
    pub no_open: bool,
    #[command(flatten)]
    pub admin: AdminSocket,
}

#[derive(Args)]
pub(crate) struct BugreportArgs {
    /// The archive, - for standard output [default: portcullis-bugreport-<seconds since
    /// 1970>.tar.gz]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub admin: AdminSocket,
}

#[derive(Args)]
pub(crate) struct ReadyArgs {
    /// Ask only whether it runs
    #[arg(long)]
    pub live: bool,
    /// Wait until the agent that answers is this process; exit status 2 if that ends before
    #[arg(long, value_name = "PID")]
    pub process: Option<i32>,
    #[command(flatten)]
    pub admin: AdminSocket,
}

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that is to complete commands and options
    pub shell: Shell,
}

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Print the page of this command [default: that of portcullis]
    #[arg(conflicts_with = "dir")]
    pub command: Option<String>,
    /// Write all pages into this directory instead: portcullis.1, portcullis-run.1, …
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// A configuration: of manifests, or of a running agent.
#[derive(Args)]
pub(crate) struct From {
    /// Manifests: files, directories or - for standard input [default: ask the running agent]
    #[arg(short, long = "filename", value_name = "PATH", num_args = 1..)]
    pub filename: Vec<PathBuf>,
    #[command(flatten)]
    pub admin: AdminSocket,
    #[command(flatten)]
    pub settings: Offline,
}

#[derive(Args)]
pub(crate) struct Input {
    /// Manifests: files, directories or - for standard input
    #[arg(short, long = "filename", value_name = "PATH", required = true, num_args = 1..)]
    pub filename: Vec<PathBuf>,
    #[command(flatten)]
    pub settings: Offline,
}

/// Settings that offline commands share with `run`, from the same variables: a unit's `check` is of
/// the configuration that its `run` serves.
#[derive(Args)]
pub(crate) struct Offline {
    /// Address of Gateways without spec.addresses; repeat for several [default: all addresses of
    /// the node, as for a directory]
    #[arg(long, value_name = "IP", env = "PORTCULLIS_ADDRESS", value_delimiter = ',')]
    pub address: Vec<IpAddr>,
    /// Give each of these Gateways an address of its own instead (198.18.0.1, …), as its Service
    /// does in a cluster; goes before --address
    // No conflict: the variable of --address would make it one.
    #[arg(long)]
    pub own_addresses: bool,
    /// GatewayClasses with this controllerName are ours
    #[arg(long, value_name = "NAME", default_value = portcullis_gateway::CONTROLLER_NAME, env = "PORTCULLIS_CONTROLLER_NAME")]
    pub controller_name: String,
    #[command(flatten)]
    pub host_ports: HostPortArgs,
    #[command(flatten)]
    pub external: ExternalArgs,
    #[command(flatten)]
    pub limits: InputLimits,
}

/// The rights to ports of the nodes' own addresses.
#[derive(Args)]
pub(crate) struct HostPortArgs {
    /// Gateways that may be served on the nodes' own addresses (hostPorts of their parameters):
    /// class, namespace, ports, * for all; repeat for several [default: none]
    #[arg(
        long = "host-ports",
        value_name = "CLASS/NAMESPACE:PORTS",
        env = "PORTCULLIS_HOST_PORTS",
        value_delimiter = ','
    )]
    grants: Vec<HostPortGrant>,
    /// Ports of Services on every node, which no Gateway gets there: as the API server was told
    #[arg(
        long = "service-node-port-range",
        value_name = "PORTS",
        default_value = "30000-32767",
        env = "PORTCULLIS_SERVICE_NODE_PORT_RANGE"
    )]
    node_ports: PortRange,
}

/// The hosts outside the cluster that XBackends may lead to.
#[derive(Args)]
pub(crate) struct ExternalArgs {
    /// Names of hosts that XBackends may lead to: a name, or *.example.com for those below it, *
    /// for all, none; repeat for several
    #[arg(
        long = "external-names",
        value_name = "NAME",
        default_value = "*",
        env = "PORTCULLIS_EXTERNAL_NAMES",
        value_delimiter = ',',
        value_parser = external_name
    )]
    names: Vec<HostPattern>,
    /// Addresses that those names may have besides public ones, one or a range; never loopback,
    /// link-local or the cluster's; repeat for several [default: none]
    #[arg(
        long = "external-ranges",
        value_name = "RANGE",
        env = "PORTCULLIS_EXTERNAL_RANGES",
        value_delimiter = ','
    )]
    ranges: Vec<AddressRange>,
}

#[derive(Args)]
pub(crate) struct InputLimits {
    /// Larger files are refused, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 10, env = "PORTCULLIS_MAX_FILE_SIZE")]
    max_file_size: u64,
}

#[derive(Args)]
pub(crate) struct AdminSocket {
    /// The agent's admin socket [default: /run/portcullis/admin.sock as root, else below
    /// $XDG_RUNTIME_DIR or /tmp]
    #[arg(long = "admin-socket", value_name = "PATH", env = "PORTCULLIS_ADMIN_SOCKET")]
    path: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// Only what is not well, and a line with the number of objects and problems
    Table,
    /// Every object with its status
    Yaml,
    /// The same as an array
    Json,
    /// The same as workflow commands, which GitHub shows beside the lines of a change
    Github,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Show {
    /// Every object with the status it would get
    #[default]
    Status,
    /// The configuration that the data plane would run
    Snapshot,
    /// HTTPRoutes that delegation makes
    Ephemeral,
    /// Objects that would be generated
    Infra,
}

// === impl HostPortArgs ===

impl HostPortArgs {
    pub(crate) fn rights(&self, admin_port: Option<u16>, metrics_port: Option<u16>) -> HostPortRights {
        let (grants, node_ports) = (self.grants.clone(), self.node_ports.clone());
        HostPortRights { grants, node_ports, admin_port, metrics_port }
    }
}

// === impl InputLimits ===

impl InputLimits {
    /// In bytes.
    pub(crate) fn max_file_size(&self) -> u64 {
        self.max_file_size.saturating_mul(1 << 20)
    }
}

// === impl AdminSocket ===

impl AdminSocket {
    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(default_admin_socket)
    }
}

fn default_admin_socket() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return "/run/portcullis/admin.sock".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) => PathBuf::from(runtime).join("portcullis/admin.sock"),
        None => std::env::temp_dir().join(format!("portcullis-{}/admin.sock", user.as_raw())),
    }
}

// === impl ExternalArgs ===

impl ExternalArgs {
    pub(crate) fn rule(&self) -> ExternalRule {
        ExternalRule { names: self.names.clone(), ranges: self.ranges.clone() }
    }
}

/// No XBackend has a name without a dot: `none` allows none.
fn external_name(text: &str) -> Result<HostPattern, String> {
    match text {
        "*" => Ok(HostPattern::Any),
        _ => HostPattern::parse(text).map_err(|error| error.to_string()),
    }
}
