//! Running programs where a pod is: images FROM scratch hold no client.

use std::process::Command;

use anyhow::{Result, bail};

use super::boot::Cluster;
use super::output;

impl Cluster {
    /// A program of this machine, in the network namespace of a pod.
    pub(crate) fn command_of_pod(&self, namespace: &str, pod: &str, program: &str) -> Result<Command> {
        let place = format!("--net=/run/netns/{}", self.netns_of(namespace, pod)?);
        let mut command = self.command("nsenter");
        command.args([&place, program]);
        Ok(command)
    }

    /// The network namespace with the pod's address.
    fn netns_of(&self, namespace: &str, pod: &str) -> Result<String> {
        let path = "jsonpath={.status.podIP}";
        let ip = self.kubectl(&["get", "--namespace", namespace, &format!("pod/{pod}"), "-o", path])?;
        let address = format!(" {ip}/");
        for name in self.netns_names()? {
            let shown = output::of(self.command("ip").args(["-netns", &name, "address"]))?;
            if shown.contains(&address) {
                return Ok(name);
            }
        }
        bail!("no network namespace has the address{address}")
    }

    /// Those of pods that are there.
    pub(super) fn netns_names(&self) -> Result<Vec<String>> {
        let list = output::of(self.command("ip").args(["netns", "list"]))?;
        Ok(list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
    }
}
