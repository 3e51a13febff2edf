//! Starting and ending the process that holds the namespaces, and with it everything inside.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cgroup::Cgroups;
use crate::inside::{self, Lifetime};
use crate::layout::Layout;
use crate::node::Node;
use crate::process::Process;
use crate::wait;

/// Makes the namespaces. For a tied cluster, returns the pipe whose closing ends it.
pub(crate) fn start(layout: &Layout, lifetime: Lifetime) -> Result<Option<ChildStdin>> {
    let cgroups = Cgroups::create(layout)?;
    let mut child = spawn(layout, lifetime)?;
    await_announcement(&mut child, &layout.log("holder"))?;
    let holder = wait::until("the holder of the namespaces", Duration::from_secs(5), || {
        Ok(i32::try_from(child.id()).ok().and_then(Process::of).and_then(Process::child))
    })?;
    holder.record(&layout.holder(Node::FIRST))?;
    cgroups.join(child.id())?;
    cgroups.join(holder.pid.try_into()?)?;
    Ok(child.stdin.take())
}

/// Makes the namespaces of one more node, which end with those of the first: it has the same
/// process and cgroup namespaces.
pub(crate) fn join(layout: &Layout, node: Node) -> Result<()> {
    let log = layout.log(&format!("holder-{node}"));
    let mut unshare = inside::command(layout, Node::FIRST, "unshare");
    unshare.args(["--net", "--mount", "--propagation", "private"]).arg(layout.path("artifacts/pause"));
    unshare.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?).process_group(0);
    let mut child = unshare.spawn().with_context(|| format!("cannot start the holder of {node}"))?;
    await_announcement(&mut child, &log)?;
    let entered = Process::of(child.id().try_into()?);
    let holder = entered.and_then(Process::child).context("the holder ended at once")?;
    holder.record(&layout.holder(node))
}

/// Ends what is left of a cluster, whichever process started it. Does nothing if there is nothing.
pub(crate) fn end(layout: &Layout) -> Result<()> {
    if let Some(holder) = layout.holder_of(Node::FIRST) {
        holder.kill()?;
    }
    Cgroups::recorded(layout).remove()
}

fn spawn(layout: &Layout, lifetime: Lifetime) -> Result<Child> {
    let mut command = inside::holding(layout, lifetime);
    command.stdin(if lifetime == Lifetime::Tied { Stdio::piped() } else { Stdio::null() });
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
