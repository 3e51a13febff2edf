//! `portcullis ready`: `/readyz` or `/livez` for probes that run a command and make no request; and
//! for those who start an agent that takes over, a wait until it has.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::admin::client::Agent;
use crate::cli::ReadyArgs;
use crate::output;

/// Between two looks at the admin socket.
const INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

pub(crate) fn run(args: &ReadyArgs, agent: &Agent) -> Result<ExitCode> {
    if let Some(process) = args.process {
        wait_for(process, &args.admin.path())?;
    }
    let question = if args.live { "/livez" } else { "/readyz" };
    output::text(&agent.get(question)?);
    Ok(ExitCode::SUCCESS)
}

/// Returns when the process listens on the admin socket. The agent before it answers there until it
/// has handed over.
fn wait_for(process: i32, socket: &Path) -> Result<()> {
    let ended = || format!("process {process} has ended, and did not answer on {}", socket.display());
    let pid = Pid::from_raw(process).with_context(|| format!("{process} is no process"))?;
    let alive = pidfd_open(pid, PidfdFlags::empty()).with_context(ended)?;
    while listener(socket) != Some(pid) {
        // A descriptor of a process can be read when that has ended.
        if poll(&mut [PollFd::new(&alive, PollFlags::IN)], Some(&INTERVAL))? > 0 {
            bail!(ended());
        }
    }
    Ok(())
}

fn listener(socket: &Path) -> Option<Pid> {
    let stream = UnixStream::connect(socket).ok()?;
    Some(socket_peercred(stream).ok()?.pid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_waited_for_until_it_listens_or_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("admin.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let own = std::process::id().try_into().unwrap();
        wait_for(own, &socket).unwrap();
        let mut other = Command::new("true").spawn().unwrap();
        let said = wait_for(other.id().try_into().unwrap(), &socket).unwrap_err().to_string();
        assert!(said.contains("has ended"), "{said}");
        other.wait().unwrap();
        assert!(wait_for(0, &socket).is_err());
    }
}
