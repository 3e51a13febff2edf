//! The node as the agent uses it: addresses before the proxy binds its sockets, kernel programs
//! once it serves, and the chores that recur while nothing changes. It knows frontends, not
//! listeners or routes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portcullis_common::abi::MAX_CORES;
use portcullis_common::reason::Reason;
use portcullis_model::FrontendKey;

use crate::cleanup::detach;
use crate::datapath::{Datapath, Options};
use crate::error::{Error, Refused, Unavailable};
use crate::ports::Bound;
use crate::programs::interfaces::Interfaces;
use crate::programs::kernel::{KernelLog, log_level};
use crate::programs::maps::CoreSockets;
use crate::steering::Steering;
use crate::vips::{Tracking, Vips};

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    pub steering: Choice,
    /// As [`Options::pin_dir`].
    pub pin_dir: PathBuf,
    /// Interfaces that the packet guard is attached to.
    pub interfaces: Interfaces,
    pub tracking: Tracking,
    /// Time for open connections to end where nothing is served any more.
    pub drain: Duration,
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
    /// Used without steering.
    bound: Mutex<Bound>,
    vips: Mutex<Vips>,
    description: String,
}

impl Node {
    /// Time between calls of [`Node::tend`].
    pub const TEND_INTERVAL: Duration = Duration::from_secs(1);

    /// Opens the kernel programs if they are wanted and possible; else takes those of earlier
    /// agents away. Maps keep their contents until the first [`Node::serve`].
    ///
    /// # Errors
    /// When only the kernel programs will do, and they are not possible; or another agent uses
    /// them.
    pub fn open(settings: &Settings) -> Result<Self, Unavailable> {
        let options = Options {
            pin_dir: settings.pin_dir.clone(),
            interfaces: settings.interfaces.clone(),
            log: log_level(),
        };
        let opened = match settings.steering {
            Choice::Sockets => Err("as asked for".to_owned()),
            Choice::Programs => Ok(Datapath::open(&options)?),
            Choice::Auto => match Datapath::open(&options) {
                // Ordinary sockets would get no connections beside its programs.
                Err(in_use @ Unavailable::InUse { .. }) => return Err(in_use),
                opened => opened.map_err(|error| format!("because ebpf is not possible: {error}")),
            },
        };
        let (datapath, description) = match opened {
            Ok(datapath) => {
                let attached = datapath.attachments().iter().map(ToString::to_string);
                let unguarded = datapath.unguarded().iter();
                let missing = unguarded.map(|it| format!("no guard on {}: {}", it.interface, it.reason));
                let description = attached.chain(missing).collect::<Vec<_>>().join(", ");
                (Some(datapath), format!("ebpf: {description}"))
            }
            Err(reason) => {
                detach_predecessors(&options.pin_dir);
                (None, format!("userspace (ordinary sockets), {reason}"))
            }
        };
        Ok(Self {
            bound: Mutex::default(),
            steering: datapath.map(|datapath| Mutex::new(Steering::new(datapath, settings.drain))),
            vips: Mutex::new(Vips::new(settings.tracking, settings.drain, Instant::now())),
            description,
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

    /// Interfaces that should have the packet guard, and have not.
    pub fn unguarded(&self) -> Vec<String> {
        let steering = self.steering.as_ref().map(lock);
        let unguarded = steering.iter().flat_map(|steering| steering.datapath.unguarded());
        unguarded.map(|unguarded| unguarded.interface.clone()).collect()
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

    /// Makes the frontends' addresses local; to be done before anything is bound to them. Returns
    /// the frontends to which nothing may be bound: those without address, and those on which
    /// another process listens.
    pub fn prepare(&self, wanted: &BTreeSet<FrontendKey>) -> Refused {
        let mut refused = lock(&self.vips).add(wanted, Instant::now());
        if !self.is_steered() {
            refused.extend(lock(&self.bound).taken_by_others(wanted));
        }
        refused
    }

    /// Steers connections to these frontends, and to no others, once the proxy serves them; then
    /// takes away addresses that are not wanted any more. Returns the frontends that are not
    /// steered.
    pub fn serve(&self, wanted: BTreeSet<FrontendKey>) -> Refused {
        let now = Instant::now();
        let refused = match &self.steering {
            Some(steering) => lock(steering).apply(wanted, &lock(&self.vips), now),
            None => BTreeMap::new(),
        };
        lock(&self.vips).remove_others(now);
        refused
    }

    /// Ends what has had its time to drain, and holds addresses and rules against programs that
    /// flush them. To be called every [`Node::TEND_INTERVAL`].
    pub fn tend(&self) {
        let now = Instant::now();
        if let Some(steering) = &self.steering {
            lock(steering).settle(&lock(&self.vips), now);
        }
        lock(&self.vips).tend(now);
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
fn detach_predecessors(pin_dir: &Path) {
    let detached = detach(pin_dir);
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
            tracking: Tracking::On,
            drain: Duration::ZERO,
        };
        Node::open(&settings).unwrap()
    }

    #[test]
    fn without_programs_everything_is_left_to_ordinary_sockets() {
        let node = without_programs();
        assert_eq!(node.description(), "userspace (ordinary sockets), as asked for");
        assert!(!node.is_steered() && node.counters().is_empty() && node.kernel_log().is_none());
        assert_eq!(node.usable_cores(300), 300, "sockets have room for any number of cores");
        node.set_sockets(&[]).unwrap();
        let frontend = FrontendKey::new([0; 4].into(), PortKey::tcp(80));
        assert!(node.prepare(&BTreeSet::from([frontend])).is_empty());
        assert!(node.serve(BTreeSet::from([frontend])).is_empty(), "binding it is the proxy's part");
    }
}
