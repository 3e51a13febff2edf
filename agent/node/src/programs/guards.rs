//! The interfaces that have the packet guard or the reader of names, or should have it: they come
//! and go, and other XDP programs take them, while the agent runs.

use std::collections::BTreeMap;

use portcullis_common::abi::{GUARD, READ_NAMES};

use crate::error::Unavailable;
use crate::programs::attach::{self, Attachment, Coverage, Unguarded};
use crate::programs::interfaces::{Interface, Interfaces};
use crate::programs::kernel::Kernel;
use crate::programs::pins::Pins;

/// A program of interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Guard,
    Names,
}

pub(crate) struct Guards {
    hook: Hook,
    interfaces: Interfaces,
    /// By index of the interface: one that comes back is another.
    attached: BTreeMap<u32, Attachment>,
    unguarded: Vec<Unguarded>,
}

impl Guards {
    pub(crate) fn new(hook: Hook, interfaces: Interfaces) -> Self {
        Self { hook, interfaces, attached: BTreeMap::new(), unguarded: Vec::new() }
    }

    pub(crate) fn attached(&self) -> impl Iterator<Item = &Attachment> {
        self.attached.values()
    }

    pub(crate) fn are_wanted(&self) -> bool {
        self.interfaces != Interfaces::None
    }

    pub(crate) fn unguarded(&self) -> &[Unguarded] {
        &self.unguarded
    }

    pub(crate) fn coverage(&self) -> Coverage {
        Coverage {
            is_wanted: self.are_wanted(),
            on: self.attached().map(|it| it.target.clone()).collect(),
            missing: self.unguarded.clone(),
        }
    }

    /// Puts the guard on interfaces that have come, or from which another program kept it and does
    /// no longer, and takes it off those that are not to have it. Logs what changed.
    pub(crate) fn renew(&mut self, kernel: &mut Kernel, pins: &Pins) {
        let (present, absent) = self.interfaces.find();
        let kept: Vec<_> = present.iter().map(|it| attach::interface_pin(self.hook.program(), it)).collect();
        remove_others(pins, self.hook, &kept);
        self.attached.retain(|index, _| present.iter().any(|interface| interface.index == *index));
        let absent = absent.into_iter().map(|name| Unguarded {
            interface: name.to_owned(),
            reason: "there is no interface of this name".to_owned(),
            label: "no-interface",
        });
        let mut unguarded: Vec<_> = absent.collect();
        for interface in present {
            if self.attached.contains_key(&interface.index) {
                continue;
            }
            match self.hook.attach(kernel, pins, &interface) {
                Ok(attachment) => {
                    if self.unguarded.iter().any(|before| before.interface == interface.name) {
                        tracing::info!(
                            "what kept {} from {} is gone: {attachment}",
                            self.hook.title(),
                            interface.name
                        );
                    }
                    self.attached.insert(interface.index, attachment);
                }
                Err(error) => {
                    let (reason, label) = (error.to_string(), error.label());
                    unguarded.push(Unguarded { interface: interface.name, reason, label });
                }
            }
        }
        unguarded.iter().filter(|it| !self.unguarded.contains(it)).for_each(|it| self.hook.warn(it));
        self.unguarded = unguarded;
    }
}

impl Coverage {
    /// Of interfaces that none can be put on: the reason is that of metrics.
    pub(crate) fn without_programs(wanted: &Interfaces, label: &'static str) -> Self {
        let (present, absent) = wanted.find();
        let names = present.into_iter().map(|it| it.name).chain(absent.into_iter().map(str::to_owned));
        let reason = "no kernel programs are in use".to_owned();
        let missing = names.map(|interface| Unguarded { interface, reason: reason.clone(), label });
        Self { is_wanted: *wanted != Interfaces::None, on: Vec::new(), missing: missing.collect() }
    }
}

impl Hook {
    const fn program(self) -> &'static str {
        match self {
            Self::Guard => GUARD,
            Self::Names => READ_NAMES,
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Guard => "the packet guard",
            Self::Names => "the reader of names",
        }
    }

    fn attach(
        self,
        kernel: &mut Kernel,
        pins: &Pins,
        interface: &Interface,
    ) -> Result<Attachment, Unavailable> {
        match self {
            Self::Guard => attach::guard(kernel, pins, interface),
            Self::Names => attach::names(kernel, pins, interface),
        }
    }

    /// Nothing is served differently without, only later or at a higher price.
    fn warn(self, Unguarded { interface, reason, .. }: &Unguarded) {
        match self {
            Self::Guard => tracing::warn!(
                "no packet guard on {interface}: {reason}; connections are steered, and refused, all the same. \
                 Where another XDP program is in the way, `bpftool net show dev {interface}` names it; leave the \
                 interface out with --interface, or see that it is there and free: the guard follows within 10 s"
            ),
            Self::Names => tracing::warn!(
                "no names are read on {interface}: {reason}; user space reads them all the same, and refuses at \
                 a higher price. Leave the interface out with --name-interface, or see that it is there: the \
                 reader follows within 10 s"
            ),
        }
    }
}

/// Takes the program off the interfaces that are not kept.
pub(crate) fn remove_others(pins: &Pins, hook: Hook, kept: &[String]) {
    let is_other = |link: &String| {
        let index = link.strip_prefix(hook.program()).and_then(|rest| rest.strip_prefix('-'));
        index.is_some() && !kept.contains(link)
    };
    for link in pins.links().into_iter().filter(is_other) {
        if let Err(error) = pins.remove_link(&link) {
            tracing::warn!(%error, "{} stays on an interface where it should not be", hook.title());
        }
    }
}
