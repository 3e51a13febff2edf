//! The agent as a process: what is measured.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Bench;
use crate::fixture::Fixture;
use crate::http::Connection;
use crate::siege::Node;

const ADMIN_PORT: u16 = 19_901;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Killed when dropped.
pub(crate) struct Agent {
    node: Node,
    process: Child,
    directory: PathBuf,
}

impl Agent {
    /// For the fixture's class, with a Lease in its namespace.
    pub(crate) fn start(bench: &Bench, fixture: &Fixture) -> Self {
        Self::start_on(Node::First, bench, fixture)
    }

    pub(crate) fn start_on(node: Node, bench: &Bench, fixture: &Fixture) -> Self {
        let directory = bench.directory.join(&fixture.name).join(node.name());
        fs::create_dir_all(&directory).unwrap();
        let log = File::options().create(true).append(true).open(directory.join("log")).unwrap();
        let mut command = node.command(&bench.agent);
        command.args(["run", "--node-name", node.name(), "--drain-timeout", "5", "--beside-others"]);
        command.args(["--kubeconfig", &std::env::var("KUBECONFIG").unwrap()]);
        command.args(["--namespace", &fixture.name, "--mesh-name", &fixture.name]);
        command.args(["--controller-name", &fixture.controller_name]);
        // The backend is a process of the node's.
        command.args(["--endpoint-namespaces", &fixture.name]);
        command.args(["--admin-port", &ADMIN_PORT.to_string()]);
        command.arg("--admin-socket").arg(directory.join("admin.sock"));
        command.arg("--pin-dir").arg(pins(fixture, node)).arg("--state-dir").arg(&directory);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self { node, process: command.spawn().unwrap(), directory }
    }

    /// Everything was read from the API server, and applied.
    pub(crate) fn is_ready(&self) -> bool {
        let mut connection = Connection::to(([127, 0, 0, 1], ADMIN_PORT).into());
        self.node.run(|| connection.get("localhost", "/readyz").is_ok_and(|status| status == 200))
    }

    pub(crate) fn await_ready(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.is_ready() {
            let log = self.directory.join("log");
            assert!(self.process.try_wait().unwrap().is_none(), "the agent ended: {}", log.display());
            assert!(Instant::now() < deadline, "the agent is not ready: {}", log.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The data plane that serves, in the words of the agent's log.
    pub(crate) fn datapath(&self) -> String {
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let line = log.lines().rev().find_map(|line| line.split_once("datapath: "));
        line.map_or_else(|| "unknown".to_owned(), |(_, datapath)| datapath.to_owned())
    }

    /// Resident memory in MB.
    pub(crate) fn resident(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1.024 / 1000.0
    }

    /// Processor time in seconds, of 100 ticks each.
    pub(crate) fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        fields.skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap() / 100.0).sum()
    }

    /// Lines of the log at WARN and above.
    pub(crate) fn warnings(&self) -> usize {
        let log = fs::read_to_string(self.directory.join("log")).unwrap();
        log.lines().filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")).count()
    }

    /// With SIGTERM; returns when it has ended.
    pub(crate) fn stop(mut self) {
        let stopped = Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
        assert!(stopped.success());
        self.process.wait().unwrap();
    }

    /// With SIGKILL.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pins(fixture: &Fixture, node: Node) -> PathBuf {
    Path::new("/sys/fs/bpf").join(format!("{}-{}", fixture.name, node.name()))
}
