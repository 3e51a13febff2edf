//! The server names of ports, as the maps hold them: a number for each table of names, the
//! frontends that have it, and the names in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use portcullis_common::abi::{self, NameInTable};
use portcullis_common::server_name::ReversedName;
use portcullis_model::{FrontendKey, HostPattern};

use crate::plan::key::key;

/// The names that the listeners of a port have, and the frontends of the port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameTable {
    pub frontends: BTreeSet<FrontendKey>,
    pub names: BTreeSet<HostPattern>,
}

/// Key of the map of names: a name, or what the names begin with from behind, of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameKey {
    /// Length in bits of what has to be equal.
    pub prefix: u32,
    pub name: NameInTable,
}

/// Frontends with the number of their table, and the names of all tables.
pub(crate) type Numbered = (BTreeMap<abi::FrontendKey, u32>, BTreeMap<NameKey, u32>);

/// The value of a name, of which only its being there counts.
const KNOWN: u32 = 1;

/// The tables under the numbers that their frontends have already; a table that is new gets one
/// that no frontend has. Tables that find no number are left out: their names are not looked up.
pub(crate) fn numbered(tables: &[NameTable], observed: &BTreeMap<abi::FrontendKey, u32>) -> Numbered {
    let mut free = (0..=u32::from(u16::MAX)).filter({
        let used: BTreeSet<_> = observed.values().copied().collect();
        move |number| !used.contains(number)
    });
    let mut taken = BTreeSet::new();
    let (mut frontends, mut names) = Numbered::default();
    for table in tables {
        let keys: Vec<_> = table.frontends.iter().map(key).collect();
        let held = keys.iter().filter_map(|key| observed.get(key).copied());
        let held = held.filter(|number| *number <= u32::from(u16::MAX) && !taken.contains(number)).min();
        let Some(number) = held.or_else(|| free.next()) else { continue };
        taken.insert(number);
        frontends.extend(keys.into_iter().map(|key| (key, number)));
        let keys = table.names.iter().filter_map(|name| NameKey::new(number as u16, name));
        names.extend(keys.map(|key| (key, KNOWN)));
    }
    (frontends, names)
}

impl NameKey {
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
            names: names.iter().map(pattern).collect(),
        }
    }

    #[test]
    fn a_table_keeps_its_number() {
        let (first, _) = numbered(&[table(&[443], &["a.b"]), table(&[444], &["c.d"])], &BTreeMap::new());
        assert_eq!(first.values().copied().collect::<Vec<_>>(), [0, 1]);
        // The first goes, another comes, and the second gets a frontend more.
        let (second, names) = numbered(&[table(&[442], &["e.f"]), table(&[444, 445], &["c.d"])], &first);
        assert_eq!(second.values().copied().collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn tables_that_part_have_two_numbers() {
        let together = table(&[443, 444], &["a.b"]);
        let (first, _) = numbered(std::slice::from_ref(&together), &BTreeMap::new());
        let (second, _) = numbered(&[table(&[443], &["a.b"]), table(&[444], &["c.d"])], &first);
        assert_eq!(second.values().copied().collect::<Vec<_>>(), [0, 1]);
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
