//! A controller, or a server that it needs, as a process of the node.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use portcullis_test_cluster::Cluster;

const LAST_LINES: usize = 12;

/// Ends when dropped: it gets SIGTERM when the process that entered the namespaces for it goes.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command that the cluster gave, with a log of its own.
    pub(crate) fn start(cluster: &Cluster, name: &'static str, command: &mut Command) -> Result<Self> {
        let log = cluster.layout().log(name);
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child, log })
    }

    /// An error if it has ended.
    pub(crate) fn lives(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended, {status}: {}", self.name, self.last_words()),
        }
    }

    pub(crate) fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
