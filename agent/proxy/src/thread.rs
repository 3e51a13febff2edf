//! One core: a thread with a single-threaded runtime that owns everything its connections need. The
//! parts are put together here, and nowhere else.

mod acceptors;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use portcullis_model::{KeyRing, Snapshot, TrustedProxies, Unserved};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

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
use crate::core::snapshot::SnapshotCell;
use crate::core::socket::Sockets;
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
use crate::http::tunnels::Tunnels;
use crate::l4::forward::StreamForwarder;
use crate::l4::streams::Streams;
use crate::l4::udp::{Buffer, Context, SessionCount, UdpFrontends};
use crate::log::access_log::AccessLog;
use crate::spread::Spread;
use crate::thread::acceptors::Acceptors;
use crate::trace::queue::SpanQueue;
use crate::trace::requests::TracedRequests;
use crate::trace::tracer::Tracer;
use crate::upstream::health::SharedHealth;
use crate::upstream::hops::Hops;
use crate::upstream::key_sets::{KeySetsLink, KnownKeys};
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
    tunnels: Rc<Tunnels>,
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
                acceptors.serve_waiting(&core);
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
        let tunnels = Rc::new(Tunnels::new(snapshot.clone(), settings.drain));
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
        let authorizer = Authorizer {
            pools: pools.clone(),
            authenticator,
            bodies: BodyRoom::new(buffers),
            timeout: settings.upstream.auth,
        };
        let service = Rc::new(Service {
            snapshot: snapshot.clone(),
            router,
            forwarder: Forwarder::new(pools, tunnels.clone(), tasks, settings.l4.idle),
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
            tunnels,
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
        self.tunnels.follow(&current);
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

    /// The connections that other cores have handed over. It takes no more; those cores keep them.
    async fn serve_handed(&self, commands: &mut mpsc::UnboundedReceiver<Command>) {
        commands.close();
        while let Some(command) = commands.recv().await {
            if let Command::Serve(handed) = command {
                self.server.take_over(handed);
            }
        }
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
