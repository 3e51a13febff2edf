//! The abilities of this node, looked up before anything is loaded, so that a refusal has a reason
//! an operator understands.

use std::path::Path;

use rustix::thread::CapabilitySet;

use crate::error::Unavailable;
use crate::programs::object::OBJECT;
use crate::programs::pins::is_bpffs;

/// The abilities of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The kernel's release.
    pub kernel: String,
    /// The kernel programs were built into this agent.
    pub object: bool,
    /// The kernel carries type information (BTF). Without it, connections are not kept from cores
    /// whose accept queue is filling up.
    pub btf: bool,
    /// The pin directory is on a BPF file system. If not, opening tries to mount one.
    pub bpffs: bool,
    /// Those of BPF, NET_ADMIN and PERFMON that are missing.
    pub missing_capabilities: Vec<&'static str>,
}

/// Looks around, changes nothing.
pub fn probe(pin_dir: &Path) -> Environment {
    Environment {
        kernel: kernel_release(),
        object: OBJECT.is_some(),
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        bpffs: is_bpffs(pin_dir),
        missing_capabilities: missing_capabilities(),
    }
}

impl Environment {
    /// Refuses where there is a reason not to try.
    pub fn check(&self) -> Result<(), Unavailable> {
        if !self.object {
            return Err(Unavailable::NotBuilt);
        }
        if !self.missing_capabilities.is_empty() {
            return Err(Unavailable::Capabilities(self.missing_capabilities.clone()));
        }
        Ok(())
    }
}

pub(crate) fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Before 5.8, and for the kernel still, SYS_ADMIN includes BPF and PERFMON.
fn missing_capabilities() -> Vec<&'static str> {
    let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let wanted = [
        ("BPF", CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
        ("NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("PERFMON", CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN),
    ];
    wanted.into_iter().filter(|(_, any)| !held.intersects(*any)).map(|(name, _)| name).collect()
}
