//! The handle by which the rest of the agent drives the data plane.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use portcullis_model::{KeyRing, RemoteKeySet, Snapshot, SpeaksFirst, Unserved};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};

use crate::client::budget::SharedBudgets;
use crate::client::tls::TlsFactory;
use crate::command::Command;
use crate::core::pseudonym::AgentId;
use crate::core::settings::{Settings, SocketMode};
use crate::core::socket::{CoreSockets, Sockets};
use crate::core::stats::{KeySetStats, Stats};
use crate::core::task::or_abort;
use crate::export::Exporter;
use crate::http::session::own_ring;
use crate::log::access_log::LogWriter;
use crate::spread::{CoreLink, CoreLinks, Spread};
use crate::thread::{self, Shared};
use crate::trace::watch::{Watch, WatchedFor, WatchedRequest};
use crate::upstream::health::SharedHealth;
use crate::upstream::health::checks::Checks;
use crate::upstream::key_sets::KeySets;

/// The beginning of the names of the threads that serve connections. A panic there ends the
/// connection it came up in, or else the process, by itself.
pub const CORE_THREAD: &str = "core-";

/// Dropping it stops the data plane at once; [`Proxy::drain`] lets connections finish.
#[derive(Debug)]
pub struct Proxy {
    mode: SocketMode,
    /// The cores' own, once more, for the kernel programs.
    steered: Mutex<Arc<[CoreSockets]>>,
    budgets: SharedBudgets,
    health: SharedHealth,
    checks: Checks,
    key_sets: KeySets,
    cores: Vec<mpsc::UnboundedSender<Command>>,
    links: CoreLinks,
    ends: Mutex<Ends>,
}

/// The things that a drain waits for.
#[derive(Debug, Default)]
struct Ends {
    threads: Vec<JoinHandle<()>>,
    access_log: Option<LogWriter>,
    exporter: Option<Exporter>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot open the sockets that connections are steered to: {0}")]
    Socket(io::Error),
    #[error("cannot start core {core}: {problem}")]
    Core { core: usize, problem: io::Error },
    #[error("cannot start the access log: {0}")]
    AccessLog(io::Error),
    #[error("cannot start the export of traces and logs: {0}")]
    Export(io::Error),
}

// === impl Proxy ===

impl Proxy {
    /// Starts the cores with sockets of their own; they serve nothing before the first
    /// [`Proxy::apply`].
    ///
    /// # Errors
    /// When sockets or threads cannot be had.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let proxy = Self::start_without_sockets(settings)?;
        proxy.listen(Sockets::default(), &[SpeaksFirst::Either])?;
        Ok(proxy)
    }

    /// Starts cores that take no connections before [`Proxy::listen`].
    ///
    /// # Errors
    /// When threads cannot be had.
    pub fn start_without_sockets(settings: Settings) -> Result<Self, StartError> {
        let tls = TlsFactory::new();
        let health = SharedHealth::default();
        let key_sets = KeySets::new(settings.upstream.clone(), health.clone());
        let exporter = settings.otlp.as_ref().map(|otlp| Exporter::start(&otlp.collector)).transpose();
        let exporter = exporter.map_err(StartError::Export)?;
        let spans = exporter.as_ref().and_then(Exporter::spans);
        let shared = Shared::new(own_ring(), health.clone(), key_sets.link(), settings.measure, spans);
        let budgets = shared.budgets.clone();
        let agent = AgentId::random();
        let settings = Arc::new(settings);
        let lines = exporter.as_ref().and_then(Exporter::lines);
        let access_log = LogWriter::start(&settings.access_log, lines).map_err(StartError::AccessLog)?;
        let (cores, receivers): (Vec<_>, Vec<_>) =
            (0..settings.cores.max(1)).map(|_| mpsc::unbounded_channel()).unzip();
        let links: CoreLinks = cores.iter().map(|commands| CoreLink::new(commands.downgrade())).collect();
        let mut threads = Vec::new();
        for (core, commands) in receivers.into_iter().enumerate() {
            let (settings, tls, shared) = (settings.clone(), tls.clone(), shared.clone());
            let (log, links) = (access_log.for_core(), links.clone());
            let thread = start_thread(core, move || {
                let spread = Spread::new(settings.placement, core, links);
                thread::run(settings, tls, agent, shared, log, spread, commands)
            });
            threads.push(thread.map_err(|problem| StartError::Core { core, problem })?);
        }
        let ends = Mutex::new(Ends { threads, access_log: Some(access_log), exporter });
        Ok(Self {
            mode: settings.sockets,
            steered: Mutex::default(),
            budgets,
            checks: Checks::new(health.clone()),
            key_sets,
            health,
            cores,
            links,
            ends,
        })
    }

    /// Takes connections from these sockets, of an agent before this one. In
    /// [`SocketMode::Steered`] each core opens those of the kinds that it lacks.
    ///
    /// # Errors
    /// When sockets cannot be had.
    pub fn listen(&self, inherited: Sockets, kinds: &[SpeaksFirst]) -> Result<(), StartError> {
        let mut parts = inherited.dealt(self.cores.len());
        let mut steered = Vec::new();
        if self.mode == SocketMode::Steered {
            for part in &mut parts {
                for kind in kinds {
                    if !part.steered.iter().any(|pair| pair.speaks_first == *kind) {
                        part.steered.push(CoreSockets::open(*kind).map_err(StartError::Socket)?);
                    }
                }
                for pair in &part.steered {
                    steered.push(pair.try_clone().map_err(StartError::Socket)?);
                }
            }
        }
        for (core, part) in self.cores.iter().zip(parts) {
            let (report, reported) = sync_channel(1);
            let _ = core.send(Command::Listen(part, report));
            let listening = reported.recv().unwrap_or_else(|gone| Err(io::Error::other(gone)));
            listening.map_err(StartError::Socket)?;
        }
        *lock(&self.steered) = steered.into();
        Ok(())
    }

    /// In [`SocketMode::Steered`], the sockets of every core: connections brought there are served.
    pub fn sockets(&self) -> Arc<[CoreSockets]> {
        lock(&self.steered).clone()
    }

    /// The sockets at which connections are taken, for another agent to take them, too.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub async fn share(&self) -> io::Result<Sockets> {
        let steered = self.sockets();
        let steered = steered.iter().map(CoreSockets::try_clone).collect::<io::Result<_>>()?;
        let mut sockets = Sockets { steered, ..Sockets::default() };
        for of_core in self.command(Command::Share).await {
            let of_core = of_core?;
            sockets.bound.extend(of_core.bound);
            sockets.datagrams.extend(of_core.datagrams);
        }
        Ok(sockets)
    }

    /// Returns once every core serves the snapshot, except for what one of them cannot serve.
    pub async fn apply(&self, snapshot: Arc<Snapshot>) -> Unserved {
        let mut unserved = Unserved::default();
        self.checks.follow(&snapshot);
        self.key_sets.follow(&snapshot);
        for of_core in self.command(|reply| Command::Apply(snapshot.clone(), reply)).await {
            unserved.extend(of_core);
        }
        unserved
    }

    /// Has sessions continue what others began that have these keys.
    pub async fn use_keys(&self, keys: Arc<KeyRing>) {
        self.command(|done| Command::UseKeys(keys.clone(), done)).await;
    }

    /// Tells of the next so many requests of a kind, each once it is over, until none is left, or
    /// the time is over. Then no more come; dropped, nothing is waited for any more.
    pub async fn watch(
        &self,
        wanted: WatchedFor,
        count: usize,
        time: Duration,
    ) -> mpsc::Receiver<WatchedRequest> {
        let (watch, told) = Watch::begin(wanted, count, time);
        self.command(|done| Command::Watch(watch.clone(), done)).await;
        told
    }

    pub async fn stats(&self) -> Stats {
        let (backends, checked_endpoints) = self.health.stats();
        let budgets = self.budgets.stats();
        let key_sets = self.key_sets();
        let cores = self.links.iter().map(CoreLink::open).collect();
        let mut sum = Stats { budgets, backends, checked_endpoints, key_sets, cores, ..Stats::default() };
        {
            let ends = lock(&self.ends);
            sum.exports = ends.exporter.iter().flat_map(Exporter::read).collect();
            sum.access_log_lost = ends.access_log.as_ref().map_or(0, LogWriter::lost);
        }
        for stats in self.command(Command::Stats).await {
            sum.add(stats);
        }
        sum
    }

    /// The key sets that are fetched.
    pub fn key_sets(&self) -> BTreeMap<RemoteKeySet, KeySetStats> {
        self.key_sets.stats()
    }

    /// Takes no more connections: another agent does, from the same sockets.
    pub async fn stop_accepting(&self) {
        *lock(&self.steered) = Arc::default();
        self.command(Command::Stop).await;
    }

    /// Serves the connections that wait, takes no more, lets those that are open finish within the
    /// drain time-out, then stops.
    pub async fn drain(&self) {
        // They are the cores' own once more: the kernel would go on taking connections that no core
        // accepts.
        *lock(&self.steered) = Arc::default();
        self.checks.stop();
        self.command(Command::Drain).await;
        let Ends { threads, access_log, exporter } = std::mem::take(&mut *lock(&self.ends));
        for thread in threads {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        if let Some(access_log) = access_log {
            access_log.finish().await;
        }
        if let Some(exporter) = exporter {
            exporter.finish().await;
        }
    }

    /// Sends every core a command and collects the answers; a core that is gone gives none.
    async fn command<T>(&self, to_command: impl Fn(oneshot::Sender<T>) -> Command) -> Vec<T> {
        let mut replies = Vec::with_capacity(self.cores.len());
        for core in &self.cores {
            let (sender, reply) = oneshot::channel();
            let _ = core.send(to_command(sender));
            replies.push(reply);
        }
        let mut answers = Vec::with_capacity(replies.len());
        for reply in replies {
            answers.extend(reply.await.ok());
        }
        answers
    }
}

/// Returns once the core has what it takes, or cannot have it: a core that is missing goes
/// unnoticed, but its share of the connections is lost.
fn start_thread<F: Future<Output = ()>>(
    core: usize,
    body: impl FnOnce() -> F + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (report, reported) = sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("{CORE_THREAD}{core}")).spawn(move || {
        pin_to_cpu(core);
        match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
            Ok(runtime) => {
                let _ = report.send(Ok(()));
                runtime.block_on(or_abort(body()));
            }
            Err(problem) => drop(report.send(Err(problem))),
        }
    })?;
    reported.recv().unwrap_or_else(|gone| Err(io::Error::other(gone)))?;
    Ok(thread)
}

/// Best effort: in a container with fewer CPUs the scheduler decides.
fn pin_to_cpu(core: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let count = allowed.clone().count();
    if count > 1
        && let Some(cpu) = allowed.nth(core % count)
    {
        let mut own = CpuSet::new();
        own.set(cpu);
        let _ = sched_setaffinity(None, &own);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
