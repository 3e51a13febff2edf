//! The node as the agent uses it: addresses before the proxy binds its sockets, kernel programs
//! once it serves, and the chores that recur while nothing changes. It knows frontends, not
//! listeners or routes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use portcullis_common::abi::{Bucket, MAX_CORES};
use portcullis_common::reason::Reason;
use portcullis_model::{BudgetOwner, FrontendKey, HostPattern, SpeaksFirst};

use crate::cleanup::detach_beside;
use crate::datapath::{Datapath, Options};
use crate::enforcement::{BudgetUse, Enforcement};
use crate::error::{Error, RefusedFrontends, Unavailable};
use crate::forwarding::{
    self, Ending, Forwarding, ForwardingReport, ForwardingSettings, L4Frontends, NotForwarding,
};
use crate::netlink::sockets;
use crate::plan::desired::Wanted;
use crate::plan::forward::ForwardTable;
use crate::ports::{self, Bound};
use crate::programs::attach::Coverage;
use crate::programs::interfaces::Interfaces;
use crate::programs::kernel::{Believed, KernelLog, log_level};
use crate::programs::maps::CoreSockets;
use crate::spread::Spread;
use crate::steering::Steering;
use crate::syn_hold::{self, SynHold};
use crate::vips::addresses;
use crate::vips::{Arp, Everywhere, Tracking, Vips};

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    pub steering: Choice,
    /// As [`Options::pin_dir`].
    pub pin_dir: PathBuf,
    /// Interfaces that the packet guard is attached to.
    pub interfaces: Interfaces,
    /// Interfaces on which the server names of ClientHellos are read.
    pub name_interfaces: Interfaces,
    /// As [`Desired::unknown_names`](crate::Desired::unknown_names).
    pub unknown_names: Option<NonZeroU32>,
    pub tracking: Tracking,
    pub arp: Arp,
    /// Time for which new connections wait for the next agent when this one has ended; `None`: they
    /// are refused.
    pub syn_hold: Option<Duration>,
    pub everywhere: Everywhere,
    /// `None`: nothing is forwarded in the kernel.
    pub forwarding: Option<ForwardingSettings>,
    /// Time for open connections to end where nothing is served any more.
    pub drain: Duration,
    /// As [`Options::locks`].
    pub locks: Arc<[File]>,
}

/// The way connections find their listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// By the kernel programs if this node allows it, else by ordinary sockets.
    Auto,
    /// By the kernel programs or not at all.
    Programs,
    /// By ordinary sockets.
    Sockets,
}

/// This network namespace with what the agent has changed in it. Dropping it leaves everything to
/// the next agent.
pub struct Node {
    steering: Option<Mutex<Steering>>,
    forwarding: Result<Mutex<Forwarding>, NotForwarding>,
    /// Of an earlier agent, where this one does not forward.
    ending: Mutex<Option<Ending>>,
    bound: Mutex<Bound>,
    /// The inodes of sockets that an agent before this one was bound by: as long as they are open,
    /// they are this agent's. Used with steering.
    inherited: Mutex<BTreeSet<u64>>,
    vips: Mutex<Vips>,
    /// `None` where connections are not held.
    syn_hold: Option<Mutex<SynHold>>,
    /// Done when nothing holds connections from an agent that does not.
    released: Once,
    /// Done when no programs of an earlier agent are at work.
    relieved: Once,
    pin_dir: PathBuf,
    drain: Duration,
    /// Of an earlier agent, until its programs are detached.
    locks: Mutex<Arc<[File]>>,
    everywhere: Everywhere,
    shared: Mutex<Shared>,
    /// Given last, whether or not all of them can be steered.
    served: Mutex<BTreeSet<FrontendKey>>,
    description: String,
    without_programs: Option<&'static str>,
    believed: Believed,
    /// As they were given, whether or not there are programs for them.
    interfaces: Interfaces,
    name_interfaces: Interfaces,
}

/// The frontends on addresses that other processes of the node use, too.
#[derive(Default)]
struct Shared {
    /// The node's own addresses, when frontends were last spread over them.
    addresses: BTreeSet<IpAddr>,
    frontends: BTreeSet<FrontendKey>,
    /// Those on which another process listened when they were last served.
    taken: BTreeSet<FrontendKey>,
}

/// The state in which the recurring chores found the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tended {
    Undisturbed,
    /// Another process listens on a port now, or does no longer, or the node has other addresses,
    /// or programs of others have come, or are gone: what is wanted has to be served anew.
    Disturbed,
}

impl Node {
    /// Time between calls of [`Node::tend`].
    pub const TEND_INTERVAL: Duration = Duration::from_secs(1);

    /// Opens the kernel programs if they are wanted and possible. Maps keep their contents until
    /// the first [`Node::serve`], and programs of earlier agents stay that this one does without.
    ///
    /// # Errors
    /// When only the kernel programs will do, and they are not possible; or another agent uses
    /// them.
    pub fn open(settings: &Settings) -> Result<Self, Unavailable> {
        let options = Options {
            pin_dir: settings.pin_dir.clone(),
            interfaces: settings.interfaces.clone(),
            name_interfaces: settings.name_interfaces.clone(),
            believed: match settings.name_interfaces {
                Interfaces::None => Believed::OfConnections,
                _ => Believed::by_this_kernel(),
            },
            log: log_level(),
            locks: settings.locks.clone(),
        };
        let opened = match settings.steering {
            Choice::Sockets => Err(("as asked for".to_owned(), "asked-for")),
            Choice::Programs => Ok(Datapath::open(&options)?),
            Choice::Auto => match Datapath::open(&options) {
                // Ordinary sockets would get no connections beside its programs.
                Err(in_use @ Unavailable::InUse { .. }) => return Err(in_use),
                opened => {
                    opened.map_err(|error| (format!("because ebpf is not possible: {error}"), error.label()))
                }
            },
        };
        let without_programs = opened.as_ref().err().map(|(_, label)| *label);
        let (datapath, description) = match opened {
            Ok(datapath) => {
                let attached = datapath.attachments().map(ToString::to_string);
                let unguarded = datapath.unguarded().iter();
                let missing = unguarded.map(|it| format!("no guard on {}: {}", it.interface, it.reason));
                let unread = datapath.without_name_reader().iter();
                let unread = unread.map(|it| format!("no names read on {}: {}", it.interface, it.reason));
                let description = attached.chain(missing).chain(unread).collect::<Vec<_>>().join(", ");
                (Some(datapath), format!("ebpf: {description}"))
            }
            Err((reason, _)) => (None, format!("userspace (ordinary sockets), {reason}")),
        };
        let forwarding = forwarding::open(datapath.as_ref(), settings.forwarding.as_ref());
        Ok(Self {
            forwarding: forwarding.map(Mutex::new),
            ending: Mutex::default(),
            drain: settings.drain,
            bound: Mutex::default(),
            inherited: Mutex::default(),
            steering: datapath
                .map(|datapath| Mutex::new(Steering::new(datapath, settings.drain, settings.unknown_names))),
            vips: Mutex::new(Vips::new(settings.tracking, settings.arp, settings.drain, Instant::now())),
            syn_hold: settings.syn_hold.map(|time| Mutex::new(SynHold::new(time, Instant::now()))),
            released: Once::new(),
            relieved: Once::new(),
            pin_dir: settings.pin_dir.clone(),
            locks: Mutex::new(settings.locks.clone()),
            everywhere: settings.everywhere,
            shared: Mutex::default(),
            served: Mutex::default(),
            description,
            without_programs,
            believed: options.believed,
            interfaces: settings.interfaces.clone(),
            name_interfaces: settings.name_interfaces.clone(),
        })
    }

    /// `ebpf` with what is attached, or `userspace` with the reason why not better.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns `true` if the kernel programs steer connections.
    pub fn is_steered(&self) -> bool {
        self.steering.is_some()
    }

    /// The reason why connections are served from ordinary sockets, as metrics have it; `None`
    /// where the kernel programs steer them.
    pub fn without_programs(&self) -> Option<&'static str> {
        self.without_programs
    }

    /// The interfaces that have the packet guard; none without the kernel programs.
    pub fn guard_coverage(&self) -> Coverage {
        match &self.steering {
            Some(steering) => lock(steering).datapath.guard_coverage(),
            None => self.without_programs_on(&self.interfaces),
        }
    }

    /// The interfaces on which names are read; none without the kernel programs.
    pub fn name_coverage(&self) -> Coverage {
        match &self.steering {
            Some(steering) => lock(steering).datapath.name_coverage(),
            None => self.without_programs_on(&self.name_interfaces),
        }
    }

    fn without_programs_on(&self, wanted: &Interfaces) -> Coverage {
        Coverage::without_programs(wanted, self.without_programs.unwrap_or_default())
    }

    /// Returns `true` if names are read on some interface, or will be when it comes.
    pub fn reads_names(&self) -> bool {
        self.steering.as_ref().is_some_and(|steering| lock(steering).datapath.reads_names())
    }

    /// The earliest places on this node at which the terms of a listener hold, which has the name
    /// among those of the frontend's port.
    pub fn enforcement(&self, frontend: &FrontendKey, name: &HostPattern) -> Enforcement {
        match &self.steering {
            Some(steering) => lock(steering).datapath.enforcement(frontend, name),
            None => Enforcement::USER_SPACE,
        }
    }

    /// Connections that the kernel let in and refused, by whose budget they were taken from; empty
    /// where names are not read.
    pub fn budgets(&self) -> Vec<(BudgetOwner, BudgetUse)> {
        let steering = self.steering.as_ref().map(lock);
        let budgets = steering.iter().flat_map(|steering| steering.datapath.budgets());
        budgets
            .map(|(owner, Bucket { taken, refused, .. })| (owner.clone(), BudgetUse { taken, refused }))
            .collect()
    }

    /// The number of cores that can serve: the kernel programs have room for the sockets of so
    /// many, and more than that would get no connections.
    pub fn usable_cores(&self, cores: usize) -> usize {
        let most = MAX_CORES as usize;
        if self.is_steered() && cores > most {
            tracing::warn!("{most} cores serve traffic, not {cores}: connections cannot be steered to more");
            return most;
        }
        cores
    }

    /// The kinds of sockets that the cores need for connections to be steered to them. A connection
    /// waits in the kernel until its client has spoken where clients do so first; but not where the
    /// reader of names would not believe a hello of one that has only begun, as those that wait.
    pub fn socket_kinds(&self) -> &'static [SpeaksFirst] {
        match self.believed {
            Believed::OfOpenConnections => &[SpeaksFirst::Either],
            Believed::OfConnections | Believed::All => &[SpeaksFirst::Either, SpeaksFirst::Client],
        }
    }

    /// Gives the cores' listening sockets to the steering program; without it there is nothing to
    /// do.
    ///
    /// # Errors
    /// When the maps cannot be written.
    pub fn set_sockets(&self, cores: &[CoreSockets<'_>]) -> Result<(), Error> {
        match &self.steering {
            Some(steering) => lock(steering).datapath.set_sockets(cores),
            None => Ok(()),
        }
    }

    /// To be called when another agent has served since this one opened its programs, or last
    /// served: nothing is assumed to be as this one left it.
    ///
    /// # Errors
    /// When the maps cannot be read.
    pub fn reread(&self) -> Result<(), Error> {
        lock(&self.vips).doubt(Instant::now());
        if let Some(hold) = &self.syn_hold {
            lock(hold).doubt();
        }
        if let Ok(forwarding) = &self.forwarding {
            lock(forwarding).reread()?;
        }
        match &self.steering {
            Some(steering) => lock(steering).datapath.reread(),
            None => Ok(()),
        }
    }

    /// The locks of directories, for an agent that takes over.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn locks(&self) -> io::Result<Vec<OwnedFd>> {
        let Some(steering) = &self.steering else { return Ok(Vec::new()) };
        lock(steering).datapath.locks().map(|held| Ok(held.try_clone()?.into())).collect()
    }

    /// These listening sockets are of an agent before this one, and not in the way of frontends
    /// that they are bound to.
    pub fn inherit<'f>(&self, bound: impl Iterator<Item = BorrowedFd<'f>>) {
        let inodes = bound.filter_map(|socket| Some(rustix::fs::fstat(socket).ok()?.st_ino));
        *lock(&self.inherited) = inodes.collect();
    }

    /// Gives the locks of directories up: another agent has them, and may end before this one.
    pub fn release_locks(&self) {
        *lock(&self.locks) = Arc::default();
        if let Some(steering) = &self.steering {
            lock(steering).datapath.unlock();
        }
    }

    /// Takes the programs of earlier agents out of the way, once this one serves and no other:
    /// until then another one may have to go on with them.
    pub fn relieve_predecessors(&self) {
        self.relieved.call_once(|| {
            if let (Some(steering), Err(_)) = (&self.steering, &self.forwarding) {
                let ending = Ending::begin(&lock(steering).datapath, self.drain, Instant::now());
                *lock(&self.ending) = ending;
            }
            let locks = std::mem::take(&mut *lock(&self.locks));
            let result = match &self.steering {
                Some(steering) => lock(steering).datapath.relieve_predecessors(),
                None => return detach_predecessors(&self.pin_dir, &locks),
            };
            if let Err(error) = result {
                tracing::warn!("programs of an earlier version stay at work: {error}");
            }
        });
    }

    /// The frontends that are to be served for those on all addresses, where these are not just
    /// all that are local.
    pub fn spread<'f>(&self, wanted: impl Iterator<Item = &'f FrontendKey>) -> Spread {
        let everywhere: Vec<_> = wanted.filter(|frontend| frontend.address.is_unspecified()).collect();
        if self.everywhere == Everywhere::All || everywhere.is_empty() {
            lock(&self.shared).addresses.clear();
            return Spread::default();
        }
        match addresses::outward() {
            Ok(addresses) => {
                let spread = Spread::over(&addresses, &everywhere);
                lock(&self.shared).addresses = addresses;
                spread
            }
            Err(error) => Spread::refused(&everywhere, &error.to_string()),
        }
    }

    /// Makes the frontends' addresses local; to be done before anything is bound to them. Returns
    /// the frontends to which nothing may be bound: those without address, and those on which
    /// another process listens. `shared` are the addresses that Services of others have, too.
    pub fn prepare(&self, wanted: &BTreeSet<FrontendKey>, shared: &BTreeSet<IpAddr>) -> RefusedFrontends {
        let addresses = lock(&self.shared).addresses.clone();
        // The node's own are not ours to add, even if the node has lost one meanwhile.
        let own = wanted.iter().filter(|frontend| !addresses.contains(&frontend.address)).copied();
        let mut refused = lock(&self.vips).add(&own.collect(), shared, Instant::now());
        refused.extend(match &self.steering {
            Some(_) => lock(&self.bound).taken_by_others(&self.on_sockets(wanted)),
            None => self.taken(wanted),
        });
        refused
    }

    /// Those of the frontends that are served from ordinary sockets.
    fn on_sockets(&self, frontends: &BTreeSet<FrontendKey>) -> BTreeSet<FrontendKey> {
        let is_steered = |frontend: &FrontendKey| self.is_steered() && frontend.is_tcp();
        frontends.iter().filter(|frontend| !is_steered(frontend)).copied().collect()
    }

    /// The frontends on which another process listens: of those that are steered the ones on shared
    /// addresses, of the others all. Remembers what to look at again.
    fn taken(&self, wanted: &BTreeSet<FrontendKey>) -> RefusedFrontends {
        let mut shared = lock(&self.shared);
        let vips = lock(&self.vips);
        let is_shared = |address: &IpAddr| {
            address.is_unspecified() || shared.addresses.contains(address) || vips.is_nodes(address)
        };
        let frontends: BTreeSet<_> = wanted.iter().filter(|it| is_shared(&it.address)).copied().collect();
        let mut taken = lock(&self.bound).taken_by_others(&self.on_sockets(wanted));
        if self.is_steered() {
            taken.extend(ports::taken(&frontends, &lock(&self.inherited)));
        }
        shared.taken = frontends.iter().filter(|frontend| taken.contains_key(frontend)).copied().collect();
        shared.frontends = frontends;
        taken
    }

    /// Steers connections to these frontends, and to no others, once the proxy serves them; then
    /// takes away addresses that are not wanted any more. Returns the frontends that are not
    /// steered.
    pub fn serve(&self, wanted: impl Into<Wanted>) -> RefusedFrontends {
        let now = Instant::now();
        let served = wanted.into();
        let mut wanted = served.frontends.clone();
        let refused = match &self.steering {
            Some(steering) => {
                let taken = self.taken(&wanted);
                lock(steering).apply(served, taken, &lock(&self.vips), now)
            }
            None => BTreeMap::new(),
        };
        lock(&self.vips).remove_others(now);
        lock(&self.served).clone_from(&wanted);
        match &self.syn_hold {
            Some(hold) => {
                // What other processes have is theirs, with an agent and without.
                let taken = lock(&self.shared).taken.clone();
                wanted.retain(|frontend| !refused.contains_key(frontend) && !taken.contains(frontend));
                lock(hold).serve(&wanted);
            }
            None => self.released.call_once(release),
        }
        refused
    }

    /// Forwards new connections and datagrams of these tables in the kernel, and no others. To be
    /// called when user space serves all that is wanted: it serves what is not forwarded. Returns
    /// the frontends for which the kernel has no room.
    pub fn forward(&self, tables: Vec<ForwardTable>, listeners: &L4Frontends) -> BTreeSet<FrontendKey> {
        match &self.forwarding {
            Ok(forwarding) => lock(forwarding).apply(tables, listeners, Instant::now()),
            Err(_) => BTreeSet::new(),
        }
    }

    /// The state of forwarding in the kernel, or why there is none.
    ///
    /// # Errors
    /// Where nothing is forwarded in the kernel.
    pub fn forwarding(&self) -> Result<ForwardingReport, NotForwarding> {
        self.forwarding.as_ref().map(|forwarding| lock(forwarding).report()).map_err(Clone::clone)
    }

    /// Says what keeps the kernel from forwarding anything new.
    ///
    /// # Errors
    /// Where it cannot, or programs of others are in the way.
    pub fn check_forwarding(&self) -> Result<(), NotForwarding> {
        match &self.forwarding {
            Ok(forwarding) => lock(forwarding).check(),
            Err(reason) => Err(reason.clone()),
        }
    }

    /// Has new connections wait for the next agent, while those that are open end.
    pub fn stop_serving(&self) {
        if let Some(hold) = &self.syn_hold {
            lock(hold).stop();
        }
    }

    /// True while a client has begun a TCP handshake with a frontend, and not completed it; false
    /// where the kernel does not tell.
    pub fn is_being_connected(&self) -> bool {
        let handshakes = sockets::handshakes().unwrap_or_default();
        let served = lock(&self.served);
        handshakes.into_iter().any(|local| {
            let everywhere = match local {
                SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
                SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            };
            let everywhere = SocketAddr::new(everywhere, local.port());
            [local, everywhere].into_iter().any(|address| served.contains(&FrontendKey::tcp(address)))
        })
    }

    /// Ends what has had its time to drain, and holds addresses and rules against programs that
    /// flush them. To be called every [`Node::TEND_INTERVAL`].
    pub fn tend(&self) -> Tended {
        let now = Instant::now();
        lock(&self.vips).tend(now);
        if let Some(steering) = &self.steering {
            lock(steering).settle(&lock(&self.vips), now);
        }
        if let Some(hold) = &self.syn_hold {
            lock(hold).tend(now);
        }
        let is_to_be_sorted = match &self.forwarding {
            Ok(forwarding) => lock(forwarding).tend(now),
            Err(_) => {
                lock(&self.ending).take_if(|ending| ending.tend(now));
                false
            }
        };
        if is_to_be_sorted || self.is_disturbed() { Tended::Disturbed } else { Tended::Undisturbed }
    }

    /// The kernel programs would take every connection from a process that begins to listen.
    fn is_disturbed(&self) -> bool {
        let shared = lock(&self.shared);
        if shared.frontends.is_empty() {
            return false;
        }
        let on_sockets = self.on_sockets(&shared.frontends);
        let mut taken: BTreeSet<_> = lock(&self.bound).holders(&on_sockets).into_keys().collect();
        if self.is_steered() {
            taken.extend(ports::taken(&shared.frontends, &lock(&self.inherited)).into_keys());
        }
        let is_spread = !shared.addresses.is_empty();
        taken != shared.taken || is_spread && addresses::outward().is_ok_and(|now| now != shared.addresses)
    }

    /// Packets and connections by the kernel programs' verdict; empty without them.
    pub fn counters(&self) -> Vec<(Reason, u64)> {
        let counters = self.steering.as_ref().map(|steering| lock(steering).datapath.counters());
        counters.and_then(Result::ok).unwrap_or_default()
    }

    /// The kernel programs' log, once, if there is anything to log.
    pub fn kernel_log(&self) -> Option<KernelLog> {
        let steering = self.steering.as_ref().filter(|_| log_level().is_some())?;
        lock(steering).datapath.kernel_log()
    }
}

/// Programs of an earlier agent refuse the frontends they know, and drop packets to others: nothing
/// would update them.
fn detach_predecessors(pin_dir: &Path, locks: &[File]) {
    let detached = detach_beside(pin_dir, locks);
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

/// An earlier agent, with other settings, holds connections for one that says it serves.
fn release() {
    if let Err(error) = syn_hold::remove() {
        tracing::debug!("a hold of an earlier agent, if there is one, ends by itself: {error}");
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use portcullis_model::PortKey;

    use super::*;

    fn without_programs() -> Node {
        let settings = Settings {
            steering: Choice::Sockets,
            pin_dir: "/nonexistent".into(),
            interfaces: Interfaces::None,
            name_interfaces: Interfaces::None,
            unknown_names: None,
            tracking: Tracking::On,
            arp: Arp::Untouched,
            syn_hold: None,
            everywhere: Everywhere::All,
            forwarding: None,
            drain: Duration::ZERO,
            locks: Arc::default(),
        };
        Node::open(&settings).unwrap()
    }

    #[test]
    fn without_programs_everything_is_left_to_ordinary_sockets() {
        let node = without_programs();
        assert_eq!(node.description(), "userspace (ordinary sockets), as asked for");
        assert_eq!(node.without_programs(), Some("asked-for"));
        assert!(!node.is_steered() && node.counters().is_empty() && node.kernel_log().is_none());
        assert_eq!(node.usable_cores(300), 300, "sockets have room for any number of cores");
        node.set_sockets(&[]).unwrap();
        let frontend = FrontendKey::new([0; 4].into(), PortKey::tcp(80));
        assert!(node.prepare(&BTreeSet::from([frontend]), &BTreeSet::new()).is_empty());
        assert!(node.serve(BTreeSet::from([frontend])).is_empty(), "binding it is the proxy's part");
    }
}
