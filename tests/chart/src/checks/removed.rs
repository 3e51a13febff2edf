//! Remains of a chart that was uninstalled.

use anyhow::{Context, Result, ensure};
use portcullis_test_cluster::{Check, Cluster, Node, wait};
use portcullis_testbed::command;

use super::words::{TIMEOUT, agent_pid, local_addresses, pins};
use crate::{NAMESPACE, TESTED};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("no program, map or pin is left", |cluster| on_every_node(cluster, no_pin_is_left)),
    ("no VIP is left", |cluster| on_every_node(cluster, no_vip_is_left)),
    ("no nftables rule is left", |cluster| on_every_node(cluster, no_rule_is_left)),
    ("no file is left", |cluster| on_every_node(cluster, no_file_is_left)),
    ("no object is left", no_object_is_left),
];

type NodeCheck = fn(&Cluster, Node) -> Result<()>;

fn on_every_node(cluster: &Cluster, check: NodeCheck) -> Result<()> {
    cluster.nodes().try_for_each(|node| check(cluster, node).with_context(|| format!("on {node}")))
}

pub(super) fn leaves_nothing_on(cluster: &Cluster, node: Node) -> Result<()> {
    no_pin_is_left(cluster, node)?;
    no_vip_is_left(cluster, node)?;
    no_rule_is_left(cluster, node)?;
    no_file_is_left(cluster, node)
}

fn no_pin_is_left(cluster: &Cluster, node: Node) -> Result<()> {
    wait::until_true("agents gone", TIMEOUT, || agent_pid(cluster, node).is_err())?;
    let left = pins(cluster, node)?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}

fn no_vip_is_left(cluster: &Cluster, node: Node) -> Result<()> {
    let addresses = local_addresses(cluster, node)?;
    let left: Vec<_> = addresses.lines().filter(|line| line.contains("portcullis")).collect();
    ensure!(left.is_empty(), "{}", left.join("; "));
    Ok(())
}

fn no_rule_is_left(cluster: &Cluster, node: Node) -> Result<()> {
    let tables = command::output(cluster.command_on(node, "nft").args(["list", "tables"]))?;
    ensure!(!tables.contains("portcullis"), "{tables}");
    Ok(())
}

/// The directory is the kubelet's.
fn no_file_is_left(cluster: &Cluster, node: Node) -> Result<()> {
    let left =
        command::output(cluster.command_on(node, "find").args(["/var/lib/portcullis", "-mindepth", "1"]))?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}

/// Pods are gone a little after their processes.
fn no_object_is_left(cluster: &Cluster) -> Result<()> {
    let mut left = String::new();
    wait::until_true("objects gone", TIMEOUT, || {
        left = objects_left(cluster).unwrap_or_else(|error| format!("{error:#}"));
        left.is_empty()
    })
    .with_context(|| left)
}

/// Namespaced objects where they could be, and everything cluster-wide that could be ours.
fn objects_left(cluster: &Cluster) -> Result<String> {
    let name = "custom-columns=KIND:.kind,NAME:.metadata.name";
    let asked: &[&[&str]] = &[
        &["all,serviceaccounts,leases,roles,rolebindings", "--namespace", NAMESPACE],
        &["clusterroles,clusterrolebindings,gatewayclasses,xmeshes,customresourcedefinitions"],
        &["services,endpointslices,deployments,serviceaccounts", "--namespace", TESTED],
        &["roles,rolebindings", "--all-namespaces"],
    ];
    let mut left = Vec::new();
    for arguments in asked {
        let listed = cluster.kubectl(&[&["get", "--no-headers", "-o", name], *arguments].concat())?;
        left.extend(
            listed
                .lines()
                .filter(|line| line.contains("portcullis") || line.contains("gateway-example"))
                .map(str::to_owned),
        );
    }
    Ok(left.join("; "))
}
