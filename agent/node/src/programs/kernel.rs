//! The loaded programs: the embedded object, its load-time constant, and its log.

use std::time::Duration;

use aya::programs::{ProgramError, SchedClassifier, SkLookup, TestRun, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use aya_log::{EbpfLogger, Level};
use portcullis_common::abi::{
    ACCEPT_QUEUE, AcceptQueue, COUNTERS, FRONTENDS, GROUPS, GUARD, NAME_TABLES, NAMES, READ_NAMES, SOCKETS,
    STEER, VIPS,
};

use crate::error::Unavailable;
use crate::programs::btf;
use crate::programs::object::OBJECT;
use crate::programs::pins::Pins;
use crate::programs::probe::kernel_release;

const PINNED_MAPS: &[&str] = &[FRONTENDS, VIPS, GROUPS, SOCKETS, COUNTERS, NAME_TABLES, NAMES];

/// The packet guard's action on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    Passed,
    Dropped,
}

/// Target of the kernel programs' log lines: their crate.
const LOG_TARGET: &str = "portcullis_ebpf";

/// `enum xdp_action` of linux/bpf.h.
const XDP_PASS: u32 = 2;

/// Programs verified by the kernel, with their maps opened or created under the pins.
pub(crate) struct Kernel(pub(crate) Ebpf);

impl Kernel {
    pub(crate) fn load(pins: &Pins, log: Option<Level>) -> Result<Self, Unavailable> {
        let object = OBJECT.ok_or(Unavailable::NotBuilt)?;
        let log_level = log.map_or(0, |level| level as u8);
        let mut loader = EbpfLoader::new();
        loader.override_global(aya_log::LEVEL, &log_level, true);
        let AcceptQueue { waiting, room } = btf::accept_queue().unwrap_or_default();
        let accept_queue = [waiting, room];
        loader.override_global(ACCEPT_QUEUE, &accept_queue, true);
        for map in PINNED_MAPS {
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

    /// Likewise.
    pub(crate) fn names(&mut self) -> Result<&mut SchedClassifier, Unavailable> {
        let names: &mut SchedClassifier = self.program(READ_NAMES)?;
        if names.fd().is_err() {
            names.load().map_err(|error| refused(error.into()))?;
        }
        Ok(names)
    }

    pub(crate) fn run_names(&mut self, frame: &[u8]) -> Result<(), Unavailable> {
        let options = TestRunOptions { data_in: Some(frame), ..TestRunOptions::default() };
        self.names()?.test_run(options).map_err(|error| refused(error.into()))?;
        Ok(())
    }

    pub(crate) fn verified_instructions(&mut self) -> Result<Option<u32>, Unavailable> {
        let info = self.names()?.info().map_err(|error: ProgramError| refused(error.into()))?;
        Ok(info.verified_instruction_count())
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

fn refused(source: aya::EbpfError) -> Unavailable {
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
