//! The data plane as the control side sees it: the proxy, and the kernel programs in front of it if this node has them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use portcullis_control::applier::DataPlane;
use portcullis_control::status::Acknowledgement;
use portcullis_datapath::{CoreSockets, Datapath, Desired, Interfaces, Options, Reason};
use portcullis_model::{FrontendKey, Snapshot};
use portcullis_proxy::{Proxy, Settings, SocketMode, Stats};

use crate::cli::{DatapathChoice, RunArgs};
use crate::ports;
use crate::vips::Vips;

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
    /// What it was last given, successfully. `None`: the maps may hold what an earlier agent was given.
    served: Option<BTreeSet<FrontendKey>>,
}

impl Plane {
    pub(crate) fn start(args: &RunArgs) -> Result<Self> {
        let (datapath, description) = open_datapath(args)?;
        let sockets = if datapath.is_some() { SocketMode::Steered } else { SocketMode::Bound };
        let proxy = Proxy::start(proxy_settings(args, sockets))?;
        let kernel = datapath.map(|datapath| Kernel::new(datapath, &proxy)).transpose()?;
        Ok(Self {
            proxy: Arc::new(proxy),
            kernel: kernel.map(|kernel| Arc::new(Mutex::new(kernel))),
            vips: Arc::new(Mutex::new(Vips::new(args.tracking()))),
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
    fn new(mut datapath: Datapath, proxy: &Proxy) -> Result<Self> {
        let sockets: Vec<_> = proxy
            .sockets()
            .iter()
            .map(|core| CoreSockets { v4: Some(core.v4.as_fd()), v6: core.v6.as_ref().map(AsFd::as_fd) })
            .collect();
        datapath.set_sockets(&sockets).context("cannot give the kernel programs their sockets")?;
        Ok(Self { datapath, served: None })
    }

    /// Returns what is not served, and why. Most snapshots change no frontend and cost nothing here.
    fn apply(&mut self, mut wanted: BTreeSet<FrontendKey>, vips: &Vips) -> BTreeMap<FrontendKey, String> {
        let mut refused = ports::taken(wanted.iter().filter(|frontend| !self.serves(frontend)));
        wanted.retain(|frontend| !refused.contains_key(frontend));
        if self.served.as_ref() == Some(&wanted) {
            return refused;
        }
        let written = self.datapath.apply(&Desired::new(wanted.iter().copied(), vips.sharing()));
        if let Err(error) = written {
            let missing = wanted.iter().filter(|frontend| !self.serves(frontend));
            refused.extend(missing.map(|frontend| (*frontend, error.to_string())));
            return refused;
        }
        self.served = Some(wanted);
        refused
    }

    fn serves(&self, frontend: &FrontendKey) -> bool {
        self.served.as_ref().is_some_and(|served| served.contains(frontend))
    }
}

/// The kernel's programs if they are wanted and possible, and a line that says what it is.
fn open_datapath(args: &RunArgs) -> Result<(Option<Datapath>, String)> {
    if args.datapath == DatapathChoice::Userspace {
        return Ok((None, "userspace (ordinary sockets), as asked for".to_owned()));
    }
    let options = Options {
        pin_dir: args.pin_dir.clone(),
        interfaces: interfaces(&args.interface),
        ..Options::default()
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
            Ok((None, format!("userspace (ordinary sockets), because ebpf is not possible: {error}")))
        }
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
    let mut settings = Settings { sockets, ..Settings::default() };
    settings.cores = args.cores.map_or(settings.cores, usize::from);
    settings.trusted_hops = args.trusted_hops;
    settings.drain = std::time::Duration::from_secs(args.drain_timeout);
    settings
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
