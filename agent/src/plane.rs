//! The data plane as the control side sees it: the node's addresses and kernel programs, and the
//! proxy behind them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::Context;
use portcullis_control::applier::{Acknowledgement, DataPlane};
use portcullis_inspect::EarlyAnswer;
use portcullis_model::Snapshot;
use portcullis_node::{Choice, CoreSockets, Interfaces, KernelLog, Node, Refused};
use portcullis_proxy::{Proxy, SocketMode, Stats};
use tokio::task::JoinSet;

use crate::cli::{DatapathChoice, RunArgs};

/// Cheap to clone; all clones are the same data plane.
#[derive(Clone)]
pub(crate) struct Plane {
    proxy: Arc<Proxy>,
    pub node: Arc<Node>,
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
        Ok(Self { proxy: Arc::new(proxy), node: Arc::new(node) })
    }

    pub(crate) async fn stats(&self) -> Stats {
        self.proxy.stats().await
    }

    /// Tasks that look after the node as long as the set exists. They do not hold the proxy.
    pub(crate) fn chores(&self) -> JoinSet<()> {
        let mut chores = JoinSet::new();
        chores.spawn(tend(Arc::clone(&self.node)));
        if let Some(log) = self.node.kernel_log() {
            chores.spawn(flush(log));
        }
        chores
    }

    /// Lets open connections finish. The kernel programs stay for the next agent.
    pub(crate) async fn drain(self) {
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
        let wanted: BTreeSet<_> = snapshot.frontends.keys().copied().collect();
        let unusable = self.node.prepare(&wanted);
        let mut refused = self.proxy.apply(without(snapshot, &unusable)).await;
        refused.frontends.extend(unusable);
        refused.frontends.extend(self.node.serve(wanted));
        Acknowledgement { refused }
    }
}

/// The snapshot without the frontends that nothing may be bound to.
fn without(snapshot: Arc<Snapshot>, frontends: &Refused) -> Arc<Snapshot> {
    if frontends.is_empty() {
        return snapshot;
    }
    let mut usable = Arc::unwrap_or_clone(snapshot);
    usable.frontends.retain(|frontend, _| !frontends.contains_key(frontend));
    Arc::new(usable)
}

/// A path as the data plane reads it, by its own function.
pub(crate) fn read_path(path: &str) -> Result<Cow<'_, str>, EarlyAnswer> {
    portcullis_proxy::normalise_path(path)
        .map_err(|reason| EarlyAnswer { status: reason.status().as_u16(), words: reason.text().trim_end() })
}

async fn tend(node: Arc<Node>) {
    let mut ticks = tokio::time::interval(Node::TEND_INTERVAL);
    loop {
        ticks.tick().await;
        node.tend();
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
        drain: args.drain_timeout(),
    }
}

fn proxy_settings(args: &RunArgs, node: &Node) -> portcullis_proxy::Settings {
    let mut settings = portcullis_proxy::Settings::default();
    settings.sockets = if node.is_steered() { SocketMode::Steered } else { SocketMode::Bound };
    settings.cores = node.usable_cores(args.cores.map_or(settings.cores, usize::from));
    settings.drain = args.drain_timeout();
    settings.trusted_hops = args.trusted_hops;
    settings.upstream.header_bytes = usize::from(args.max_response_header) << 10;
    settings.upstream.header_fields = args.max_response_fields.into();
    settings
}
