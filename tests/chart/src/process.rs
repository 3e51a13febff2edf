//! The agent as a process of the first node, next to kubelet: nothing is built but itself.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use portcullis_test_cluster::{Cluster, wait};
use portcullis_testbed::workspace;

const CLASS: &str = "portcullis";
const GATEWAY_CLASS: &str = "tests/cluster/conformance/gatewayclass.yaml";
const TIMEOUT: Duration = Duration::from_secs(30);

/// Ends when dropped.
pub struct Agent {
    process: Child,
}

impl Agent {
    /// Runs it as an administrator, with further options of its command line, and with a
    /// GatewayClass made anew: the status that an earlier agent left claims what that one could do.
    pub fn start(cluster: &Cluster, binary: &Path, options: &[&str]) -> Result<Self> {
        let manifest = workspace::root().join(GATEWAY_CLASS).display().to_string();
        cluster.kubectl(&["delete", "--ignore-not-found", "-f", &manifest])?;
        cluster.kubectl(&["create", "-f", &manifest])?;
        let kubeconfig = cluster.layout().kubeconfig("admin");
        let log = File::create(cluster.layout().log("agent"))?;
        let mut command = cluster.command(&binary.display().to_string());
        command.arg("run").arg("--kubeconfig").arg(kubeconfig);
        command.arg("--state-dir").arg(cluster.layout().path("agent")).args(options);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = command.spawn().context("cannot start the agent")?;
        let mut agent = Self { process };
        agent.await_acceptance(cluster)?;
        Ok(agent)
    }

    /// Tests would wait for minutes, and not know why.
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

/// An agent that is built, as an absolute path: it is started elsewhere.
pub fn existing(binary: &Path) -> Result<PathBuf> {
    let binary = std::path::absolute(binary)?;
    if !binary.is_file() {
        bail!("no agent at {}", binary.display());
    }
    Ok(binary)
}
