//! One core: a thread with a single-threaded runtime that owns everything its connections need.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use portcullis_model::{FrontendKey, L4Protocol, ListenerGroup, Snapshot};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::client::accept;
use crate::client::clients::{Client, Clients};
use crate::client::gate::{Crowds, Gates};
use crate::client::tls::TlsFactory;
use crate::client::worker::Workers;
use crate::core::clock;
use crate::core::settings::{Settings, SocketMode};
use crate::core::socket;
use crate::core::stats::{CoreCounters, Stats};
use crate::core::vital::vital;
use crate::log::access_log::AccessLog;
use crate::upstream::pool::Pools;

/// A frontend that cannot be served, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unbound {
    pub frontend: FrontendKey,
    pub problem: String,
}

pub(crate) enum Command {
    Apply(Arc<Snapshot>, oneshot::Sender<Vec<Unbound>>),
    Stats(oneshot::Sender<Stats>),
    Drain(oneshot::Sender<()>),
}

/// What a core's connections see.
pub(crate) struct Core {
    pub settings: Arc<Settings>,
    pub gates: Gates,
    pub workers: Workers,
    pub pools: Pools,
    pub counters: CoreCounters,
    pub connections: TaskTracker,
    pub clients: Clients,
    pub access_log: AccessLog,
    current: RefCell<Rc<Current>>,
}

/// What is served now. Requests hold it by this core's own count, so that they share no cache line with other cores.
#[derive(Default)]
pub(crate) struct Current {
    pub snapshot: Arc<Snapshot>,
    /// Counts what this core was given; the same snapshot twice is two generations.
    pub generation: u64,
}

/// The accept loops of a core.
struct Acceptors {
    /// Sockets that connections wait at until there is a snapshot to serve them by.
    waiting: Vec<TcpListener>,
    steered: Vec<JoinHandle<()>>,
    bound: BTreeMap<FrontendKey, JoinHandle<()>>,
}

/// The body of a core's thread: serves until told to drain, or until the proxy is dropped.
pub(crate) async fn run(
    settings: Arc<Settings>,
    tls: TlsFactory,
    crowds: Crowds,
    access_log: AccessLog,
    steered: Vec<TcpListener>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let core = Rc::new(Core::new(settings, tls, crowds, access_log));
    let mut acceptors = Acceptors::new(steered);
    crate::upstream::pool::sweep_forever(&core);
    tick_forever(&core);
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

/// The listeners behind an address and port: of that very address, else of the unspecified one.
pub(crate) fn group(snapshot: &Snapshot, local: SocketAddr) -> Option<&Arc<ListenerGroup>> {
    let address = local.ip().to_canonical();
    let any = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let key = |address| FrontendKey { protocol: L4Protocol::Tcp, address, port: local.port() };
    snapshot.frontends.get(&key(address)).or_else(|| snapshot.frontends.get(&key(any)))
}

/// Keeps the core's clock and sweeps its connections by it.
fn tick_forever(core: &Rc<Core>) {
    let core = Rc::downgrade(core);
    tokio::task::spawn_local(vital(async move {
        loop {
            clock::tick().await;
            let Some(core) = core.upgrade() else { return };
            core.clients.sweep();
            core.access_log.flush();
        }
    }));
}

// === impl Core ===

impl Core {
    fn new(settings: Arc<Settings>, tls: TlsFactory, crowds: Crowds, access_log: AccessLog) -> Self {
        Self {
            pools: Pools::new(settings.upstream.clone()),
            settings,
            gates: Gates::new(crowds),
            workers: Workers::new(tls),
            counters: CoreCounters::default(),
            connections: TaskTracker::new(),
            clients: Clients::default(),
            access_log,
            current: RefCell::default(),
        }
    }

    pub(crate) fn current(&self) -> Rc<Current> {
        self.current.borrow().clone()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.current.borrow().generation
    }

    fn apply(self: &Rc<Self>, snapshot: Arc<Snapshot>, acceptors: &mut Acceptors) -> Vec<Unbound> {
        self.gates.retain(snapshot.frontends.values());
        self.workers.retain(snapshot.frontends.values());
        let unbound = match self.settings.sockets {
            SocketMode::Steered => {
                acceptors.open(self);
                Vec::new()
            }
            SocketMode::Bound => acceptors.follow(self, &snapshot),
        };
        self.current.replace(Rc::new(Current { snapshot, generation: self.generation() + 1 }));
        self.clients.finish(|client| !self.serves(client));
        unbound
    }

    /// Whether the listener that a connection was opened for is still there.
    fn serves(&self, client: &Client) -> bool {
        client.tls.as_ref().is_none_or(|worker| worker.is_served())
            && group(&self.current().snapshot, client.local).is_some()
    }

    fn read(&self) -> Stats {
        let mut stats = self.counters.read();
        stats.access_log_lost = self.access_log.lost.get();
        self.gates.read_into(&mut stats);
        self.workers.read_into(&mut stats);
        stats
    }

    async fn drain(&self) {
        self.clients.finish_all();
        self.connections.close();
        let left = tokio::time::timeout(self.settings.drain, self.connections.wait()).await;
        if left.is_err() {
            tracing::warn!(
                connections = self.connections.len(),
                "closing connections that outlived the drain time-out"
            );
            self.clients.abort_all().await;
        }
    }
}

// === impl Acceptors ===

impl Acceptors {
    fn new(steered: Vec<TcpListener>) -> Self {
        Self { waiting: steered, steered: Vec::new(), bound: BTreeMap::new() }
    }

    /// Accepts what is steered here. Kernel programs that outlived an agent steer to the next one's sockets before it knows
    /// any listener; those connections wait.
    fn open(&mut self, core: &Rc<Core>) {
        self.steered.extend(self.waiting.drain(..).map(|listener| accept::spawn(core, listener)));
    }

    /// Binds what the snapshot adds, closes what it no longer has.
    fn follow(&mut self, core: &Rc<Core>, snapshot: &Snapshot) -> Vec<Unbound> {
        self.bound.retain(|frontend, task| {
            let wanted = snapshot.frontends.contains_key(frontend);
            if !wanted {
                task.abort();
            }
            wanted
        });
        let missing = snapshot.frontends.keys().filter(|frontend| frontend.protocol == L4Protocol::Tcp);
        missing.filter_map(|frontend| self.bind(core, *frontend).err()).collect()
    }

    fn bind(&mut self, core: &Rc<Core>, frontend: FrontendKey) -> Result<(), Unbound> {
        if self.bound.contains_key(&frontend) {
            return Ok(());
        }
        let address = SocketAddr::new(frontend.address, frontend.port);
        let listener = socket::listen(address).and_then(TcpListener::from_std);
        let listener = listener
            .map_err(|error| Unbound { frontend, problem: format!("cannot listen on {address}: {error}") })?;
        self.bound.insert(frontend, accept::spawn(core, listener));
        Ok(())
    }

    fn stop(&mut self) {
        self.waiting.clear();
        self.steered.iter().chain(self.bound.values()).for_each(JoinHandle::abort);
    }
}
