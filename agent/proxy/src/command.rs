//! The orders that a core gets, in the order in which it obeys them.

use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use portcullis_model::{KeyRing, Snapshot, Unserved};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::core::socket::Sockets;
use crate::core::stats::Stats;
use crate::trace::watch::Watch;

pub(crate) enum Command {
    Listen(Sockets, SyncSender<io::Result<()>>),
    /// A connection that another core has accepted.
    Serve(Handed),
    Apply(Arc<Snapshot>, oneshot::Sender<Unserved>),
    /// The keys that all agents have.
    UseKeys(Arc<KeyRing>, oneshot::Sender<()>),
    Stats(oneshot::Sender<Stats>),
    /// The next requests of a kind, for an operator.
    Watch(Watch, oneshot::Sender<()>),
    /// The sockets of frontends, once more.
    Share(oneshot::Sender<io::Result<Sockets>>),
    Stop(oneshot::Sender<()>),
    Drain(oneshot::Sender<()>),
}

/// A connection on its way to another core, which has it already by the count of its tasks.
pub(crate) struct Handed {
    pub stream: StdTcpStream,
    pub peer: SocketAddr,
    pub place: TaskTrackerToken,
}

// === impl Handed ===

impl Handed {
    /// On the core that has it now. The place is kept until the connection's own task has one.
    pub(crate) fn taken(self) -> io::Result<(TcpStream, SocketAddr, TaskTrackerToken)> {
        Ok((TcpStream::from_std(self.stream)?, self.peer, self.place))
    }
}
