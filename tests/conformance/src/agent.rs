//! The start of the agent under test: the one place that knows it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use portcullis_test_cluster::{Cluster, wait};

use super::CLASS;

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Agent {
    process: Child,
}

impl Agent {
    /// Runs the agent on the node, next to kubelet, as an administrator. It ends when dropped.
    pub(crate) fn start(cluster: &Cluster, binary: &Path) -> Result<Self> {
        let kubeconfig = cluster.layout().kubeconfig("admin");
        let log = File::create(cluster.layout().log("agent"))?;
        let mut command = cluster.command(&binary.display().to_string());
        command.arg("run").arg("--kubeconfig").arg(kubeconfig);
        command.arg("--state-dir").arg(cluster.layout().path("agent"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = command.spawn().context("cannot start the agent")?;
        let mut agent = Self { process };
        agent.await_acceptance(cluster)?;
        Ok(agent)
    }

    /// The suite would wait for three minutes, and not know why.
    fn await_acceptance(&mut self, cluster: &Cluster) -> Result<()> {
        let accepted = "jsonpath={.status.conditions[?(@.type=='Accepted')].status}";
        let log = cluster.layout().log("agent");
        let log = log.display();
        wait::until("GatewayClass Accepted", TIMEOUT, || {
            if let Some(status) = self.process.try_wait()? {
                bail!("the agent ended: {status}; see {log}");
            }
            let status = cluster.kubectl(&["get", "gatewayclass", CLASS, "-o", accepted])?;
            Ok((status == "True").then_some(()))
        })
        .with_context(|| format!("the agent's log is {log}"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The agent gets SIGTERM when the process that entered the namespaces for it goes.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// As an absolute path: it is started elsewhere.
pub(crate) fn existing(binary: &Path) -> Result<PathBuf> {
    let binary = std::path::absolute(binary)?;
    if !binary.is_file() {
        bail!("no agent at {}", binary.display());
    }
    Ok(binary)
}
