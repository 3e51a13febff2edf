//! The chart on a test cluster, installed and removed as an operator would.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use portcullis_test_cluster::Cluster;
use portcullis_testbed::build::{self, Profile};
use portcullis_testbed::{command, helm, workspace};
use sha2::{Digest, Sha256};

use super::{CHART, NAMESPACE, RELEASE};

/// A tag of its own: `IfNotPresent` must never find an older image.
const TAG: &str = "test";
const REPOSITORY: &str = "portcullis.test/portcullis";

/// The agent that the chart installs, and values of the chart.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Installed {
    /// A static agent that is built already [default: build one
    /// without link-time optimisation]
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// A value of the chart, as of `helm --set-string`; may be given more than once
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
}

/// Builds the agent unless a binary is given, then the image, and waits until every agent is ready.
pub fn install(cluster: &Cluster, crds: &Path, installed: &Installed) -> Result<()> {
    cluster.install_crds(crds)?;
    let digest = import(cluster, installed.binary.as_deref())?;
    let mut options = vec!["upgrade", "--install", RELEASE, CHART, "--create-namespace"];
    let sets = [
        format!("image.repository={REPOSITORY}"),
        format!("image.tag={TAG}"),
        // So that a new agent under the old tag is rolled out.
        format!("podAnnotations.portcullis\\.dev/image={digest}"),
    ];
    options.extend(["--set", "dedicated.enabled=true"]);
    options.extend(["--set-string", "agent.hostPorts[0]=portcullis/chart-test:8081"]);
    options.extend(["--set-string", "agent.loadBalancerAddresses[0]=198.51.100.0/24"]);
    options.extend(sets.iter().chain(&installed.set).flat_map(|set| ["--set-string", set.as_str()]));
    helm(cluster, &options)?;
    let daemon_set = format!("daemonset/{RELEASE}");
    let rollout = ["rollout", "status", "--timeout=120s", "--namespace", NAMESPACE, &daemon_set];
    cluster.kubectl(&rollout).map(drop).with_context(|| words(cluster))
}

/// With everything it brought: the CRDs are not the chart's.
pub(super) fn uninstall(cluster: &Cluster) -> Result<()> {
    helm(cluster, &["uninstall", RELEASE, "--wait", "--timeout=120s"])
}

fn import(cluster: &Cluster, binary: Option<&Path>) -> Result<String> {
    let archive = cluster.layout().path("portcullis-image.tar");
    let mut image = workspace::xtask(&["image", "--without-authorities", "--output"]);
    image.arg(&archive).args(["--tag", &format!("{REPOSITORY}:{TAG}")]);
    let binary = match binary {
        Some(binary) => std::path::absolute(binary)?,
        None => build::static_program(Profile::Quick)?,
    };
    image.arg("--binary").arg(binary);
    command::run(&mut image)?;
    cluster.import_image(&archive)?;
    let digest = Sha256::digest(std::fs::read(&archive)?);
    Ok(digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

fn helm(cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    let program = helm::program()?.display().to_string();
    let mut command = helm::isolated(cluster.command(&program));
    command.current_dir(workspace::root()).args(arguments).args(["--namespace", NAMESPACE]);
    command::output(&mut command).map(drop).with_context(|| format!("helm {}", arguments.join(" ")))
}

/// Descriptions and logs of agents that do not become ready.
fn words(cluster: &Cluster) -> String {
    let ask = |arguments: &[&str]| {
        let namespaced = [arguments, &["--namespace", NAMESPACE]].concat();
        cluster.kubectl(&namespaced).unwrap_or_else(|error| format!("{error:#}"))
    };
    let selector = "--selector=app.kubernetes.io/name=portcullis";
    format!(
        "the agents are not ready:\n{}\n{}",
        ask(&["describe", "pods", selector]),
        ask(&["logs", "--tail=30", selector])
    )
}
