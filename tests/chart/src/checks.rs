//! `cargo xtask chart test`: what the chart installs serves traffic on two nodes, and nothing of it
//! is left when it is removed. Each check looks at the cluster as an operator would.

mod agent;
mod balancer;
mod client;
mod dedicated;
mod gateway;
mod host_ports;
mod kustomize;
mod load;
mod metallb;
mod nodes;
mod outside;
mod reached;
mod removed;
mod scraped;
mod sessions;
mod words;

use std::time::Duration;

use anyhow::{Result, bail};
use portcullis_test_cluster::{Check, Cluster, holds};

use super::{Installed, TESTED, install};

const MANIFESTS: &str = "on-cluster.yaml";
const STREAMS: &str = "streams.yaml";
/// Time for what only looks every 15 s: autoscalers, and agents at a Lease.
const SCALING: Duration = Duration::from_secs(60);

type Checks = &'static [(&'static str, Check)];

/// With a program of others, which takes minutes to build.
pub(super) const METALLB: Checks = metallb::CHECKS;

/// In this order: later ones use what earlier ones left.
const INSTALLED: &[Checks] = &[
    kustomize::CHECKS,
    agent::CHECKS,
    nodes::CHECKS,
    gateway::CHECKS,
    scraped::CHECKS,
    balancer::CHECKS,
    reached::CHECKS,
    host_ports::CHECKS,
    dedicated::CHECKS,
    gateway::LAST_CHECKS,
];

pub(super) fn run(cluster: &Cluster, installed: &Installed, further: Checks) -> Result<()> {
    // A new cluster knows no kind of what is removed next, which a killed run may have left.
    cluster.install_crds(&super::crds())?;
    remove_objects(cluster)?;
    let failed = check_all(cluster, installed, further);
    remove_objects(cluster)?;
    let failed = failed?;
    let checks = INSTALLED.iter().map(|checks| checks.len()).sum::<usize>();
    let all = checks + further.len() + removed::CHECKS.len();
    println!("{} passed, {failed} failed", all - failed);
    if failed > 0 {
        bail!("the chart does not do what it promises");
    }
    Ok(())
}

/// Returns how many checks failed.
fn check_all(cluster: &Cluster, installed: &Installed, further: Checks) -> Result<usize> {
    words::apply_elsewhere(cluster, scraped::MANIFESTS)?;
    install::install(cluster, &super::crds(), &scraped::with_metrics(installed))?;
    words::apply(cluster, MANIFESTS)?;
    words::apply(cluster, STREAMS)?;
    outside::make(cluster)?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", "-n", TESTED, "pod", "--all"])?;
    let checks = INSTALLED.iter().copied().chain([further]);
    let failed = checks.map(|checks| count_failed(cluster, checks)).sum::<usize>();
    install::uninstall(cluster)?;
    Ok(failed + count_failed(cluster, removed::CHECKS))
}

fn remove_objects(cluster: &Cluster) -> Result<()> {
    outside::remove(cluster)?;
    cluster.kubectl(&[
        "delete",
        "--ignore-not-found",
        "gatewayclass/example",
        &format!("namespace/{TESTED}"),
        &format!("namespace/{}", dedicated::KEYS),
    ])?;
    scraped::forget_the_token(cluster)
}

fn count_failed(cluster: &Cluster, checks: &[(&str, Check)]) -> usize {
    checks.iter().filter(|(name, check)| !holds(name, *check, cluster)).count()
}
