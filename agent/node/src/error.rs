//! Errors of opening the datapath and of running it. Every message includes what an operator can
//! do.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::maps::MapError;
use aya::pin::PinError;
use aya::programs::ProgramError;
use portcullis_common::abi::MAX_CLIENTS;
use portcullis_model::FrontendKey;

use crate::ownership::Insecure;
use crate::process::Process;

/// Frontends that are not served, and why.
pub type RefusedFrontends = BTreeMap<FrontendKey, String>;

/// The kernel datapath cannot be used on this node; the agent goes on with ordinary sockets.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error(
        "this agent was built without the kernel programs; run `cargo xtask build-ebpf` and build it again"
    )]
    NotBuilt,
    #[error("missing {}: grant the capabilities BPF, NET_ADMIN and PERFMON, or run as root", .0.join(", "))]
    Capabilities(Vec<&'static str>),
    #[error("no BPF file system at {path}: mount it with `mount -t bpf bpf /sys/fs/bpf` ({source})")]
    NoBpffs { path: PathBuf, source: io::Error },
    #[error("cannot use the pin directory {path}: make it writable for the agent ({source})")]
    PinDirectory { path: PathBuf, source: io::Error },
    #[error(
        "another agent{} uses the programs pinned in {path}: stop it first, or give this one a --pin-dir of its own",
        Process::named(.holder)
    )]
    InUse { path: PathBuf, holder: Option<Process> },
    #[error("{0}: remove it, take that right away (chmod go-w), or choose another --pin-dir")]
    Insecure(#[from] Insecure),
    #[error("cannot tell the network namespace: is /proc mounted? ({0})")]
    NetworkNamespace(io::Error),
    #[error("kernel {kernel} refused the programs; they need 5.15 or later with BPF enabled: {}", in_short(&chain(.source)))]
    Refused { kernel: String, source: Box<EbpfError> },
    #[error("names are read by Linux 6.6 or later (tcx), and this is {kernel}")]
    NoTcx { kernel: String },
    #[error("cannot attach {program} to {target}: {}", chain(.source))]
    Attach { program: &'static str, target: String, source: Box<ProgramError> },
    #[error("cannot pin {program} at {path}: {source}; remove the file if an earlier agent left it")]
    Pin { program: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "the built-in object does not fit this agent ({0}); run `cargo xtask build-ebpf` and build it again"
    )]
    Object(String),
}

impl Unavailable {
    /// For metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotBuilt => "not-built",
            Self::Capabilities(_) => "capabilities",
            Self::NoBpffs { .. } => "no-bpf-file-system",
            Self::PinDirectory { .. } | Self::Insecure(_) => "pin-directory",
            Self::InUse { .. } => "in-use",
            Self::NetworkNamespace(_) => "network-namespace",
            Self::Refused { .. } => "kernel-refused",
            Self::NoTcx { .. } => "no-tcx",
            Self::Attach { source, .. } if is_taken(source) => "foreign-program",
            Self::Attach { .. } | Self::Pin { .. } => "attach",
            Self::Object(_) => "object",
        }
    }
}

/// True if another program is in the way.
fn is_taken(error: &ProgramError) -> bool {
    const EXISTS: i32 = rustix::io::Errno::EXIST.raw_os_error();
    const BUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
    let causes = std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |it| it.source());
    let mut codes = causes.filter_map(|it| it.downcast_ref::<io::Error>()?.raw_os_error());
    codes.any(|code| matches!(code, EXISTS | BUSY))
}

/// A failure of a running datapath.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot write {entry} to the BPF map {map} (is it full?): {}", chain(.source))]
    Write { map: &'static str, entry: String, source: Box<MapError> },
    #[error(
        "the BPF map CLIENTS has no room for {lists} lists of clients, it holds {MAX_CLIENTS} ranges: name wider \
         ranges in ListenerPolicies, or fewer"
    )]
    NoRoomForClients { lists: usize },
    #[error("cannot read the BPF map {map}: {}", chain(.source))]
    Read { map: &'static str, source: Box<MapError> },
    #[error("{given} sockets of one family, but a listener group holds {most}; lower the number of cores")]
    TooManyCores { given: usize, most: u32 },
    #[error("the kernel does not keep connections until clients speak (TCP_DEFER_ACCEPT): {0}")]
    Defer(io::Error),
    #[error("the kernel gives no random numbers: {0}")]
    Random(rustix::io::Errno),
    #[error("cannot remove the pin {path}: {source}; remove it by hand to detach the program")]
    Unpin { path: PathBuf, source: io::Error },
    #[error("cannot pin the BPF map {}: {}", path.display(), chain(.source))]
    Pin { path: PathBuf, source: Box<PinError> },
    #[error("the kernel does not list the interfaces: {0}")]
    Links(std::io::Error),
    #[error("the programs that forward cannot be loaded: {0}")]
    Load(Box<Unavailable>),
}

/// An error with its causes on one line; aya keeps the kernel's own words in the causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The first line, and the last ones: the verifier tells all that it went through before what it
/// does not accept.
fn in_short(text: &str) -> String {
    const LAST: usize = 3;
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match &lines[..] {
        [first, rest @ ..] if rest.len() > LAST => {
            format!("{first} …; {}", rest[rest.len() - LAST..].join("; "))
        }
        few => few.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_verifier_went_through_is_left_out() {
        assert_eq!(in_short("refused: no permission"), "refused: no permission");
        let log = "refused: Verifier output: 0: R1=ctx()\n1: (b7) r0 = 0\n2: (85) call x#58\n\n\
            cannot use helper x#58\nprocessed 2 insns\n";
        let told = "refused: Verifier output: 0: R1=ctx() …; 2: (85) call x#58; cannot use helper x#58; processed 2 insns";
        assert_eq!(in_short(log), told);
    }
}
