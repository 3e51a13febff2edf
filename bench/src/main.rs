//! Measurements of the agent that can be repeated anywhere: `cargo xtask bench <name>`, one module
//! each. Those that take time run the proxy on CPU 0, load and backend on CPU 1; their unit is CPU
//! time per request, since requests per second on a shared machine say little. None knows the
//! agent's crates: all run its program.

mod backend;
mod bounds;
mod change;
mod client;
mod clients;
mod cluster;
mod credentials;
mod delegation;
mod document;
mod foreign;
mod forward;
mod http;
mod idle;
mod instructions;
mod l4;
mod library;
mod load;
mod manifests;
mod namespace;
mod peers;
mod plot;
mod process;
mod random;
mod relay;
mod report;
mod restart;
mod sample;
mod scale;
mod site;
mod sni_flood;
mod stalled;
mod start;
mod train;
mod workload;

use std::path::Path;
use std::{env, fs};

use anyhow::Result;
use clap::{Parser, Subcommand};
use portcullis_testbed::{command, workspace};

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Measure the agent", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// User instructions per request, which the machine's load does not change
    Instructions(instructions::Args),
    /// HTTP against HAProxy, nginx and Envoy in the same run, interleaved
    Http(http::Args),
    /// The floor that `http` compares with
    #[command(hide = true)]
    Relay(relay::Args),
    /// Its chart, from the tables that the document has
    #[command(hide = true)]
    Plot,
    /// The loads of `http` on an agent that counts what it runs, for a release
    Train(train::Args),
    /// Connections and datagrams forwarded as they are, against HAProxy and nginx, interleaved
    L4(l4::Args),
    /// The proxy that `l4` compares with, which copies
    #[command(hide = true)]
    L4Copying(l4::CopyingArgs),
    /// Connections and datagrams forwarded in the kernel, against a route, nftables and user space
    Forward(forward::Args),
    /// ClientHellos refused by the kernel and by user space, beside a tenant that is served
    SniFlood(sni_flood::Args),
    /// TLS clients of all kinds and a thousand names at one port: none reaches another's listener
    Clients(clients::Args),
    /// Edits of the directory under load: failed requests, and the time until an edit is visible
    Change(change::Args),
    /// The same for parent and child routes, a thousand of them
    Delegation(delegation::Args),
    /// Against a real API server: route to answer, statuses, Secrets, outages, leadership
    Cluster(cluster::Args),
    /// Requests with tokens and API keys: CPU time, and how many a core checks in a second
    Credentials(credentials::Args),
    /// A start on 10,000 routes and 1,000 certificates, against HAProxy, nginx and Envoy
    Start(start::Args),
    /// SIGKILL and a new start under load: for how long connections are refused
    Restart(restart::Args),
    /// Thousands of tenants: memory, start, and the time until an edit is visible
    Scale(scale::Args),
    /// Connections without a request, thousands of them: memory of each, and what is given back
    Idle(idle::Args),
    /// Clients that stop in the middle, hundreds of them: memory, and what others see
    Stalled(stalled::Args),
}

fn main() -> Result<()> {
    portcullis_test_cluster::enter_if_asked()?;
    match Cli::parse().benchmark {
        Benchmark::Instructions(args) => instructions::run(&args),
        Benchmark::Http(args) => http::run(&args),
        Benchmark::Relay(args) => relay::run(&args),
        Benchmark::Plot => plot::draw(),
        Benchmark::Train(args) => train::run(&args),
        Benchmark::L4(args) => l4::run(&args),
        Benchmark::L4Copying(args) => l4::copy(&args),
        Benchmark::Forward(args) => forward::run(&args),
        Benchmark::SniFlood(args) => sni_flood::run(&args),
        Benchmark::Clients(args) => clients::run(&args),
        Benchmark::Change(args) => change::run(&args),
        Benchmark::Delegation(args) => delegation::run(&args),
        Benchmark::Cluster(args) => cluster::run(&args),
        Benchmark::Credentials(args) => credentials::run(&args),
        Benchmark::Start(args) => start::run(&args),
        Benchmark::Restart(args) => restart::run(&args),
        Benchmark::Scale(args) => scale::run(&args),
        Benchmark::Idle(args) => idle::run(&args),
        Benchmark::Stalled(args) => stalled::run(&args),
    }
}

/// Installs what benchmarks need.
fn setup() -> Result<()> {
    command::run(&mut workspace::xtask(&["setup", "--bench"]))
}

/// A directory for a run's files, which goes with the value; those of killed runs go now.
fn scratch() -> Result<tempfile::TempDir> {
    const PREFIX: &str = "portcullis-bench-";
    for entry in fs::read_dir(env::temp_dir())?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        if owner.is_some_and(|(pid, _)| !Path::new("/proc").join(pid).exists()) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(tempfile::Builder::new().prefix(&format!("{PREFIX}{}-", std::process::id())).tempdir()?)
}
