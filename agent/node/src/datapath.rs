//! The kernel programs at work: opened once, given sockets and contents, and left to the next
//! agent. It knows nothing of VIPs on loopback or of draining.

use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use aya_log::Level;
use portcullis_common::reason::Reason;
use portcullis_model::FrontendKey;

use crate::error::{Error, Unavailable};
use crate::plan::desired::{Desired, GROUP, Sharing, flags};
use crate::plan::key::{address, key};
use crate::plan::{Contents, Op, plan};
use crate::programs::attach::{self, Attachment, Unguarded};
use crate::programs::guards::{self, Guards, Hook};
use crate::programs::interfaces::Interfaces;
use crate::programs::kernel::{Kernel, KernelLog, Passage};
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
        let mut kernel = Kernel::load(&pins, options.log)?;
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
        let mut datapath =
            Self { kernel, maps, pins, contents, steering, guards, name_readers, predecessors };
        datapath.renew_guards();
        Ok(datapath)
    }

    /// Reads the contents of the maps again: an agent before this one has written them since.
    pub(crate) fn reread(&mut self) -> Result<(), Error> {
        self.contents = self.maps.contents()?;
        Ok(())
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

    /// Puts the packet guard, and the reader of names, where it should be and could not be put
    /// before, and takes it away where it should not be.
    pub fn renew_guards(&mut self) {
        self.guards.renew(&mut self.kernel, &self.pins);
        self.name_readers.renew(&mut self.kernel, &self.pins);
    }

    /// Gives the listening sockets of all cores to the steering program, in place of any it had.
    /// The sockets stay the caller's: a closed socket leaves the map by itself.
    pub fn set_sockets(&mut self, cores: &[CoreSockets<'_>]) -> Result<(), Error> {
        self.maps.set_sockets(GROUP, cores)
    }

    /// Makes the maps hold what is desired and returns what had to be written. An error keeps
    /// nothing else from being written: a map that is full is full for what is new only. Give the
    /// sockets first: what is desired is served from the moment it is written.
    pub fn apply(&mut self, desired: &Desired) -> Result<Vec<Op>, Error> {
        let ops = plan(&self.contents, &desired.contents(&self.contents));
        let unwritten: Vec<_> = ops.iter().copied().filter(|op| self.execute(*op).is_err()).collect();
        // What goes comes last, and makes room.
        let failed = unwritten.into_iter().filter_map(|op| self.execute(op).err());
        match failed.reduce(|first, _| first) {
            Some(error) => Err(error),
            None => Ok(ops),
        }
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
        self.contents.frontends.get(&key(frontend)) == Some(&GROUP)
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

    /// Runs the reader of names on one Ethernet frame, as the interface would, counters included.
    pub fn run_names(&mut self, frame: &[u8]) -> Result<(), Unavailable> {
        self.kernel.run_names(frame)
    }

    /// Instructions of the reader of names that the kernel went through to verify it; `None` where
    /// it does not say.
    pub fn verified_instructions(&mut self) -> Result<Option<u32>, Unavailable> {
        self.kernel.verified_instructions()
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
