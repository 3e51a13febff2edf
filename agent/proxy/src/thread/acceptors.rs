//! The sockets of a core that connections are accepted from, as the snapshot has them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use portcullis_model::{FrontendKey, Snapshot};
use rustix::net::SocketFlags;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::client::accept::accept_forever;
use crate::core::settings::SocketMode;
use crate::core::snapshot;
use crate::core::socket::{self, CoreSockets, Sockets};
use crate::core::stats::CoreCounters;
use crate::core::task::or_abort;
use crate::thread::{Core, Server};

/// The accept loops of a core.
#[derive(Default)]
pub(super) struct Acceptors {
    /// Sockets that connections wait at until there is a snapshot to serve them by.
    waiting: Vec<TcpListener>,
    /// Of frontends, from an agent before this one, until the first snapshot.
    inherited: BTreeMap<FrontendKey, Vec<TcpListener>>,
    steered: Vec<Acceptor>,
    /// One socket each, or those of several cores of an agent before this one.
    bound: BTreeMap<FrontendKey, Vec<Acceptor>>,
    /// Of an agent before this one that took its connections in the other [`SocketMode`]. Those
    /// that clients have begun there are served.
    outgoing: Rc<RefCell<Vec<Acceptor>>>,
}

/// The time that clients have to complete handshakes at sockets that get no more of them: the
/// kernel sends its part again after one second and after three.
const OUTGOING: Duration = Duration::from_secs(5);

/// An accept loop. Dropped, it ends.
struct Acceptor {
    listener: Rc<TcpListener>,
    task: JoinHandle<()>,
}

// === impl Acceptors ===

impl Acceptors {
    pub(super) fn inherit(&mut self, sockets: Sockets) -> io::Result<()> {
        for listener in sockets.steered.into_iter().flat_map(CoreSockets::into_listeners) {
            self.waiting.push(TcpListener::from_std(listener)?);
        }
        for listener in sockets.bound {
            let frontend = FrontendKey::tcp(listener.local_addr()?);
            self.inherited.entry(frontend).or_default().push(TcpListener::from_std(listener)?);
        }
        Ok(())
    }

    /// Accepts the connections that are steered here. Kernel programs that outlived an agent steer
    /// to the next one's sockets before it knows any listener; those connections wait.
    pub(super) fn open(&mut self, core: &Core, snapshot: &Snapshot) {
        self.steered.extend(accept_all(core, self.waiting.drain(..)));
        let inherited = std::mem::take(&mut self.inherited).into_iter();
        let outgoing = inherited.filter(|(frontend, _)| is_accepted(snapshot, frontend));
        self.accept_outgoing(core, outgoing.flat_map(|(_, listeners)| listeners).collect());
    }

    /// Binds what the snapshot adds, closes what it no longer has. Returns the frontends that
    /// cannot be bound, and why.
    pub(super) fn follow(&mut self, core: &Core, snapshot: &Snapshot) -> Vec<(FrontendKey, String)> {
        let outgoing = std::mem::take(&mut self.waiting);
        self.accept_outgoing(core, outgoing);
        self.bound.retain(|frontend, _| is_accepted(snapshot, frontend));
        let mut inherited = std::mem::take(&mut self.inherited);
        let mut unbound = Vec::new();
        for frontend in snapshot.frontends.keys().filter(|frontend| is_accepted(snapshot, frontend)) {
            if let Entry::Vacant(place) = self.bound.entry(*frontend) {
                let listeners = match inherited.remove(frontend) {
                    Some(listeners) => Ok(listeners),
                    None => bind(frontend.socket_address()).map(|listener| vec![listener]),
                };
                match listeners {
                    Ok(listeners) => {
                        place.insert(accept_all(core, listeners));
                    }
                    Err(error) => unbound.push((*frontend, error)),
                }
            }
        }
        unbound
    }

    /// Accepts for a while from sockets that get no new connections.
    fn accept_outgoing(&self, core: &Core, listeners: Vec<TcpListener>) {
        if listeners.is_empty() {
            return;
        }
        self.outgoing.borrow_mut().extend(accept_all(core, listeners));
        let outgoing = Rc::downgrade(&self.outgoing);
        let (server, counters) = (core.server.clone(), core.counters.clone());
        tokio::task::spawn_local(or_abort(async move {
            tokio::time::sleep(OUTGOING).await;
            let Some(outgoing) = outgoing.upgrade() else { return };
            for acceptor in outgoing.take() {
                acceptor.serve_waiting(&server, &counters);
            }
        }));
    }

    /// Takes the connections that the kernel has made already.
    pub(super) fn serve_waiting(&self, core: &Core) {
        let outgoing = self.outgoing.borrow();
        for acceptor in self.steered.iter().chain(self.bound.values().flatten()).chain(&*outgoing) {
            acceptor.serve_waiting(&core.server, &core.counters);
        }
    }

    /// The sockets that are bound to frontends; with those that are outgoing, which would be in the
    /// next agent's way.
    pub(super) fn share(&self, mode: SocketMode) -> io::Result<Vec<StdTcpListener>> {
        let outgoing = self.outgoing.borrow();
        let outgoing = outgoing.iter().filter(|_| mode == SocketMode::Steered);
        let bound = self.bound.values().flatten().chain(outgoing);
        bound.map(|acceptor| Ok(acceptor.listener.as_fd().try_clone_to_owned()?.into())).collect()
    }
}

/// Accepts the connections of a socket, for the core.
fn accept(core: &Core, listener: TcpListener) -> Acceptor {
    let listener = Rc::new(listener);
    let server = core.server.clone();
    let (accepted, counters) = (listener.clone(), core.counters.clone());
    let descriptors = core.settings.client_descriptors;
    let accepting = accept_forever(accepted, descriptors, counters, move |stream, peer| {
        server.take(stream, peer);
    });
    Acceptor { listener, task: tokio::task::spawn_local(or_abort(accepting)) }
}

fn accept_all(core: &Core, listeners: impl IntoIterator<Item = TcpListener>) -> Vec<Acceptor> {
    listeners.into_iter().map(|listener| accept(core, listener)).collect()
}

fn is_accepted(snapshot: &Snapshot, frontend: &FrontendKey) -> bool {
    snapshot.frontends.get(frontend).is_some_and(|port| snapshot::is_accepting(port))
}

fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    let listener = socket::listen(address).and_then(TcpListener::from_std);
    listener.map_err(|error| format!("cannot listen on {address}: {error}{}", socket::advice(&error)))
}

/// A connection that is there already.
fn accept_now(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let stream: StdTcpStream = rustix::net::accept_with(listener, flags)?.into();
    let peer = stream.peer_addr()?;
    Ok((TcpStream::from_std(stream)?, peer))
}

// === impl Acceptor ===

impl Acceptor {
    /// Takes the connections that the kernel has made already: they would be reset.
    fn serve_waiting(&self, server: &Rc<Server>, counters: &CoreCounters) {
        while let Ok((stream, peer)) = accept_now(&self.listener) {
            counters.accepted.increment();
            server.begin(stream, peer);
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.task.abort();
    }
}
