//! Memory, and other things of a core that tenants share: no namespace takes so much that nothing
//! is left for another one.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// The whole.
pub(crate) struct Shares {
    free: Cell<usize>,
    held: RefCell<HashMap<Arc<str>, usize, RandomState>>,
}

/// The share of a namespace, which it takes part by part.
#[derive(Clone)]
pub(crate) struct Share {
    all: Rc<Shares>,
    namespace: Arc<str>,
}

// === impl Shares ===

impl Shares {
    pub(crate) fn new(amount: usize) -> Rc<Self> {
        Rc::new(Self { free: Cell::new(amount), held: RefCell::default() })
    }

    pub(crate) fn of(self: &Rc<Self>, namespace: &str) -> Share {
        let known = self.held.borrow().get_key_value(namespace).map(|(known, _)| known.clone());
        Share { all: self.clone(), namespace: known.unwrap_or_else(|| namespace.into()) }
    }
}

// === impl Share ===

impl Share {
    /// False if the namespace would have more than is left for others then. So one that is alone
    /// has half of the whole, and of several that take what they can each has as much as is left.
    pub(crate) fn take(&self, amount: usize) -> bool {
        let mut held = self.all.held.borrow_mut();
        let more = held.get(&self.namespace).copied().unwrap_or_default().saturating_add(amount);
        let Some(left) = self.all.free.get().checked_sub(amount).filter(|left| more <= *left) else {
            return false;
        };
        self.all.free.set(left);
        held.insert(self.namespace.clone(), more);
        true
    }

    /// Gives back some of what was taken.
    pub(crate) fn give_back(&self, amount: usize) {
        let mut held = self.all.held.borrow_mut();
        let Some(of_namespace) = held.get_mut(&self.namespace) else { return };
        let amount = amount.min(*of_namespace);
        *of_namespace -= amount;
        if *of_namespace == 0 {
            held.remove(&self.namespace);
        }
        self.all.free.set(self.all.free.get() + amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of times that a share is given.
    fn taken(share: &Share) -> usize {
        (0..1000).take_while(|_| share.take(1)).count()
    }

    #[test]
    fn whoever_comes_last_has_as_much_as_is_left_for_the_next() {
        let shares = Shares::new(120);
        let [one, two, three] = ["one", "two", "three"].map(|namespace| shares.of(namespace));
        assert_eq!([taken(&one), taken(&two), taken(&three)], [60, 30, 15]);
        one.give_back(60);
        assert_eq!(taken(&two), 22);
        two.give_back(30 + 22);
        three.give_back(15);
        assert!(shares.held.borrow().is_empty());
        assert_eq!(taken(&shares.of("four")), 60);
    }

    #[test]
    fn nothing_is_taken_where_there_is_not_all_of_it() {
        let shares = Shares::new(100);
        let share = shares.of("one");
        assert!(!share.take(51) && !share.take(usize::MAX) && share.take(50) && !share.take(1));
        share.give_back(50);
        assert_eq!(shares.free.get(), 100);
    }
}
