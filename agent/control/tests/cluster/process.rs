//! An agent in a process of its own, which can be killed and measured.

use std::process::{Child, Command, Stdio};

use kube::Client;

use crate::agent::Agent;
use crate::fixture::{Fixture, config};

const NAME: &str = "PORTCULLIS_TEST_NAME";
const IDENTITY: &str = "PORTCULLIS_TEST_IDENTITY";

/// Killed when it is dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(fixture: &Fixture, identity: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::agent_of_another_test", "--ignored"]);
        command.env(NAME, &fixture.name).env(IDENTITY, identity).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// In bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// With SIGKILL.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No test: the process.
#[tokio::test]
#[ignore = "started by other tests"]
async fn agent_of_another_test() {
    let (Ok(name), Ok(identity)) = (std::env::var(NAME), std::env::var(IDENTITY)) else { return };
    let fixture = Fixture::existing(Client::try_from(config().await).unwrap(), name);
    let _agent = Agent::start(&fixture, &identity);
    std::future::pending().await
}
