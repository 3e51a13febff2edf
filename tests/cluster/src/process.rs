//! A process that another command may have started. A pid alone may meanwhile be another's;
//! with its start time it is not.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Clock ticks after the machine started, proc_pid_stat(5).
    started: u64,
}

impl Process {
    /// The process that has this pid now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let (state, started) = stat(pid)?;
        (state != "Z").then_some(Self { pid, started })
    }

    /// The process that [`record`](Self::record) wrote about, if it still lives.
    pub(crate) fn recorded(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        let process = Self { pid: pid.parse().ok()?, started: started.parse().ok()? };
        process.is_alive().then_some(process)
    }

    pub(crate) fn record(self, file: &Path) -> Result<()> {
        fs::write(file, format!("{} {}\n", self.pid, self.started))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    pub(crate) fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Its first child. `None` if it has none (yet).
    pub(crate) fn child(self) -> Option<Self> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).ok()?;
        children.split_whitespace().next()?.parse().ok().and_then(Self::of)
    }

    /// Sends SIGKILL and waits until the process is gone.
    pub(crate) fn kill(self) -> Result<()> {
        if let (true, Some(pid)) = (self.is_alive(), Pid::from_raw(self.pid)) {
            // It may end in between.
            let _ = kill_process(pid, Signal::KILL);
        }
        let what = format!("end of process {}", self.pid);
        wait::until_true(&what, Duration::from_secs(20), || !self.is_alive())
    }
}

/// State and start time: fields 3 and 22. The name in field 2 may hold anything, so counting starts
/// after its parenthesis.
fn stat(pid: i32) -> Option<(String, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.to_owned();
    let started = fields.nth(18)?.parse().ok()?;
    Some((state, started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_pid_is_not_the_process() {
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.is_alive());
        assert!(!Process { started: own.started + 1, ..own }.is_alive());
    }

    #[test]
    fn a_record_without_its_process_is_nobody() {
        let file = std::env::temp_dir().join(format!("portcullis-xtask-record-{}", std::process::id()));
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        own.record(&file).unwrap();
        assert_eq!(Process::recorded(&file), Some(own));
        fs::write(&file, format!("{} 1\n", own.pid)).unwrap();
        assert_eq!(Process::recorded(&file), None);
        fs::remove_file(file).unwrap();
    }
}
