//! The socket at which an agent waits for its successor: `<state-dir>/hand-over/net-<inode>`, one
//! for each network namespace. The directory is the agent's own (0700), so that the file system
//! decides who may ask for listening sockets: being root in some pod that has the node's network is
//! not enough, as it would be for a name in the abstract namespace.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use portcullis_node::{make_private, network_namespace};

/// Removed when dropped, unless another agent's is there by then.
#[derive(Debug)]
pub(crate) struct Entrance {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

/// A connection to the agent that waits there; `None` if there is no such agent.
pub(super) fn connect(directory: &Path) -> Result<Option<UnixStream>> {
    if !directory.try_exists().with_context(|| advice(directory))? {
        return Ok(None);
    }
    let path = path(&make_private(directory).with_context(|| advice(directory))?)?;
    match UnixStream::connect(&path) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot reach the agent at {}", path.display())),
    }
}

/// Replaces the socket of an agent that is gone: the caller is the only one of this network
/// namespace.
pub(super) fn listen(directory: &Path) -> Result<Entrance> {
    let path = path(&make_private(directory).with_context(|| advice(directory))?)?;
    let bind = || -> io::Result<Entrance> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(Entrance { inode: fs::symlink_metadata(&path)?.ino(), listener, path: path.clone() })
    };
    bind().with_context(|| format!("cannot listen on {}", path.display()))
}

fn path(directory: &Path) -> Result<PathBuf> {
    Ok(directory.join(network_namespace().context("cannot tell the network namespace")?))
}

fn advice(directory: &Path) -> String {
    format!("agents cannot hand over at {} (--state-dir)", directory.display())
}

// === impl Entrance ===

impl Entrance {
    pub(super) fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        tokio::net::UnixListener::from_std(self.listener.try_clone()?)
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_an_agent_left_behind_is_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("state/hand-over");
        assert!(connect(&directory).unwrap().is_none() && !directory.exists());
        let first = listen(&directory).unwrap();
        assert!(connect(&directory).unwrap().is_some());
        let second = listen(&directory).unwrap();
        drop(first);
        assert!(connect(&directory).unwrap().is_some(), "only its own is removed");
        drop(second);
        assert!(connect(&directory).unwrap().is_none());
    }

    #[test]
    fn the_socket_of_a_killed_agent_is_no_agent() {
        let parent = tempfile::tempdir().unwrap();
        let directory = make_private(&parent.path().join("hand-over")).unwrap();
        drop(UnixListener::bind(path(&directory).unwrap()).unwrap());
        assert!(connect(&directory).unwrap().is_none());
    }
}
