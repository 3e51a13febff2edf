//! The data plane as the control side sees it: the proxy, and the kernel programs in front of it if this node has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use portcullis_control::applier::DataPlane;
use portcullis_control::status::Acknowledgement;
use portcullis_datapath::vip::{self, Problem};
use portcullis_datapath::{CoreSockets, Datapath, Desired, Interfaces, Options, Reason, Sharing};
use portcullis_model::{FrontendKey, Snapshot};
use portcullis_proxy::{Proxy, Settings, SocketMode, Stats};

use crate::cli::{DatapathChoice, RunArgs};

/// Cheap to clone; all clones are the same data plane.
#[derive(Clone)]
pub(crate) struct Plane {
    proxy: Arc<Proxy>,
    kernel: Option<Arc<Mutex<Kernel>>>,
    /// The addresses that were made local for ordinary sockets; with kernel programs, [`Kernel`] does it.
    local: BTreeSet<IpAddr>,
    /// `ebpf`, or `userspace` with the reason why not better.
    pub description: Arc<str>,
}

struct Kernel {
    datapath: Datapath,
    /// What it was last given, successfully.
    served: BTreeSet<FrontendKey>,
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
            local: BTreeSet::new(),
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
    async fn apply(&mut self, snapshot: Arc<Snapshot>) -> Acknowledgement {
        let homeless = self.make_local(&snapshot);
        let unbound = self.proxy.apply(snapshot.clone()).await;
        let mut refused: BTreeMap<_, _> = unbound.into_iter().map(|it| (it.frontend, it.problem)).collect();
        refused.extend(homeless);
        if let Some(kernel) = &self.kernel {
            refused.extend(lock(kernel).apply(&snapshot));
        }
        Acknowledgement { refused }
    }
}

impl Plane {
    /// An ordinary socket can only be bound to an address that is local already. Agents that never had a VIP leave those of
    /// others in peace.
    fn make_local(&mut self, snapshot: &Snapshot) -> BTreeMap<FrontendKey, String> {
        let wanted: BTreeSet<_> = snapshot.frontends.keys().copied().collect();
        let vips = vips(&wanted);
        if self.is_kernel() || vips == self.local {
            return BTreeMap::new();
        }
        let changes = vip::make_local(&vips);
        let without = changes.problems.iter().flat_map(|problem| without_address(problem, &wanted));
        let refused: BTreeMap<_, _> = without.collect();
        if refused.is_empty() {
            self.local = vips;
        }
        refused
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
        Ok(Self { datapath, served: BTreeSet::new() })
    }

    /// Returns what is not served, and why. Most snapshots change no frontend and cost nothing here.
    fn apply(&mut self, snapshot: &Snapshot) -> BTreeMap<FrontendKey, String> {
        let wanted: BTreeSet<_> = snapshot.frontends.keys().copied().collect();
        if wanted == self.served {
            return BTreeMap::new();
        }
        let vips = vips(&wanted);
        let changes = vip::make_local(&vips);
        let sharing = |vip: &IpAddr| {
            if changes.ours.contains(vip) { Sharing::Exclusive } else { Sharing::Shared }
        };
        let vips = vips.iter().map(|vip| (*vip, sharing(vip)));
        let written = self.datapath.apply(&Desired::new(wanted.iter().copied(), vips));
        let mut refused = BTreeMap::new();
        if let Err(error) = written {
            let missing = wanted.difference(&self.served);
            refused.extend(missing.map(|frontend| (*frontend, error.to_string())));
        }
        refused.extend(changes.problems.iter().flat_map(|problem| without_address(problem, &wanted)));
        self.served = wanted.into_iter().filter(|frontend| !refused.contains_key(frontend)).collect();
        refused
    }
}

fn vips(frontends: &BTreeSet<FrontendKey>) -> BTreeSet<IpAddr> {
    let addresses = frontends.iter().map(|frontend| frontend.address);
    addresses.filter(|address| !address.is_unspecified()).collect()
}

/// The frontends that an address problem takes down.
fn without_address(problem: &Problem, wanted: &BTreeSet<FrontendKey>) -> Vec<(FrontendKey, String)> {
    match problem {
        Problem::Add { address, .. } => {
            let concerned = wanted.iter().filter(|frontend| frontend.address == *address);
            concerned.map(|frontend| (*frontend, problem.to_string())).collect()
        }
        Problem::List(_) | Problem::Remove { .. } => {
            tracing::warn!("{problem}");
            Vec::new()
        }
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
    settings.limits.drain = std::time::Duration::from_secs(args.drain_timeout);
    settings
}

fn lock(kernel: &Mutex<Kernel>) -> MutexGuard<'_, Kernel> {
    kernel.lock().unwrap_or_else(PoisonError::into_inner)
}
