//! One core: a thread with a single-threaded runtime that owns everything its connections need. The
//! parts are put together here, and nowhere else.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use portcullis_model::{FrontendKey, KeyRing, Snapshot, TrustedProxies, Unserved};
use rustix::net::SocketFlags;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::accept::accept_forever;
use crate::client::budget::SharedBudgets;
use crate::client::clients::Clients;
use crate::client::connection::{Opened, Opener};
use crate::client::connection_limit::{ConnectionLimits, SharedCounts};
use crate::client::listener::Listeners;
use crate::client::open_limit::SharedOpen;
use crate::client::tls::TlsFactory;
use crate::client::turns::HandshakeTurns;
use crate::command::{Command, Handed};
use crate::core::clock;
use crate::core::durations::{Durations, SharedDurations};
use crate::core::log_limit::LogLimit;
use crate::core::pipe::Pipes;
use crate::core::pseudonym::AgentId;
use crate::core::settings::{Measure, Settings, SocketMode};
use crate::core::snapshot::{self, SnapshotCell};
use crate::core::socket::{self, CoreSockets, Sockets};
use crate::core::stats::{CoreCounters, Stats};
use crate::core::task::or_abort;
use crate::http::auth::{Authorizer, BodyRoom};
use crate::http::authenticate::{Authenticator, PasswordThread};
use crate::http::connection;
use crate::http::encoder::Encoders;
use crate::http::forward::Forwarder;
use crate::http::headers::Via;
use crate::http::rate_limit::{RateLimits, SharedRateLimits};
use crate::http::router::Router;
use crate::http::service::Service;
use crate::http::session::Sessions;
use crate::l4::forward::StreamForwarder;
use crate::l4::streams::Streams;
use crate::l4::udp::{Buffer, Context, SessionCount, UdpFrontends};
use crate::log::access_log::AccessLog;
use crate::spread::Spread;
use crate::trace::queue::SpanQueue;
use crate::trace::requests::TracedRequests;
use crate::trace::tracer::Tracer;
use crate::upstream::health::SharedHealth;
use crate::upstream::hops::Hops;
use crate::upstream::key_sets::{KeySetsLink, KnownKeys};
use crate::upstream::mirror::Mirrors;
use crate::upstream::pool::Pools;

/// The little that cores share. It changes when a connection or session comes or goes.
#[derive(Clone)]
pub(crate) struct Shared {
    connections: SharedCounts,
    pub(crate) budgets: SharedBudgets,
    open: SharedOpen,
    rate_limits: SharedRateLimits,
    sessions: SessionCount,
    /// As long as there are none that all agents have.
    keys: Arc<KeyRing>,
    hops: Hops,
    health: SharedHealth,
    passwords: Arc<PasswordThread>,
    key_sets: KeySetsLink,
    durations: SharedDurations,
    /// Takes spans of requests, where any are recorded.
    spans: Option<SpanQueue>,
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
    streams: Rc<Streams>,
    udp: Rc<UdpFrontends>,
    server: Rc<Server>,
    sessions: Rc<Sessions>,
    rate_limits: Rc<RateLimits>,
    durations: Rc<Durations>,
}

/// The parts that every connection passes.
struct Server {
    spread: Spread,
    opener: Opener,
    clients: Rc<Clients>,
    service: Rc<Service>,
    stream_forwarder: StreamForwarder,
}

/// The accept loops of a core.
#[derive(Default)]
struct Acceptors {
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

/// The body of a core's thread: serves until it drains, or until the proxy is dropped.
pub(crate) async fn run(
    settings: Arc<Settings>,
    tls: TlsFactory,
    agent: AgentId,
    shared: Shared,
    access_log: AccessLog,
    spread: Spread,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let core = Core::new(settings, tls, agent, shared, access_log, spread);
    let mut acceptors = Acceptors::default();
    while let Some(command) = commands.recv().await {
        match command {
            Command::Listen(mut sockets, done) => {
                core.udp.inherit(std::mem::take(&mut sockets.datagrams));
                let _ = done.send(acceptors.inherit(sockets));
            }
            Command::Serve(handed) => core.server.take_over(handed),
            Command::Share(reply) => drop(reply.send(core.share(&acceptors))),
            Command::Stop(done) => {
                acceptors = Acceptors::default();
                core.udp.stop();
                let _ = done.send(());
            }
            Command::Apply(snapshot, done) => drop(done.send(core.apply(snapshot, &mut acceptors))),
            Command::UseKeys(keys, done) => {
                core.listeners.use_keys(keys.clone());
                core.sessions.use_keys(keys);
                let _ = done.send(());
            }
            Command::Stats(reply) => drop(reply.send(core.read())),
            Command::Watch(watch, done) => {
                core.traced().arm(watch);
                let _ = done.send(());
            }
            Command::Drain(done) => {
                core.serve_waiting(&acceptors);
                drop(acceptors);
                core.serve_handed(&mut commands).await;
                core.drain().await;
                core.access_log.flush();
                core.traced().flush();
                let _ = done.send(());
                return;
            }
        }
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn new(
        keys: Arc<KeyRing>,
        health: SharedHealth,
        key_sets: KeySetsLink,
        measure: Measure,
        spans: Option<SpanQueue>,
    ) -> Self {
        Self {
            keys,
            health,
            key_sets,
            durations: SharedDurations::new(measure),
            spans,
            connections: SharedCounts::default(),
            budgets: SharedBudgets::default(),
            open: SharedOpen::default(),
            rate_limits: SharedRateLimits::default(),
            sessions: SessionCount::default(),
            hops: Hops::default(),
            passwords: Arc::default(),
        }
    }
}

// === impl Core ===

impl Core {
    fn new(
        settings: Arc<Settings>,
        tls: TlsFactory,
        agent: AgentId,
        shared: Shared,
        access_log: AccessLog,
        spread: Spread,
    ) -> Self {
        let Shared {
            connections,
            budgets,
            open,
            rate_limits,
            sessions,
            keys,
            hops,
            health,
            passwords,
            key_sets,
            durations,
            spans,
        } = shared;
        let durations = Rc::new(Durations::new(durations));
        let snapshot = Rc::<SnapshotCell>::default();
        let counters = Rc::<CoreCounters>::default();
        let buffers = settings.buffers / settings.cores.max(1) as u64;
        let buffers = usize::try_from(buffers).unwrap_or(usize::MAX);
        let clients = Rc::new(Clients::new(buffers, settings.minimum_rate));
        let streams = Rc::new(Streams::new(settings.l4, settings.drain, buffers));
        let encoders = Rc::new(Encoders::new(buffers / 4));
        let access_log = Rc::new(access_log);
        let traces = settings.otlp.as_ref().and_then(|otlp| otlp.traces.clone());
        let tracer = traces.zip(spans).map(|(traces, spans)| Tracer::new(traces, settings.cores, spans));
        let connection_limits = Rc::new(ConnectionLimits::new(agent, connections));
        let listeners = Rc::new(Listeners::new(tls, budgets, open, keys.clone(), durations.clone()));
        let tasks = spread.tasks().clone();
        let pools = Pools::new(settings.upstream.clone(), snapshot.clone(), counters.clone(), health);
        let pools = Rc::new(pools);
        let udp = Rc::new(UdpFrontends::new(Context {
            settings: settings.l4,
            descriptors: settings.client_descriptors,
            pools: pools.clone(),
            snapshot: snapshot.clone(),
            listeners: listeners.clone(),
            access_log: access_log.clone(),
            tasks: tasks.clone(),
            buffer: Buffer::default(),
            hops: hops.clone(),
            count: sessions,
            frontends: RefCell::default(),
        }));
        tokio::task::spawn_local(or_abort(pools.clone().sweep_forever()));
        let turns = Rc::<HandshakeTurns>::default();
        tokio::task::spawn_local(or_abort(turns.clone().give_forever()));
        let opener = Opener {
            snapshot: snapshot.clone(),
            connection_limits: connection_limits.clone(),
            listeners: listeners.clone(),
            counters: counters.clone(),
            turns,
        };
        let http_sessions = Rc::new(Sessions::new(pools.clone(), keys));
        let rate_limits = Rc::new(RateLimits::new(rate_limits));
        tokio::task::spawn_local(or_abort(rate_limits.clone().sweep_forever()));
        let router = Router {
            listeners: listeners.clone(),
            counters: counters.clone(),
            access_log: access_log.clone(),
            proxies: TrustedProxies::Hops(settings.trusted_hops),
            via: settings.via.as_deref().and_then(Via::named),
            looped: LogLimit::default(),
            slow: LogLimit::default(),
            sessions: http_sessions.clone(),
            rate_limits: rate_limits.clone(),
            durations: durations.clone(),
            traced: TracedRequests::new(tracer),
        };
        let pipes = Rc::<Pipes>::default();
        let stream_forwarder = StreamForwarder::new(
            pools.clone(),
            snapshot.clone(),
            streams.clone(),
            access_log.clone(),
            hops,
            pipes.clone(),
        );
        let known_keys = KnownKeys::new(key_sets);
        tokio::task::spawn_local(or_abort(known_keys.clone().follow_forever()));
        let authenticator = Authenticator::new(passwords, known_keys, rate_limits.clone());
        let bodies = BodyRoom::new(buffers);
        let authorizer =
            Authorizer { pools: pools.clone(), authenticator, bodies, timeout: settings.upstream.auth };
        let forwarder = Forwarder {
            mirrors: Mirrors::new(pools.clone()),
            pools,
            tasks: tasks.clone(),
            tunnel_idle: settings.l4.idle,
            too_large: LogLimit::default(),
            tls_failed: LogLimit::default(),
        };
        let service = Rc::new(Service {
            snapshot: snapshot.clone(),
            router,
            forwarder,
            authorizer,
            encoders: encoders.clone(),
            pipes,
            http1: settings.http1,
        });
        let server = Server { spread, opener, clients: clients.clone(), service, stream_forwarder };
        let server = Rc::new(server);
        tokio::task::spawn_local(or_abort(tick_forever(
            server.clone(),
            streams.clone(),
            encoders,
            udp.clone(),
            access_log.clone(),
        )));
        Self {
            settings,
            snapshot,
            counters,
            access_log,
            connection_limits,
            listeners,
            clients,
            streams,
            udp,
            server,
            sessions: http_sessions,
            rate_limits,
            durations,
        }
    }

    fn apply(&self, snapshot: Arc<Snapshot>, acceptors: &mut Acceptors) -> Unserved {
        self.connection_limits.retain(snapshot.frontends.values());
        self.listeners.retain(snapshot.frontends.values());
        self.rate_limits.share_among(snapshot.agents);
        self.durations.follow();
        let mut unserved = Unserved::default();
        match self.settings.sockets {
            SocketMode::Steered => acceptors.open(self, &snapshot),
            SocketMode::Bound => unserved.frontends.extend(acceptors.follow(self, &snapshot)),
        }
        unserved.frontends.extend(self.udp.follow(&snapshot));
        self.snapshot.store(snapshot);
        self.server.spread.tell_applied();
        // Connections whose listener is gone have served their last request.
        let current = self.snapshot.load();
        self.clients.finish(|client| client.is_withdrawn(&current));
        self.streams.follow(&current);
        unserved
    }

    /// The sockets of frontends.
    fn share(&self, acceptors: &Acceptors) -> io::Result<Sockets> {
        let (bound, datagrams) = (acceptors.share(self.settings.sockets)?, self.udp.share()?);
        Ok(Sockets { bound, datagrams, ..Sockets::default() })
    }

    fn traced(&self) -> &TracedRequests {
        &self.server.service.router.traced
    }

    fn read(&self) -> Stats {
        let mut stats = self.counters.read();
        stats.access_log_lost = self.access_log.lost.get();
        self.connection_limits.read_into(&mut stats);
        self.listeners.read_into(&mut stats);
        stats.durations = self.durations.read(&self.snapshot.load().snapshot);
        stats.traces = self.traced().tracer.as_ref().map(|tracer| tracer.recorder.read()).unwrap_or_default();
        stats
    }

    fn accept(&self, listener: TcpListener) -> Acceptor {
        let listener = Rc::new(listener);
        let server = self.server.clone();
        let (accepted, counters) = (listener.clone(), self.counters.clone());
        let descriptors = self.settings.client_descriptors;
        let accepting = accept_forever(accepted, descriptors, counters, move |stream, peer| {
            server.take(stream, peer);
        });
        Acceptor { listener, task: tokio::task::spawn_local(or_abort(accepting)) }
    }

    fn accept_all(&self, listeners: impl IntoIterator<Item = TcpListener>) -> Vec<Acceptor> {
        listeners.into_iter().map(|listener| self.accept(listener)).collect()
    }

    fn serve_waiting(&self, acceptors: &Acceptors) {
        let outgoing = acceptors.outgoing.borrow();
        for acceptor in acceptors.steered.iter().chain(acceptors.bound.values().flatten()).chain(&*outgoing) {
            acceptor.serve_waiting(&self.server, &self.counters);
        }
    }

    /// The connections that other cores have handed over. It takes no more; those cores keep them.
    async fn serve_handed(&self, commands: &mut mpsc::UnboundedReceiver<Command>) {
        commands.close();
        while let Some(command) = commands.recv().await {
            if let Command::Serve(handed) = command {
                self.server.take_over(handed);
            }
        }
    }

    /// Accepts for a while from sockets that get no new connections.
    fn accept_outgoing(&self, acceptors: &Acceptors, listeners: Vec<TcpListener>) {
        if listeners.is_empty() {
            return;
        }
        acceptors.outgoing.borrow_mut().extend(self.accept_all(listeners));
        let outgoing = Rc::downgrade(&acceptors.outgoing);
        let (server, counters) = (self.server.clone(), self.counters.clone());
        tokio::task::spawn_local(or_abort(async move {
            tokio::time::sleep(OUTGOING).await;
            let Some(outgoing) = outgoing.upgrade() else { return };
            for acceptor in outgoing.take() {
                acceptor.serve_waiting(&server, &counters);
            }
        }));
    }

    async fn drain(&self) {
        self.clients.drain();
        self.udp.stop();
        let tasks = self.server.spread.tasks();
        tasks.close();
        let left = tokio::time::timeout(self.settings.drain, tasks.wait()).await;
        if left.is_err() {
            tracing::warn!(connections = tasks.len(), "closing connections that outlived the drain time-out");
            self.clients.abort_all().await;
            self.streams.abort_all().await;
        }
    }
}

/// Keeps the core's clock and sweeps its connections by it.
async fn tick_forever(
    server: Rc<Server>,
    streams: Rc<Streams>,
    encoders: Rc<Encoders>,
    udp: Rc<UdpFrontends>,
    access_log: Rc<AccessLog>,
) {
    loop {
        clock::tick().await;
        let encoders = encoders.in_use();
        let held = streams.sweep(server.clients.held(), encoders);
        server.clients.sweep(held, encoders);
        udp.sweep();
        access_log.flush();
        let traced = &server.service.router.traced;
        traced.sweep();
        traced.flush();
        server.spread.tell_busy();
    }
}

// === impl Server ===

impl Server {
    /// Serves a connection that the core has accepted, or has another one serve it.
    fn take(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        match self.spread.hand_over(stream, peer) {
            Ok(Some((stream, peer))) => self.begin(stream, peer),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, %peer, "a connection is lost on its way to another core"),
        }
    }

    /// Serves one that another core has accepted.
    fn take_over(self: &Rc<Self>, handed: Handed) {
        match handed.taken() {
            Ok((stream, peer, _place)) => self.begin(stream, peer),
            Err(error) => tracing::warn!(%error, "a connection is lost on its way from another core"),
        }
    }

    fn begin(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        self.spread.tasks().spawn_local(self.clone().serve(stream, peer));
    }

    async fn serve(self: Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        // Boxed, as is what is not HTTP: each connection would have room for them as long as it
        // lasts.
        match Box::pin(self.opener.open(stream, peer)).await {
            Some(Opened::Http(connection)) => {
                connection::serve(*connection, &self.clients, self.service.clone()).await;
            }
            Some(Opened::L4(connection)) => Box::pin(self.stream_forwarder.serve(*connection)).await,
            None => {}
        }
    }
}

// === impl Acceptors ===

impl Acceptors {
    fn inherit(&mut self, sockets: Sockets) -> io::Result<()> {
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
    fn open(&mut self, core: &Core, snapshot: &Snapshot) {
        self.steered.extend(core.accept_all(self.waiting.drain(..)));
        let inherited = std::mem::take(&mut self.inherited).into_iter();
        let outgoing = inherited.filter(|(frontend, _)| is_accepted(snapshot, frontend));
        core.accept_outgoing(self, outgoing.flat_map(|(_, listeners)| listeners).collect());
    }

    /// Binds what the snapshot adds, closes what it no longer has. Returns the frontends that
    /// cannot be bound, and why.
    fn follow(&mut self, core: &Core, snapshot: &Snapshot) -> Vec<(FrontendKey, String)> {
        let outgoing = std::mem::take(&mut self.waiting);
        core.accept_outgoing(self, outgoing);
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
                        place.insert(core.accept_all(listeners));
                    }
                    Err(error) => unbound.push((*frontend, error)),
                }
            }
        }
        unbound
    }

    /// The sockets that are bound to frontends; with those that are outgoing, which would be in the
    /// next agent's way.
    fn share(&self, mode: SocketMode) -> io::Result<Vec<StdTcpListener>> {
        let outgoing = self.outgoing.borrow();
        let outgoing = outgoing.iter().filter(|_| mode == SocketMode::Steered);
        let bound = self.bound.values().flatten().chain(outgoing);
        bound.map(|acceptor| Ok(acceptor.listener.as_fd().try_clone_to_owned()?.into())).collect()
    }
}

fn is_accepted(snapshot: &Snapshot, frontend: &FrontendKey) -> bool {
    snapshot.frontends.get(frontend).is_some_and(|port| snapshot::is_accepting(port))
}

fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    let listener = socket::listen(address).and_then(TcpListener::from_std);
    listener.map_err(|error| format!("cannot listen on {address}: {error}"))
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
