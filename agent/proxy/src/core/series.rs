//! Series of metrics, one for each name up to as many as the operator wants; names beyond that
//! share one, so that tenants with thousands of routes cannot make a scrape too large for those who
//! read it. Which names have their own is agreed upon by all cores, when a core first meets a
//! name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foldhash::fast::RandomState;

/// The names that have a series of their own.
#[derive(Debug)]
pub(crate) struct SharedNames<K>(Arc<Names<K>>);

#[derive(Debug)]
struct Names<K> {
    most: usize,
    claimed: Mutex<Claimed<K>>,
}

#[derive(Debug)]
struct Claimed<K> {
    names: HashMap<K, Weak<Claim>, RandomState>,
    /// True if a core has forgotten names since the places were counted that are free.
    is_outdated: bool,
}

/// A name's place among those that have a series of their own. It is free when no core has a series
/// of that name any more.
#[derive(Debug)]
struct Claim;

/// One core's series.
#[derive(Debug)]
pub(crate) struct SeriesSet<K, V> {
    names: SharedNames<K>,
    own: RefCell<Own<K, V>>,
    /// Of all names without a series of their own.
    other: Rc<V>,
}

type Own<K, V> = HashMap<K, (Arc<Claim>, Rc<V>), RandomState>;

// === impl SharedNames ===

impl<K: Clone + Eq + Hash> SharedNames<K> {
    pub(crate) fn new(most: usize) -> Self {
        let claimed = Claimed { names: HashMap::default(), is_outdated: false };
        Self(Arc::new(Names { most, claimed: Mutex::new(claimed) }))
    }

    fn claim(&self, name: &K) -> Option<Arc<Claim>> {
        let claimed = &mut *self.claimed();
        if let Some(claim) = claimed.names.get(name).and_then(Weak::upgrade) {
            return Some(claim);
        }
        if std::mem::take(&mut claimed.is_outdated) {
            claimed.names.retain(|_, claim| claim.strong_count() > 0);
        }
        if claimed.names.len() >= self.0.most {
            return None;
        }
        let claim = Arc::new(Claim);
        claimed.names.insert(name.clone(), Arc::downgrade(&claim));
        Some(claim)
    }

    fn claimed(&self) -> MutexGuard<'_, Claimed<K>> {
        self.0.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Clone for SharedNames<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

// === impl SeriesSet ===

impl<K: Clone + Eq + Hash, V: Default> SeriesSet<K, V> {
    pub(crate) fn new(names: SharedNames<K>) -> Self {
        Self { names, own: RefCell::default(), other: Rc::default() }
    }

    /// The series of a name; the shared one if there are too many.
    pub(crate) fn get(&self, name: &K) -> Rc<V> {
        if let Some((_, series)) = self.own.borrow().get(name) {
            return series.clone();
        }
        let Some(claim) = self.names.claim(name) else { return self.other.clone() };
        let series = Rc::<V>::default();
        self.own.borrow_mut().insert(name.clone(), (claim, series.clone()));
        series
    }

    /// Forgets the series of other names.
    pub(crate) fn retain(&self, is_kept: impl Fn(&K) -> bool) {
        self.own.borrow_mut().retain(|name, _| is_kept(name));
        self.names.claimed().is_outdated = true;
    }

    /// All series; `None` names the shared one.
    pub(crate) fn read<T>(&self, read: impl Fn(&V) -> T) -> Vec<(Option<K>, T)> {
        let own = self.own.borrow();
        let own = own.iter().map(|(name, (_, series))| (Some(name.clone()), read(series)));
        own.chain([(None, read(&self.other))]).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    type Set = SeriesSet<&'static str, Cell<u32>>;

    fn count(set: &Set, name: &'static str) {
        let series = set.get(&name);
        series.set(series.get() + 1);
    }

    fn read(set: &Set) -> Vec<(Option<&'static str>, u32)> {
        let mut read = set.read(Cell::get);
        read.sort();
        read
    }

    #[test]
    fn names_beyond_the_limit_share_a_series_on_every_core() {
        let names = SharedNames::new(2);
        let [first, second] = [(); 2].map(|()| Set::new(names.clone()));
        ["a", "b", "c", "a", "d"].into_iter().for_each(|name| count(&first, name));
        ["c", "b", "a"].into_iter().for_each(|name| count(&second, name));
        assert_eq!(read(&first), [(None, 2), (Some("a"), 2), (Some("b"), 1)]);
        assert_eq!(read(&second), [(None, 1), (Some("a"), 1), (Some("b"), 1)]);
    }

    #[test]
    fn a_place_is_free_when_all_cores_have_forgotten_its_name() {
        let names = SharedNames::new(1);
        let [first, second] = [(); 2].map(|()| Set::new(names.clone()));
        count(&first, "a");
        count(&second, "a");
        first.retain(|name| *name != "a");
        count(&first, "b");
        assert_eq!(read(&first), [(None, 1)]);
        second.retain(|name| *name != "a");
        count(&first, "b");
        assert_eq!(read(&first), [(None, 1), (Some("b"), 1)]);
    }
}
