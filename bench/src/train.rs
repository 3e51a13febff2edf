//! `cargo xtask bench train`: the loads of `http`, one after the other, on an agent that counts how
//! often each of its branches is taken, in either way of HTTP/1. Nothing is measured. The agent
//! writes its counts when it ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portcullis_testbed::Datapath;

use super::backend;
use super::load::Run;
use super::peers::{self, Peer, Portcullis, Running};
use super::site::{Site, Size};
use super::workload::{WORKLOADS, Workload};

/// Values of the agent's `--http1`.
const HTTP1: [&str; 2] = ["own", "library"];

#[derive(clap::Args)]
pub(super) struct Args {
    /// The agent
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Seconds of each load
    #[arg(long, default_value_t = 3)]
    seconds: u64,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let _backend = backend::start(scratch.path())?;
    for size in [Size::Small, Size::Routes, Size::Certificates] {
        let directory = scratch.path().join(format!("{size:?}").to_lowercase());
        let site = Site::create(size, &directory.join("site"))?;
        for http1 in HTTP1 {
            println!("train: --http1 {http1}");
            let agent = Portcullis::new(args.binary.clone(), Datapath::Auto).with(&["--http1", http1]);
            let Running::Agent(running) = peers::serve(&agent, &site, &directory.join(http1))? else {
                bail!("the agent is no agent");
            };
            for workload in WORKLOADS.iter().filter(|it| it.site == size) {
                load(workload, agent.address(), args, &directory).context(workload.title)?;
            }
            let ended = running.terminate()?;
            ensure!(ended.success(), "the agent did not end well, its counts are not whole: {ended}");
        }
    }
    Ok(())
}

fn load(workload: &Workload, address: &str, args: &Args, scratch: &Path) -> Result<()> {
    let run = Run {
        load: workload.load,
        address,
        duration: Duration::from_secs(args.seconds),
        routes: workload.site.routes(),
        certificates: workload.site.certificates(),
        round: 0,
        scratch,
    };
    let seen = run.make()?;
    println!("train: {}: {} requests, {} failed", workload.title, seen.requests, seen.failed);
    ensure!(seen.requests > 0, "no request was answered");
    Ok(())
}
