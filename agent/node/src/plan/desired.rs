//! The desired contents of the maps, in the model's terms.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use portcullis_common::abi::{NO_GROUP, VIP_EXCLUSIVE, VIP_SHARED, frontend_value};
use portcullis_model::{ClientRanges, FrontendKey, SpeaksFirst};

use crate::plan::Contents;
use crate::plan::admission::{Owners, Terms};
use crate::plan::key::{address, key};
use crate::plan::names::{NameTable, Numbered, numbered};

/// The listener group of frontends whose connections begin in this way.
pub(crate) const fn group(speaks_first: SpeaksFirst) -> u32 {
    match speaks_first {
        SpeaksFirst::Either => 0,
        SpeaksFirst::Client => 1,
    }
}

/// Everything the kernel programs need: pure data, made from a snapshot's frontends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Addresses and ports of listeners. The unspecified address stands for every local address of
    /// its family.
    pub frontends: BTreeSet<FrontendKey>,
    /// Those whose clients speak first: their connections wait in the kernel until they have.
    pub clients_speak: BTreeSet<FrontendKey>,
    /// Addresses and ports of listeners a moment ago: open connections go on there, new ones are
    /// refused.
    pub leaving: BTreeSet<FrontendKey>,
    /// The addresses the packet guard looks after.
    pub vips: BTreeMap<IpAddr, Sharing>,
    /// The server names of ports whose listeners are found by them.
    pub names: Vec<NameTable>,
    /// The addresses that some listener of a port permits, of ports where that is not all.
    pub clients: BTreeMap<FrontendKey, Arc<ClientRanges>>,
    /// ClientHellos a second, and at once, that each port gets for names that no listener has; any
    /// number if none is given.
    pub unknown_names: Option<NonZeroU32>,
}

/// The frontends that a node is to serve, and how their listeners are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub frontends: BTreeSet<FrontendKey>,
    /// As in [`Desired`].
    pub clients_speak: BTreeSet<FrontendKey>,
    pub names: Vec<NameTable>,
    pub clients: BTreeMap<FrontendKey, Arc<ClientRanges>>,
}

/// The contents of the maps that come next to what is desired.
pub(crate) struct Sought {
    pub(crate) contents: Contents,
    pub(crate) owners: Owners,
    /// Lists of clients for which there is no room beside what is observed.
    pub(crate) lists_left_out: usize,
}

/// Other users of a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Gateways only: what no listener claims is dropped.
    Exclusive,
    /// The host or others too (a node's own address): what no listener claims passes.
    Shared,
}

/// Frontends whose listeners are found in user space.
impl From<BTreeSet<FrontendKey>> for Wanted {
    fn from(frontends: BTreeSet<FrontendKey>) -> Self {
        Self { frontends, ..Self::default() }
    }
}

impl Desired {
    pub fn new(
        frontends: impl IntoIterator<Item = FrontendKey>,
        vips: impl IntoIterator<Item = (IpAddr, Sharing)>,
    ) -> Self {
        let (frontends, vips) = (frontends.into_iter().collect(), vips.into_iter().collect());
        Self { frontends, vips, ..Self::default() }
    }

    fn group(&self, frontend: &FrontendKey) -> u32 {
        group(match self.clients_speak.contains(frontend) {
            true => SpeaksFirst::Client,
            false => SpeaksFirst::Either,
        })
    }

    /// The same, as the maps hold it, which have been `observed`, and whose the budgets are. An
    /// unspecified address is no VIP.
    pub(crate) fn contents(&self, observed: &Contents, owners: &Owners) -> Sought {
        let Numbered { frontends: name_tables, names, listeners } = numbered(&self.names, observed);
        let mut terms = Terms::new(observed, owners);
        // Ports come first: where there is no room for all, more is refused by theirs.
        let clients: BTreeMap<_, _> = self
            .clients
            .iter()
            .filter_map(|(frontend, ranges)| Some((*frontend, terms.list(ranges)?)))
            .collect();
        for (listener, table, admission) in listeners {
            let of_port = table.frontends.first().and_then(|frontend| clients.get(frontend));
            terms.admit(listener, admission, of_port.copied());
        }
        for (table, rate) in name_tables.values().zip(std::iter::repeat(self.unknown_names)) {
            rate.iter().for_each(|rate| terms.limit_unknown(*table, *rate));
        }
        let frontends = self.frontends.iter().map(|frontend| {
            let clients = clients.get(frontend).copied().unwrap_or_default();
            (key(frontend), frontend_value(self.group(frontend), clients))
        });
        let frontends: Vec<_> = frontends.collect();
        let vips = self.vips.iter().filter(|(ip, _)| !ip.is_unspecified());
        let leaving = self.leaving.difference(&self.frontends).map(|frontend| (key(frontend), NO_GROUP));
        let Terms { given, listeners, budgets, clients, lists_left_out, .. } = terms;
        let contents = Contents {
            frontends: frontends.into_iter().chain(leaving).collect(),
            vips: vips.map(|(ip, sharing)| (address(*ip), flags(*sharing))).collect(),
            name_tables,
            names,
            listeners,
            budgets,
            clients,
        };
        Sought { contents, owners: given, lists_left_out }
    }
}

pub(crate) const fn flags(sharing: Sharing) -> u32 {
    match sharing {
        Sharing::Exclusive => VIP_EXCLUSIVE,
        Sharing::Shared => VIP_SHARED,
    }
}
