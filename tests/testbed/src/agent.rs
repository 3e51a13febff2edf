//! An agent process on a directory of manifests.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::{admin, leftovers, wait};

const START: Duration = Duration::from_secs(90);
const STOP: Duration = Duration::from_secs(120);

/// As the agent's `--datapath`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datapath {
    Auto,
    Ebpf,
    Userspace,
}

/// An agent to be started.
#[derive(Clone)]
pub struct Launch {
    pub binary: PathBuf,
    pub config: PathBuf,
    /// For the admin socket, the statuses and the log.
    pub scratch: PathBuf,
    pub pins: PathBuf,
    pub datapath: Datapath,
    /// As for the agent's `--interface`: names, or "none".
    pub interface: String,
    /// Further arguments.
    pub arguments: Vec<OsString>,
    /// A program that runs the agent, with its arguments: `ip netns exec NAME`, `taskset -c 0`.
    pub through: Vec<OsString>,
}

/// A running agent. Dropped, it is killed, and its pins are removed.
pub struct Agent {
    child: Child,
    launch: Launch,
}

impl Launch {
    /// Starts the agent and waits until it serves.
    pub fn start(self) -> Result<Agent> {
        let mut agent = self.spawn()?;
        agent.wait_ready()?;
        Ok(agent)
    }

    /// Starts the agent. Its log goes to a file: a pipe would have to be read all the time.
    pub fn spawn(self) -> Result<Agent> {
        fs::create_dir_all(&self.scratch)?;
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = self.command();
        // A group of its own: Ctrl-C is for the process that started it.
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot run {}", self.binary.display()))?;
        Ok(Agent { child, launch: self })
    }

    fn command(&self) -> Command {
        // The agent goes when its starter does, however that ends.
        let mut command = Command::new("setpriv");
        // A further argument may name another one.
        command.env("PORTCULLIS_STATE_DIR", self.scratch.join("state"));
        command.args(["--pdeathsig", "KILL"]).args(&self.through).arg(&self.binary).arg("run");
        command.arg("--config-dir").arg(&self.config);
        command.arg("--admin-socket").arg(self.socket());
        command.arg("--status-dir").arg(self.statuses());
        command.arg("--pin-dir").arg(&self.pins);
        command.args(["--datapath", &self.datapath.to_string(), "--interface", &self.interface]);
        command.args(&self.arguments);
        command
    }

    fn socket(&self) -> PathBuf {
        self.scratch.join("admin.sock")
    }

    fn statuses(&self) -> PathBuf {
        self.scratch.join("status")
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("agent.log")
    }
}

impl Agent {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn config(&self) -> &Path {
        &self.launch.config
    }

    /// A command of the agent's own program that asks this agent.
    pub fn asking(&self, command: &str) -> Command {
        // It goes when its starter does, however that ends.
        let mut asking = Command::new("setpriv");
        asking.args(["--pdeathsig", "KILL"]).arg(&self.launch.binary);
        asking.arg(command).arg("--admin-socket").arg(self.launch.socket());
        asking
    }

    /// Asks an admin endpoint, such as `/metrics`.
    pub fn get(&self, path: &str) -> Result<String> {
        admin::get(&self.launch.socket(), path)
    }

    /// The status file of an object of a namespace.
    pub fn status(&self, kind: &str, namespace: &str, name: &str) -> Result<String> {
        let path = self.launch.statuses().join(kind).join(namespace).join(format!("{name}.yaml"));
        fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.launch.log()).unwrap_or_default()
    }

    /// The value of a metric's first line that begins like this, labels included.
    pub fn metric(&self, prefix: &str) -> Result<f64> {
        let metrics = self.get("/metrics")?;
        let line = metrics.lines().find(|line| line.starts_with(prefix));
        let value = line.and_then(|line| line.rsplit_once(' ')).and_then(|(_, value)| value.parse().ok());
        value.with_context(|| format!("no metric {prefix} in:\n{metrics}"))
    }

    /// Waits until it serves, or has ended instead.
    pub fn wait_ready(&mut self) -> Result<()> {
        let ready = wait::until(START, || match self.child.try_wait()? {
            Some(status) => Ok(Err(anyhow!("it ended: {status}"))),
            None => self.get("/readyz").map(Ok),
        });
        let ready = ready.and_then(|ready| ready);
        ready.map(|_| ()).with_context(|| format!("the agent is not ready; its log:\n{}", self.log()))
    }

    /// SIGKILL, as a crash; the pins stay. Returns how to start the next one.
    pub fn crash(mut self) -> Result<Launch> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.successor())
    }

    /// SIGTERM, as an orderly stop; the pins stay. Returns how to start the next one, once
    /// connections are drained.
    pub fn stop(mut self) -> Result<Launch> {
        self.signal(Signal::TERM)?;
        self.wait_stopped()?;
        Ok(self.successor())
    }

    /// The same agent once more, with a further argument: it is to run beside this one at first.
    pub fn successor_beside(&self, argument: &str) -> Launch {
        let mut launch = self.launch.clone();
        if !launch.arguments.iter().any(|known| known == argument) {
            launch.arguments.push(argument.into());
        }
        launch
    }

    /// Waits until it ends by itself, as an agent that another one has succeeded; the pins stay.
    pub fn wait_succeeded(mut self) -> Result<Launch> {
        let status = self.wait_stopped()?;
        ensure!(status.success(), "{status}; its log:\n{}", self.log());
        Ok(self.successor())
    }

    fn successor(&mut self) -> Launch {
        let kept = Launch { pins: PathBuf::new(), ..self.launch.clone() };
        std::mem::replace(&mut self.launch, kept)
    }

    /// Waits until an agent ends that may not run beside another one, and returns its log. The pins
    /// are the other one's and stay.
    pub fn refusal(mut self) -> Result<String> {
        self.launch.pins = PathBuf::new();
        let ended = wait::until(START, || self.child.try_wait()?.context("it still runs"))?;
        match ended.success() {
            true => bail!("it ended well; its log:\n{}", self.log()),
            false => Ok(self.log()),
        }
    }

    /// SIGSTOP: it hangs until it is resumed.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// False when it has ended.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// SIGTERM, as an orderly stop, and wait until connections are drained.
    pub fn terminate(mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait_stopped()
    }

    fn wait_stopped(&mut self) -> Result<ExitStatus> {
        let ended = wait::until(STOP, || self.child.try_wait()?.context("it still runs"));
        ended.with_context(|| format!("the agent does not stop; its log:\n{}", self.log()))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else {
            bail!("the agent has no process id")
        };
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Already gone is fine, and so is nothing pinned.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.launch.pins.as_os_str().is_empty() {
            let _ = leftovers::remove(&self.launch.pins);
        }
    }
}

impl fmt::Display for Datapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Ebpf => "ebpf",
            Self::Userspace => "userspace",
        })
    }
}
