//! Questions that checks ask the cluster and its nodes.

use std::time::Duration;

use anyhow::{Context, Result};
use portcullis_test_cluster::{Cluster, Node, wait};
use portcullis_testbed::{command, workspace};

use crate::TESTED;

pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The address of the Gateway that most checks use.
pub(super) fn vip(cluster: &Cluster) -> Result<String> {
    field(cluster, "gateway/web", "{.status.addresses[0].value}")
}

pub(super) fn field(cluster: &Cluster, object: &str, path: &str) -> Result<String> {
    cluster.kubectl(&["get", "--namespace", TESTED, object, "-o", &format!("jsonpath={path}")])
}

/// Waits until a field has a value, and says what it had if it never does.
pub(super) fn await_field(cluster: &Cluster, object: &str, path: &str, value: &str) -> Result<()> {
    let mut found = String::new();
    wait::until_true(&format!("{object} {path} to be {value}"), TIMEOUT, || {
        found = field(cluster, object, path).unwrap_or_default();
        found == value
    })
    .with_context(|| format!("it is {found:?}"))
}

pub(super) fn patch(cluster: &Cluster, object: &str, patch: &str) -> Result<()> {
    cluster.kubectl(&["patch", "-n", TESTED, object, "--type=merge", "--patch", patch]).map(drop)
}

/// A file of `tests/chart`.
pub(super) fn apply(cluster: &Cluster, manifests: &str) -> Result<()> {
    cluster.kubectl(&["apply", "--namespace", TESTED, "-f", &path(manifests)]).map(drop)
}

/// The same where the file itself says where.
pub(super) fn apply_elsewhere(cluster: &Cluster, manifests: &str) -> Result<()> {
    cluster.kubectl(&["apply", "-f", &path(manifests)]).map(drop)
}

pub(super) fn delete(cluster: &Cluster, manifests: &str) -> Result<()> {
    let arguments = ["delete", "--namespace", TESTED, "--ignore-not-found", "-f", &path(manifests)];
    cluster.kubectl(&arguments).map(drop)
}

fn path(manifests: &str) -> String {
    workspace::root().join("tests/chart").join(manifests).display().to_string()
}

pub(super) fn local_addresses(cluster: &Cluster, node: Node) -> Result<String> {
    command::output(cluster.command_on(node, "ip").args(["address", "show", "dev", "lo"]))
}

pub(super) fn is_local(cluster: &Cluster, node: Node, address: &str) -> bool {
    local_addresses(cluster, node).is_ok_and(|local| local.contains(&format!(" {address}/32 ")))
}

/// Pins with their inodes, which differ if one was made anew.
pub(super) fn pins(cluster: &Cluster, node: Node) -> Result<String> {
    let find = ["/sys/fs/bpf", "-path", "*portcullis*", "-type", "f", "-printf", "%P %i\n"];
    let found = command::output(cluster.command_on(node, "find").args(find))?;
    let mut lines: Vec<_> = found.lines().collect();
    lines.sort_unstable();
    Ok(lines.join("\n"))
}

/// The one in the node's network namespace, which the shell is in, too.
pub(super) fn agent_pid(cluster: &Cluster, node: Node) -> Result<String> {
    let find = "exec pgrep --ns $$ --nslist net --exact --full '/portcullis run'";
    let pids = command::output(cluster.command_on(node, "sh").args(["-c", find]))?;
    Ok(pids.lines().next().unwrap_or_default().to_owned())
}
