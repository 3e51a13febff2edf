//! A client outside of the cluster, with a link to every node: a network namespace that only routes
//! know of.

use std::process::Command;

use anyhow::Result;

use portcullis_test_cluster::{Cluster, Node};
use portcullis_testbed::command;

/// Of documentation's addresses (RFC 5737, RFC 3849): the client's, and those that a load balancer
/// gives.
pub(super) const ADDRESS: &str = "192.0.2.10";
pub(super) const IPV6_ADDRESS: &str = "2001:db8::10";
const BALANCED: &str = "198.51.100.0/24";

/// Links from the node that is `$0` and has the addresses `$1` and `$2` to the client. Pid 1 sees
/// the first node's files.
const LINK: &str = r#"
set -e
ip link add outside type veth peer name "$0" netns /proc/1/root/run/netns/outside
ip link set outside up
ip address add fe80::1/64 dev outside nodad
ip route add 192.0.2.10 dev outside src "$1"
ip route add 2001:db8::10 via fe80::2 dev outside src "$2"
"#;

pub(super) fn make(cluster: &Cluster) -> Result<()> {
    remove(cluster)?;
    command::output(cluster.command("ip").args(["netns", "add", "outside"]))?;
    ip(cluster, &["link", "set", "lo", "up"])?;
    ip(cluster, &["address", "add", &format!("{ADDRESS}/32"), "dev", "lo"])?;
    ip(cluster, &["address", "add", &format!("{IPV6_ADDRESS}/128"), "dev", "lo"])?;
    for node in cluster.nodes() {
        let (name, address, ipv6) = (node.to_string(), node.address(), node.ipv6_address());
        command::output(cluster.command_on(node, "bash").args(["-c", LINK, &name, &address, &ipv6]))?;
        ip(cluster, &["link", "set", &name, "up"])?;
        ip(cluster, &["address", "add", "fe80::2/64", "dev", &name, "nodad"])?;
        ip(cluster, &["route", "add", &address, "dev", &name, "src", ADDRESS])?;
        ip(cluster, &["route", "add", &ipv6, "via", "fe80::1", "dev", &name, "src", IPV6_ADDRESS])?;
    }
    balance_to(cluster, Node::FIRST)
}

pub(super) fn remove(cluster: &Cluster) -> Result<()> {
    let names = command::output(cluster.command("ip").args(["netns", "list"]))?;
    if names.lines().any(|line| line.split(' ').next() == Some("outside")) {
        command::output(cluster.command("ip").args(["netns", "delete", "outside"]))?;
    }
    Ok(())
}

/// Traffic to balanced addresses enters at this node from now on.
pub(super) fn balance_to(cluster: &Cluster, node: Node) -> Result<()> {
    let (name, address) = (node.to_string(), node.address());
    ip(cluster, &["route", "replace", BALANCED, "via", &address, "dev", &name, "src", ADDRESS])
}

pub(super) fn command(cluster: &Cluster, program: &str) -> Command {
    let mut command = cluster.command("nsenter");
    command.args(["--net=/run/netns/outside", program]);
    command
}

fn ip(cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    command::output(cluster.command("ip").args(["-netns", "outside"]).args(arguments)).map(drop)
}
