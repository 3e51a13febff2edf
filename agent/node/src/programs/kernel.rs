//! The loaded programs: the embedded object, its load-time constant, and its log.

use std::path::Path;
use std::time::Duration;

use aya::programs::{ProgramError, ProgramType, SchedClassifier, SkLookup, TestRun, TestRunOptions, Xdp};
use aya::sys::{BpfHelper, is_helper_supported};
use aya::{Ebpf, EbpfLoader};
use aya_log::{EbpfLogger, Level};
use portcullis_common::abi::{
    ACCEPT_QUEUE, AcceptQueue, BUCKETS, BUDGETS, CLIENTS, CONNECTION_FIELDS, COUNTERS, ConnectionFields,
    FRONTENDS, GROUPS, GUARD, HELLOS, LISTENERS, NAME_TABLES, NAMES, READ_NAMES, SOCKETS, STEER, VIPS,
};
use portcullis_common::flow::{FORWARD_IN, FORWARD_MAPS, FORWARD_OUT};

use crate::error::Unavailable;
use crate::programs::btf;
use crate::programs::object::OBJECT;
use crate::programs::pins::{DEFAULT_PIN_DIR, Pins};
use crate::programs::probe::{kernel_release, probe};

const PINNED_MAPS: &[&str] =
    &[FRONTENDS, VIPS, GROUPS, SOCKETS, COUNTERS, NAME_TABLES, NAMES, LISTENERS, BUDGETS, BUCKETS, CLIENTS];

/// The packet guard's action on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    Passed,
    Dropped,
}

/// The ClientHellos that are taken for those of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Believed {
    /// Of connections that this node has, with their numbers: others may be forged.
    #[default]
    OfConnections,
    /// The same, but of connections that are open only: numbers of those that have only begun are
    /// read by a helper that a kernel which is locked down refuses.
    OfOpenConnections,
    /// Frames that are run by themselves are of none.
    All,
}

impl Believed {
    /// As many as the running kernel lets the programs ask for.
    pub(crate) fn by_this_kernel() -> Self {
        let (program, helper) = (ProgramType::SchedClassifier, BpfHelper::BPF_FUNC_probe_read_kernel);
        match is_helper_supported(program, helper) {
            Ok(false) => {
                tracing::warn!(
                    "the kernel lets its memory not be read (lockdown: confidentiality): ClientHellos that complete a \
                     handshake are left to user space, which holds to the same terms at a higher price"
                );
                Self::OfOpenConnections
            }
            // Whatever else is wrong, loading tells.
            Ok(true) | Err(_) => Self::OfConnections,
        }
    }
}

/// As many instructions as the verifier may go through for a program: a twentieth of what it puts
/// up with, so that other kernels, whose verifiers go other ways, accept it, too.
pub const MOST_VERIFIED: u32 = 50_000;

/// Instructions of each kernel program that this kernel goes through to verify it; `None` where it
/// does not say. Nothing is attached or pinned.
///
/// # Errors
/// When the programs cannot be loaded.
pub fn verified_instructions() -> Result<Vec<(&'static str, Option<u32>)>, Unavailable> {
    probe(Path::new(DEFAULT_PIN_DIR)).check()?;
    Kernel::load(None, None, 1, Believed::OfConnections)?.verified_instructions()
}

/// Target of the kernel programs' log lines: their crate.
const LOG_TARGET: &str = "portcullis_ebpf";

/// `enum xdp_action` of linux/bpf.h.
const XDP_PASS: u32 = 2;

/// Programs verified by the kernel, with their maps opened or created under the pins.
pub(crate) struct Kernel(pub(crate) Ebpf);

impl Kernel {
    /// Without pins the maps are new, and go with the programs. The map of begun ClientHellos is
    /// made as a whole: it has room for no more than is needed.
    pub(crate) fn load(
        pins: Option<&Pins>,
        log: Option<Level>,
        hellos: u32,
        believed: Believed,
    ) -> Result<Self, Unavailable> {
        let object = OBJECT.ok_or(Unavailable::NotBuilt)?;
        let log_level = log.map_or(0, |level| level as u8);
        let mut loader = EbpfLoader::new();
        loader.override_global(aya_log::LEVEL, &log_level, true);
        let AcceptQueue { waiting, room } = btf::accept_queue().unwrap_or_default();
        let accept_queue = [waiting, room];
        loader.override_global(ACCEPT_QUEUE, &accept_queue, true);
        let connection_fields = match believed {
            Believed::OfConnections => btf::connection_fields().unwrap_or_default(),
            Believed::OfOpenConnections => {
                let fields = btf::connection_fields().unwrap_or_default();
                ConnectionFields { first_sent: 0, ..fields }
            }
            Believed::All => ConnectionFields::default(),
        };
        let ConnectionFields { first_sent, next_sent, next_received } = connection_fields;
        let connection_fields = [first_sent, next_sent, next_received];
        loader.override_global(CONNECTION_FIELDS, &connection_fields, true);
        loader.map_max_entries(HELLOS, hellos);
        // Those that forward have their own.
        for map in FORWARD_MAPS {
            loader.map_max_entries(map, 1);
        }
        for (map, pins) in PINNED_MAPS.iter().flat_map(|map| pins.map(|pins| (map, pins))) {
            loader.map_pin_path(map, pins.map(map));
        }
        let mut kernel = Self(loader.load(object).map_err(refused)?);
        kernel.steer()?.load().map_err(|error| refused(error.into()))?;
        Ok(kernel)
    }

    pub(crate) fn steer(&mut self) -> Result<&mut SkLookup, Unavailable> {
        self.program(STEER)
    }

    /// Verified by the kernel when it is asked for first: most nodes do without.
    pub(crate) fn guard(&mut self) -> Result<&mut Xdp, Unavailable> {
        let guard: &mut Xdp = self.program(GUARD)?;
        if guard.fd().is_err() {
            guard.load().map_err(|error| refused(error.into()))?;
        }
        Ok(guard)
    }

    pub(crate) fn names(&mut self) -> Result<&mut SchedClassifier, Unavailable> {
        self.loaded(READ_NAMES)
    }

    /// Likewise.
    fn loaded(&mut self, name: &str) -> Result<&mut SchedClassifier, Unavailable> {
        let program: &mut SchedClassifier = self.program(name)?;
        if program.fd().is_err() {
            program.load().map_err(|error| refused(error.into()))?;
        }
        Ok(program)
    }

    pub(crate) fn run_names(&mut self, frame: &[u8]) -> Result<Vec<u8>, Unavailable> {
        let mut left = vec![0; frame.len()];
        let options =
            TestRunOptions { data_in: Some(frame), data_out: Some(&mut left), ..TestRunOptions::default() };
        let result = self.names()?.test_run(options).map_err(|error| refused(error.into()))?;
        left.truncate(result.data_size_out as usize);
        Ok(left)
    }

    /// Instructions of each program that the kernel goes through to verify it; `None` where it does
    /// not say.
    pub(crate) fn verified_instructions(&mut self) -> Result<Vec<(&'static str, Option<u32>)>, Unavailable> {
        let programs = [
            (STEER, self.steer()?.info()),
            (GUARD, self.guard()?.info()),
            (READ_NAMES, self.names()?.info()),
            (FORWARD_IN, self.loaded(FORWARD_IN)?.info()),
            (FORWARD_OUT, self.loaded(FORWARD_OUT)?.info()),
        ];
        let counted = programs.into_iter().map(|(name, info)| {
            let info = info.map_err(|error: ProgramError| refused(error.into()))?;
            Ok((name, info.verified_instruction_count()))
        });
        counted.collect()
    }

    pub(crate) fn run_guard(&mut self, frame: &[u8]) -> Result<Passage, Unavailable> {
        let options = TestRunOptions { data_in: Some(frame), ..TestRunOptions::default() };
        let result = self.guard()?.test_run(options).map_err(|error| refused(error.into()))?;
        match result.return_value {
            XDP_PASS => Ok(Passage::Passed),
            _ => Ok(Passage::Dropped),
        }
    }

    /// The kernel's log; there is one reader.
    pub(crate) fn log(&mut self) -> Option<KernelLog> {
        EbpfLogger::init(&mut self.0).ok().map(KernelLog)
    }

    fn program<'a, P>(&'a mut self, name: &str) -> Result<P, Unavailable>
    where
        P: TryFrom<&'a mut aya::programs::Program>,
    {
        let program = self.0.program_mut(name).and_then(|program| program.try_into().ok());
        program.ok_or_else(|| Unavailable::Object(format!("it has no program {name}")))
    }
}

pub(super) fn refused(source: aya::EbpfError) -> Unavailable {
    Unavailable::Refused { kernel: kernel_release(), source: Box::new(source) }
}

/// Events of the kernel programs, for the `log` crate's logger. Nothing is logged per packet; a
/// connection that is refused logs at level debug, one that is steered at level trace.
pub struct KernelLog(EbpfLogger<&'static dyn log::Log>);

/// As much as the filter of the agent's log lets through; `None` is nothing.
pub(crate) fn log_level() -> Option<Level> {
    if tracing::enabled!(target: LOG_TARGET, tracing::Level::TRACE) {
        Some(Level::Trace)
    } else {
        tracing::enabled!(target: LOG_TARGET, tracing::Level::DEBUG).then_some(Level::Debug)
    }
}

impl KernelLog {
    /// Time between calls of [`KernelLog::flush`].
    pub const INTERVAL: Duration = Duration::from_millis(100);

    /// Passes on what has come in since the last time; lines that are not taken in time are lost.
    pub fn flush(&mut self) {
        self.0.flush();
    }
}
