//! A node's addresses and routes, as a network plugin for flat networks would set them up: the
//! first node has a link to every other one, and is their router. Runs inside.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use portcullis_testbed::command;

use crate::node::{self, Node};

/// The device by which other nodes reach the first, which has one by their name.
const UPLINK: &str = "uplink";

pub(crate) fn prepare(node: Node) -> Result<()> {
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", &format!("{}/32", node.address()), "dev", "lo"])?;
    // kube-proxy rewrites a Service's address on the way out; there must be a way out to start on.
    ip(&["route", "add", node::SERVICES, "dev", "lo", "src", &node.address()])?;
    if node == Node::FIRST { Ok(()) } else { join(node) }
}

/// Pid 1 holds the first node's namespaces.
fn join(node: Node) -> Result<()> {
    let (name, own, first) = (node.to_string(), node.address(), Node::FIRST.address());
    ip(&["link", "add", UPLINK, "type", "veth", "peer", "name", &name, "netns", "1"])?;
    ip_of_first(&["link", "set", &name, "up"])?;
    ip_of_first(&["route", "add", &own, "dev", &name, "src", &first])?;
    ip_of_first(&["route", "add", &node.pods(), "via", &own, "dev", &name, "onlink"])?;
    // For programs on the first that ask from another.
    ip_of_first(&["netns", "attach", &name, &std::process::id().to_string()])?;
    ip(&["link", "set", UPLINK, "up"])?;
    ip(&["route", "add", &first, "dev", UPLINK, "src", &own])?;
    ip(&["route", "add", "default", "via", &first, "dev", UPLINK, "src", &own])
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
