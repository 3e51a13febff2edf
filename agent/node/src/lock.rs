//! The right to serve a network namespace, which one agent has at a time, with the kernel programs
//! and with ordinary sockets. Taken before anything on the node is touched, so that an agent which
//! must not run costs the one that does nothing. It ends with its process, however that ends.
//!
//! The lock is the name of a unix socket in the abstract namespace, which belongs to the network
//! namespace, as ports and addresses do: `@portcullis` and the pin directory. The kernel gives a
//! name to one socket only, and takes it back with the last descriptor. Agents with pin directories
//! of their own have locks of their own, and may serve side by side as long as their addresses or
//! ports differ. The pin directory is locked besides, whatever path leads to
//! it.
//!
//! The socket listens, but nothing is accepted. That is where one agent will hand over to the next:
//! the successor connects to the name, is checked by its credentials (`SO_PEERCRED`), and gets the
//! listening sockets, those of the admin endpoints and this one itself as descriptors
//! (`SCM_RIGHTS`). The lock is then held by both, and goes to the successor alone when its
//! predecessor has drained and ended; at no time is it free. The locks of pin directories are
//! descriptors, too, and go the same way.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use crate::process::Process;

const PREFIX: &[u8] = b"portcullis";
/// `sun_path` of unix(7) has 108 bytes, the first of which is zero for an abstract name.
const LONGEST_NAME: usize = 107;

/// Held for as long as an agent runs.
#[derive(Debug)]
pub struct Lock {
    _name: UnixListener,
}

/// The lock cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Locked {
    #[error(
        "another agent{} serves from this network namespace with the pin directory {pin_dir}: stop it first, or \
         give this one a --pin-dir of its own, and other addresses or ports", Process::named(.holder)
    )]
    ByAnother { pin_dir: PathBuf, holder: Option<Process> },
    #[error("cannot lock this network namespace for the pin directory {pin_dir}: {source}")]
    Failed { pin_dir: PathBuf, source: io::Error },
}

impl Lock {
    /// # Errors
    /// When another agent has it.
    pub fn take(pin_dir: &Path) -> Result<Self, Locked> {
        let failed = |source| Locked::Failed { pin_dir: pin_dir.to_owned(), source };
        let name = name(&std::path::absolute(pin_dir).map_err(failed)?);
        let address = SocketAddr::from_abstract_name(&name).map_err(failed)?;
        match UnixListener::bind_addr(&address) {
            Ok(_name) => {
                warn_of_others(&name);
                Ok(Self { _name })
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(Locked::ByAnother {
                pin_dir: pin_dir.to_owned(),
                holder: Process::listening_on(&format!("@{}", String::from_utf8_lossy(&name))),
            }),
            Err(error) => Err(failed(error)),
        }
    }
}

/// The kernel programs of two agents do not see each other's frontends: of an address and port that
/// both serve, the connections go to the agent that was first.
fn warn_of_others(own: &[u8]) {
    let table = fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    for other in others(&table, &format!("@{}", String::from_utf8_lossy(own))) {
        let holder = Process::listening_on(other);
        tracing::warn!(
            "another agent{} serves from this network namespace, with the lock {other}: no address and port may be \
             served by both",
            Process::named(&holder)
        );
    }
}

/// The locks of other agents, from proc_net(5): the last column is the name.
fn others<'t>(table: &'t str, own: &str) -> BTreeSet<&'t str> {
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7));
    names.filter(|name| name.starts_with("@portcullis") && *name != own).collect()
}

/// Of a long directory the end, which is where directories differ.
fn name(pin_dir: &Path) -> Vec<u8> {
    // Without repeated and final slashes.
    let pin_dir: PathBuf = pin_dir.components().collect();
    let path = pin_dir.as_os_str().as_bytes();
    let room = LONGEST_NAME - PREFIX.len();
    [PREFIX, &path[path.len().saturating_sub(room)..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_the_lock_of_a_pin_directory() {
        let directory = tempfile::tempdir().unwrap();
        let held = Lock::take(directory.path()).unwrap();
        let refused = Lock::take(&directory.path().join(".")).unwrap_err().to_string();
        let own = format!("process {} (", std::process::id());
        assert!(refused.contains(&own) && refused.contains("stop it first"), "{refused}");
        Lock::take(&directory.path().join("other")).unwrap();
        drop(held);
        Lock::take(directory.path()).unwrap();
    }

    #[test]
    fn agents_with_other_pin_directories_are_seen() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 17 @portcullis/sys/fs/bpf/portcullis\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 18 @portcullis/sys/fs/bpf/second\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 19 /run/portcullis/admin.sock\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 20\n";
        let expected = BTreeSet::from(["@portcullis/sys/fs/bpf/second"]);
        assert_eq!(others(table, "@portcullis/sys/fs/bpf/portcullis"), expected);

        let directory = tempfile::tempdir().unwrap();
        let _held = Lock::take(&directory.path().join("first")).unwrap();
        let table = fs::read_to_string("/proc/thread-self/net/unix").unwrap();
        let first = format!("@portcullis{}", directory.path().join("first").display());
        assert!(others(&table, "@portcullis/none").contains(&*first), "{table}");
    }

    #[test]
    fn names_fit_and_keep_what_differs() {
        let long = |end: &str| name(&Path::new("/").join("x".repeat(200)).join(end));
        assert_eq!(long("a").len(), LONGEST_NAME);
        assert_ne!(long("a"), long("b"));
        assert_eq!(name(Path::new("/sys/fs/bpf/portcullis/")), b"portcullis/sys/fs/bpf/portcullis");
    }
}
