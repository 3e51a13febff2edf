//! `cargo xtask chart`: the Helm chart in `deploy/helm` as what it renders to, and as what it does
//! on the test cluster. Helm is built from its Go module; `tests/chart` fixes the version and holds
//! the cases.

mod checks;
mod install;
mod metallb;
mod process;
mod rendered;

use std::path::PathBuf;

use anyhow::Result;

use portcullis_test_cluster::{Cluster, Options};
use portcullis_testbed::workspace;

pub use install::{Installed, install};
pub use process::{Agent, existing};

pub(crate) const CHART: &str = "deploy/helm/portcullis";
pub(crate) const RELEASE: &str = "portcullis";
pub(crate) const NAMESPACE: &str = "portcullis-system";
/// Namespace of the objects of `test`.
const TESTED: &str = "chart-test";

#[derive(clap::Parser)]
#[command(
    name = "cargo xtask chart",
    about = "Render the Helm chart, install it on the test cluster, test it there"
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Write what the chart renders to: deploy/kustomize and tests/chart/cases
    Render,
    /// Fail if a rendered file is not what it would be now, or values are not refused that must be
    Check,
    /// Install the chart on the cluster that is up, with an image of this agent, and wait until it
    /// is ready
    Install(Target),
    /// Remove it again, as an operator would
    Uninstall(Target),
    /// Prove on a cluster of two nodes that the DaemonSet serves traffic, and that removing it
    /// leaves nothing behind
    Test {
        #[command(flatten)]
        target: Target,
        /// Also with MetalLB's own controller and speakers, which are built first
        #[arg(long)]
        metallb: bool,
    },
}

#[derive(clap::Args)]
pub(crate) struct Target {
    #[command(flatten)]
    installed: Installed,
    /// The cluster's directory [default: target/cluster]
    #[arg(long, env = "PORTCULLIS_CLUSTER")]
    dir: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Render => rendered::write(),
        Command::Check => check(),
        Command::Install(target) => install(&target.running()?, &crds(), &target.installed),
        Command::Uninstall(target) => install::uninstall(&target.running()?),
        Command::Test { target, metallb } => {
            let further = if *metallb { checks::METALLB } else { &[] };
            checks::run(&target.obtain()?, &target.installed, further)
        }
    }
}

/// As they are shipped.
fn crds() -> PathBuf {
    workspace::root().join("deploy/crds")
}

fn check() -> Result<()> {
    rendered::check()
}

impl Target {
    fn running(&self) -> Result<Cluster> {
        Cluster::running(portcullis_test_cluster::layout(self.dir.as_ref())?)
    }

    fn obtain(&self) -> Result<Cluster> {
        let options = Options { nodes: 2, ..Options::default() };
        Cluster::obtain(portcullis_test_cluster::layout(self.dir.as_ref())?, &options)
    }
}
