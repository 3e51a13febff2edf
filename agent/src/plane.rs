//! The data plane as the control side sees it: the proxy, and the kernel programs in front of it if this node has them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use portcullis_control::applier::DataPlane;
use portcullis_control::status::Acknowledgement;
use portcullis_model::{FrontendKey, Snapshot};
use portcullis_node::{
    CoreSockets, Datapath, Desired, Interfaces, KernelLog, LogLevel, MAX_CORES, Options, Reason,
};
use portcullis_proxy::{Proxy, Settings, SocketMode, Stats};
use tokio::task::JoinSet;

use crate::cli::{DatapathChoice, RunArgs};
use crate::ports;
use crate::vips::Vips;

/// What the kernel programs' log lines are under, for `--log`: their crate.
const KERNEL_LOG: &str = "portcullis_ebpf";
const KERNEL_LOG_PAUSE: Duration = Duration::from_millis(100);
/// How often it is looked whether addresses may go that connections were open to.
const PARTING: Duration = Duration::from_secs(1);
/// How often addresses and rules are compared with what they should be.
const COMPARISON: Duration = Duration::from_secs(10);

/// Cheap to clone; all clones are the same data plane.
#[derive(Clone)]
pub(crate) struct Plane {
    proxy: Arc<Proxy>,
    kernel: Option<Arc<Mutex<Kernel>>>,
    vips: Arc<Mutex<Vips>>,
    /// `ebpf`, or `userspace` with the reason why not better.
    pub description: Arc<str>,
}

struct Kernel {
    datapath: Datapath,
    /// What it was last given by this agent, successfully.
    served: BTreeSet<FrontendKey>,
    /// What it was given before, and until when connections may take to end there.
    leaving: BTreeMap<FrontendKey, Instant>,
    drain: Duration,
}

impl Plane {
    pub(crate) fn start(args: &RunArgs) -> Result<Self> {
        let (datapath, description) = open_datapath(args)?;
        let sockets = if datapath.is_some() { SocketMode::Steered } else { SocketMode::Bound };
        let proxy = Proxy::start(proxy_settings(args, sockets))?;
        let kernel =
            datapath.map(|datapath| Kernel::new(datapath, &proxy, args.drain_timeout())).transpose()?;
        Ok(Self {
            proxy: Arc::new(proxy),
            kernel: kernel.map(|kernel| Arc::new(Mutex::new(kernel))),
            vips: Arc::new(Mutex::new(Vips::new(args.tracking(), args.drain_timeout()))),
            description: description.into(),
        })
    }

    pub(crate) async fn stats(&self) -> Stats {
        self.proxy.stats().await
    }

    /// Packets and connections by the kernel programs' verdict; empty without them.
    pub(crate) fn kernel_counters(&self) -> Vec<(Reason, u64)> {
        let counters = self.kernel.iter().map(|kernel| lock(kernel).datapath.counters());
        counters.filter_map(Result::ok).flatten().collect()
    }

    pub(crate) fn is_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// What is to be done all the time, in tasks that end with the set. They do not hold the proxy.
    pub(crate) fn chores(&self) -> JoinSet<()> {
        let mut chores = JoinSet::new();
        chores.spawn(keep(self.vips.clone(), self.kernel.clone()));
        let kernel = self.kernel.as_ref().filter(|_| kernel_log_level().is_some());
        let log = kernel.and_then(|kernel| lock(kernel).datapath.kernel_log());
        if let Some(log) = log {
            chores.spawn(pass_on(log));
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
    /// Addresses come first, because an ordinary socket can only be bound to one that is local, and go last.
    async fn apply(&mut self, snapshot: Arc<Snapshot>) -> Acknowledgement {
        let wanted: BTreeSet<_> = snapshot.frontends.keys().copied().collect();
        let homeless = lock(&self.vips).add(&wanted);
        let unbound = self.proxy.apply(snapshot).await;
        let mut refused: BTreeMap<_, _> = unbound.into_iter().map(|it| (it.frontend, it.problem)).collect();
        refused.extend(homeless);
        if let Some(kernel) = &self.kernel {
            refused.extend(lock(kernel).apply(wanted, &lock(&self.vips)));
        }
        lock(&self.vips).remove_others();
        Acknowledgement { refused }
    }
}

// === impl Kernel ===

impl Kernel {
    fn new(mut datapath: Datapath, proxy: &Proxy, drain: Duration) -> Result<Self> {
        let sockets: Vec<_> = proxy
            .sockets()
            .iter()
            .map(|core| CoreSockets { v4: Some(core.v4.as_fd()), v6: core.v6.as_ref().map(AsFd::as_fd) })
            .collect();
        datapath.set_sockets(&sockets).context("cannot give the kernel programs their sockets")?;
        Ok(Self { datapath, served: BTreeSet::new(), leaving: BTreeMap::new(), drain })
    }

    /// Returns what is not served, and why. Only what differs from the maps is written.
    fn apply(&mut self, mut wanted: BTreeSet<FrontendKey>, vips: &Vips) -> BTreeMap<FrontendKey, String> {
        let mut refused = ports::taken(wanted.difference(&self.served));
        wanted.retain(|frontend| !refused.contains_key(frontend));
        let mut desired = Desired::new(wanted.iter().copied(), vips.sharing());
        self.part(&desired);
        desired.leaving = self.leaving.keys().copied().collect();
        match self.datapath.apply(&desired) {
            Ok(_) => self.served = wanted,
            Err(error) => {
                self.served.retain(|frontend| wanted.contains(frontend));
                tracing::debug!("{error}");
                let missing = wanted.difference(&self.served);
                refused.extend(missing.map(|frontend| (*frontend, error.to_string())));
            }
        }
        refused
    }

    /// The guard would drop the packets of connections that are open where nobody listens any more. A VIP that goes as a whole is
    /// none of its business.
    fn part(&mut self, desired: &Desired) {
        let (now, until) = (Instant::now(), Instant::now() + self.drain);
        let gone = self.served.difference(&desired.frontends).map(|frontend| (*frontend, until));
        self.leaving.extend(gone);
        let stays = |frontend: &FrontendKey| desired.vips.contains_key(&frontend.address);
        self.leaving.retain(|it, until| now < *until && stays(it) && !desired.frontends.contains(it));
    }

    /// Closes for good where connections had their time.
    fn settle(&mut self, vips: &Vips) {
        if self.leaving.values().any(|until| *until <= Instant::now()) {
            // What is served is not refused, and a failed write is tried again with the next snapshot.
            self.apply(self.served.clone(), vips);
        }
    }
}

/// Sees off what is not wanted any more, and holds addresses and rules against whoever flushes them.
async fn keep(vips: Arc<Mutex<Vips>>, kernel: Option<Arc<Mutex<Kernel>>>) {
    let mut partings = tokio::time::interval(PARTING);
    let mut comparisons = tokio::time::interval(COMPARISON);
    loop {
        tokio::select! {
            _ = partings.tick() => {
                if let Some(kernel) = &kernel {
                    lock(kernel).settle(&lock(&vips));
                }
                lock(&vips).remove_others();
            }
            _ = comparisons.tick() => lock(&vips).restore(),
        }
    }
}

/// From the kernel programs to the agent's own log.
async fn pass_on(mut log: KernelLog) {
    let mut ticks = tokio::time::interval(KERNEL_LOG_PAUSE);
    loop {
        ticks.tick().await;
        log.flush();
    }
}

/// The kernel's programs if they are wanted and possible, and a line that says what it is.
fn open_datapath(args: &RunArgs) -> Result<(Option<Datapath>, String)> {
    if args.datapath == DatapathChoice::Userspace {
        detach(&args.pin_dir);
        return Ok((None, "userspace (ordinary sockets), as asked for".to_owned()));
    }
    let options = Options {
        pin_dir: args.pin_dir.clone(),
        interfaces: interfaces(&args.interface),
        log: kernel_log_level(),
    };
    match Datapath::open(&options) {
        Ok(datapath) => {
            let description = format!("ebpf: {}", attachments(&datapath));
            Ok((Some(datapath), description))
        }
        Err(error) if args.datapath == DatapathChoice::Ebpf => {
            Err(error).context("--datapath ebpf is not possible here")
        }
        Err(error) => {
            detach(&args.pin_dir);
            Ok((None, format!("userspace (ordinary sockets), because ebpf is not possible: {error}")))
        }
    }
}

/// Programs of an earlier agent refuse what they know, and drop what they do not know, as nobody tells them of changes.
fn detach(pin_dir: &Path) {
    let detached = portcullis_node::detach(pin_dir);
    for what in detached.removed {
        tracing::info!("detached what an earlier agent left: {what}");
    }
    for problem in detached.problems {
        tracing::warn!(
            "kernel programs of an earlier agent stay at work, and keep connections from ordinary sockets: {problem}; \
             run `portcullis cleanup` as root when no agent runs"
        );
    }
}

/// As much as the filter of the agent's log lets through.
fn kernel_log_level() -> Option<LogLevel> {
    if tracing::enabled!(target: KERNEL_LOG, tracing::Level::TRACE) {
        Some(LogLevel::Trace)
    } else {
        tracing::enabled!(target: KERNEL_LOG, tracing::Level::DEBUG).then_some(LogLevel::Debug)
    }
}

fn attachments(datapath: &Datapath) -> String {
    let attachments = datapath.attachments().iter();
    let lines =
        attachments.map(|it| format!("{} on {} ({:?})", it.program, it.target, it.how).to_lowercase());
    lines.collect::<Vec<_>>().join(", ")
}

fn interfaces(named: &[String]) -> Interfaces {
    match named {
        [] => Interfaces::Uplinks,
        [none] if none == "none" => Interfaces::None,
        named => Interfaces::Named(named.to_vec()),
    }
}

fn proxy_settings(args: &RunArgs, sockets: SocketMode) -> Settings {
    let mut settings = Settings { sockets, drain: args.drain_timeout(), ..Settings::default() };
    settings.cores = steerable(args.cores.map_or(settings.cores, usize::from), sockets);
    settings.trusted_hops = args.trusted_hops;
    settings
}

/// The kernel programs have room for so many sockets. More cores than that are of no use to them.
fn steerable(cores: usize, sockets: SocketMode) -> usize {
    let most = MAX_CORES as usize;
    if sockets == SocketMode::Steered && cores > most {
        tracing::warn!("{most} cores serve traffic, not {cores}: connections cannot be steered to more");
        return most;
    }
    cores
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_cores_are_started_than_connections_can_be_steered_to() {
        assert_eq!(steerable(300, SocketMode::Steered), 256);
        assert_eq!(steerable(256, SocketMode::Steered), 256);
        assert_eq!(steerable(300, SocketMode::Bound), 300);
    }
}
