//! A state that is looked at again and again is logged when it changes, not every time it is seen.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The state of each subject that is in the log already. A subject that is in order has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastLogged<S = (), V = String>(BTreeMap<S, V>);

impl<S: Ord, V: PartialEq> LastLogged<S, V> {
    /// Takes the present state of a subject, and returns it if it has to be logged. `None` stands
    /// for nothing to log; after it, the same state is new again.
    pub fn update(&mut self, subject: S, state: Option<V>) -> Option<&V> {
        let Some(state) = state else {
            self.0.remove(&subject);
            return None;
        };
        match self.0.entry(subject) {
            Entry::Vacant(place) => Some(place.insert(state)),
            Entry::Occupied(logged) if *logged.get() == state => None,
            Entry::Occupied(mut logged) => {
                logged.insert(state);
                Some(logged.into_mut())
            }
        }
    }

    /// The subject is in order. Returns whether the log says otherwise.
    pub fn clear(&mut self, subject: &S) -> bool {
        self.0.remove(subject).is_some()
    }

    /// All other subjects are in order.
    pub fn keep_only(&mut self, is_open: impl Fn(&S) -> bool) {
        self.0.retain(|subject, _| is_open(subject));
    }

    pub fn subjects(&self) -> impl ExactSizeIterator<Item = &S> {
        self.0.keys()
    }
}

impl<S, V> Default for LastLogged<S, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_new_once_and_again_after_silence() {
        let mut last = LastLogged::<()>::default();
        let mut update = |text: Option<&str>| last.update((), text.map(str::to_owned)).cloned();
        assert_eq!(update(None), None);
        assert_eq!(update(Some("full")).as_deref(), Some("full"));
        assert_eq!(update(Some("full")), None);
        assert_eq!(update(Some("gone")).as_deref(), Some("gone"));
        assert_eq!(update(None), None);
        assert_eq!(update(Some("gone")).as_deref(), Some("gone"));
    }

    #[test]
    fn subjects_are_apart() {
        let mut last = LastLogged::default();
        for subject in ["a", "b"] {
            assert!(last.update(subject, Some(1)).is_some());
        }
        assert!(last.clear(&"a") && !last.clear(&"a"));
        assert!(last.subjects().eq(&["b"]));
        last.keep_only(|subject| *subject != "b");
        assert!(last.update("b", Some(1)).is_some());
    }
}
