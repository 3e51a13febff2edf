//! Starting and ending the process that holds the namespaces, and with it everything inside.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cgroup::Cgroups;
use super::layout::Layout;
use super::process::Process;
use super::wait;

/// How long a cluster lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Until somebody ends it.
    Detached,
    /// As long as the process that started it, however that one ends.
    Tied,
}

/// Makes the namespaces. For a tied cluster, returns the pipe whose closing ends it.
pub(super) fn start(layout: &Layout, lifetime: Lifetime) -> Result<Option<ChildStdin>> {
    let cgroups = Cgroups::create(layout)?;
    let mut child = spawn(layout, lifetime)?;
    await_announcement(&mut child, &layout.log("holder"))?;
    let holder = wait::until("the holder of the namespaces", Duration::from_secs(5), || {
        Ok(i32::try_from(child.id()).ok().and_then(Process::of).and_then(Process::child))
    })?;
    holder.record(&layout.holder())?;
    cgroups.join(child.id())?;
    cgroups.join(holder.pid.try_into()?)?;
    Ok(child.stdin.take())
}

/// Ends whatever is left of a cluster, whoever started it. Does nothing if there is nothing.
pub(super) fn end(layout: &Layout) -> Result<()> {
    if let Some(holder) = Process::recorded(&layout.holder()) {
        holder.kill()?;
    }
    Cgroups::recorded(layout).remove()
}

fn spawn(layout: &Layout, lifetime: Lifetime) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["cluster", "hold", "--dir"]).arg(layout.directory());
    command.stdin(Stdio::null());
    if lifetime == Lifetime::Tied {
        command.arg("--while-stdin").stdin(Stdio::piped());
    }
    // A terminal's Ctrl-C is for the command that the user sees.
    command.stdout(Stdio::piped()).stderr(File::create(layout.log("holder"))?).process_group(0);
    command.spawn().context("cannot start the holder of the namespaces")
}

/// The holder says one line when it runs, as pid 1 of its namespaces.
fn await_announcement(child: &mut Child, log: &Path) -> Result<()> {
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.is_empty() {
        bail!("the namespaces cannot be made: {}; see {}", child.wait()?, log.display());
    }
    Ok(())
}
