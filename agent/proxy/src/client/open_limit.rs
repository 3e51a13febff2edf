//! Connections that are open at a time for objects that limit them: counts that all cores share,
//! one for each object. A connection has a place in each of its listener's counts as long as it is
//! open, however often its policy is edited.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use portcullis_model::{BudgetOwner, OpenLimit};

/// Counts in which one connection may have places: those of listeners that it asks in turn.
const MOST_PLACES: usize = 64;

/// The counts of all cores. The lock is for finding one, once per core and version of a listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedOpen(Arc<Mutex<HashMap<BudgetOwner, Weak<AtomicU32>>>>);

/// A limit, as one core sees it.
pub(crate) struct OpenCount {
    pub owner: BudgetOwner,
    most: u32,
    open: Arc<AtomicU32>,
}

/// A connection's place in a count; given back when this is dropped.
struct Counted(Arc<AtomicU32>);

/// The places of a connection.
#[derive(Default)]
pub(crate) struct Places(RefCell<Vec<Counted>>);

// === impl SharedOpen ===

impl SharedOpen {
    /// Also that of an object that had no limit for a while, if connections still have places.
    pub(crate) fn count(&self, limit: &OpenLimit) -> OpenCount {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let open = counts.get(&limit.owner).and_then(Weak::upgrade).unwrap_or_else(|| {
            counts.retain(|_, open| open.strong_count() > 0);
            let open = Arc::default();
            counts.insert(limit.owner.clone(), Arc::downgrade(&open));
            open
        });
        OpenCount { owner: limit.owner.clone(), most: limit.most.get(), open }
    }
}

// === impl OpenCount ===

impl OpenCount {
    /// `None` if there are as many as there may be.
    fn take(&self) -> Option<Counted> {
        // Counted first, so that no two cores can both take the last place.
        let before = self.open.fetch_add(1, Relaxed);
        let place = Counted(self.open.clone());
        (before < self.most).then_some(place)
    }
}

// === impl Counted ===

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

// === impl Places ===

impl Places {
    /// Takes a place in each of the counts in which the connection has none yet, or says which of
    /// them has none left.
    pub(crate) fn take<'c>(&self, counts: &'c [OpenCount]) -> Result<(), &'c OpenCount> {
        let mut places = self.0.borrow_mut();
        for count in counts {
            if places.iter().any(|place| Arc::ptr_eq(&place.0, &count.open)) {
                continue;
            }
            let place = count.take().filter(|_| places.len() < MOST_PLACES);
            places.push(place.ok_or(count)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use portcullis_model::{ObjectName, ParentKind};

    use super::*;

    fn limit(name: &str, most: u32) -> OpenLimit {
        let name = ObjectName::new("infra", name);
        let owner = BudgetOwner { kind: ParentKind::Gateway, name, listener: None };
        OpenLimit { owner, most: NonZeroU32::new(most).unwrap() }
    }

    #[test]
    fn a_connection_has_one_place_in_a_count_until_it_ends() {
        let shared = SharedOpen::default();
        let counts = [shared.count(&limit("web", 2))];
        let [first, second, third] = [(); 3].map(|()| Places::default());
        assert!(first.take(&counts).is_ok() && first.take(&counts).is_ok());
        assert!(second.take(&counts).is_ok() && third.take(&counts).is_err());
        // Another policy of the same object.
        let again = [shared.count(&limit("web", 2))];
        assert!(first.take(&again).is_ok() && third.take(&again).is_err());
        drop(counts);
        drop(first);
        assert!(third.take(&again).is_ok(), "a place was given back");
        assert!(Places::default().take(&[shared.count(&limit("other", 1))]).is_ok());
    }

    #[test]
    fn a_place_that_is_refused_takes_none() {
        let shared = SharedOpen::default();
        let both = [shared.count(&limit("free", 1)), shared.count(&limit("full", 1))];
        let (holder, other) = (Places::default(), Places::default());
        assert!(holder.take(&both[1..]).is_ok());
        assert_eq!(other.take(&both).err().map(|count| &*count.owner.name.name), Some("full"));
        drop(other);
        assert!(Places::default().take(&both[..1]).is_ok());
    }

    #[test]
    fn one_connection_does_not_have_places_without_end() {
        let shared = SharedOpen::default();
        let places = Places::default();
        let taken = (0..100).filter(|at| places.take(&[shared.count(&limit(&at.to_string(), 9))]).is_ok());
        assert_eq!(taken.count(), MOST_PLACES);
    }
}
