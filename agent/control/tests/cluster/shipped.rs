//! The agent as it is shipped, as a process of the node.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::{DEADLINE, Fixture};
use crate::siege::Node;

/// Killed when dropped. As its DaemonSet does not exist, it takes everything with it when it ends.
pub(crate) struct Shipped(Child);

impl Shipped {
    pub(crate) fn start(fixture: &Fixture, directory: &Path) -> Self {
        Self::start_on(Node::First, fixture, directory)
    }

    pub(crate) fn start_on(node: Node, fixture: &Fixture, directory: &Path) -> Self {
        let binary = std::env::current_exe().unwrap().parent().unwrap().with_file_name("portcullis");
        assert!(binary.exists(), "{} is missing: cargo build -p portcullis", binary.display());
        let log = std::fs::File::create(directory.join("log")).unwrap();
        let mut command = node.command(binary);
        command.args(["run", "--datapath", "userspace", "--drain-timeout", "60", "--node-name", node.name()]);
        command.args(["--namespace", &fixture.name, "--mesh-name", &fixture.name, "--daemon-set", "none"]);
        // Those of other tests.
        command.arg("--beside-others");
        command.args(["--controller-name", &fixture.controller_name]);
        // The backend is a process of the node's.
        command.args(["--endpoint-namespaces", &fixture.name]);
        command.arg("--kubeconfig").arg(std::env::var_os("KUBECONFIG").unwrap());
        command.arg("--admin-socket").arg(directory.join("admin.sock"));
        command.arg("--pin-dir").arg(directory.join("pins")).arg("--state-dir").arg(directory);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self(command.spawn().unwrap())
    }

    /// Resident memory in MB.
    pub(crate) fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1.024 / 1000.0
    }

    pub(crate) fn terminate(&self) {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    pub(crate) async fn await_end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Shipped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
