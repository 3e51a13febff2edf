//! The data plane as the control side sees it: the node's addresses and kernel programs, and the
//! proxy behind them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use portcullis_control::applier::{Acknowledgement, DataPlane};
use portcullis_inspect::{EarlyAnswer, FailingKeySet, NodeStatus, Reading, Search};
use portcullis_model::{FrontendKey, KeyRing, Snapshot, SpeaksFirst, Unserved};
use portcullis_node::{
    Choice, CoreSockets, ForwardingSettings, Interfaces, KernelLog, Node, Tended, Wanted, own_addresses,
    reachable_addresses,
};
use portcullis_proxy::{
    Http1, KeySetStats, L4, Measure, MinimumRate, Proxy, Reason, SocketMode, Sockets, Stats, WatchedFor,
    WatchedRequest,
};
use tokio::sync::{Notify, OwnedMutexGuard, mpsc, watch};
use tokio::task::JoinSet;

use crate::cli::{DatapathChoice, DurationsBy, ForwardingChoice, Http1Choice, RunArgs};
use crate::forwarding::{Abilities, Mechanism, Why, forwarding, listeners, moves};
use crate::hand_over::predecessor::{Predecessor, Silence};
use crate::hand_over::successor::Incumbent;
use crate::names::{clients, clients_speak, names};
use crate::serving::{self, Parts, Served};
use crate::tenure::Tenure;

/// Interval at which the node's addresses are looked at: they change with its network.
const ADDRESSES_INTERVAL: Duration = Duration::from_secs(5);

/// Time that clients have to complete the TCP handshakes which they have begun when the agent ends:
/// the kernel resets what it has no socket for. Those that are to speak first are let in after a
/// second if they do not.
const HANDSHAKE_TIME: Duration = Duration::from_millis(1500);
const HANDSHAKE_POLL: Duration = Duration::from_millis(10);

/// Cheap to clone; all clones are the same data plane.
#[derive(Clone)]
pub(crate) struct Plane {
    proxy: Arc<Proxy>,
    pub node: Arc<Node>,
    /// Notified when what is served has to be looked at again.
    disturbed: Arc<Notify>,
    /// Held while something is changed that is served, and while another agent takes over.
    turn: Arc<tokio::sync::Mutex<()>>,
    tenure: watch::Sender<Tenure>,
    served: Arc<Mutex<Served>>,
    unknown_names: Option<NonZeroU32>,
    /// Until this one serves, the agent that does; then kept for it to notice the end of this one.
    predecessor: Arc<Mutex<Option<Predecessor>>>,
}

impl Plane {
    pub(crate) fn start(args: &RunArgs, mut predecessor: Option<Predecessor>) -> anyhow::Result<Self> {
        let locks = predecessor.as_mut().map(|it| std::mem::take(&mut it.locks)).unwrap_or_default();
        let node =
            Node::open(&node_settings(args, locks.into())).context("cannot use the kernel programs")?;
        let proxy = Proxy::start_without_sockets(proxy_settings(args, &node)?)?;
        let plane = Self {
            proxy: Arc::new(proxy),
            node: Arc::new(node),
            disturbed: Arc::default(),
            turn: Arc::default(),
            tenure: watch::Sender::new(if predecessor.is_some() { Tenure::Awaited } else { Tenure::Due }),
            served: Arc::default(),
            unknown_names: NonZeroU32::new(args.unknown_names),
            predecessor: Arc::new(Mutex::new(None)),
        };
        match predecessor {
            None => plane.listen(Sockets::default())?,
            some => *plane.predecessor() = some,
        }
        Ok(plane)
    }

    fn listen(&self, inherited: Sockets) -> anyhow::Result<()> {
        self.node.inherit(inherited.bound.iter().map(AsFd::as_fd));
        self.proxy.listen(inherited, self.node.socket_kinds())?;
        self.steer()
    }

    /// Gives the proxy's sockets to the kernel programs.
    fn steer(&self) -> anyhow::Result<()> {
        let sockets = self.proxy.sockets();
        let sockets: Vec<_> = sockets
            .iter()
            .map(|core| CoreSockets {
                speaks_first: core.speaks_first,
                v4: Some(core.v4.as_fd()),
                v6: core.v6.as_ref().map(AsFd::as_fd),
            })
            .collect();
        self.node.set_sockets(&sockets).context("cannot give the kernel programs their sockets")
    }

    /// Takes the sockets of the agent that serves, if there is one.
    fn take_over(&self) -> anyhow::Result<()> {
        let mut predecessor = self.predecessor();
        let Some(other) = predecessor.as_mut() else { return Ok(()) };
        match other.take() {
            Ok(inherited) => {
                drop(predecessor);
                self.node.reread().context("cannot read what the last agent left")?;
                self.listen(inherited)
            }
            Err(Silence::Serves(why)) => bail!("the agent that serves goes on: {why}"),
            Err(Silence::Ended) => {
                drop(predecessor);
                self.begin_alone()
            }
        }
    }

    /// The agent that served has ended before this one was ready. To be called with the turn.
    fn begin_alone(&self) -> anyhow::Result<()> {
        tracing::warn!("the agent that served has ended, and connections that waited are lost");
        *self.predecessor() = None;
        self.node.reread().context("cannot read what the last agent left")?;
        self.listen(Sockets::default())?;
        self.tenure.send_replace(Tenure::Due);
        Ok(())
    }

    /// From the first snapshot on.
    fn begin_serving(&self) -> anyhow::Result<()> {
        if let Some(other) = self.predecessor().as_mut() {
            match other.release() {
                Ok(()) => tracing::info!("took over from the agent that served"),
                Err(Silence::Ended) => tracing::warn!("the agent that served has ended before it was done"),
                Err(Silence::Serves(why)) => bail!("the agent that serves goes on: {why}"),
            }
        }
        self.node.relieve_predecessors();
        self.tenure.send_replace(Tenure::Held);
        Ok(())
    }

    fn predecessor(&self) -> MutexGuard<'_, Option<Predecessor>> {
        self.predecessor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the kernel forward what user space need not see, now that user space serves all of it.
    fn forward(&self, snapshot: Arc<Snapshot>, refused: &Unserved) {
        let is_served = |frontend: &FrontendKey| !refused.frontends.contains_key(frontend);
        let programs = self.node.check_forwarding();
        let [routes_v4, routes_v6] = routes();
        let mut forwarding = forwarding(&snapshot, &Abilities { programs, routes_v4, routes_v6 }, is_served);
        let tables = std::mem::take(&mut forwarding.tables);
        for left_out in self.node.forward(tables, &listeners(&snapshot)) {
            forwarding.mechanisms.insert(left_out, Mechanism::UserSpace(Why::NoRoom));
        }
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        for moved in moves(&snapshot, &served.mechanisms, &forwarding.mechanisms) {
            tracing::info!("{moved}; open connections stay where they are");
        }
        for (frontend, mechanism) in &forwarding.mechanisms {
            if served.mechanisms.get(frontend) != Some(mechanism) {
                tracing::debug!("{frontend} is served by: {mechanism}");
            }
        }
        *served = Served { snapshot, refused: refused.clone(), mechanisms: forwarding.mechanisms };
    }

    /// The snapshot that is served, and what the node made of it.
    pub(crate) fn served(&self) -> Served {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The parts of the node, and the listeners that each of them serves.
    pub(crate) fn status(&self) -> NodeStatus {
        let parts = Parts {
            is_steered: self.node.is_steered(),
            guard: self.node.guard_coverage(),
            names: self.node.name_coverage(),
        };
        let enforcement = |frontend: &_, name: &_| self.node.enforcement(frontend, name);
        NodeStatus {
            datapath: self.node.description().to_owned(),
            guard: serving::coverage_text(&parts.guard, "--interface"),
            names: {
                let coverage = serving::coverage_text(&parts.names, "--name-interface");
                let unknown = serving::unknown_names_text(self.unknown_names, &parts.names);
                std::iter::once(coverage).chain(unknown).collect::<Vec<_>>().join("; ")
            },
            forwarding: match self.node.forwarding() {
                Ok(report) if report.interfaces.is_empty() => {
                    let why = self.node.check_forwarding().err();
                    let why = why.map_or_else(|| "nothing is forwarded".to_owned(), |why| why.to_string());
                    format!("by no interface: {why}")
                }
                Ok(report) => format!("by {}: {} flows", report.interfaces.join(", "), report.flows),
                Err(why) => format!("by no interface: {why}"),
            },
            listeners: serving::listeners(&self.served(), &parts, SystemTime::now(), enforcement),
        }
    }

    pub(crate) fn tenure(&self) -> watch::Receiver<Tenure> {
        self.tenure.subscribe()
    }

    /// Returns once no other agent serves.
    pub(crate) async fn stands_alone(&self) {
        _ = self.tenure().wait_for(|tenure| *tenure != Tenure::Awaited).await;
    }

    /// Returns once this agent serves, and no other.
    pub(crate) async fn serves(&self) {
        // The sender lives as long as this.
        _ = self.tenure().wait_for(|tenure| *tenure == Tenure::Held).await;
    }

    /// Another agent takes connections now, from the same sockets.
    pub(crate) async fn leave(&self) {
        self.tenure.send_replace(Tenure::Over);
        self.proxy.stop_accepting().await;
        self.node.stop_serving();
        // Should that one end before this one has drained, the next must find them free.
        self.node.release_locks();
    }

    /// Has the cores use the keys that all agents have, as long as the set exists.
    pub(crate) fn follow_keys(&self, mut keys: watch::Receiver<Option<Arc<KeyRing>>>) -> JoinSet<()> {
        let plane = self.clone();
        let mut following = JoinSet::new();
        following.spawn(async move {
            loop {
                let ring = keys.borrow_and_update().clone();
                if let Some(ring) = ring {
                    plane.proxy.use_keys(ring).await;
                }
                if keys.changed().await.is_err() {
                    return;
                }
            }
        });
        following
    }

    /// Tells of the next requests of a kind.
    pub(crate) async fn watch(
        &self,
        wanted: WatchedFor,
        count: usize,
        time: Duration,
    ) -> mpsc::Receiver<WatchedRequest> {
        self.proxy.watch(wanted, count, time).await
    }

    pub(crate) async fn stats(&self) -> Stats {
        self.proxy.stats().await
    }

    /// Those that cannot be fetched.
    pub(crate) fn failing_key_sets(&self) -> Vec<FailingKeySet> {
        let sets = self.proxy.key_sets().into_iter();
        let failing = sets.filter_map(|(set, KeySetStats { age, failure, .. })| {
            Some(FailingKeySet { name: set.to_string(), why: failure?.to_string(), age })
        });
        failing.collect()
    }

    /// Tasks that look after the node as long as the set exists.
    pub(crate) fn chores(&self) -> JoinSet<()> {
        let mut chores = JoinSet::new();
        chores.spawn(tend(self.clone()));
        chores.spawn(await_end_of_predecessor(self.clone()));
        if let Some(log) = self.node.kernel_log() {
            chores.spawn(flush(log));
        }
        chores
    }

    /// Lets open connections finish. The kernel programs stay for the next agent.
    pub(crate) async fn drain(&self) {
        self.tenure.send_replace(Tenure::Over);
        self.node.stop_serving();
        let begun = Instant::now();
        while begun.elapsed() < HANDSHAKE_TIME && self.node.is_being_connected() {
            tokio::time::sleep(HANDSHAKE_POLL).await;
        }
        self.proxy.drain().await;
    }
}

impl Incumbent for Plane {
    async fn stands_alone(&self) {
        self.stands_alone().await;
    }

    async fn pause(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    async fn share(&self) -> io::Result<Sockets> {
        self.proxy.share().await
    }

    fn reclaim(&self) {
        let reclaimed = self.node.reread().map_err(Into::into).and_then(|()| self.steer());
        if let Err(error) = reclaimed {
            tracing::error!("connections may be lost, restart this agent: {error:#}");
        }
        self.disturbed.notify_one();
    }
}

impl DataPlane for Plane {
    async fn apply(&mut self, snapshot: Arc<Snapshot>) -> Acknowledgement {
        let _turn = self.turn.lock().await;
        let is_first = !self.tenure.borrow().has_begun();
        if is_first {
            tokio::task::block_in_place(|| self.take_over()).unwrap_or_else(|error| give_way(&error));
        }
        let spread = self.node.spread(snapshot.frontends.keys());
        let snapshot = match spread.is_empty() {
            true => snapshot,
            false => snapshot.with_frontends(|frontends| spread.on_each(frontends)),
        };
        let wanted: BTreeSet<_> = snapshot.frontends.keys().copied().collect();
        let names = if self.node.reads_names() { names(&snapshot) } else { Vec::new() };
        let clients_speak = match self.node.socket_kinds().contains(&SpeaksFirst::Client) {
            true => clients_speak(&snapshot),
            false => BTreeSet::new(),
        };
        let clients = clients(&snapshot);
        let unusable = self.node.prepare(&wanted, &snapshot.shared_addresses);
        let usable = match unusable.is_empty() {
            true => snapshot.clone(),
            false => snapshot.clone().with_frontends(|frontends| {
                frontends.retain(|frontend, _| !unusable.contains_key(frontend));
            }),
        };
        let mut refused = self.proxy.apply(usable).await;
        refused.frontends.extend(unusable);
        refused.frontends.extend(self.node.serve(Wanted {
            frontends: wanted,
            clients_speak,
            names,
            clients,
        }));
        self.forward(snapshot, &refused);
        let refused = spread.gathered(refused);
        if is_first {
            tokio::task::block_in_place(|| self.begin_serving()).unwrap_or_else(|error| give_way(&error));
        }
        Acknowledgement { refused }
    }

    async fn disturbed(&mut self) {
        self.disturbed.notified().await;
    }
}

/// The other one serves on when this one has ended.
fn give_way(error: &anyhow::Error) {
    tracing::error!("cannot take over: {error:#}");
    std::process::exit(1);
}

/// Without it this one has nothing to wait for, and others may take over from this one.
async fn await_end_of_predecessor(plane: Plane) {
    let watched = plane.predecessor().as_ref().map(Predecessor::watch);
    let Some(Ok(watched)) = watched else { return };
    watched.ended().await;
    let _turn = plane.turn.lock().await;
    if *plane.tenure().borrow() == Tenure::Awaited
        && let Err(error) = tokio::task::block_in_place(|| plane.begin_alone())
    {
        give_way(&error);
    }
}

/// The addresses at which clients reach the node, followed as long as there is a receiver. Must be
/// called within the runtime.
pub(crate) fn node_addresses() -> watch::Receiver<Vec<IpAddr>> {
    followed(reachable_addresses().unwrap_or_default(), reachable_addresses)
}

/// The addresses of the network that the agent forwards from, followed likewise.
///
/// # Errors
/// When the kernel does not list them: tenants might reach them as backends.
pub(crate) fn forwarding_addresses() -> anyhow::Result<watch::Receiver<Vec<IpAddr>>> {
    let now = own_addresses().context("cannot list the addresses of this network namespace")?;
    Ok(followed(now, own_addresses))
}

type ListAddresses = fn() -> io::Result<Vec<IpAddr>>;

fn followed(now: Vec<IpAddr>, list: ListAddresses) -> watch::Receiver<Vec<IpAddr>> {
    let (sender, receiver) = watch::channel(now);
    tokio::spawn(follow_addresses(sender, list));
    receiver
}

async fn follow_addresses(known: watch::Sender<Vec<IpAddr>>, list: ListAddresses) {
    let mut ticks = tokio::time::interval(ADDRESSES_INTERVAL);
    loop {
        tokio::select! {
            () = known.closed() => return,
            _ = ticks.tick() => {}
        }
        // Those that cannot be listed are as they were.
        if let Ok(now) = list() {
            known.send_if_modified(|addresses| {
                let is_another = *addresses != now;
                *addresses = now;
                is_another
            });
        }
    }
}

/// Requests as the data plane reads them, by its own functions.
pub(crate) const READING: Reading = Reading {
    host: |authority| portcullis_proxy::bare_host(authority).map_err(early_answer),
    path: |path| portcullis_proxy::normalise_path(path).map_err(early_answer),
    method: |method| portcullis_proxy::check_method(method).map_err(early_answer),
    sees: portcullis_proxy::is_seen,
    is_claim: portcullis_proxy::is_claim,
    search: || Search {
        permits: portcullis_proxy::search_limit(),
        over: early_answer(Reason::SlowExpressions),
    },
    fields: || early_answer(Reason::FieldsTooLarge),
};

fn early_answer(reason: Reason) -> EarlyAnswer {
    EarlyAnswer { status: reason.status().as_u16(), words: reason.text().trim_end() }
}

async fn tend(plane: Plane) {
    plane.serves().await;
    let mut ticks = tokio::time::interval(Node::TEND_INTERVAL);
    loop {
        ticks.tick().await;
        let _turn = plane.turn.lock().await;
        if plane.node.tend() == Tended::Disturbed {
            plane.disturbed.notify_one();
        }
    }
}

/// From the kernel programs to the agent's own log.
async fn flush(mut log: KernelLog) {
    let mut ticks = tokio::time::interval(KernelLog::INTERVAL);
    loop {
        ticks.tick().await;
        log.flush();
    }
}

fn node_settings(args: &RunArgs, locks: Arc<[File]>) -> portcullis_node::Settings {
    portcullis_node::Settings {
        steering: match args.datapath {
            DatapathChoice::Auto => Choice::Auto,
            DatapathChoice::Ebpf => Choice::Programs,
            DatapathChoice::Userspace => Choice::Sockets,
        },
        pin_dir: args.pin_dir.clone(),
        interfaces: Interfaces::from_names(&args.interface),
        name_interfaces: Interfaces::from_names(&args.name_interface),
        unknown_names: NonZeroU32::new(args.unknown_names),
        tracking: args.host().tracking(),
        arp: args.arp(),
        syn_hold: args.syn_hold(),
        everywhere: args.host().everywhere(),
        forwarding: forwarding_settings(args),
        drain: args.drain_timeout(),
        locks,
    }
}

fn forwarding_settings(args: &RunArgs) -> Option<ForwardingSettings> {
    (args.forwarding == ForwardingChoice::Auto).then(|| ForwardingSettings {
        ports: args.forwarding_ports.clone(),
        tcp_idle: Duration::from_secs(args.tcp_idle.into()),
        udp_idle: Duration::from_secs(args.udp_idle.into()),
        drain: args.drain_timeout(),
    })
}

/// True for IPv4, and for IPv6, if this network namespace passes on what is not for itself.
fn routes() -> [bool; 2] {
    ["ipv4/ip_forward", "ipv6/conf/all/forwarding"].map(|setting| {
        let value = std::fs::read_to_string(Path::new("/proc/sys/net").join(setting));
        value.is_ok_and(|value| value.trim() != "0")
    })
}

fn proxy_settings(args: &RunArgs, node: &Node) -> anyhow::Result<portcullis_proxy::Settings> {
    let mut settings = portcullis_proxy::Settings::default();
    settings.sockets = if node.is_steered() { SocketMode::Steered } else { SocketMode::Bound };
    settings.cores = node.usable_cores(args.cores.map_or(settings.cores, usize::from));
    settings.drain = args.drain_timeout();
    settings.trusted_hops = args.trusted_hops;
    settings.buffers = args.buffers.map_or(settings.buffers, |mebibytes| mebibytes << 20);
    settings.minimum_rate = MinimumRate {
        bytes_per_second: args.minimum_rate,
        grace: Duration::from_secs(args.minimum_rate_grace.into()),
    };
    let measures = |by| args.durations_by.contains(&by);
    settings.measure = Measure {
        listeners: measures(DurationsBy::Listener),
        routes: measures(DurationsBy::Route),
        backends: measures(DurationsBy::Backend),
        series: args.duration_series as usize,
    };
    settings.http1 = match args.http1 {
        Http1Choice::Own => Http1::Own,
        Http1Choice::Library => Http1::Library,
    };
    settings.l4 = L4 {
        idle: Duration::from_secs(args.tcp_idle.into()),
        udp_idle: Duration::from_secs(args.udp_idle.into()),
        udp_unanswered: Duration::from_secs(args.udp_idle.into()) / 6,
        udp_sessions: args.udp_sessions as usize,
        ..L4::default()
    };
    settings.via = args.via.as_deref().map(Into::into);
    settings.upstream.header_bytes = usize::from(args.max_response_header) << 10;
    settings.upstream.header_fields = args.max_response_fields.into();
    settings.access_log = args.telemetry.log_output()?;
    settings.otlp = args.telemetry.otlp(args.cluster.node_name())?;
    Ok(settings)
}
