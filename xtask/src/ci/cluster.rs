//! The steps that need a real Kubernetes. They share a cluster directory of their own, so that one a developer has up is left
//! alone; each starts and ends its cluster.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio, id};

use anyhow::{Context, Result};

use super::tests::Tally;
use crate::cluster::{Cluster, Layout, Options};
use crate::image::{self, Profile};
use crate::{agent, shell};

/// Relative to the workspace.
const CLUSTER: &str = "target/ci/cluster";
const BUILD_LOG: &str = "target/ci/cluster-build.log";
const REPORT: &str = "target/ci/conformance.yaml";

/// Each of these tests has an agent and objects of its own; more at once wait for one API server.
const THREADS: &str = "--test-threads=3";
/// Looks like a test and is none: other tests start it as a process.
const NO_TEST: &str = "--skip=process::agent_of_another_test";

/// Starts building the cluster's programs next to the steps that do not need them: on a fresh machine that takes as long as
/// building everything else. Whether it went well the step [`build`] sees.
pub(super) fn build_early() -> Result<()> {
    let path = shell::root().join(BUILD_LOG);
    std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
    let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut build = xtask(&["cluster", "build"]);
    build.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    build.spawn().context("cannot start building the test cluster")?;
    println!("ci: building the test cluster meanwhile; its log is {BUILD_LOG}");
    Ok(())
}

/// Waits for the other process to be done, and does what it left undone.
pub(super) fn build(_: &mut Tally) -> Result<()> {
    shell::run(&mut xtask(&["cluster", "build"]))
}

pub(super) fn test(tally: &mut Tally) -> Result<()> {
    tally.follow(&mut xtask(&["cluster", "test"]))
}

/// The tests of `portcullis-control` that `cargo test` leaves out, run inside the cluster's namespaces.
pub(super) fn api_server_tests(tally: &mut Tally) -> Result<()> {
    let cluster = Cluster::obtain(Layout::at(directory()), &Options::default())?;
    for crds in ["deploy/crds", "deploy/crds/own"] {
        cluster.install_crds(&shell::root().join(crds))?;
    }
    // Not the path of this program: cargo may replace it.
    let runner = format!("target.'cfg(all())'.runner=['/proc/{}/exe', 'cluster', 'exec']", id());
    let mut cargo = agent::cargo();
    cargo.args(["test", "--workspace", "--locked", "--no-fail-fast", "--test", "cluster"]);
    cargo.args(["--config", &runner]).env("PORTCULLIS_CLUSTER", directory());
    tally.follow(cargo.args(["--", "--ignored", THREADS, NO_TEST]))
}

/// What an operator installs: a DaemonSet that serves traffic, and leaves nothing behind.
pub(super) fn chart(tally: &mut Tally) -> Result<()> {
    tally.follow(xtask(&["chart", "test"]).arg("--binary").arg(in_pods()?))
}

/// Every feature that we claim, and everything that is core, of an installed chart.
pub(super) fn conformance(tally: &mut Tally) -> Result<()> {
    let mut conformance = xtask(&["conformance", "--profile=GATEWAY-HTTP", "--profile=GATEWAY-GRPC"]);
    conformance.arg("--binary").arg(in_pods()?).arg("--report").arg(shell::root().join(REPORT));
    tally.follow(&mut conformance)
}

/// An agent that needs nothing of its image. The one that is shipped takes ten minutes to build.
fn in_pods() -> Result<PathBuf> {
    image::build_agent(Profile::Dev)
}

fn xtask(arguments: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).env("PORTCULLIS_CLUSTER", directory());
    command
}

fn directory() -> PathBuf {
    shell::root().join(CLUSTER)
}
