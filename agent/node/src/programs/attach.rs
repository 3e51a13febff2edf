//! Attaching is adopting where an earlier agent left a link: its program is replaced atomically, no
//! packet sees a gap.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use aya::pin::PinError;
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType, XdpMode};
use aya::util::KernelVersion;
use portcullis_common::abi::{GUARD, READ_NAMES, STEER};

use crate::error::Unavailable;
use crate::programs::interfaces::Interface;
use crate::programs::kernel::Kernel;
use crate::programs::pins::{NETWORK_NAMESPACE, Pins};
use crate::programs::probe::kernel_release;
use crate::programs::sys;

/// The first kernel with tcx.
const TCX: KernelVersion = KernelVersion::new(6, 6, 0);

/// A program at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub program: &'static str,
    pub target: String,
    pub how: How,
}

/// An interface that should have the packet guard, or the reader of names, and has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unguarded {
    pub interface: String,
    pub reason: String,
    /// The reason as metrics have it.
    pub label: &'static str,
}

/// The interfaces that have the packet guard, or the reader of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// False if no interface was named.
    pub is_wanted: bool,
    pub on: Vec<String>,
    pub missing: Vec<Unguarded>,
}

/// The way in which a program came to be at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Put into the link an earlier agent had pinned.
    Adopted,
    Attached,
    /// XDP without the driver's help: works everywhere, costs more.
    AttachedGeneric,
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.how {
            How::Adopted => "adopted",
            How::Attached => "attached",
            How::AttachedGeneric => "attachedgeneric",
        };
        write!(f, "{} on {} ({how})", self.program, self.target)
    }
}

/// Attaches the steering program to this network namespace.
pub(crate) fn steer(kernel: &mut Kernel, pins: &Pins) -> Result<Attachment, Unavailable> {
    let target = || "this network namespace".to_owned();
    let program = kernel.steer()?;
    let pin = pins.link(STEER);
    let fd = program.fd().map_err(|source| failed(STEER, target(), source))?;
    if adopt(&pin, fd.as_fd()) {
        return Ok(Attachment { program: STEER, target: target(), how: How::Adopted });
    }
    let namespace = File::open(NETWORK_NAMESPACE).map_err(Unavailable::NetworkNamespace)?;
    let attached = program.attach(namespace).and_then(|id| program.take_link(id));
    let link = attached.map_err(|source| failed(STEER, target(), source))?;
    pin_link(STEER, link.into(), pin)?;
    Ok(Attachment { program: STEER, target: target(), how: How::Attached })
}

/// Attaches the packet guard to an interface: in the driver if it can, else in the kernel's generic
/// hook.
pub(crate) fn guard(
    kernel: &mut Kernel,
    pins: &Pins,
    interface: &Interface,
) -> Result<Attachment, Unavailable> {
    let refused = |source| failed(GUARD, interface.name.clone(), source);
    let program = kernel.guard()?;
    let pin = pins.link(&interface_pin(GUARD, interface));
    if adopt(&pin, program.fd().map_err(refused)?.as_fd()) {
        return Ok(Attachment { program: GUARD, target: interface.name.clone(), how: How::Adopted });
    }
    let native = program.attach_to_if_index(interface.index, XdpMode::Driver);
    let (id, how) = match native {
        Ok(id) => (id, How::Attached),
        Err(_) => {
            let generic = program.attach_to_if_index(interface.index, XdpMode::Skb);
            (generic.map_err(refused)?, How::AttachedGeneric)
        }
    };
    let link = program.take_link(id).map_err(refused)?;
    match FdLink::try_from(link) {
        Ok(link) => pin_link(GUARD, link, pin)?,
        // Before 5.9 XDP is attached without a link.
        Err(error) => return Err(unpinned(GUARD, pin, std::io::Error::other(error))),
    }
    Ok(Attachment { program: GUARD, target: interface.name.clone(), how })
}

/// Attaches the reader of names to an interface, before the programs of others: one of them may
/// send packets on by another way.
pub(crate) fn names(
    kernel: &mut Kernel,
    pins: &Pins,
    interface: &Interface,
) -> Result<Attachment, Unavailable> {
    let refused = |source| failed(READ_NAMES, interface.name.clone(), source);
    if KernelVersion::current().is_ok_and(|version| version < TCX) {
        return Err(Unavailable::NoTcx { kernel: kernel_release() });
    }
    let program = kernel.names()?;
    let pin = pins.link(&interface_pin(READ_NAMES, interface));
    if adopt(&pin, program.fd().map_err(refused)?.as_fd()) {
        return Ok(Attachment { program: READ_NAMES, target: interface.name.clone(), how: How::Adopted });
    }
    let first = TcAttachOptions::TcxOrder(LinkOrder::first());
    let attached = program.attach_with_options(&interface.name, TcAttachType::Ingress, first);
    let link = attached.and_then(|id| program.take_link(id)).map_err(refused)?;
    match FdLink::try_from(link) {
        Ok(link) => pin_link(READ_NAMES, link, pin)?,
        Err(error) => return Err(unpinned(READ_NAMES, pin, std::io::Error::other(error))),
    }
    Ok(Attachment { program: READ_NAMES, target: interface.name.clone(), how: How::Attached })
}

/// Attaches a program by tcx, or puts it into the link that is there.
pub(super) fn tcx(
    program: &mut SchedClassifier,
    name: &'static str,
    pins: &Pins,
    interface: &Interface,
    kind: TcAttachType,
    options: TcAttachOptions,
) -> Result<Attachment, Unavailable> {
    let refused = |source| failed(name, interface.name.clone(), source);
    let pin = pins.link(&interface_pin(name, interface));
    if adopt(&pin, program.fd().map_err(refused)?.as_fd()) {
        return Ok(Attachment { program: name, target: interface.name.clone(), how: How::Adopted });
    }
    let attached = program.attach_with_options(&interface.name, kind, options);
    let link = attached.and_then(|id| program.take_link(id)).map_err(refused)?;
    match FdLink::try_from(link) {
        Ok(link) => pin_link(name, link, pin)?,
        Err(error) => return Err(unpinned(name, pin, std::io::Error::other(error))),
    }
    Ok(Attachment { program: name, target: interface.name.clone(), how: How::Attached })
}

/// True of a kernel that has tcx.
pub(crate) fn has_tcx() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= TCX)
}

/// The pin is named by index: an interface may be renamed, and names may hold dots, which the BPF
/// file system reserves.
pub(crate) fn interface_pin(program: &str, interface: &Interface) -> String {
    format!("{program}-{}", interface.index)
}

/// Puts the program into a pinned link. A link whose interface or namespace is gone cannot take it:
/// its pin is removed and the program must be attached anew.
fn adopt(pin: &PathBuf, program: BorrowedFd<'_>) -> bool {
    let Ok(link) = sys::obj_get(pin) else { return false };
    let adopted = sys::link_update(link.as_fd(), program);
    if let Err(error) = &adopted {
        tracing::info!(pin = %pin.display(), %error, "the pinned link is dead; attaching anew");
        _ = std::fs::remove_file(pin);
    }
    adopted.is_ok()
}

fn pin_link(program: &'static str, link: FdLink, path: PathBuf) -> Result<(), Unavailable> {
    match link.pin(&path) {
        Ok(_) => Ok(()),
        Err(error) => Err(unpinned(program, path, io_error(error))),
    }
}

fn unpinned(program: &'static str, path: PathBuf, source: std::io::Error) -> Unavailable {
    Unavailable::Pin { program, path, source }
}

fn io_error(error: PinError) -> std::io::Error {
    match error {
        PinError::SyscallError(error) => error.io_error,
        other => std::io::Error::other(other),
    }
}

fn failed(program: &'static str, target: String, source: ProgramError) -> Unavailable {
    Unavailable::Attach { program, target, source: Box::new(source) }
}
