//! The successor's side: the agent that serves, as the one sees it that is about to.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use portcullis_model::SpeaksFirst;
use portcullis_node::{Lock, defers_accept};
use portcullis_proxy::{CoreSockets, Sockets};
use rustix::net::sockopt::socket_type;
use rustix::net::{RecvFlags, SocketType, recv};

use super::message::{Inbox, Message, PROTOCOL, Received, Role, send};
use super::socket;

/// Time for an answer: the predecessor serves traffic meanwhile, and may be applying a change.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// An agent that serves, and will hand over when this one says that it is ready. Dropped before
/// that, it goes on.
pub(crate) struct Predecessor {
    stream: UnixStream,
    inbox: Inbox,
    /// Of directories, until this agent has them.
    pub locks: Vec<File>,
    /// Its admin socket has the path that this one's is to have.
    pub needs_admin_socket: bool,
}

/// The cause for which it does not answer.
#[derive(Debug)]
pub(crate) enum Silence {
    /// It has ended, or is about to.
    Ended,
    /// It serves, for all that is known, and this agent must not.
    Serves(String),
}

/// Waits for the end of a predecessor.
pub(crate) struct Watch(UnixStream);

impl Predecessor {
    /// The agent that serves this network namespace, and its lock; `None` if there is none.
    pub(crate) fn greet(directory: &Path, installation: &str) -> Result<Option<(Self, Lock)>> {
        let Some(stream) = socket::connect(directory)? else { return Ok(None) };
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        let mut predecessor =
            Self { stream, inbox: Inbox::default(), locks: Vec::new(), needs_admin_socket: false };
        let hello = Message::Hello { protocol: PROTOCOL, installation: installation.to_owned() };
        let answer = match predecessor.send(&hello).and_then(|()| predecessor.receive()) {
            Ok(answer) => answer,
            // The lock tells whether it is there still.
            Err(Silence::Ended) => return Ok(None),
            Err(Silence::Serves(why)) => bail!("the agent that serves hands nothing over: {why}"),
        };
        match answer.message {
            Message::Welcome => {}
            other => bail!("the agent that serves answers with {other:?}"),
        }
        let mut descriptors = answer.descriptors.into_iter();
        let lock = descriptors.next().context("the agent that serves gave no lock")?;
        predecessor.locks = descriptors.map(File::from).collect();
        Ok(Some((predecessor, Lock::inherited(lock))))
    }

    pub(crate) fn watch(&self) -> io::Result<Watch> {
        self.stream.try_clone().map(Watch)
    }

    /// Its listening sockets. From now on it applies no change.
    ///
    /// # Errors
    /// Unless it has ended, this agent must not serve.
    pub(crate) fn take(&mut self) -> Result<Sockets, Silence> {
        self.send(&Message::Take)?;
        let (mut steered, mut bound) = (Vec::new(), Vec::new());
        loop {
            let Received { message, descriptors } = self.receive()?;
            match message {
                Message::Sockets { role: Role::Steered } => steered.extend(descriptors),
                Message::Sockets { role: Role::Bound } => bound.extend(descriptors),
                Message::AllSockets => break,
                other => return Err(Silence::Serves(format!("it answers with {other:?}"))),
            }
        }
        let unknown = |error: io::Error| Silence::Serves(format!("its sockets cannot be used: {error}"));
        let mut sockets = Sockets { steered: paired(steered).map_err(unknown)?, ..Sockets::default() };
        for socket in bound {
            if socket_type(&socket).map_err(|error| unknown(error.into()))? == SocketType::DGRAM {
                sockets.datagrams.push(socket.into());
            } else {
                sockets.bound.push(socket.into());
            }
        }
        Ok(sockets)
    }

    /// This agent serves. Returns when the other one takes no connection any more, and writes
    /// nothing.
    ///
    /// # Errors
    /// Unless it has ended, this agent must not go on. One that takes long to answer will have done
    /// so: it hands over, or has said that it does not.
    pub(crate) fn release(&mut self) -> Result<(), Silence> {
        self.send(&Message::Serving { needs_admin_socket: self.needs_admin_socket })?;
        match self.receive_in_time() {
            Ok(Some(Received { message: Message::Released, .. })) => Ok(()),
            Ok(Some(other)) => Err(Silence::Serves(format!("it answers with {:?}", other.message))),
            Ok(None) => {
                tracing::warn!("the agent that served does not say that it is done");
                Ok(())
            }
            Err(silence) => Err(silence),
        }
    }

    fn send(&self, message: &Message) -> Result<(), Silence> {
        send(&self.stream, message, &[]).map_err(silence)
    }

    fn receive(&mut self) -> Result<Received, Silence> {
        let late =
            || Silence::Serves("it does not answer; another agent may be taking over already".to_owned());
        self.receive_in_time()?.ok_or_else(late)
    }

    /// `None` if it does not answer.
    fn receive_in_time(&mut self) -> Result<Option<Received>, Silence> {
        loop {
            match self.inbox.receive(&self.stream) {
                Ok(Some(Received { message: Message::Refused { reason }, .. })) => {
                    return Err(Silence::Serves(reason));
                }
                Ok(Some(received)) => return Ok(Some(received)),
                Ok(None) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(silence(error)),
            }
        }
    }
}

/// A connection ends with its process, or when that drains; nothing else is the other one's end.
fn silence(error: io::Error) -> Silence {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Silence::Ended,
        _ => Silence::Serves(error.to_string()),
    }
}

// === impl Watch ===

impl Watch {
    const INTERVAL: Duration = Duration::from_millis(100);

    /// Returns when it has ended, or is about to.
    pub(crate) async fn ended(&self) {
        let mut ticks = tokio::time::interval(Self::INTERVAL);
        while !self.has_ended() {
            ticks.tick().await;
        }
    }

    /// An answer that has come is left for whom it is meant.
    fn has_ended(&self) -> bool {
        match recv(&self.0, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((length, _)) => length == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Sockets of both families in the order of their cores, as pairs. Those that wait for clients to
/// speak are of a kind of their own, whichever version the other agent has.
fn paired(sockets: Vec<OwnedFd>) -> io::Result<Vec<CoreSockets>> {
    let mut kinds = BTreeMap::<_, [Vec<TcpListener>; 2]>::new();
    for socket in sockets {
        let listener = TcpListener::from(socket);
        let kind = if defers_accept(&listener)? { SpeaksFirst::Client } else { SpeaksFirst::Either };
        let [v4, v6] = kinds.entry(kind).or_default();
        if listener.local_addr()?.is_ipv4() { v4.push(listener) } else { v6.push(listener) }
    }
    let pairs = kinds.into_iter().flat_map(|(speaks_first, [v4, v6])| {
        let mut v6 = v6.into_iter();
        v4.into_iter().map(move |v4| CoreSockets { speaks_first, v4, v6: v6.next() })
    });
    Ok(pairs.collect())
}
