//! Processes that are measured: pinned to a CPU, gone when we are, with their CPU time and memory.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

/// For the proxy.
pub(super) const PROXY_CPU: &str = "0";
/// For load and backend.
pub(super) const LOAD_CPU: &str = "1";

/// Keeps this thread on a CPU, and threads that it starts from now on, too.
pub(super) fn stay_on(cpu: &str) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu.parse()?);
    Ok(sched_setaffinity(None, &cpus)?)
}

/// Killed when dropped.
pub(super) struct Process(Child);

impl Process {
    /// Output goes to a file.
    pub(super) fn start(cpu: &str, command: &[&str], log: &Path) -> Result<Self> {
        let log = File::create(log)?;
        let mut pinned = Command::new("setpriv");
        pinned.args(["--pdeathsig", "KILL", "taskset", "--cpu-list", cpu]).args(command);
        pinned.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = pinned.spawn().with_context(|| format!("cannot run {}", command.join(" ")))?;
        Ok(Self(child))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// True if a child has ended that was not waited for yet.
pub(super) fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['Z', 'X']))
}

/// The CPU time of a process so far, user and system, of all its threads that live. To the
/// nanosecond, where /proc/PID/stat has ticks of 10 ms.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    let tasks =
        fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} is gone"))?;
    let times = tasks.flatten().map(|task| {
        let schedstat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        schedstat.split_whitespace().next().and_then(|nanoseconds| nanoseconds.parse().ok()).unwrap_or(0)
    });
    Ok(Duration::from_nanos(times.sum()))
}

/// Resident memory in MB.
pub(super) fn memory(pid: u32) -> Result<f64> {
    megabytes(pid, "VmRSS:")
}

/// Resident memory in MB that is the process's alone: its program's file is not.
pub(super) fn own_memory(pid: u32) -> Result<f64> {
    megabytes(pid, "RssAnon:")
}

/// The most it ever was.
pub(super) fn peak_memory(pid: u32) -> Result<f64> {
    megabytes(pid, "VmHWM:")
}

fn megabytes(pid: u32, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(field));
    let value = value.and_then(|value| value.split_whitespace().next());
    let kilobytes: f64 = value.with_context(|| format!("no {field}"))?.parse()?;
    Ok(kilobytes * 1.024 / 1000.0)
}
