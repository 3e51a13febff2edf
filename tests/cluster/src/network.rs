//! A node's addresses and routes, as a network plugin for flat networks would set them up: the
//! first node has a link to every other one, and is their router. Runs inside.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::command;

use crate::node::{self, Node};

/// The device by which other nodes reach the first, which has one by their name.
const UPLINK: &str = "uplink";
/// The two ends of each such link. Nodes' own IPv6 addresses are not on it, so nothing answers
/// there when it is asked for them.
const FIRST_END: &str = "fe80::1";
const OTHER_END: &str = "fe80::2";

pub(crate) fn prepare(node: Node) -> Result<()> {
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
    let (own, own_ipv6) = (node.address(), node.ipv6_address());
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", &format!("{own}/32"), "dev", "lo"])?;
    // At once: the kernel takes a moment to find that nothing else can have it there, and until
    // then it is no source of a route.
    ip(&["address", "add", &format!("{own_ipv6}/128"), "dev", "lo", "nodad"])?;
    // kube-proxy rewrites a Service's address on the way out; there must be a way out to start on.
    let [services, ipv6_services] = node::SERVICES;
    ip(&["route", "add", services, "dev", "lo", "src", &own])?;
    ip(&["route", "add", ipv6_services, "dev", "lo", "src", &own_ipv6])?;
    if node == Node::FIRST { Ok(()) } else { join(node) }
}

/// Pid 1 holds the first node's namespaces.
fn join(node: Node) -> Result<()> {
    let name = node.to_string();
    let (own, first) = (node.address(), Node::FIRST.address());
    let (own_ipv6, first_ipv6) = (node.ipv6_address(), Node::FIRST.ipv6_address());
    let [pods, ipv6_pods] = node.pods();
    ip(&["link", "add", UPLINK, "type", "veth", "peer", "name", &name, "netns", "1"])?;
    ip_of_first(&["link", "set", &name, "up"])?;
    ip_of_first(&["address", "add", &format!("{FIRST_END}/64"), "dev", &name, "nodad"])?;
    ip_of_first(&["route", "add", &own, "dev", &name, "src", &first])?;
    ip_of_first(&["route", "add", &own_ipv6, "via", OTHER_END, "dev", &name, "src", &first_ipv6])?;
    ip_of_first(&["route", "add", &pods, "via", &own, "dev", &name, "onlink"])?;
    ip_of_first(&["route", "add", &ipv6_pods, "via", OTHER_END, "dev", &name])?;
    // For programs on the first that ask from another.
    ip_of_first(&["netns", "attach", &name, &std::process::id().to_string()])?;
    ip(&["link", "set", UPLINK, "up"])?;
    ip(&["address", "add", &format!("{OTHER_END}/64"), "dev", UPLINK, "nodad"])?;
    ip(&["route", "add", &first, "dev", UPLINK, "src", &own])?;
    ip(&["route", "add", "default", "via", &first, "dev", UPLINK, "src", &own])?;
    ip(&["route", "add", "default", "via", FIRST_END, "dev", UPLINK, "src", &own_ipv6])
}

fn ip_of_first(arguments: &[&str]) -> Result<()> {
    let mut nsenter = Command::new("nsenter");
    nsenter.args(["--target", "1", "--net", "--mount", "ip"]).args(arguments);
    command::output(&mut nsenter)
        .with_context(|| format!("on {}: ip {}", Node::FIRST, arguments.join(" ")))?;
    Ok(())
}

fn ip(arguments: &[&str]) -> Result<()> {
    command::output(Command::new("ip").args(arguments))
        .with_context(|| format!("ip {}", arguments.join(" ")))?;
    Ok(())
}
