//! The data plane as the control side sees it: the node's addresses and kernel programs, and the
//! proxy behind them.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use portcullis_control::applier::{Acknowledgement, DataPlane};
use portcullis_inspect::{EarlyAnswer, Reading};
use portcullis_model::Snapshot;
use portcullis_node::{
    Choice, CoreSockets, Interfaces, KernelLog, Node, Tended, own_addresses, reachable_addresses,
};
use portcullis_proxy::{MinimumRate, Proxy, Reason, SocketMode, Stats};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::cli::{DatapathChoice, RunArgs};

/// Interval at which the node's addresses are looked at: they change with its network.
const ADDRESSES_INTERVAL: Duration = Duration::from_secs(5);

/// Cheap to clone; all clones are the same data plane.
#[derive(Clone)]
pub(crate) struct Plane {
    proxy: Arc<Proxy>,
    pub node: Arc<Node>,
    /// Notified when what is served has to be looked at again.
    disturbed: Arc<Notify>,
}

impl Plane {
    pub(crate) fn start(args: &RunArgs) -> anyhow::Result<Self> {
        let node = Node::open(&node_settings(args)).context("cannot use the kernel programs")?;
        let proxy = Proxy::start(proxy_settings(args, &node))?;
        let sockets: Vec<_> = proxy
            .sockets()
            .iter()
            .map(|core| CoreSockets { v4: Some(core.v4.as_fd()), v6: core.v6.as_ref().map(AsFd::as_fd) })
            .collect();
        node.set_sockets(&sockets).context("cannot give the kernel programs their sockets")?;
        Ok(Self { proxy: Arc::new(proxy), node: Arc::new(node), disturbed: Arc::default() })
    }

    pub(crate) async fn stats(&self) -> Stats {
        self.proxy.stats().await
    }

    /// Tasks that look after the node as long as the set exists. They do not hold the proxy.
    pub(crate) fn chores(&self) -> JoinSet<()> {
        let mut chores = JoinSet::new();
        chores.spawn(tend(Arc::clone(&self.node), Arc::clone(&self.disturbed)));
        if let Some(log) = self.node.kernel_log() {
            chores.spawn(flush(log));
        }
        chores
    }

    /// Lets open connections finish. The kernel programs stay for the next agent.
    pub(crate) async fn drain(self) {
        self.node.stop_serving();
        match Arc::try_unwrap(self.proxy) {
            Ok(proxy) => proxy.drain().await,
            Err(_) => {
                tracing::warn!("the data plane is still in use: connections are closed without draining")
            }
        }
    }
}

impl DataPlane for Plane {
    async fn apply(&mut self, snapshot: Arc<Snapshot>) -> Acknowledgement {
        let spread = self.node.spread(snapshot.frontends.keys());
        let snapshot = match spread.is_empty() {
            true => snapshot,
            false => snapshot.with_frontends(|frontends| spread.on_each(frontends)),
        };
        let wanted: BTreeSet<_> = snapshot.frontends.keys().copied().collect();
        let unusable = self.node.prepare(&wanted, &snapshot.shared_addresses);
        let usable = match unusable.is_empty() {
            true => snapshot,
            false => snapshot.with_frontends(|frontends| {
                frontends.retain(|frontend, _| !unusable.contains_key(frontend));
            }),
        };
        let mut refused = self.proxy.apply(usable).await;
        refused.frontends.extend(unusable);
        refused.frontends.extend(self.node.serve(wanted));
        let refused = spread.gathered(refused);
        Acknowledgement { refused }
    }

    async fn disturbed(&mut self) {
        self.disturbed.notified().await;
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
};

fn early_answer(reason: Reason) -> EarlyAnswer {
    EarlyAnswer { status: reason.status().as_u16(), words: reason.text().trim_end() }
}

async fn tend(node: Arc<Node>, disturbed: Arc<Notify>) {
    let mut ticks = tokio::time::interval(Node::TEND_INTERVAL);
    loop {
        ticks.tick().await;
        if node.tend() == Tended::Disturbed {
            disturbed.notify_one();
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

fn node_settings(args: &RunArgs) -> portcullis_node::Settings {
    portcullis_node::Settings {
        steering: match args.datapath {
            DatapathChoice::Auto => Choice::Auto,
            DatapathChoice::Ebpf => Choice::Programs,
            DatapathChoice::Userspace => Choice::Sockets,
        },
        pin_dir: args.pin_dir.clone(),
        interfaces: Interfaces::from_names(&args.interface),
        tracking: args.host().tracking(),
        arp: args.arp(),
        syn_hold: args.syn_hold(),
        everywhere: args.host().everywhere(),
        drain: args.drain_timeout(),
    }
}

fn proxy_settings(args: &RunArgs, node: &Node) -> portcullis_proxy::Settings {
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
    settings.via = args.via.as_deref().map(Into::into);
    settings.upstream.header_bytes = usize::from(args.max_response_header) << 10;
    settings.upstream.header_fields = args.max_response_fields.into();
    settings
}
