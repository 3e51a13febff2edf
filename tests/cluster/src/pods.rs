//! Running programs where a pod is: images FROM scratch hold no client.

use std::process::Command;

use anyhow::{Context, Result, bail};
use portcullis_testbed::command;

use crate::boot::Cluster;
use crate::node::Node;

impl Cluster {
    /// A program of this machine, in the network namespace of a pod.
    pub fn command_of_pod(&self, namespace: &str, pod: &str, program: &str) -> Result<Command> {
        let path = "jsonpath={.spec.nodeName} {.status.podIP}";
        let found = self.kubectl(&["get", "--namespace", namespace, &format!("pod/{pod}"), "-o", path])?;
        let (node, ip) = found.split_once(' ').with_context(|| format!("pod {pod} is nowhere"))?;
        let node = node.parse().map_err(anyhow::Error::msg)?;
        let place = format!("--net=/run/netns/{}", self.netns_with(node, ip)?);
        let mut command = self.command_on(node, "nsenter");
        command.args([&place, program]);
        Ok(command)
    }

    /// The network namespace with a pod's address.
    fn netns_with(&self, node: Node, ip: &str) -> Result<String> {
        let address = format!(" {ip}/");
        for name in self.netns_names(node)? {
            let shown = command::output(self.command_on(node, "ip").args(["-netns", &name, "address"]))?;
            if shown.contains(&address) {
                return Ok(name);
            }
        }
        bail!("no network namespace on {node} has the address{address}")
    }

    /// Those of pods that are on a node.
    pub(crate) fn netns_names(&self, node: Node) -> Result<Vec<String>> {
        let list = command::output(self.command_on(node, "ip").args(["netns", "list"]))?;
        Ok(list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
    }
}
