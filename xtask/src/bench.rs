//! `cargo xtask bench`: measurements that anybody can repeat. The proxy runs on CPU 0, load and backend on CPU 1; the unit is CPU time
//! per request, since requests per second on a shared machine say little.

mod backend;
mod change;
mod cluster;
mod delegation;
mod document;
mod http;
mod load;
mod peers;
mod process;
mod report;
mod restart;
mod sample;
mod scale;
mod site;
mod start;
mod workload;

use std::ffi::OsString;
use std::path::Path;
use std::{env, fs};

use anyhow::Result;

use crate::{agent, shell};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// HTTP against HAProxy, nginx and Envoy in the same run, interleaved
    Http(http::Args),
    /// Edits of the directory under load: failed requests, and the time until an edit is visible
    Change(change::Args),
    /// The same for parent and child routes, a thousand of them
    Delegation(delegation::Args),
    /// Against a real API server: route to answer, statuses, Secrets, outages, leadership
    Cluster(cluster::Args),
    /// A start on 10,000 routes and 1,000 certificates, against HAProxy, nginx and Envoy
    Start(start::Args),
    /// SIGKILL and a new start under load: for how long connections are refused
    Restart(restart::Args),
    /// Thousands of tenants: memory, start, and the time until an edit is visible
    Scale(scale::Args),
    /// User instructions per request, which the machine's load does not change
    #[command(disable_help_flag = true)]
    Instructions {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// For a run's files, which go with the value; those of killed runs go now.
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

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Http(args) => http::run(args),
        What::Change(args) => change::run(args),
        What::Delegation(args) => delegation::run(args),
        What::Cluster(args) => cluster::run(args),
        What::Start(args) => start::run(args),
        What::Restart(args) => restart::run(args),
        What::Scale(args) => scale::run(args),
        What::Instructions { arguments } => {
            let mut cargo = agent::cargo();
            cargo.args(["run", "--quiet", "--package", "portcullis-bench", "--", "instructions"]);
            shell::run(cargo.args(arguments))
        }
    }
}
