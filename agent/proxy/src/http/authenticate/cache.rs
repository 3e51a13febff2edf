//! Credentials that a core has found to be good, so that it does not check them with each request.
//! Bounded in number and size; those that were not used for long go first.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;

/// Of a credential, by a key that no client knows.
pub(crate) type Digest = [u8; 32];

/// Of each generation.
const MOST_ENTRIES: usize = 1024;
const MOST_BYTES: usize = 2 << 20;

/// Two generations: when the young one is full, it becomes the old one, and that is dropped. What
/// is used is young again.
pub(crate) struct Cache<S, V> {
    young: Generation<S, V>,
    old: Generation<S, V>,
    /// Of the young generation.
    bytes: usize,
}

type Generation<S, V> = HashMap<Digest, Entry<S, V>, RandomState>;

struct Entry<S, V> {
    /// The keys that the credential was checked with. Weak: no others can have their address, and
    /// they are gone all the same when they are no longer in force.
    source: Weak<S>,
    value: Rc<V>,
    bytes: usize,
}

// === impl Cache ===

impl<S, V> Cache<S, V> {
    pub(crate) fn get(&mut self, source: &Arc<S>, digest: &Digest) -> Option<Rc<V>> {
        let is_same = |entry: &&Entry<S, V>| std::ptr::eq(entry.source.as_ptr(), Arc::as_ptr(source));
        if let Some(entry) = self.young.get(digest).filter(is_same) {
            return Some(entry.value.clone());
        }
        let entry = self.old.remove(digest).filter(|entry| is_same(&entry))?;
        let value = entry.value.clone();
        self.add(*digest, entry);
        Some(value)
    }

    /// `bytes` is about what the value takes.
    pub(crate) fn insert(&mut self, source: &Arc<S>, digest: Digest, value: V, bytes: usize) -> Rc<V> {
        let value = Rc::new(value);
        self.add(digest, Entry { source: Arc::downgrade(source), value: value.clone(), bytes });
        value
    }

    fn add(&mut self, digest: Digest, entry: Entry<S, V>) {
        if self.young.len() >= MOST_ENTRIES || self.bytes + entry.bytes > MOST_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += entry.bytes;
        self.young.insert(digest, entry);
    }
}

impl<S, V> Default for Cache<S, V> {
    fn default() -> Self {
        Self { young: HashMap::default(), old: HashMap::default(), bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: usize) -> Digest {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&number.to_ne_bytes());
        digest
    }

    #[test]
    fn what_is_used_stays_and_the_rest_is_bounded() {
        let (mut cache, source) = (Cache::<(), usize>::default(), Arc::new(()));
        for number in 0..10 * MOST_ENTRIES {
            cache.insert(&source, digest(number), number, 100);
            assert_eq!(cache.get(&source, &digest(0)).as_deref(), Some(&0));
        }
        assert!(cache.young.len() + cache.old.len() <= 2 * MOST_ENTRIES);
        assert_eq!(cache.get(&source, &digest(1)), None);
        for number in 0..8 {
            cache.insert(&source, digest(number), number, MOST_BYTES / 2);
        }
        assert!(cache.young.len() + cache.old.len() <= 4);
    }

    #[test]
    fn what_other_keys_have_checked_is_not_known() {
        let (mut cache, source) = (Cache::default(), Arc::new(()));
        cache.insert(&source, digest(1), "claims", 1);
        assert_eq!(cache.get(&Arc::new(()), &digest(1)), None);
    }

    #[test]
    fn keys_that_are_in_force_no_more_are_not_kept() {
        let (mut cache, source) = (Cache::default(), Arc::new([0; 64]));
        cache.insert(&source, digest(1), "claims", 1);
        let kept = Arc::downgrade(&source);
        drop(source);
        assert!(kept.upgrade().is_none());
    }
}
