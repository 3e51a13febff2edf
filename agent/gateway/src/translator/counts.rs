//! Reference counts: the number of dependents of each of many things.

use std::collections::BTreeMap;

#[derive(Debug)]
pub(super) struct Counts<T>(BTreeMap<T, usize>);

// === impl Counts ===

impl<T> Default for Counts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone> Counts<T> {
    pub(super) fn contains(&self, target: &T) -> bool {
        self.0.contains_key(target)
    }

    /// Those with dependents, from `first` on.
    pub(super) fn from<'c>(&'c self, first: &T) -> impl Iterator<Item = &'c T> + use<'c, T> {
        self.0.range(first..).map(|(target, _)| target)
    }

    /// Returns whether it is the first dependent.
    pub(super) fn add(&mut self, target: &T) -> bool {
        match self.0.get_mut(target) {
            Some(count) => *count += 1,
            None => return self.0.insert(target.clone(), 1).is_none(),
        }
        false
    }

    /// Returns whether it was the last dependent.
    pub(super) fn remove(&mut self, target: &T) -> bool {
        match self.0.get_mut(target) {
            Some(count) if *count > 1 => *count -= 1,
            _ => return self.0.remove(target).is_some(),
        }
        false
    }
}
