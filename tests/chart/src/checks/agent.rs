//! The agents' pods.

use anyhow::{Context, Result, ensure};
use portcullis_test_cluster::{Check, Cluster, Node, wait};
use portcullis_testbed::command;

use super::SCALING;
use super::words::{agent_pid, pins};
use crate::{NAMESPACE, RELEASE};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("the agent runs without privileges, read-only, with few capabilities", agent_is_confined),
    ("the agent uses the kernel datapath", datapath_is_ebpf),
    ("the kernel forwards TCP and UDP", kernel_forwards),
    ("restarted agents serve again, on what the old ones left", restart_keeps_everything),
];

/// As the kernel has it: bits 10 NET_BIND_SERVICE, 12 NET_ADMIN, 38 PERFMON, 39 BPF.
fn agent_is_confined(cluster: &Cluster) -> Result<()> {
    let status = of_agent(cluster, "status")?;
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    ensure!(value("CapEff:") == "000000c000001400", "its capabilities are {}", value("CapEff:"));
    ensure!(value("NoNewPrivs:") == "1", "it may gain privileges");
    ensure!(value("Seccomp:") == "2", "it has no seccomp filter");
    let mounts = of_agent(cluster, "mounts")?;
    let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/")).unwrap_or_default();
    ensure!(root.split(' ').nth(3).is_some_and(|options| options.starts_with("ro")), "its root: {root}");
    Ok(())
}

/// A file that the kernel has about an agent.
fn of_agent(cluster: &Cluster, file: &str) -> Result<String> {
    let pid = agent_pid(cluster, Node::FIRST)?;
    command::output(cluster.command("cat").arg(format!("/proc/{pid}/{file}")))
}

fn datapath_is_ebpf(cluster: &Cluster) -> Result<()> {
    let log = cluster.kubectl(&["logs", "--namespace", NAMESPACE, &format!("daemonset/{RELEASE}")])?;
    let line = log.lines().find(|line| line.contains("datapath:")).unwrap_or("no line about the datapath");
    ensure!(line.contains("ebpf: steer"), "{line}");
    Ok(())
}

/// Without a value of the chart for it.
fn kernel_forwards(cluster: &Cluster) -> Result<()> {
    let agent = format!("daemonset/{RELEASE}");
    let status = || cluster.kubectl(&["exec", "-n", NAMESPACE, &agent, "--", "/portcullis", "status"]);
    let is_kernels = |status: &str, listener: &str| {
        let mut lines = status.lines().filter(|line| line.contains(listener));
        lines.any(|line| line.contains("kernel: nothing needs user space"))
    };
    let listeners = ["chart-test/streams listener tcp", "chart-test/streams listener udp"];
    wait::until_true("the kernel to forward", SCALING, || {
        status().is_ok_and(|status| listeners.iter().all(|it| is_kernels(&status, it)))
    })
    .with_context(|| status().unwrap_or_default())
}

/// The pins are the same afterwards: programs and maps were taken over.
fn restart_keeps_everything(cluster: &Cluster) -> Result<()> {
    let all_pins = || cluster.nodes().map(|node| pins(cluster, node)).collect::<Result<Vec<_>>>();
    let before = all_pins()?;
    let daemon_set = format!("daemonset/{RELEASE}");
    cluster.kubectl(&["rollout", "restart", "--namespace", NAMESPACE, &daemon_set])?;
    cluster.kubectl(&["rollout", "status", "--timeout=120s", "--namespace", NAMESPACE, &daemon_set])?;
    ensure!(before.iter().all(|pins| !pins.is_empty()), "an agent has no pins");
    ensure!(all_pins()? == before, "the pins are not the same: before {}", before.join("; "));
    Ok(())
}
