//! The right to serve a network namespace, which one agent has at a time, with the kernel programs
//! and with ordinary sockets, whatever its pin directory: the programs of two agents know nothing
//! of each other's frontends. Taken before anything on the node is touched, so that an agent which
//! must not run costs the one that does nothing. It ends with its process, however that ends.
//!
//! The lock is the name of a unix socket in the abstract namespace, which belongs to the network
//! namespace, as ports and addresses do: `@portcullis`. The kernel gives a name to one socket only,
//! and takes it back with the last descriptor. As any user may have such a name, it counts only
//! with a socket of root's or of the agent's own user. An agent that finds it with another user, or
//! is to run beside others, has a name below it (`@portcullis/…`), and every agent looks for all of
//! them once it has its own: of two that start at the same time, one at least sees the other.
//!
//! It does not listen: any user may connect to such a name. An agent that takes over from another
//! gets the lock as a descriptor (`SCM_RIGHTS`). Both hold it until the other one has the listening
//! sockets and serves; at no time is it free.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;

use crate::netlink::sockets;
use crate::process::{Process, UnixSocket};

/// A different one at each read.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// The others that hold the lock of this network namespace, and do not keep it from being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// None: for what no process may be there to miss.
    Nothing,
    /// Processes of other users, which could otherwise keep agents from serving.
    OtherUsers,
    /// Agents, too.
    Agents,
}

/// Held for as long as an agent runs.
#[derive(Debug)]
pub struct Lock {
    /// It does not listen.
    socket: UnixListener,
}

/// The lock cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Locked {
    #[error(
        "another agent{} serves from this network namespace: stop it first, or let this one serve other addresses \
         and ports with --beside-others", Process::named(.holder)
    )]
    ByAnother { holder: Option<Process> },
    #[error(
        "user {user}{} has the name {name}, which is the lock of this network namespace: stop its process first",
        Process::named(.holder)
    )]
    ByOtherUser { user: u32, name: String, holder: Option<Process> },
    #[error("cannot lock this network namespace: {0}")]
    Failed(#[from] io::Error),
}

/// A lock that another process has.
struct Held {
    socket: UnixSocket,
    /// Not known where the kernel has no `UNIX_DIAG`.
    user: Option<u32>,
}

// === impl Lock ===

impl Lock {
    /// In the abstract namespace of unix sockets.
    const NAME: &str = "portcullis";

    /// The lock of an agent that hands over.
    pub fn inherited(socket: OwnedFd) -> Self {
        Self { socket: socket.into() }
    }

    /// # Errors
    /// When another has it that this one must not run beside.
    pub fn take(beside: Beside) -> Result<Self, Locked> {
        allow(&held()?, beside)?;
        let lock = Self { socket: Self::bind(beside)? };
        let own = lock.name()?;
        let others: Vec<_> = held()?.into_iter().filter(|held| held.socket.name != own).collect();
        allow(&others, beside)?;
        others.iter().for_each(Held::warn);
        Ok(lock)
    }

    fn bind(beside: Beside) -> Result<UnixListener, Locked> {
        let bind = |name: &str| -> io::Result<UnixListener> {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
            Ok(socket.into())
        };
        match bind(Self::NAME) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                // Meanwhile.
                allow(&held()?, beside)?;
                Ok(bind(&format!("{}/{}", Self::NAME, fs::read_to_string(RANDOM)?.trim_end()))?)
            }
            bound => Ok(bound?),
        }
    }

    /// As the kernel lists it.
    fn name(&self) -> io::Result<String> {
        let address = self.socket.local_addr()?;
        let name = address.as_abstract_name().unwrap_or_default();
        Ok(format!("@{}", String::from_utf8_lossy(name)))
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// All locks of this network namespace.
fn held() -> io::Result<Vec<Held>> {
    let is_lock = |name: &str| {
        name.strip_prefix('@')
            .and_then(|name| name.strip_prefix(Lock::NAME))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let sockets = UnixSocket::all()?.into_iter().filter(|socket| is_lock(&socket.name));
    Ok(sockets.map(|socket| Held { user: sockets::owner(socket.inode), socket }).collect())
}

fn allow(others: &[Held], beside: Beside) -> Result<(), Locked> {
    let refused = others.iter().find(|held| match beside {
        Beside::Nothing => true,
        Beside::OtherUsers => held.other_user().is_none(),
        Beside::Agents => false,
    });
    let Some(held) = refused else { return Ok(()) };
    let (holder, name) = (held.holder(), held.socket.name.clone());
    Err(match held.other_user() {
        Some(user) => Locked::ByOtherUser { user, name, holder },
        None => Locked::ByAnother { holder },
    })
}

// === impl Held ===

impl Held {
    /// The user whose word is not taken for an agent's.
    fn other_user(&self) -> Option<u32> {
        self.user.filter(|user| *user != 0 && *user != geteuid().as_raw())
    }

    fn holder(&self) -> Option<Process> {
        Process::with_socket(self.socket.inode)
    }

    fn warn(&self) {
        let (holder, name) = (Process::named(&self.holder()), &self.socket.name);
        match self.other_user() {
            Some(user) => tracing::warn!(
                "user {user}{holder} has the name {name}, which is the lock of this network namespace: that keeps no \
                 agent of root's from serving"
            ),
            None => tracing::warn!(
                "another agent{holder} serves from this network namespace, with the lock {name}: no address and port \
                 may be served by both"
            ),
        }
    }
}
