//! The difference of two tables, as writes of single entries. Every table that is kept equal to
//! what is desired is compared here; the order of the writes of several tables is up to their
//! owner.

use std::collections::BTreeMap;

/// One write to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<K, V> {
    /// Adds an entry, or replaces its value.
    Put(K, V),
    Remove(K),
}

/// The writes that lead from one table to another.
pub(crate) struct Difference<K, V> {
    /// Entries that are missing, or have another value.
    pub(crate) put: Vec<Change<K, V>>,
    /// Entries that are too many.
    pub(crate) remove: Vec<Change<K, V>>,
}

impl<K: Ord + Copy, V: PartialEq + Copy> Difference<K, V> {
    pub(crate) fn between(observed: &BTreeMap<K, V>, desired: &BTreeMap<K, V>) -> Self {
        let put = desired.iter().filter(|(key, value)| observed.get(key) != Some(value));
        let remove = observed.keys().filter(|key| !desired.contains_key(key));
        Self {
            put: put.map(|(key, value)| Change::Put(*key, *value)).collect(),
            remove: remove.map(|key| Change::Remove(*key)).collect(),
        }
    }
}

impl<K: Ord, V> Change<K, V> {
    /// Does the write on a copy of the table.
    pub(crate) fn apply(self, table: &mut BTreeMap<K, V>) {
        match self {
            Self::Put(key, value) => _ = table.insert(key, value),
            Self::Remove(key) => _ = table.remove(&key),
        }
    }
}
