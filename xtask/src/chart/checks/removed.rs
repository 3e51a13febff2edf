//! What is left when the chart was uninstalled.

use anyhow::{Result, ensure};

use super::words::{PATIENCE, agent_pid, local_addresses, pins};
use crate::chart::{NAMESPACE, TESTED};
use crate::cluster::{Check, Cluster, output, wait};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("no program, map or pin is left", nothing_is_pinned),
    ("no VIP is left", no_vip_is_left),
    ("no nftables rule is left", no_rule_is_left),
    ("no object is left", no_object_is_left),
];

fn nothing_is_pinned(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        wait::until_true("agents gone", PATIENCE, || agent_pid(cluster, node).is_err())?;
        let left = pins(cluster, node)?;
        ensure!(left.is_empty(), "on {node}: {left}");
    }
    Ok(())
}

fn no_vip_is_left(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let addresses = local_addresses(cluster, node)?;
        let left: Vec<_> = addresses.lines().filter(|line| line.contains("portcullis")).collect();
        ensure!(left.is_empty(), "on {node}: {}", left.join("; "));
    }
    Ok(())
}

fn no_rule_is_left(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        let tables = output::of(cluster.command_on(node, "nft").args(["list", "tables"]))?;
        ensure!(!tables.contains("portcullis"), "on {node}: {tables}");
    }
    Ok(())
}

/// Namespaced objects where they could be, and everything cluster-wide that could be ours.
fn no_object_is_left(cluster: &Cluster) -> Result<()> {
    let name = "custom-columns=KIND:.kind,NAME:.metadata.name";
    let asked: &[&[&str]] = &[
        &["all,serviceaccounts,leases,roles,rolebindings", "--namespace", NAMESPACE],
        &["clusterroles,clusterrolebindings,gatewayclasses,xmeshes,customresourcedefinitions"],
        &["services,deployments,serviceaccounts", "--namespace", TESTED],
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
    ensure!(left.is_empty(), "{}", left.join("; "));
    Ok(())
}
