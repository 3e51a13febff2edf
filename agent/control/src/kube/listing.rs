//! The progress of one list and the watch after it: whether the first list is complete, whether the
//! API server denied it, and, when another list is read, what is gone since. Until that list is
//! complete, everything that was known stays.

use std::collections::{BTreeMap, BTreeSet};

use kube::runtime::watcher::Event;

/// Knows names only; the objects are kept elsewhere.
#[derive(Debug)]
pub(crate) struct Listing<N> {
    progress: Progress,
    /// The names that the list held so far, while one is being read.
    seen: Option<BTreeSet<N>>,
}

/// The same with the objects.
#[derive(Debug)]
pub(crate) struct Listed<N, V> {
    listing: Listing<N>,
    objects: BTreeMap<N, V>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No list was complete so far.
    Unread,
    /// Nor may it be read, for now.
    Denied,
    /// There was a complete list.
    Read,
}

// === impl Listing ===

impl<N: Ord> Listing<N> {
    pub(crate) fn begin(&mut self) {
        self.seen = Some(BTreeSet::new());
    }

    pub(crate) fn see(&mut self, name: N) {
        if let Some(seen) = &mut self.seen {
            seen.insert(name);
        }
    }

    /// Returns all that there is, if a list was read.
    pub(crate) fn complete(&mut self) -> Option<BTreeSet<N>> {
        self.progress = Progress::Read;
        self.seen.take()
    }

    /// The API server does not let us read it. What was read before stays known.
    pub(crate) fn deny(&mut self) {
        if self.progress == Progress::Unread {
            self.progress = Progress::Denied;
        }
    }

    pub(crate) fn is_read(&self) -> bool {
        self.progress == Progress::Read
    }

    pub(crate) fn is_denied(&self) -> bool {
        self.progress == Progress::Denied
    }
}

impl<N> Default for Listing<N> {
    fn default() -> Self {
        Self { progress: Progress::Unread, seen: None }
    }
}

// === impl Listed ===

impl<N: Ord + Clone, V> Listed<N, V> {
    /// Follows a watch. `read` returns an object's name and what is kept of it.
    pub(crate) fn receive<T>(&mut self, event: Event<T>, read: impl FnOnce(T) -> Option<(N, V)>) {
        match event {
            // A list begins before the API server is asked for it.
            Event::Init => self.listing.begin(),
            Event::InitDone => {
                if let Some(seen) = self.listing.complete() {
                    self.objects.retain(|name, _| seen.contains(name));
                }
            }
            Event::InitApply(object) | Event::Apply(object) => {
                if let Some((name, value)) = read(object) {
                    self.insert(name, value);
                }
            }
            Event::Delete(object) => {
                if let Some((name, _)) = read(object) {
                    self.remove(&name);
                }
            }
        }
    }

    pub(crate) fn insert(&mut self, name: N, value: V) {
        self.listing.see(name.clone());
        self.objects.insert(name, value);
    }

    pub(crate) fn remove(&mut self, name: &N) {
        self.objects.remove(name);
    }

    pub(crate) fn deny(&mut self) {
        self.listing.deny();
    }

    pub(crate) fn is_read(&self) -> bool {
        self.listing.is_read()
    }

    pub(crate) fn is_denied(&self) -> bool {
        self.listing.is_denied()
    }

    pub(crate) fn objects(&self) -> &BTreeMap<N, V> {
        &self.objects
    }
}

impl<N, V> Default for Listed<N, V> {
    fn default() -> Self {
        Self { listing: Listing::default(), objects: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(listed: &mut Listed<char, ()>, events: impl IntoIterator<Item = Event<char>>) -> String {
        for event in events {
            listed.receive(event, |name| Some((name, ())));
        }
        listed.objects().keys().collect()
    }

    #[test]
    fn what_is_known_stays_until_another_list_is_complete() {
        let mut listed = Listed::default();
        let list = ['a', 'b'].map(Event::InitApply);
        assert_eq!(receive(&mut listed, [Event::Init].into_iter().chain(list)), "ab");
        assert!(!listed.is_read());
        assert_eq!(receive(&mut listed, [Event::InitDone, Event::Delete('a'), Event::Apply('c')]), "bc");
        assert!(listed.is_read());
        assert_eq!(receive(&mut listed, [Event::Init, Event::InitApply('c'), Event::Init]), "bc");
        assert_eq!(receive(&mut listed, [Event::InitApply('b'), Event::InitDone]), "b");
    }

    #[test]
    fn a_denial_takes_nothing_that_was_read() {
        let mut listed = Listed::<char, ()>::default();
        listed.deny();
        assert!(listed.is_denied() && !listed.is_read());
        receive(&mut listed, [Event::Init, Event::InitDone]);
        listed.deny();
        assert!(listed.is_read() && !listed.is_denied());
    }
}
