//! One core: a thread with a single-threaded runtime that owns everything its connections need. The
//! parts are put together here, and nowhere else.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use portcullis_model::{FrontendKey, Snapshot, Unserved};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::client::accept::accept_forever;
use crate::client::clients::Clients;
use crate::client::connection::Opener;
use crate::client::connection_limit::{ConnectionLimits, SharedCounts};
use crate::client::listener::Listeners;
use crate::client::tls::TlsFactory;
use crate::core::clock;
use crate::core::log_limit::LogLimit;
use crate::core::pseudonym::AgentId;
use crate::core::settings::{Settings, SocketMode};
use crate::core::snapshot::{self, SnapshotCell};
use crate::core::socket;
use crate::core::stats::{CoreCounters, Stats};
use crate::core::task::or_abort;
use crate::http::connection;
use crate::http::forward::Forwarder;
use crate::http::headers::Via;
use crate::http::router::Router;
use crate::http::service::Service;
use crate::log::access_log::AccessLog;
use crate::upstream::pool::Pools;

pub(crate) enum Command {
    Apply(Arc<Snapshot>, oneshot::Sender<Unserved>),
    Stats(oneshot::Sender<Stats>),
    Drain(oneshot::Sender<()>),
}

/// The parts of a core.
struct Core {
    settings: Arc<Settings>,
    snapshot: Rc<SnapshotCell>,
    counters: Rc<CoreCounters>,
    access_log: Rc<AccessLog>,
    connection_limits: Rc<ConnectionLimits>,
    listeners: Rc<Listeners>,
    clients: Rc<Clients>,
    /// The tasks of connections and tunnels.
    tasks: TaskTracker,
    server: Rc<Server>,
}

/// The parts that every connection passes.
struct Server {
    opener: Opener,
    clients: Rc<Clients>,
    service: Rc<Service>,
}

/// The accept loops of a core.
struct Acceptors {
    /// Sockets that connections wait at until there is a snapshot to serve them by.
    waiting: Vec<TcpListener>,
    steered: Vec<JoinHandle<()>>,
    bound: BTreeMap<FrontendKey, JoinHandle<()>>,
}

/// The body of a core's thread: serves until it drains, or until the proxy is dropped.
pub(crate) async fn run(
    settings: Arc<Settings>,
    tls: TlsFactory,
    agent: AgentId,
    shared_counts: SharedCounts,
    access_log: AccessLog,
    steered: Vec<TcpListener>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let core = Core::new(settings, tls, agent, shared_counts, access_log);
    let mut acceptors = Acceptors::new(steered);
    while let Some(command) = commands.recv().await {
        match command {
            Command::Apply(snapshot, done) => drop(done.send(core.apply(snapshot, &mut acceptors))),
            Command::Stats(reply) => drop(reply.send(core.read())),
            Command::Drain(done) => {
                acceptors.stop();
                core.drain().await;
                core.access_log.flush();
                let _ = done.send(());
                return;
            }
        }
    }
}

// === impl Core ===

impl Core {
    fn new(
        settings: Arc<Settings>,
        tls: TlsFactory,
        agent: AgentId,
        shared_counts: SharedCounts,
        access_log: AccessLog,
    ) -> Self {
        let snapshot = Rc::<SnapshotCell>::default();
        let counters = Rc::<CoreCounters>::default();
        let buffers = settings.buffers / settings.cores.max(1) as u64;
        let buffers = usize::try_from(buffers).unwrap_or(usize::MAX);
        let clients = Rc::new(Clients::new(buffers, settings.minimum_rate));
        let access_log = Rc::new(access_log);
        let connection_limits = Rc::new(ConnectionLimits::new(agent, shared_counts));
        let listeners = Rc::new(Listeners::new(tls));
        let tasks = TaskTracker::new();
        let pools = Rc::new(Pools::new(settings.upstream.clone(), snapshot.clone(), counters.clone()));
        tokio::task::spawn_local(or_abort(pools.clone().sweep_forever()));
        tokio::task::spawn_local(or_abort(tick_forever(clients.clone(), access_log.clone())));
        let opener = Opener {
            snapshot: snapshot.clone(),
            connection_limits: connection_limits.clone(),
            listeners: listeners.clone(),
            counters: counters.clone(),
        };
        let router = Router {
            listeners: listeners.clone(),
            counters: counters.clone(),
            access_log: access_log.clone(),
            trusted_hops: settings.trusted_hops,
            via: settings.via.as_deref().and_then(Via::named),
            looped: LogLimit::default(),
        };
        let forwarder = Forwarder { pools, tasks: tasks.clone(), too_large: LogLimit::default() };
        let service = Rc::new(Service { snapshot: snapshot.clone(), router, forwarder });
        let server = Rc::new(Server { opener, clients: clients.clone(), service });
        Self {
            settings,
            snapshot,
            counters,
            access_log,
            connection_limits,
            listeners,
            clients,
            tasks,
            server,
        }
    }

    fn apply(&self, snapshot: Arc<Snapshot>, acceptors: &mut Acceptors) -> Unserved {
        self.connection_limits.retain(snapshot.frontends.values());
        self.listeners.retain(snapshot.frontends.values());
        let mut unserved = snapshot::unserved(&snapshot);
        match self.settings.sockets {
            SocketMode::Steered => acceptors.open(self),
            SocketMode::Bound => unserved.frontends.extend(acceptors.follow(self, &snapshot)),
        }
        self.snapshot.store(snapshot);
        // Connections whose listener is gone have served their last request.
        let current = self.snapshot.load();
        self.clients.finish(|client| client.is_withdrawn(&current));
        unserved
    }

    fn read(&self) -> Stats {
        let mut stats = self.counters.read();
        stats.access_log_lost = self.access_log.lost.get();
        self.connection_limits.read_into(&mut stats);
        self.listeners.read_into(&mut stats);
        stats
    }

    fn accept(&self, listener: TcpListener) -> JoinHandle<()> {
        let (server, tasks) = (self.server.clone(), self.tasks.clone());
        let descriptors = self.settings.client_descriptors;
        let accepting = accept_forever(listener, descriptors, self.counters.clone(), move |stream, peer| {
            tasks.spawn_local(server.clone().serve(stream, peer));
        });
        tokio::task::spawn_local(or_abort(accepting))
    }

    async fn drain(&self) {
        self.clients.finish_all();
        self.tasks.close();
        let left = tokio::time::timeout(self.settings.drain, self.tasks.wait()).await;
        if left.is_err() {
            tracing::warn!(
                connections = self.tasks.len(),
                "closing connections that outlived the drain time-out"
            );
            self.clients.abort_all().await;
        }
    }
}

/// Keeps the core's clock and sweeps its connections by it.
async fn tick_forever(clients: Rc<Clients>, access_log: Rc<AccessLog>) {
    loop {
        clock::tick().await;
        clients.sweep();
        access_log.flush();
    }
}

// === impl Server ===

impl Server {
    async fn serve(self: Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        if let Some(connection) = self.opener.open(stream, peer).await {
            connection::serve(connection, &self.clients, self.service.clone()).await;
        }
    }
}

// === impl Acceptors ===

impl Acceptors {
    fn new(steered: Vec<TcpListener>) -> Self {
        Self { waiting: steered, steered: Vec::new(), bound: BTreeMap::new() }
    }

    /// Accepts the connections that are steered here. Kernel programs that outlived an agent steer
    /// to the next one's sockets before it knows any listener; those connections wait.
    fn open(&mut self, core: &Core) {
        self.steered.extend(self.waiting.drain(..).map(|listener| core.accept(listener)));
    }

    /// Binds what the snapshot adds, closes what it no longer has. Returns the frontends that
    /// cannot be bound, and why.
    fn follow(&mut self, core: &Core, snapshot: &Snapshot) -> Vec<(FrontendKey, String)> {
        self.bound.retain(|frontend, task| {
            let port = snapshot.frontends.get(frontend);
            let wanted = port.is_some_and(|port| snapshot::is_accepting(port));
            if !wanted {
                task.abort();
            }
            wanted
        });
        let wanted = snapshot.frontends.iter().filter(|(_, port)| snapshot::is_accepting(port));
        let mut unbound = Vec::new();
        for (frontend, _) in wanted {
            if let Entry::Vacant(place) = self.bound.entry(*frontend) {
                let address = frontend.socket_address();
                match socket::listen(address).and_then(TcpListener::from_std) {
                    Ok(listener) => _ = place.insert(core.accept(listener)),
                    Err(error) => unbound.push((*frontend, format!("cannot listen on {address}: {error}"))),
                }
            }
        }
        unbound
    }

    fn stop(&mut self) {
        self.waiting.clear();
        self.steered.iter().chain(self.bound.values()).for_each(JoinHandle::abort);
    }
}
