//! `cargo xtask bench cluster`: an agent against a real API server. A program that speaks
//! Kubernetes measures, inside of the test cluster (`agent/control/benches/apiserver`); what is
//! here builds it, runs it, and stops the API server when it asks.

mod program;

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueEnum;
use portcullis_test_cluster::{Cluster, Options};
use portcullis_testbed::{build, command, workspace};

use super::document::replace;
use super::report::machine;

/// A cluster of its own: a development cluster may hold anything.
const DIRECTORY: &str = "target/bench-cluster";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Parts to measure [default: everything]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Small numbers and short times, to see that it works
    #[arg(long)]
    quick: bool,
    /// Replace the last result in docs/performance.md
    #[arg(long)]
    write: bool,
    /// An agent that is built already
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Directory of the cluster's state [default: target/bench-cluster]
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Part {
    /// From the creation of a route to its first correct answer
    Latency,
    /// A thousand routes at once: writes of the Gateway's status
    Writes,
    /// Memory for thousands of Secrets that nothing refers to
    Secrets,
    /// Two minutes without API server, under load
    Outage,
    /// The leader is killed
    Leadership,
    /// Hostile tenants beside good ones, on two nodes
    Tenants,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let agent = match &args.binary {
        Some(binary) => std::path::absolute(binary)?,
        None => {
            crate::setup()?;
            build::release()?
        }
    };
    let program = program::build()?;
    let directory = args.dir.clone().unwrap_or_else(|| workspace::root().join(DIRECTORY));
    let options = Options { nodes: args.nodes(), ..Options::default() };
    let cluster = Cluster::obtain(portcullis_test_cluster::layout(Some(&directory))?, &options)?;
    for crds in ["deploy/crds", "deploy/helm/portcullis/files"] {
        cluster.install_crds(&workspace::root().join(crds))?;
    }
    for part in args.parts() {
        let size = if args.quick { "quick" } else { "whole" };
        let text = program::run(&cluster, &program, &agent, part.name(), size)?;
        println!("\n{text}");
        if args.write {
            let date = command::ask("date", &["-u", "+%F"]).unwrap_or_default();
            let text = format!("{date}, {}.\n\n{text}", machine());
            replace(&format!("cluster {}", part.name()), &text)?;
        }
    }
    Ok(())
}

impl Args {
    fn parts(&self) -> &[Part] {
        if self.parts.is_empty() { Part::value_variants() } else { &self.parts }
    }

    /// A second node costs the first what its kubelet asks of the API server.
    fn nodes(&self) -> u8 {
        if self.parts().iter().any(|part| matches!(part, Part::Tenants)) { 2 } else { 1 }
    }
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Writes => "writes",
            Self::Secrets => "secrets",
            Self::Outage => "outage",
            Self::Leadership => "leadership",
            Self::Tenants => "tenants",
        }
    }
}
