//! `cargo xtask bench train`: the loads of `http`, one after the other, on an agent that counts
//! which of its branches are taken. Nothing is measured. The agent writes its counts when it ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portcullis_testbed::Datapath;

use super::backend;
use super::load::Run;
use super::peers::{self, Peer, Portcullis, Running};
use super::site::{Site, Size};
use super::workload::{WORKLOADS, Workload};

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
    let agent = Portcullis::new(args.binary.clone(), Datapath::Auto);
    for size in [Size::Small, Size::Routes, Size::Certificates] {
        let directory = scratch.path().join(format!("{size:?}").to_lowercase());
        let site = Site::create(size, &directory.join("site"))?;
        let Running::Agent(running) = peers::serve(&agent, &site, &directory.join("agent"))? else {
            bail!("the agent is no agent");
        };
        for workload in WORKLOADS.iter().filter(|it| it.site == size) {
            load(workload, agent.address(), args, &directory).context(workload.title)?;
        }
        let ended = running.terminate()?;
        ensure!(ended.success(), "the agent has not ended well, and its counts are not whole: {ended}");
    }
    Ok(())
}

fn load(workload: &Workload, address: &str, args: &Args, scratch: &Path) -> Result<()> {
    let run = Run {
        kind: workload.kind,
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
