//! The successor's side: the agent that serves, as the one sees it that is about to.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portcullis_node::Lock;
use portcullis_proxy::{CoreSockets, Sockets};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use rustix::process::geteuid;

use super::message::{Inbox, Message, PROTOCOL, Received, Role, send};

/// Time for an answer: the predecessor serves traffic meanwhile, and may be applying a change.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// An agent that serves, and will hand over when this one says that it is ready. Dropped before
/// that, it goes on.
pub(crate) struct Predecessor {
    stream: UnixStream,
    inbox: Inbox,
    /// Of directories.
    pub locks: Vec<File>,
    /// Its admin socket has the path that this one's is to have.
    pub needs_admin_socket: bool,
}

impl Predecessor {
    /// The agent that has the lock of this network namespace, and the lock; `None` if there is no
    /// such agent.
    pub(crate) fn greet(installation: &str) -> Result<Option<(Self, Lock)>> {
        let address = SocketAddr::from_abstract_name(Lock::NAME)?;
        let stream = match UnixStream::connect_addr(&address) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            connected => connected.context("cannot reach the agent that serves")?,
        };
        let user = user_behind(&stream).context("cannot ask whose agent serves")?;
        ensure!(
            user == 0 || user == geteuid().as_raw(),
            "a process of user {user} has the lock of this network namespace: stop it first"
        );
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        let mut predecessor =
            Self { stream, inbox: Inbox::default(), locks: Vec::new(), needs_admin_socket: false };
        let hello = Message::Hello { protocol: PROTOCOL, installation: installation.to_owned() };
        send(&predecessor.stream, &hello, &[])?;
        let answer = predecessor.receive().context(
            "the agent that serves does not answer: it is of a version that hands nothing over, or another one is \
             taking over already",
        )?;
        match answer.message {
            Message::Welcome => {}
            Message::Refused { reason } => bail!("the agent that serves hands nothing over: {reason}"),
            other => bail!("the agent that serves answers with {other:?}"),
        }
        let mut descriptors = answer.descriptors.into_iter();
        let lock = descriptors.next().context("the agent that serves gave no lock")?;
        predecessor.locks = descriptors.map(File::from).collect();
        Ok(Some((predecessor, Lock::inherited(lock))))
    }

    /// Its listening sockets. From now on it applies no change.
    pub(crate) fn take(&mut self) -> Result<Sockets> {
        send(&self.stream, &Message::Take, &[])?;
        let (mut steered, mut bound) = (Vec::new(), Vec::new());
        loop {
            let Received { message, descriptors } = self.receive()?;
            match message {
                Message::Sockets { role: Role::Steered } => steered.extend(descriptors),
                Message::Sockets { role: Role::Bound } => bound.extend(descriptors),
                Message::AllSockets => break,
                other => bail!("it answers with {other:?}"),
            }
        }
        let mut sockets = Sockets { steered: paired(steered)?, ..Sockets::default() };
        for socket in bound {
            if socket_type(&socket)? == SocketType::DGRAM {
                sockets.datagrams.push(socket.into());
            } else {
                sockets.bound.push(socket.into());
            }
        }
        Ok(sockets)
    }

    /// This agent serves. Returns when the other one takes no connection any more, and writes
    /// nothing.
    pub(crate) fn release(&mut self) -> Result<()> {
        send(&self.stream, &Message::Serving { needs_admin_socket: self.needs_admin_socket }, &[])?;
        match self.receive()?.message {
            Message::Released => Ok(()),
            other => bail!("it answers with {other:?}"),
        }
    }

    fn receive(&mut self) -> io::Result<Received> {
        loop {
            if let Some(received) = self.inbox.receive(&self.stream)? {
                return Ok(received);
            }
        }
    }
}

/// The user who listens where the stream is connected to. (rustix does not read the credentials of
/// a process in another pod, which has no number here.)
fn user_behind(stream: &UnixStream) -> io::Result<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    stream.set_nonblocking(true)?;
    let user = tokio::net::UnixStream::from_std(stream.try_clone()?)?.peer_cred()?.uid();
    stream.set_nonblocking(false)?;
    Ok(user)
}

/// Sockets of both families in the order of their cores, as pairs.
fn paired(sockets: Vec<OwnedFd>) -> io::Result<Vec<CoreSockets>> {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for socket in sockets {
        let listener = std::net::TcpListener::from(socket);
        match listener.local_addr()?.is_ipv4() {
            true => v4.push(listener),
            false => v6.push(listener),
        }
    }
    let mut v6 = v6.into_iter();
    Ok(v4.into_iter().map(|v4| CoreSockets { v4, v6: v6.next() }).collect())
}
