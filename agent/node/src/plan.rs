//! The pure difference of what the maps hold and what they should hold, in an order that leaves no
//! gap.

pub(crate) mod admission;
pub(crate) mod desired;
pub(crate) mod forward;
pub(crate) mod key;
pub(crate) mod names;
pub(crate) mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use portcullis_common::abi::{
    Address, Budget, FrontendKey, ListenerTerms, TCP, UDP, VIP_EXCLUSIVE, frontend_value, group_and_clients,
};

use admission::ClientKey;
use names::NameKey;
use table::{Change, Difference};

/// Contents of the maps, as they are or as they should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Frontend → listener group, and list of clients.
    pub frontends: BTreeMap<FrontendKey, u32>,
    /// VIP → flags.
    pub vips: BTreeMap<Address, u32>,
    /// Frontend → table of names.
    pub name_tables: BTreeMap<FrontendKey, u32>,
    /// Name → number of the listener.
    pub names: BTreeMap<NameKey, u32>,
    /// Listener → its terms.
    pub listeners: BTreeMap<u32, ListenerTerms>,
    pub budgets: BTreeMap<u32, Budget>,
    /// Range of addresses in a list → whether they may connect.
    pub clients: BTreeMap<ClientKey, u32>,
}

/// One map write; a variant for each map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a plan lasts for a moment, and is copied nowhere")]
pub enum Op {
    Frontend(Change<FrontendKey, u32>),
    Vip(Change<Address, u32>),
    NameTable(Change<FrontendKey, u32>),
    Name(Change<NameKey, u32>),
    Listener(Change<u32, ListenerTerms>),
    Budget(Change<u32, Budget>),
    Client(Change<ClientKey, u32>),
}

/// The writes to get from one to the other, in an order without gaps: frontends come before the VIP
/// that would drop their packets, and go after it; names come before the frontends that have them,
/// and go after those. What is referred to comes first and goes last: lists of clients, budgets,
/// then the listeners that have them.
pub fn plan(observed: &Contents, desired: &Contents) -> Vec<Op> {
    let frontends = Difference::between(&observed.frontends, &desired.frontends);
    let vips = Difference::between(&observed.vips, &desired.vips);
    let tables = Difference::between(&observed.name_tables, &desired.name_tables);
    let names = Difference::between(&observed.names, &desired.names);
    let listeners = Difference::between(&observed.listeners, &desired.listeners);
    let budgets = Difference::between(&observed.budgets, &desired.budgets);
    let clients = Difference::between(&observed.clients, &desired.clients);
    let new_terms = clients.put.into_iter().map(Op::Client).chain(budgets.put.into_iter().map(Op::Budget));
    let new_terms = new_terms.chain(listeners.put.into_iter().map(Op::Listener));
    let old_terms = listeners.remove.into_iter().map(Op::Listener);
    let old_terms = old_terms.chain(budgets.remove.into_iter().map(Op::Budget));
    let old_terms = old_terms.chain(clients.remove.into_iter().map(Op::Client));
    let new = frontends.put.into_iter().map(Op::Frontend).chain(vips.put.into_iter().map(Op::Vip));
    let old = vips.remove.into_iter().map(Op::Vip).chain(frontends.remove.into_iter().map(Op::Frontend));
    let new_names = names.put.into_iter().map(Op::Name).chain(tables.put.into_iter().map(Op::NameTable));
    let old_names =
        tables.remove.into_iter().map(Op::NameTable).chain(names.remove.into_iter().map(Op::Name));
    new_terms.chain(new).chain(new_names).chain(old_names).chain(old).chain(old_terms).collect()
}

/// Lists of clients and tables of names that lack an entry which could not be written. Nothing may
/// refer to them: what they lack would be taken for another answer.
#[derive(Default)]
pub(crate) struct Incomplete {
    lists: BTreeSet<u32>,
    tables: BTreeSet<u32>,
}

// === impl Incomplete ===

impl Incomplete {
    /// Takes note of a write that failed, and returns those that are to be done instead: user space
    /// decides where the kernel knows nothing, or else would know what held before.
    pub(crate) fn replace(&mut self, failed: Op, contents: &Contents) -> Vec<Op> {
        match failed {
            Op::Client(Change::Put(key, _)) => {
                self.lists.insert(key.list);
                Vec::new()
            }
            Op::Name(Change::Put(name, _)) => {
                self.tables.insert(name.table());
                let having = contents.name_tables.iter().filter(|(_, table)| **table == name.table());
                having.map(|(frontend, _)| Op::NameTable(Change::Remove(*frontend))).collect()
            }
            Op::Listener(Change::Put(number, _)) => vec![Op::Listener(Change::Remove(number))],
            Op::Budget(Change::Put(number, _)) => vec![Op::Budget(Change::Remove(number))],
            _ => Vec::new(),
        }
    }

    /// The write without a reference to what is incomplete; `None` if it is for nothing else.
    pub(crate) fn allow(&self, op: Op) -> Option<Op> {
        match op {
            Op::Client(Change::Put(key, _)) if self.lists.contains(&key.list) => None,
            Op::NameTable(Change::Put(_, table)) if self.tables.contains(&table) => None,
            Op::Frontend(Change::Put(key, value)) => {
                let (group, clients) = group_and_clients(value);
                let clients = if self.lists.contains(&clients) { 0 } else { clients };
                Some(Op::Frontend(Change::Put(key, frontend_value(group, clients))))
            }
            Op::Listener(Change::Put(number, terms)) if self.lists.contains(&terms.clients) => {
                Some(Op::Listener(Change::Put(number, ListenerTerms { clients: 0, ..terms })))
            }
            other => Some(other),
        }
    }

    /// The writes that remove what there is of lists.
    pub(crate) fn remainders(&self, contents: &Contents) -> Vec<Op> {
        let written = contents.clients.keys().filter(|key| self.lists.contains(&key.list));
        written.map(|key| Op::Client(Change::Remove(*key))).collect()
    }
}

impl Contents {
    /// Does a write on this copy.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Frontend(change) => change.apply(&mut self.frontends),
            Op::Vip(change) => change.apply(&mut self.vips),
            Op::NameTable(change) => change.apply(&mut self.name_tables),
            Op::Name(change) => change.apply(&mut self.names),
            Op::Listener(change) => change.apply(&mut self.listeners),
            Op::Budget(change) => change.apply(&mut self.budgets),
            Op::Client(change) => change.apply(&mut self.clients),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frontend(Change::Put(key, _) | Change::Remove(key)) => {
                write!(f, "{} {}", protocol(key.protocol), SocketAddr::new(ip(&key.address), key.port()))
            }
            Self::NameTable(Change::Put(key, _) | Change::Remove(key)) => {
                write!(f, "names of {}", SocketAddr::new(ip(&key.address), key.port()))
            }
            Self::Name(Change::Put(key, _) | Change::Remove(key)) => write!(f, "{key}"),
            Self::Listener(Change::Put(number, _) | Change::Remove(number)) => {
                write!(f, "terms of listener {number}")
            }
            Self::Budget(Change::Put(number, _) | Change::Remove(number)) => write!(f, "budget {number}"),
            Self::Client(Change::Put(key, _) | Change::Remove(key)) => write!(f, "{key}"),
            Self::Vip(Change::Put(address, VIP_EXCLUSIVE)) => write!(f, "VIP {} (exclusive)", ip(address)),
            Self::Vip(Change::Put(address, _) | Change::Remove(address)) => write!(f, "VIP {}", ip(address)),
        }
    }
}

fn ip(address: &Address) -> IpAddr {
    Ipv6Addr::from(address.0).to_canonical()
}

fn protocol(number: u8) -> String {
    match number {
        TCP => "TCP".into(),
        UDP => "UDP".into(),
        other => format!("protocol {other}"),
    }
}

#[cfg(test)]
mod tests {
    use portcullis_common::abi::VIP_SHARED;
    use portcullis_model::HostPattern;
    use proptest::collection::btree_map;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// Few addresses and ports, so that the two sides overlap.
    fn contents() -> impl Strategy<Value = Contents> {
        let address = || (0..6u8).prop_map(|host| Address::v4([10, 0, 0, host]));
        let frontend = || {
            let protocol = prop_oneof![Just(TCP), Just(UDP)];
            (protocol, address(), 0..8u16).prop_map(|(p, a, port)| FrontendKey::new(p, a, port))
        };
        let name = (0..3u16, select(&["*", "a.b", "*.a.b", "c"][..])).prop_map(|(table, name)| {
            let pattern = HostPattern::parse(name).unwrap_or(HostPattern::Any);
            NameKey::new(table, &pattern).unwrap()
        });
        let name_tables = btree_map(frontend(), 0..3u32, 0..6);
        let names = btree_map(name, Just(1), 0..8);
        let vips = btree_map(address(), prop_oneof![Just(VIP_SHARED), Just(VIP_EXCLUSIVE)], 0..6);
        (btree_map(frontend(), 0..3u32, 0..24), vips, name_tables, names)
            .prop_map(|(frontends, vips, name_tables, names)| Contents {
                frontends,
                vips,
                name_tables,
                names,
                ..Contents::default()
            })
            .prop_flat_map(|contents| (Just(contents), terms()))
            .prop_map(|(contents, (listeners, budgets, clients))| Contents {
                listeners,
                budgets,
                clients,
                ..contents
            })
    }

    type Terms = (BTreeMap<u32, ListenerTerms>, BTreeMap<u32, Budget>, BTreeMap<ClientKey, u32>);

    fn terms() -> impl Strategy<Value = Terms> {
        let listener = (0..3u32, 0..3u32)
            .prop_map(|(budget, clients)| ListenerTerms { budgets: [budget, 0, 0], clients });
        let budget = (1..4u32).prop_map(|rate| Budget::new(rate, rate));
        let client = (1..3u32, 0..3u8).prop_map(|(list, host)| ClientKey {
            list,
            prefix: 160,
            address: Address::v4([10, 0, 0, host]),
        });
        (
            btree_map(0..4u32, listener, 0..4),
            btree_map(1..3u32, budget, 0..3),
            btree_map(client, 0..2u32, 0..4),
        )
    }

    proptest! {
        #[test]
        fn the_plan_leads_there(observed in contents(), desired in contents()) {
            let mut reached = observed.clone();
            plan(&observed, &desired).into_iter().for_each(|op| reached.apply(op));
            prop_assert_eq!(reached, desired);
        }

        #[test]
        fn nothing_to_do_is_no_plan(contents in contents()) {
            prop_assert_eq!(plan(&contents, &contents), vec![]);
        }

        /// A frontend that is in both states is in every state between, and so is its VIP's
        /// protection from being dropped: no exclusive VIP appears before the frontends it will
        /// have.
        #[test]
        fn no_step_leaves_a_gap(observed in contents(), desired in contents()) {
            let mut now = observed.clone();
            for op in plan(&observed, &desired) {
                now.apply(op);
                for key in observed.frontends.keys().filter(|key| desired.frontends.contains_key(key)) {
                    prop_assert!(now.frontends.contains_key(key));
                }
                if let Op::Vip(Change::Put(address, _)) = op {
                    let mut wanted = desired.frontends.keys().filter(|key| key.address == address);
                    prop_assert!(wanted.all(|key| now.frontends.contains_key(key)));
                }
                // A name that is there before and after is never missed at a frontend that has its
                // table before and after.
                for (key, table) in &observed.name_tables {
                    if desired.name_tables.get(key) == Some(table) {
                        prop_assert_eq!(now.name_tables.get(key), Some(table));
                    }
                }
                for name in observed.names.keys().filter(|name| desired.names.contains_key(name)) {
                    prop_assert!(now.names.contains_key(name));
                }
            }
        }
    }

    #[test]
    fn operators_read_addresses() {
        let key = FrontendKey::new(TCP, Address::v4([10, 0, 0, 1]), 443);
        assert_eq!(Op::Frontend(Change::Put(key, 0)).to_string(), "TCP 10.0.0.1:443");
        let v6 = Address::v6(Ipv6Addr::LOCALHOST.octets());
        assert_eq!(Op::Frontend(Change::Remove(FrontendKey::new(UDP, v6, 53))).to_string(), "UDP [::1]:53");
        assert_eq!(Op::Vip(Change::Put(v6, VIP_EXCLUSIVE)).to_string(), "VIP ::1 (exclusive)");
    }
}
