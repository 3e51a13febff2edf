//! Processes by what they hold, for messages that say what is in the way. Processes of another user
//! or of another process namespace are not seen.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{major, minor};

/// A running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Its command, as the kernel keeps it: 15 bytes at most.
    pub name: String,
}

/// A unix socket of this network namespace that has a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnixSocket {
    /// In the abstract namespace it begins with `@`.
    pub(crate) name: String,
    pub(crate) inode: u64,
}

impl Process {
    /// The process that listens on a unix socket of this network namespace. A name in the abstract
    /// namespace begins with `@`.
    pub fn listening_on(socket: &str) -> Option<Self> {
        let found = UnixSocket::all().ok()?.into_iter().find(|found| found.name == socket)?;
        Self::with_socket(found.inode)
    }

    /// In the middle of a message `, process 1234 (name),` if it is known.
    pub fn named(known: &Option<Self>) -> String {
        known.as_ref().map(|process| format!(", {process},")).unwrap_or_default()
    }

    /// The process that has the socket with this inode.
    pub(crate) fn with_socket(inode: u64) -> Option<Self> {
        Self::all().find(|process| process.has_socket(inode))
    }

    /// As [`Process::with_lock`], of the file or directory at a path.
    pub fn with_lock_on(path: &Path) -> Option<Self> {
        Self::with_lock(&File::open(path).ok()?)
    }

    /// The process that holds a lock of flock(2) on the file.
    pub(crate) fn with_lock(file: &File) -> Option<Self> {
        let stat = rustix::fs::fstat(file).ok()?;
        let place = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| Self::of(lock_holder(line, &place)?))
    }

    fn all() -> impl Iterator<Item = Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| Self::of(entry.file_name().to_str()?.parse().ok()?))
    }

    fn of(pid: u32) -> Option<Self> {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(Self { pid, name: name.trim_end().to_owned() })
    }

    fn has_socket(&self, inode: u64) -> bool {
        sockets(Path::new(&format!("/proc/{}/fd", self.pid))).any(|socket| socket == inode)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// The inodes of this process's own sockets.
pub(crate) fn own_sockets() -> impl Iterator<Item = u64> {
    sockets(Path::new("/proc/self/fd"))
}

fn sockets(descriptors: &Path) -> impl Iterator<Item = u64> {
    let entries = fs::read_dir(descriptors).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

impl UnixSocket {
    pub(crate) fn all() -> io::Result<Vec<Self>> {
        let table = fs::read_to_string("/proc/thread-self/net/unix")?;
        Ok(table.lines().filter_map(Self::in_line).collect())
    }

    /// From proc_net(5): the seventh column is the inode, the eighth the name.
    fn in_line(line: &str) -> Option<Self> {
        let mut columns = line.split_whitespace().skip(6);
        let inode = columns.next()?.parse().ok()?;
        Some(Self { name: columns.next()?.to_owned(), inode })
    }
}

/// From proc_locks(5): `1: FLOCK ADVISORY WRITE 4242 00:1f:77 0 EOF`.
fn lock_holder(line: &str, place: &str) -> Option<u32> {
    let columns: Vec<_> = line.split_whitespace().collect();
    match columns.as_slice() {
        [_, "FLOCK", _, _, pid, at, ..] if *at == place => pid.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn the_process_with_a_socket_or_a_lock_is_found() {
        let name = format!("portcullis-process-{}", std::process::id());
        let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let found = Process::listening_on(&format!("@{name}")).unwrap();
        assert_eq!(found.pid, std::process::id());
        assert!(found.to_string().starts_with(&format!("process {} (", found.pid)), "{found}");
        drop(socket);
        assert_eq!(Process::listening_on(&format!("@{name}")), None);

        let file = tempfile::tempfile().unwrap();
        assert_eq!(Process::with_lock(&file), None);
        flock(&file, FlockOperation::LockExclusive).unwrap();
        assert_eq!(Process::with_lock(&file).unwrap().pid, std::process::id());
    }
}
