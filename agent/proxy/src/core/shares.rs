//! Memory, and other things that tenants share: no namespace takes so much that nothing is left for
//! another one.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;

/// The whole.
#[derive(Debug)]
pub(crate) struct Shares {
    free: usize,
    held: HashMap<Arc<str>, usize, RandomState>,
}

/// The whole of a core.
#[derive(Clone)]
pub(crate) struct CoreShares(Rc<RefCell<Shares>>);

/// The share of a namespace in that, which it takes part by part.
#[derive(Clone)]
pub(crate) struct Share {
    all: CoreShares,
    namespace: Arc<str>,
}

// === impl Shares ===

impl Shares {
    pub(crate) fn new(amount: usize) -> Self {
        Self { free: amount, held: HashMap::default() }
    }

    /// False if the namespace would have more than is left for others then. So one that is alone
    /// has half of the whole, and of several that take what they can each has as much as is left.
    pub(crate) fn take(&mut self, namespace: &Arc<str>, amount: usize) -> bool {
        let more = self.held.get(namespace).copied().unwrap_or_default().saturating_add(amount);
        let Some(left) = self.free.checked_sub(amount).filter(|left| more <= *left) else {
            return false;
        };
        self.free = left;
        self.held.insert(namespace.clone(), more);
        true
    }

    /// Gives back some of what was taken.
    pub(crate) fn give_back(&mut self, namespace: &Arc<str>, amount: usize) {
        let Some(of_namespace) = self.held.get_mut(namespace) else { return };
        let amount = amount.min(*of_namespace);
        *of_namespace -= amount;
        if *of_namespace == 0 {
            self.held.remove(namespace);
        }
        self.free += amount;
    }
}

// === impl CoreShares ===

impl CoreShares {
    pub(crate) fn new(amount: usize) -> Self {
        Self(Rc::new(RefCell::new(Shares::new(amount))))
    }

    pub(crate) fn of(&self, namespace: &str) -> Share {
        let known = self.0.borrow().held.get_key_value(namespace).map(|(known, _)| known.clone());
        Share { all: self.clone(), namespace: known.unwrap_or_else(|| namespace.into()) }
    }
}

// === impl Share ===

impl Share {
    /// False if there is no room for the namespace.
    pub(crate) fn take(&self, amount: usize) -> bool {
        self.all.0.borrow_mut().take(&self.namespace, amount)
    }

    pub(crate) fn give_back(&self, amount: usize) {
        self.all.0.borrow_mut().give_back(&self.namespace, amount);
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
        let shares = CoreShares::new(120);
        let [one, two, three] = ["one", "two", "three"].map(|namespace| shares.of(namespace));
        assert_eq!([taken(&one), taken(&two), taken(&three)], [60, 30, 15]);
        one.give_back(60);
        assert_eq!(taken(&two), 22);
        two.give_back(30 + 22);
        three.give_back(15);
        assert!(shares.0.borrow().held.is_empty());
        assert_eq!(taken(&shares.of("four")), 60);
    }

    #[test]
    fn nothing_is_taken_where_there_is_not_all_of_it() {
        let shares = CoreShares::new(100);
        let share = shares.of("one");
        assert!(!share.take(51) && !share.take(usize::MAX) && share.take(50) && !share.take(1));
        share.give_back(50);
        assert_eq!(shares.0.borrow().free, 100);
    }
}
