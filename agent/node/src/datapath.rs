//! The kernel programs at work: opened once, given sockets and contents, and left to the next
//! agent. It knows nothing of VIPs on loopback or of draining.

use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use aya_log::Level;
use portcullis_common::abi::{Bucket, ListenerTerms, MAX_HELLOS, NO_GROUP, group_and_clients};
use portcullis_common::reason::Reason;
use portcullis_model::{BudgetOwner, FrontendKey, HostPattern, SpeaksFirst};

use crate::deferral::defer_accept;
use crate::enforcement::{EnforcedAt, Enforcement};
use crate::error::{Error, Unavailable};
use crate::plan::admission::Owners;
use crate::plan::desired::{Desired, Sharing, Sought, flags, group};
use crate::plan::key::{address, key};
use crate::plan::names::NameKey;
use crate::plan::{Contents, Incomplete, Op, plan};
use crate::programs::attach::{self, Attachment, Coverage, Unguarded};
use crate::programs::guards::{self, Guards, Hook};
use crate::programs::interfaces::Interfaces;
use crate::programs::kernel::{Believed, Kernel, KernelLog, Passage};
use crate::programs::maps::{self, CoreSockets, Maps};
use crate::programs::pins::{DEFAULT_PIN_DIR, Found, Pins};
use crate::programs::probe::probe;

/// Options for opening the datapath.
#[derive(Clone, Debug)]
pub struct Options {
    /// The base of the pin directory; must be on a BPF file system.
    pub pin_dir: PathBuf,
    pub interfaces: Interfaces,
    /// Interfaces on which the server names of ClientHellos are read.
    pub name_interfaces: Interfaces,
    pub believed: Believed,
    /// The most verbose level the kernel programs log at; `None` is silent.
    pub log: Option<Level>,
    /// Of directories, by an agent that hands over to this one.
    pub locks: Arc<[File]>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pin_dir: DEFAULT_PIN_DIR.into(),
            interfaces: Interfaces::default(),
            name_interfaces: Interfaces::default(),
            believed: Believed::default(),
            log: None,
            locks: Arc::default(),
        }
    }
}

/// The programs at work in this network namespace. Dropping it leaves them there: traffic goes on
/// until the next agent adopts them, or [`Datapath::remove`].
pub struct Datapath {
    kernel: Kernel,
    maps: Maps,
    pins: Pins,
    /// The contents of the maps; this is their only writer.
    contents: Contents,
    owners: Owners,
    steering: Attachment,
    guards: Guards,
    name_readers: Guards,
    /// Steering of agents whose maps this one cannot use; it goes once this one serves.
    predecessors: Vec<Pins>,
}

impl Datapath {
    /// Loads, attaches or adopts, and pins everything. Maps that an earlier agent pinned keep their
    /// contents, so connections are steered and guarded as before until the first
    /// [`Datapath::apply`].
    pub fn open(options: &Options) -> Result<Self, Unavailable> {
        probe(&options.pin_dir).check()?;
        let Found { ours: pins, others: predecessors } =
            Pins::open(&options.pin_dir, &options.locks, maps::fit)?;
        let hellos = match options.name_interfaces {
            Interfaces::None => 1,
            _ => MAX_HELLOS,
        };
        let mut kernel = Kernel::load(Some(&pins), options.log, hellos, options.believed)?;
        let maps = Maps::take(&mut kernel.0)?;
        let contents = maps.contents().map_err(|error| Unavailable::Object(error.to_string()))?;
        let steering = attach::steer(&mut kernel, &pins)?;
        // An interface has room for one guard, a namespace for many steering programs.
        // A hello is counted once.
        for (pins, hook) in predecessors.iter().flat_map(|pins| [(pins, Hook::Guard), (pins, Hook::Names)]) {
            guards::remove_others(pins, hook, &[]);
        }
        let guards = Guards::new(Hook::Guard, options.interfaces.clone());
        let name_readers = Guards::new(Hook::Names, options.name_interfaces.clone());
        let mut datapath = Self {
            kernel,
            maps,
            pins,
            contents,
            owners: Owners::new(),
            steering,
            guards,
            name_readers,
            predecessors,
        };
        datapath.renew_guards();
        Ok(datapath)
    }

    /// Reads the contents of the maps again: an agent before this one has written them since.
    pub(crate) fn reread(&mut self) -> Result<(), Error> {
        self.contents = self.maps.contents()?;
        Ok(())
    }

    /// The pin directory, for programs that are loaded by themselves.
    pub(crate) fn place(&self) -> Pins {
        self.pins.place()
    }

    /// Those of agents whose maps this one cannot use, until this one serves.
    pub(crate) fn predecessors(&self) -> &[Pins] {
        &self.predecessors
    }

    /// The locks of all pin directories that are in use here.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &File> {
        std::iter::once(&self.pins).chain(&self.predecessors).filter_map(Pins::held)
    }

    /// The programs at work, and how they came there.
    pub fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        std::iter::once(&self.steering).chain(self.guards.attached()).chain(self.name_readers.attached())
    }

    /// Interfaces that should have the packet guard, and have not.
    pub fn unguarded(&self) -> &[Unguarded] {
        self.guards.unguarded()
    }

    /// Interfaces on which names should be read, and are not.
    pub fn without_name_reader(&self) -> &[Unguarded] {
        self.name_readers.unguarded()
    }

    pub fn guard_coverage(&self) -> Coverage {
        self.guards.coverage()
    }

    pub fn name_coverage(&self) -> Coverage {
        self.name_readers.coverage()
    }

    /// Puts the packet guard, and the reader of names, where it should be and could not be put
    /// before, and takes it away where it should not be.
    pub fn renew_guards(&mut self) {
        self.guards.renew(&mut self.kernel, &self.pins);
        self.name_readers.renew(&mut self.kernel, &self.pins);
    }

    /// Gives the listening sockets of all cores to the steering program, in place of any it had.
    /// The sockets stay the caller's: a closed socket leaves the map by itself. Those for clients
    /// that speak first keep a connection in the kernel until its client has.
    pub fn set_sockets(&mut self, cores: &[CoreSockets<'_>]) -> Result<(), Error> {
        for speaks_first in [SpeaksFirst::Either, SpeaksFirst::Client] {
            let cores: Vec<_> =
                cores.iter().filter(|core| core.speaks_first == speaks_first).copied().collect();
            if speaks_first == SpeaksFirst::Client {
                let mut sockets = cores.iter().flat_map(|core| [core.v4, core.v6]).flatten();
                sockets.try_for_each(defer_accept).map_err(Error::Defer)?;
            }
            self.maps.set_sockets(group(speaks_first), &cores)?;
        }
        Ok(())
    }

    /// Makes the maps hold what is desired and returns what had to be written. An error keeps
    /// nothing else from being written: a map that is full is full for what is new only, and what
    /// could be written in part only is referred to by nothing. Give the sockets first: what is
    /// desired is served from the moment it is written.
    pub fn apply(&mut self, desired: &Desired) -> Result<Vec<Op>, Error> {
        let (ops, outcome) = self.approach(desired);
        if outcome.is_ok() {
            return Ok(ops);
        }
        // What goes came last, and made room.
        let (more, outcome) = self.approach(desired);
        outcome.map(|()| [ops, more].concat())
    }

    /// Writes what can be written, and returns the first error.
    fn approach(&mut self, desired: &Desired) -> (Vec<Op>, Result<(), Error>) {
        let Sought { contents, owners, lists_left_out } = desired.contents(&self.contents, &self.owners);
        self.owners = owners;
        let mut outcome = match lists_left_out {
            0 => Ok(()),
            lists => Err(Error::NoRoomForClients { lists }),
        };
        let (mut written, mut incomplete) = (Vec::new(), Incomplete::default());
        for op in plan(&self.contents, &contents) {
            let Some(op) = incomplete.allow(op) else { continue };
            let Err(error) = self.execute(op) else {
                written.push(op);
                continue;
            };
            outcome = outcome.and(Err(error));
            for instead in incomplete.replace(op, &self.contents) {
                outcome = outcome.and(self.execute(instead));
            }
        }
        for op in incomplete.remainders(&self.contents) {
            outcome = outcome.and(self.execute(op));
        }
        (written, outcome)
    }

    /// Removes the programs of agents whose maps this one cannot use. To be called after
    /// [`Datapath::apply`], when no such agent may have to serve any more.
    pub fn relieve_predecessors(&mut self) -> Result<(), Error> {
        self.predecessors.drain(..).try_for_each(|pins| pins.remove())
    }

    /// Gives the locks of all pin directories up.
    pub(crate) fn unlock(&mut self) {
        std::iter::once(&mut self.pins).chain(&mut self.predecessors).for_each(Pins::unlock);
    }

    fn execute(&mut self, op: Op) -> Result<(), Error> {
        self.maps.execute(op)?;
        self.contents.apply(op);
        Ok(())
    }

    /// Returns `true` if connections to the frontend are steered.
    pub fn steers(&self, frontend: &FrontendKey) -> bool {
        let value = self.contents.frontends.get(&key(frontend));
        value.is_some_and(|value| group_and_clients(*value).0 != NO_GROUP)
    }

    /// Returns `true` if the maps know the VIPs as they are.
    pub(crate) fn holds(&self, vips: impl Iterator<Item = (IpAddr, Sharing)>) -> bool {
        let known = &self.contents.vips;
        let mut held = 0;
        for (vip, sharing) in vips.filter(|(vip, _)| !vip.is_unspecified()) {
            if known.get(&address(vip)) != Some(&flags(sharing)) {
                return false;
            }
            held += 1;
        }
        held == known.len()
    }

    /// Connections that each budget let in, and those that it did not, where the kernel counts
    /// them; numbers begin anew with the agent.
    pub fn budgets(&self) -> impl Iterator<Item = (&BudgetOwner, Bucket)> {
        self.owners.iter().filter_map(|(owner, number)| Some((owner, self.maps.bucket(*number)?)))
    }

    /// The earliest places at which the terms of a listener hold: by the maps as they are.
    pub fn enforcement(&self, frontend: &FrontendKey, name: &HostPattern) -> Enforcement {
        let value = self.contents.frontends.get(&key(frontend)).copied().unwrap_or_default();
        let terms = self.listener_terms(frontend, name);
        let on = |guards: &Guards| guards.attached().map(|it| it.target.clone()).collect::<Vec<_>>();
        let (guarded, read) = (on(&self.guards), on(&self.name_readers));
        let by_name = |holds: bool| {
            if holds && !read.is_empty() { EnforcedAt::Tc(read.clone()) } else { EnforcedAt::Accept }
        };
        let port_clients = match group_and_clients(value) {
            (_, 0) => EnforcedAt::Accept,
            _ if guarded.is_empty() => EnforcedAt::SkLookup,
            _ => EnforcedAt::Xdp(guarded),
        };
        let clients = by_name(terms.clients != 0);
        Enforcement { port_clients, clients, budgets: by_name(terms.budgets != [0; 3]) }
    }

    fn listener_terms(&self, frontend: &FrontendKey, name: &HostPattern) -> ListenerTerms {
        let found = || {
            let table = u16::try_from(*self.contents.name_tables.get(&key(frontend))?).ok()?;
            let listener = self.contents.names.get(&NameKey::new(table, name)?)?;
            self.contents.listeners.get(listener).copied()
        };
        found().unwrap_or_default()
    }

    /// The contents of the maps.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Counts of each reason since the maps were made; they outlive the agent.
    pub fn counters(&self) -> Result<Vec<(Reason, u64)>, Error> {
        self.maps.counters()
    }

    /// Runs the loaded packet guard on one Ethernet frame, as the interface would, counters
    /// included.
    pub fn run_guard(&mut self, frame: &[u8]) -> Result<Passage, Unavailable> {
        self.kernel.run_guard(frame)
    }

    /// Runs the reader of names on one Ethernet frame, as the interface would, counters included,
    /// and returns what the stack gets.
    pub fn run_names(&mut self, frame: &[u8]) -> Result<Vec<u8>, Unavailable> {
        self.kernel.run_names(frame)
    }

    /// Returns `true` if names are to be read on any interface.
    pub fn reads_names(&self) -> bool {
        self.name_readers.are_wanted()
    }

    /// The kernel programs' log, once.
    pub fn kernel_log(&mut self) -> Option<KernelLog> {
        self.kernel.log()
    }

    /// Detaches everything and removes every pin of this network namespace.
    pub fn remove(self) -> Result<(), Error> {
        self.pins.remove()
    }
}
