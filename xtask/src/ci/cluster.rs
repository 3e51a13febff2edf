//! The steps that need a real Kubernetes. They share a cluster directory of their own, so that one
//! a developer has up is left alone; each starts and ends its cluster.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use portcullis_testbed::build::{self, Profile};
use portcullis_testbed::{command, workspace};

use super::tests::Tally;
use super::{meanwhile, warnings};
use crate::pass_on::{CHART, CLUSTER, CONFORMANCE, Program};

/// Relative to the workspace.
const DIRECTORY: &str = "target/ci/cluster";
const BUILD_LOG: &str = "target/ci/cluster-build.log";
const AGENT_LOG: &str = "target/ci/agent-build.log";
const REPORT: &str = "target/ci/conformance.yaml";

/// Starts building the cluster's programs: on a fresh machine that takes as long as building
/// everything else. Whether it went well the step [`build`] sees.
pub(super) fn build_early() -> Result<()> {
    meanwhile(&inside_ci(CLUSTER, &["build"]), "the test cluster", BUILD_LOG)
}

/// Starts building the agent of [`in_pods`], before the tests, which wait for much.
pub(super) fn build_agent_early() -> Result<()> {
    meanwhile(&build::static_build(Profile::Quick)?, "the agent of pods", AGENT_LOG)
}

/// Waits for the other process to be done, and does what it left undone.
pub(super) fn build(_: &mut Tally) -> Result<()> {
    command::run(&mut inside_ci(CLUSTER, &["build"]))
}

pub(super) fn test(tally: &mut Tally) -> Result<()> {
    tally.follow(&mut inside_ci(CLUSTER, &["test"]))
}

/// The tests of `portcullis-control` that `cargo test` leaves out.
pub(super) fn api_server_tests(tally: &mut Tally) -> Result<()> {
    tally.follow(warnings::lint(&mut inside_ci(CLUSTER, &["api-server-tests"])))
}

/// Tests what an operator installs: a DaemonSet that serves traffic, and leaves nothing behind.
pub(super) fn chart(tally: &mut Tally) -> Result<()> {
    tally.follow(inside_ci(CHART, &["test"]).arg("--binary").arg(in_pods()?))
}

/// Every feature that we claim, and everything that is core, of an installed chart.
pub(super) fn conformance(tally: &mut Tally) -> Result<()> {
    let mut conformance = inside_ci(CONFORMANCE, &["--all"]);
    conformance.arg("--binary").arg(in_pods()?).arg("--report").arg(workspace::root().join(REPORT));
    tally.follow(&mut conformance)
}

/// An agent that needs nothing of its image: the one of which instructions were counted. The one
/// that is shipped takes ten minutes to build.
fn in_pods() -> Result<PathBuf> {
    build::static_program(Profile::Quick)
}

/// On the cluster of `ci`.
fn inside_ci(program: Program, arguments: &[&str]) -> Command {
    let mut command = program.built();
    command.args(arguments).env("PORTCULLIS_CLUSTER", workspace::root().join(DIRECTORY));
    command
}
