//! The desired contents of the maps, in the model's terms.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portcullis_common::abi::{NO_GROUP, VIP_EXCLUSIVE, VIP_SHARED};
use portcullis_model::FrontendKey;

use crate::plan::Contents;
use crate::plan::key::{address, key};
use crate::plan::names::{NameTable, numbered};

/// The listener group all frontends belong to, as long as there is one set of sockets.
pub(crate) const GROUP: u32 = 0;

/// Everything the kernel programs need: pure data, made from a snapshot's frontends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Addresses and ports of listeners. The unspecified address stands for every local address of
    /// its family.
    pub frontends: BTreeSet<FrontendKey>,
    /// Addresses and ports of listeners a moment ago: open connections go on there, new ones are
    /// refused.
    pub leaving: BTreeSet<FrontendKey>,
    /// The addresses the packet guard looks after.
    pub vips: BTreeMap<IpAddr, Sharing>,
    /// The server names of ports whose listeners are found by them.
    pub names: Vec<NameTable>,
}

/// Other users of a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Gateways only: what no listener claims is dropped.
    Exclusive,
    /// The host or others too (a node's own address): what no listener claims passes.
    Shared,
}

impl Desired {
    pub fn new(
        frontends: impl IntoIterator<Item = FrontendKey>,
        vips: impl IntoIterator<Item = (IpAddr, Sharing)>,
    ) -> Self {
        let (frontends, vips) = (frontends.into_iter().collect(), vips.into_iter().collect());
        Self { frontends, leaving: BTreeSet::new(), vips, names: Vec::new() }
    }

    /// The same, as the maps hold it, which have been `observed`. An unspecified address is no VIP.
    pub fn contents(&self, observed: &Contents) -> Contents {
        let (name_tables, names) = numbered(&self.names, &observed.name_tables);
        let vips = self.vips.iter().filter(|(ip, _)| !ip.is_unspecified());
        let leaving = self.leaving.difference(&self.frontends).map(|frontend| (key(frontend), NO_GROUP));
        Contents {
            frontends: self.frontends.iter().map(|frontend| (key(frontend), GROUP)).chain(leaving).collect(),
            vips: vips.map(|(ip, sharing)| (address(*ip), flags(*sharing))).collect(),
            name_tables,
            names,
        }
    }
}

pub(crate) const fn flags(sharing: Sharing) -> u32 {
    match sharing {
        Sharing::Exclusive => VIP_EXCLUSIVE,
        Sharing::Shared => VIP_SHARED,
    }
}
