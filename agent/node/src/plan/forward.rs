//! The maps of the programs that forward: the rules of frontends, the backends of their tables slot
//! by slot, and the interfaces that have both programs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use portcullis_common::abi;
use portcullis_common::flow::{
    BY_ADDRESS, BY_CONNECTION, Endpoint, Ip, MAX_RULES, NodeAddresses, Rule, Slot,
};
use portcullis_common::forward::any_port;
use portcullis_common::maglev::{self, Share, Turn};
use portcullis_model::FrontendKey;

use crate::plan::key::{address, key};
use crate::plan::table::{Change, Difference};

/// Frontends of one address family, whose connections or datagrams go to the same backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardTable {
    pub frontends: BTreeSet<FrontendKey>,
    /// With their weights.
    pub backends: BTreeMap<SocketAddr, u32>,
    pub affinity: Affinity,
}

/// Clients' packets that go to the same backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// Those of one connection, or of one socket.
    Connection,
    /// Those of one address.
    Address,
}

/// Contents of the maps, as they are or as they should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardContents {
    pub rules: BTreeMap<abi::FrontendKey, Rule>,
    pub backends: BTreeMap<Slot, Endpoint>,
    /// By index.
    pub interfaces: BTreeMap<u32, NodeAddresses>,
}

/// One map write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardOp {
    Rule(Change<abi::FrontendKey, Rule>),
    Backend(Change<Slot, Endpoint>),
    Interface(Change<u32, NodeAddresses>),
}

/// The writes to get from one to the other. What goes makes room first. A table is filled before a
/// rule leads there, and emptied when none does any more.
pub fn plan_forwarding(observed: &ForwardContents, desired: &ForwardContents) -> Vec<ForwardOp> {
    let interfaces = Difference::between(&observed.interfaces, &desired.interfaces);
    let backends = Difference::between(&observed.backends, &desired.backends);
    let rules = Difference::between(&observed.rules, &desired.rules);
    let kept = observed.rules.iter().filter(|(key, _)| desired.rules.contains_key(key));
    let kept: BTreeSet<_> = kept.map(|(_, rule)| rule.table).collect();
    let is_led_to =
        |change: &Change<Slot, _>| matches!(change, Change::Remove(slot) if kept.contains(&slot.table));
    let (later, first): (Vec<_>, Vec<_>) = backends.remove.into_iter().partition(is_led_to);

    let mut ops: Vec<_> = rules.remove.into_iter().map(ForwardOp::Rule).collect();
    ops.extend(first.into_iter().map(ForwardOp::Backend));
    ops.extend(interfaces.put.into_iter().map(ForwardOp::Interface));
    ops.extend(backends.put.into_iter().map(ForwardOp::Backend));
    ops.extend(rules.put.into_iter().map(ForwardOp::Rule));
    ops.extend(later.into_iter().map(ForwardOp::Backend));
    ops.extend(interfaces.remove.into_iter().map(ForwardOp::Interface));
    ops
}

impl ForwardContents {
    /// The contents that the tables come to, under the numbers that their frontends have already.
    pub fn of(tables: &[ForwardTable], interfaces: BTreeMap<u32, NodeAddresses>, observed: &Self) -> Self {
        let used: BTreeSet<_> = observed.rules.values().map(|rule| rule.table).collect();
        let mut free = (0..MAX_RULES * 2).filter(|number| !used.contains(number));
        let mut taken = BTreeSet::new();
        let mut contents = Self { interfaces, ..Self::default() };
        for table in tables {
            let Some(slots) = table.slots() else { continue };
            let keys: Vec<_> = table.frontends.iter().map(key).collect();
            let held = keys.iter().filter_map(|key| observed.rules.get(key)).map(|rule| rule.table);
            let held = held.filter(|number| !taken.contains(number)).min();
            let Some(number) = held.or_else(|| free.next()) else { continue };
            taken.insert(number);
            let affinity = match table.affinity {
                Affinity::Connection => BY_CONNECTION,
                Affinity::Address => BY_ADDRESS,
            };
            let rule = Rule { table: number, slots: slots.len() as u32, affinity };
            for key in keys {
                contents.rules.insert(any_port(key.address), rule);
                contents.rules.insert(key, rule);
            }
            let slots = (0..).zip(slots).map(|(slot, backend)| (Slot { table: number, slot }, backend));
            contents.backends.extend(slots);
        }
        // Which of an address's rules stands for all of them does not matter, but it should not
        // change.
        for (key, rule) in contents.rules.iter_mut().filter(|(key, _)| key.port_be == 0) {
            *rule = observed.rules.get(key).copied().unwrap_or(ANY);
        }
        contents
    }

    /// Does a write on this copy.
    pub fn apply(&mut self, op: ForwardOp) {
        match op {
            ForwardOp::Rule(change) => change.apply(&mut self.rules),
            ForwardOp::Backend(change) => change.apply(&mut self.backends),
            ForwardOp::Interface(change) => change.apply(&mut self.interfaces),
        }
    }
}

/// Of an address that has rules. It has no table.
const ANY: Rule = Rule { table: u32::MAX, slots: 0, affinity: BY_CONNECTION };

impl ForwardTable {
    pub(crate) fn endpoints_by_frontend(&self) -> BTreeMap<abi::FrontendKey, BTreeSet<Endpoint>> {
        let endpoints: BTreeSet<_> = self.backends.keys().map(|backend| endpoint(*backend)).collect();
        self.frontends.iter().map(|frontend| (key(frontend), endpoints.clone())).collect()
    }

    /// The backend of each slot; `None` if no backend has a weight.
    fn slots(&self) -> Option<Vec<Endpoint>> {
        let backends: Vec<_> =
            self.backends.iter().map(|(backend, weight)| (endpoint(*backend), weight)).collect();
        let share = |(backend, weight): &(Endpoint, &u32)| {
            let [a, b, c, d] = backend.ip.0;
            Share { name: [a, b, c, d, u32::from(backend.port_be)], weight: **weight }
        };
        let shares: Vec<_> = backends.iter().map(share).collect();
        let mut slots = vec![0; maglev::slots(shares.len()) as usize];
        let is_filled = maglev::fill(&mut slots, &shares, &mut vec![Turn::default(); shares.len()]);
        is_filled.then(|| slots.into_iter().map(|index| backends[index as usize].0).collect())
    }
}

pub(crate) fn endpoint(socket: SocketAddr) -> Endpoint {
    Endpoint::new(Ip::from(address(socket.ip())), socket.port().to_be())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(ports: &[u16], backends: &[&str]) -> ForwardTable {
        ForwardTable {
            frontends: ports.iter().map(|port| FrontendKey::tcp(([10, 0, 0, 1], *port).into())).collect(),
            backends: backends.iter().map(|backend| (backend.parse().unwrap(), 1)).collect(),
            affinity: Affinity::Connection,
        }
    }

    fn of(tables: &[ForwardTable], observed: &ForwardContents) -> ForwardContents {
        ForwardContents::of(tables, BTreeMap::new(), observed)
    }

    #[test]
    fn a_table_keeps_its_number_and_most_of_its_slots() {
        let [a, b, c] = ["10.2.0.1:80", "10.2.0.2:80", "10.2.0.3:80"];
        let first = of(&[table(&[80], &[a, b, c]), table(&[81], &[a])], &ForwardContents::default());
        let second = of(&[table(&[79], &[b]), table(&[80], &[a, b])], &first);
        let number = |contents: &ForwardContents, port| {
            contents.rules[&key(&FrontendKey::tcp(([10, 0, 0, 1], port).into()))].table
        };
        assert_eq!(number(&first, 80), number(&second, 80));
        let table = number(&first, 80);
        let moved = first.backends.iter().filter(|(slot, it)| {
            slot.table == table
                && it.ip != endpoint(c.parse().unwrap()).ip
                && second.backends.get(slot) != Some(it)
        });
        assert!(moved.count() < 150);
        assert_eq!(plan_forwarding(&second, &second), []);
    }

    #[test]
    fn a_rule_leads_nowhere_at_no_time() {
        let first = of(&[table(&[80], &["10.2.0.1:80"])], &ForwardContents::default());
        let many: Vec<_> = (1..=30).map(|host| format!("10.2.0.{host}:80")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let second = of(&[table(&[80, 81], &many)], &first);
        let mut now = first.clone();
        for (from, to) in [(&first, &second), (&second, &first)] {
            for op in plan_forwarding(from, to) {
                now.apply(op);
                for rule in now.rules.values().filter(|rule| rule.slots > 0) {
                    let slot = |slot| Slot { table: rule.table, slot };
                    assert!((0..rule.slots).all(|it| now.backends.contains_key(&slot(it))));
                }
            }
            assert_eq!(now, *to);
        }
    }

    #[test]
    fn what_goes_makes_room_for_what_comes() {
        let first = of(&[table(&[80], &["10.2.0.1:80"])], &ForwardContents::default());
        let second = of(&[table(&[81], &["10.2.0.2:80"])], &first);
        let ops = plan_forwarding(&first, &second);
        let puts = ops.iter().position(|op| {
            matches!(op, ForwardOp::Rule(Change::Put(..)) | ForwardOp::Backend(Change::Put(..)))
        });
        assert!(ops[puts.unwrap()..].iter().all(|op| !matches!(op, ForwardOp::Backend(Change::Remove(_)))));
        assert!(ops[puts.unwrap()..].iter().all(|op| !matches!(op, ForwardOp::Rule(Change::Remove(_)))));
    }

    #[test]
    fn a_table_without_backends_is_none() {
        let mut empty = table(&[80], &["10.2.0.1:80"]);
        empty.backends.values_mut().for_each(|weight| *weight = 0);
        assert_eq!(of(&[empty, table(&[81], &[])], &ForwardContents::default()), ForwardContents::default());
    }
}
