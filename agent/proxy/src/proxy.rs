//! The handle by which the rest of the agent drives the data plane.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use portcullis_model::{Snapshot, Unserved};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};

use crate::client::connection_limit::SharedCounts;
use crate::client::tls::TlsFactory;
use crate::core::pseudonym::AgentId;
use crate::core::settings::{Settings, SocketMode};
use crate::core::socket::CoreSockets;
use crate::core::stats::Stats;
use crate::core::task::or_abort;
use crate::log::access_log::LogWriter;
use crate::thread::{self, Command};

/// The beginning of the names of the threads that serve connections. A panic there ends the
/// connection it came up in, or else the process, by itself.
pub const CORE_THREAD: &str = "core-";

/// Dropping it stops the data plane at once; [`Proxy::drain`] lets connections finish.
#[derive(Debug)]
pub struct Proxy {
    sockets: Vec<CoreSockets>,
    cores: Vec<mpsc::UnboundedSender<Command>>,
    threads: Vec<JoinHandle<()>>,
    access_log: LogWriter,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot open the sockets that connections are steered to: {0}")]
    Socket(io::Error),
    #[error("cannot start core {core}: {problem}")]
    Core { core: usize, problem: io::Error },
    #[error("cannot start the access log: {0}")]
    AccessLog(io::Error),
    #[error("cannot set up TLS: {0}")]
    Tls(rustls::Error),
}

// === impl Proxy ===

impl Proxy {
    /// Starts the cores; they serve nothing before the first [`Proxy::apply`].
    ///
    /// # Errors
    /// When sockets or threads cannot be had.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let tls = TlsFactory::new().map_err(StartError::Tls)?;
        let shared_counts = SharedCounts::default();
        let agent = AgentId::random();
        let settings = Arc::new(settings);
        let access_log = LogWriter::start(&settings.access_log).map_err(StartError::AccessLog)?;
        let mut proxy = Self { sockets: Vec::new(), cores: Vec::new(), threads: Vec::new(), access_log };
        for core in 0..settings.cores.max(1) {
            proxy.start_core(core, &settings, tls.clone(), agent, shared_counts.clone())?;
        }
        Ok(proxy)
    }

    /// In [`SocketMode::Steered`], the sockets of every core: connections brought there are served.
    pub fn sockets(&self) -> &[CoreSockets] {
        &self.sockets
    }

    /// Returns once every core serves the snapshot, except for what one of them cannot serve.
    pub async fn apply(&self, snapshot: Arc<Snapshot>) -> Unserved {
        let mut unserved = Unserved::default();
        for of_core in self.command(|reply| Command::Apply(snapshot.clone(), reply)).await {
            unserved.extend(of_core);
        }
        unserved
    }

    pub async fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for stats in self.command(Command::Stats).await {
            sum.add(stats);
        }
        sum
    }

    /// Stops accepting, lets open connections finish within the drain time-out, then stops.
    pub async fn drain(mut self) {
        // They are the cores' own once more: the kernel would go on taking connections that no core
        // accepts.
        self.sockets.clear();
        self.command(Command::Drain).await;
        self.cores.clear();
        for thread in self.threads.drain(..) {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
        self.access_log.finish().await;
    }

    fn start_core(
        &mut self,
        core: usize,
        settings: &Arc<Settings>,
        tls: TlsFactory,
        agent: AgentId,
        shared_counts: SharedCounts,
    ) -> Result<(), StartError> {
        let sockets = match settings.sockets {
            SocketMode::Steered => Some(CoreSockets::open().map_err(StartError::Socket)?),
            SocketMode::Bound => None,
        };
        let for_thread =
            sockets.as_ref().map(CoreSockets::try_clone).transpose().map_err(StartError::Socket)?;
        let (sender, commands) = mpsc::unbounded_channel();
        let settings = settings.clone();
        let access_log = self.access_log.for_core();
        let thread = start_thread(core, for_thread, move |listeners| {
            thread::run(settings, tls, agent, shared_counts, access_log, listeners, commands)
        });
        let thread = thread.map_err(|problem| StartError::Core { core, problem })?;
        self.sockets.extend(sockets);
        self.cores.push(sender);
        self.threads.push(thread);
        Ok(())
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
    sockets: Option<CoreSockets>,
    body: impl FnOnce(Vec<TcpListener>) -> F + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (report, reported) = sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("{CORE_THREAD}{core}")).spawn(move || {
        if let Err(problem) = run_pinned(core, sockets, &report, body) {
            let _ = report.send(Err(problem));
        }
    })?;
    reported.recv().unwrap_or_else(|gone| Err(io::Error::other(gone)))?;
    Ok(thread)
}

fn run_pinned<F: Future<Output = ()>>(
    core: usize,
    sockets: Option<CoreSockets>,
    report: &SyncSender<io::Result<()>>,
    body: impl FnOnce(Vec<TcpListener>) -> F,
) -> io::Result<()> {
    pin_to_cpu(core);
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(or_abort(async {
        let listeners = sockets.map(CoreSockets::watch).transpose()?.unwrap_or_default();
        let _ = report.send(Ok(()));
        body(listeners).await;
        Ok(())
    }))
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
