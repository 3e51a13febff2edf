//! The server names of ports, as the maps hold them: a number for each table of names, the
//! frontends that have it, and the names in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use portcullis_common::abi::{self, MAX_NAMES, NameInTable};
use portcullis_common::server_name::ReversedName;
use portcullis_model::{Admission, FrontendKey, HostPattern};

use crate::plan::Contents;
use crate::plan::key::key;

/// The names that the listeners of a port have, one for each, and the frontends of the port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameTable {
    pub frontends: BTreeSet<FrontendKey>,
    /// With the terms of each listener.
    pub names: BTreeMap<HostPattern, Arc<Admission>>,
}

/// Key of the map of names: a name, or what the names begin with from behind, of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameKey {
    /// Length in bits of what has to be equal.
    pub prefix: u32,
    pub name: NameInTable,
}

/// Frontends with the number of their table, the names of all tables with the numbers of the
/// listeners that have them, and the terms of those.
#[derive(Default)]
pub(crate) struct Numbered<'t> {
    pub(crate) frontends: BTreeMap<abi::FrontendKey, u32>,
    pub(crate) names: BTreeMap<NameKey, u32>,
    pub(crate) listeners: Vec<(u32, &'t NameTable, &'t Admission)>,
}

/// The tables under the numbers that their frontends have already, and the listeners under those
/// that their names have; what is new gets a number that is not in use. Tables for which there is
/// no number or no room are left out as a whole: their names are not looked up.
pub(crate) fn numbered<'t>(tables: &'t [NameTable], observed: &Contents) -> Numbered<'t> {
    let mut free = unused(&observed.name_tables).take_while(|number| *number <= u32::from(u16::MAX));
    let mut free_listeners = unused(&observed.names);
    let (mut taken, mut kept) = (BTreeSet::new(), BTreeSet::new());
    let mut numbered = Numbered::default();
    for table in tables {
        let keys: Vec<_> = table.frontends.iter().map(key).collect();
        if numbered.names.len() + table.names.len() > MAX_NAMES as usize {
            continue;
        }
        let held = keys.iter().filter_map(|key| observed.name_tables.get(key).copied());
        let held = held.filter(|number| *number <= u32::from(u16::MAX) && !taken.contains(number)).min();
        let Some(number) = held.or_else(|| free.next()) else { continue };
        taken.insert(number);
        numbered.frontends.extend(keys.into_iter().map(|key| (key, number)));
        for (name, admission) in &table.names {
            let Some(key) = NameKey::new(number as u16, name) else { continue };
            let held = observed.names.get(&key).filter(|listener| kept.insert(**listener)).copied();
            let Some(listener) = held.or_else(|| free_listeners.next()) else { continue };
            numbered.names.insert(key, listener);
            numbered.listeners.push((listener, table, &**admission));
        }
    }
    numbered
}

/// Numbers that no entry has, in ascending order.
fn unused<K>(entries: &BTreeMap<K, u32>) -> impl Iterator<Item = u32> + use<K> {
    let used: BTreeSet<_> = entries.values().copied().collect();
    (0..=u32::MAX).filter(move |number| !used.contains(number))
}

impl NameKey {
    /// The number of the table that has it.
    pub(crate) fn table(&self) -> u32 {
        u16::from_be_bytes(self.name.table).into()
    }

    /// `None` for a name that no ClientHello can have.
    pub(crate) fn new(table: u16, pattern: &HostPattern) -> Option<Self> {
        let mut name = NameInTable { table: table.to_be_bytes(), name: ReversedName::EMPTY };
        let mut read = |text: &str| name.name.read(text.as_bytes(), 0, text.len());
        let prefix = match pattern {
            HostPattern::Any => NameInTable::ANY_NAME,
            HostPattern::Exact(text) => NameInTable::prefix_of_name(read(text)?),
            HostPattern::Wildcard(suffix) => {
                let length = read(suffix)?;
                name.name.0[length] = b'.';
                NameInTable::prefix_of_name(length)
            }
        };
        Some(Self { prefix, name })
    }
}

/// The name as its table has it: `a.b`, `*.b` or `*`.
impl fmt::Display for NameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = (self.prefix.saturating_sub(NameInTable::ANY_NAME) / 8) as usize;
        let name = self.name.name.0.iter().take(length).rev().filter(|byte| **byte != 0);
        let name: String = name.map(|byte| char::from(*byte)).collect();
        let wildcard = if name.is_empty() || name.starts_with('.') { "*" } else { "" };
        write!(f, "{wildcard}{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(ports: &[u16], names: &[&str]) -> NameTable {
        let frontend = |port: &u16| FrontendKey::tcp(([10, 0, 0, 1], *port).into());
        let pattern = |name: &&str| HostPattern::parse(name).unwrap();
        NameTable {
            frontends: ports.iter().map(frontend).collect(),
            names: names.iter().map(|name| (pattern(name), Arc::default())).collect(),
        }
    }

    fn maps(tables: &[NameTable], observed: &Contents) -> Contents {
        let Numbered { frontends: name_tables, names, .. } = numbered(tables, observed);
        Contents { name_tables, names, ..Contents::default() }
    }

    #[test]
    fn a_table_keeps_its_number() {
        let first = maps(&[table(&[443], &["a.b"]), table(&[444], &["c.d"])], &Contents::default());
        assert_eq!(first.name_tables.values().copied().collect::<Vec<_>>(), [0, 1]);
        // The first goes, another comes, and the second gets a frontend more.
        let second = maps(&[table(&[442], &["e.f"]), table(&[444, 445], &["c.d"])], &first);
        assert_eq!(second.name_tables.values().copied().collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!(second.names.len(), 2);
    }

    #[test]
    fn a_listener_keeps_its_number() {
        let first = maps(&[table(&[443], &["a.b", "c.d"])], &Contents::default());
        let number = |contents: &Contents, name: &str| {
            contents.names[&NameKey::new(0, &HostPattern::parse(name).unwrap()).unwrap()]
        };
        assert_eq!((number(&first, "a.b"), number(&first, "c.d")), (0, 1));
        let second = maps(&[table(&[443], &["*.b", "c.d"])], &first);
        assert_eq!((number(&second, "*.b"), number(&second, "c.d")), (2, 1));
    }

    #[test]
    fn tables_that_part_have_two_numbers() {
        let together = table(&[443, 444], &["a.b"]);
        let first = maps(std::slice::from_ref(&together), &Contents::default());
        let second = maps(&[table(&[443], &["a.b"]), table(&[444], &["c.d"])], &first);
        assert_eq!(second.name_tables.values().copied().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn prefixes_are_as_long_as_what_has_to_be_equal() {
        let prefix = |name: &str| NameKey::new(7, &HostPattern::parse(name).unwrap()).unwrap().prefix;
        assert_eq!(prefix("a.b"), 16 + 8 * 4, "with NUL");
        assert_eq!(prefix("*.a.b"), 16 + 8 * 4, "with the dot");
        assert_eq!(NameKey::new(7, &HostPattern::Any).unwrap().prefix, 16);
        for name in ["a.b", "*.a.b"] {
            assert_eq!(NameKey::new(7, &HostPattern::parse(name).unwrap()).unwrap().to_string(), name);
        }
        assert_eq!(NameKey::new(7, &HostPattern::Any).unwrap().to_string(), "*");
    }
}
