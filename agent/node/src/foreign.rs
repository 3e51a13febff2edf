//! Programs of others where packets are forwarded, of the cluster's network for instance. What they
//! decide cannot be known: one that sends a packet to a pod past the hooks on its way (Cilium's
//! `bpf_redirect_peer`), or accepts it for all that come after (`TC_ACT_OK`), keeps this agent's
//! from translating it back.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::AsFd;

use crate::netlink::classifiers::interfaces_with_programs;
use crate::netlink::links::routed_links;
use crate::programs::pins::Pins;
use crate::programs::sys::{self, Tcx};

/// An interface that the stack routes over with another's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignProgram {
    pub interface: String,
    pub hook: ForeignHook,
}

/// The place of another's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignHook {
    Tcx,
    /// A classifier of traffic control (cls_bpf).
    Classifier,
}

/// The first one by the interface's index; `None` also where the kernel does not tell.
pub(crate) fn find(pins: &Pins) -> Option<ForeignProgram> {
    let found = first(pins);
    found.unwrap_or_else(|error| {
        tracing::debug!("programs of others cannot be listed: {error}");
        None
    })
}

fn first(pins: &Pins) -> io::Result<Option<ForeignProgram>> {
    let own = own_programs(pins);
    let is_foreign = |id: &u32| !own.contains(id);
    let classifying = interfaces_with_programs()?;
    for link in routed_links()? {
        // An interface that has gone meanwhile has none.
        let by_tcx = [Tcx::Ingress, Tcx::Egress]
            .into_iter()
            .flat_map(|hook| sys::tcx_programs(link.index, hook).unwrap_or_default());
        let hook = match by_tcx.collect::<Vec<_>>().iter().any(is_foreign) {
            true => ForeignHook::Tcx,
            false if classifying.contains(&link.index) => ForeignHook::Classifier,
            false => continue,
        };
        return Ok(Some(ForeignProgram { interface: link.name, hook }));
    }
    Ok(None)
}

/// Those of agents of all versions in this namespace: one may be about to take over.
fn own_programs(pins: &Pins) -> BTreeSet<u32> {
    let mut own = BTreeSet::new();
    for pins in pins.beside() {
        for link in pins.links() {
            let program = sys::obj_get(&pins.link(&link)).and_then(|link| sys::link_program(link.as_fd()));
            own.extend(program);
        }
    }
    own
}

impl fmt::Display for ForeignProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hook = match self.hook {
            ForeignHook::Tcx => "tcx",
            ForeignHook::Classifier => "tc (cls_bpf)",
        };
        write!(
            f,
            "another program has packets of {} by {hook}, and may send them past those that forward (`bpftool net \
             show dev {}` names it)",
            self.interface, self.interface
        )
    }
}
