//! The interfaces that have the packet guard, or should have it: they come and go, and other XDP
//! programs take them, while the agent runs.

use std::collections::BTreeMap;

use portcullis_common::abi::STEER;

use crate::programs::attach::{self, Attachment, Unguarded};
use crate::programs::interfaces::Interfaces;
use crate::programs::kernel::Kernel;
use crate::programs::pins::Pins;

pub(crate) struct Guards {
    interfaces: Interfaces,
    /// By index of the interface: one that comes back is another.
    attached: BTreeMap<u32, Attachment>,
    unguarded: Vec<Unguarded>,
}

impl Guards {
    pub(crate) fn new(interfaces: Interfaces) -> Self {
        Self { interfaces, attached: BTreeMap::new(), unguarded: Vec::new() }
    }

    pub(crate) fn attached(&self) -> impl Iterator<Item = &Attachment> {
        self.attached.values()
    }

    pub(crate) fn unguarded(&self) -> &[Unguarded] {
        &self.unguarded
    }

    /// Puts the guard on interfaces that have come, or from which another program kept it and does
    /// no longer, and takes it off those that are not to have it. Logs what changed.
    pub(crate) fn renew(&mut self, kernel: &mut Kernel, pins: &Pins) {
        let (present, absent) = self.interfaces.find();
        let kept: Vec<_> = present.iter().map(attach::guard_pin).collect();
        remove_others(pins, &kept);
        self.attached.retain(|index, _| present.iter().any(|interface| interface.index == *index));
        let absent = absent.into_iter().map(|name| Unguarded {
            interface: name.to_owned(),
            reason: "there is no interface of this name".to_owned(),
        });
        let mut unguarded: Vec<_> = absent.collect();
        for interface in present {
            if self.attached.contains_key(&interface.index) {
                continue;
            }
            match attach::guard(kernel, pins, &interface) {
                Ok(attachment) => {
                    if self.unguarded.iter().any(|before| before.interface == interface.name) {
                        tracing::info!(
                            "what kept the packet guard from {} is gone: {attachment}",
                            interface.name
                        );
                    }
                    self.attached.insert(interface.index, attachment);
                }
                Err(error) => {
                    unguarded.push(Unguarded { interface: interface.name, reason: error.to_string() });
                }
            }
        }
        unguarded.iter().filter(|it| !self.unguarded.contains(it)).for_each(warn);
        self.unguarded = unguarded;
    }
}

/// Packets that the guard would drop are refused all the same, later and at a higher price.
fn warn(Unguarded { interface, reason }: &Unguarded) {
    tracing::warn!(
        "no packet guard on {interface}: {reason}; connections are steered, and refused, all the same. Where another \
         XDP program is in the way, `bpftool net show dev {interface}` names it; leave the interface out with \
         --interface, or see that it is there and free: the guard follows within 10 s"
    );
}

/// Takes the guard off the interfaces that are not kept.
pub(crate) fn remove_others(pins: &Pins, kept: &[String]) {
    for link in pins.links().into_iter().filter(|link| link != STEER && !kept.contains(link)) {
        if let Err(error) = pins.remove_link(&link) {
            tracing::warn!(%error, "the packet guard stays on an interface where it should not be");
        }
    }
}
