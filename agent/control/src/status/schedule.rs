//! The order in which objects are written: namespaces take turns, and in each the object comes
//! first that has been due for longest. A tenant whose objects change all the time, however many
//! they are and whatever their names, delays each object of another by one write. Why an object is
//! due when it is, and what is written, is not known here.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use portcullis_api::ObjectKey;
use tokio::time::Instant;

/// Objects and the times at which they are due. Of n objects, adding, moving, removing and taking
/// one costs O(log n): each goes from `waiting` to `ready` once for each time that it is set.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// The time of each object, by which it is found below.
    due: BTreeMap<ObjectKey, Instant>,
    /// Objects that were not due when last looked at.
    waiting: BTreeSet<(Instant, ObjectKey)>,
    /// Objects that are due, by namespace; those of the cluster are in one without a name.
    ready: BTreeMap<Arc<str>, BTreeSet<(Instant, ObjectKey)>>,
    /// The namespaces of `ready`, each once, in the order of their turns. One whose objects were
    /// all removed stays until its turn comes.
    turns: VecDeque<Arc<str>>,
}

// === impl Schedule ===

impl Schedule {
    /// The object is due at this time, and at no other.
    pub(super) fn set(&mut self, key: &ObjectKey, due: Instant) {
        if self.due.get(key) == Some(&due) {
            return;
        }
        self.remove(key);
        self.due.insert(key.clone(), due);
        self.waiting.insert((due, key.clone()));
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        let Some(due) = self.due.remove(key) else { return };
        let entry = (due, key.clone());
        if !self.waiting.remove(&entry)
            && let Some(ready) = self.ready.get_mut(&key.name.namespace)
        {
            ready.remove(&entry);
        }
    }

    /// Removes the object that is next. If none is due yet: the time at which one will be.
    pub(super) fn take(&mut self, now: Instant) -> Result<ObjectKey, Option<Instant>> {
        self.advance(now);
        while let Some(namespace) = self.turns.pop_front() {
            let mut ready = self.ready.remove(&namespace).unwrap_or_default();
            let Some((_, key)) = ready.pop_first() else { continue };
            if !ready.is_empty() {
                self.ready.insert(namespace.clone(), ready);
                self.turns.push_back(namespace);
            }
            self.due.remove(&key);
            return Ok(key);
        }
        Err(self.waiting.first().map(|(due, _)| *due))
    }

    #[cfg(test)]
    pub(super) fn times(&self) -> &BTreeMap<ObjectKey, Instant> {
        &self.due
    }

    /// A namespace that had no object due has its turn after all the others.
    fn advance(&mut self, now: Instant) {
        while self.waiting.first().is_some_and(|(due, _)| *due <= now)
            && let Some(entry) = self.waiting.pop_first()
        {
            let namespace = entry.1.name.namespace.clone();
            let ready = self.ready.entry(namespace.clone()).or_insert_with(|| {
                self.turns.push_back(namespace);
                BTreeSet::new()
            });
            ready.insert(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portcullis_api::Kind;
    use portcullis_model::ObjectName;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn key(namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(Kind::HttpRoute, ObjectName::new(namespace, name))
    }

    /// Takes all that is due, as `namespace/name`.
    fn taken(schedule: &mut Schedule, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| schedule.take(now).ok()).map(|key| key.name.to_string()).collect()
    }

    #[test]
    fn namespaces_take_turns_and_names_decide_nothing() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let second = Duration::from_secs(1);
        for (after, namespace, name) in [
            (1, "z", "late"),
            (0, "z", "zero"),
            (2, "a", "b"),
            (3, "a", "a"),
            (4, "m", "only"),
            (5, "z", "last"),
            (6, "", "class"),
        ] {
            schedule.set(&key(namespace, name), now + after * second);
        }
        let order = ["z/zero", "a/b", "m/only", "/class", "z/late", "a/a", "z/last"];
        assert_eq!(taken(&mut schedule, now + 6 * second), order);
        assert_eq!(schedule.take(now + 6 * second), Err(None));
    }

    #[test]
    fn what_is_not_due_waits() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let (soon, later) = (now + Duration::from_millis(1), now + Duration::from_millis(2));
        schedule.set(&key("a", "later"), later);
        schedule.set(&key("b", "soon"), soon);
        assert_eq!(schedule.take(now), Err(Some(soon)));
        assert_eq!(taken(&mut schedule, soon), ["b/soon"]);
        schedule.set(&key("a", "later"), soon);
        assert_eq!(taken(&mut schedule, soon), ["a/later"], "it may be due sooner than it was to be");
    }

    #[test]
    fn what_was_due_may_wait_again_or_be_gone() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let later = now + Duration::from_millis(1);
        for name in ["first", "moved", "gone", "rest"] {
            schedule.set(&key("a", name), now);
        }
        assert_eq!(schedule.take(now), Ok(key("a", "first")));
        schedule.set(&key("a", "moved"), later);
        schedule.remove(&key("a", "gone"));
        schedule.remove(&key("a", "unknown"));
        assert_eq!(taken(&mut schedule, now), ["a/rest"]);
        assert_eq!(schedule.take(now), Err(Some(later)));
        assert_eq!(taken(&mut schedule, later), ["a/moved"]);
        let Schedule { due, waiting, ready, turns } = schedule;
        assert!(due.is_empty() && waiting.is_empty() && ready.is_empty() && turns.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(ObjectKey, u64),
        Remove(ObjectKey),
        /// Time passes, and so many objects are asked for.
        Take(u64, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let object =
            || (0..4usize, 0..3usize).prop_map(|(n, m)| key(["", "a", "b", "z"][n], ["x", "y", "z"][m]));
        let step = prop_oneof![
            4 => (object(), 0..20u64).prop_map(|(key, due)| Step::Set(key, due)),
            1 => object().prop_map(Step::Remove),
            3 => (0..3u64, 0..4usize).prop_map(|(passed, times)| Step::Take(passed, times)),
        ];
        vec(step, 0..80)
    }

    proptest! {
        /// Compared with a look at all objects. Of two namespaces with objects that are due, none
        /// has a second turn before the other's first.
        #[test]
        fn the_order_is_that_of_turns_and_of_time(steps in steps()) {
            let (mut schedule, began) = (Schedule::default(), Instant::now());
            let at = |millis: u64| began + Duration::from_millis(millis);
            let mut now = 0;
            let mut due = BTreeMap::new();
            // By namespace with an object that is due, those that had a turn meanwhile.
            let mut served: BTreeMap<Arc<str>, BTreeSet<Arc<str>>> = BTreeMap::new();
            for step in steps {
                let (passed, times) = match step {
                    Step::Set(key, when) => {
                        schedule.set(&key, at(now + when));
                        due.insert(key, now + when);
                        continue;
                    }
                    Step::Remove(key) => {
                        schedule.remove(&key);
                        due.remove(&key);
                        continue;
                    }
                    Step::Take(passed, times) => (passed, times),
                };
                now += passed;
                for _ in 0..times {
                    let ready = due.iter().filter(|(_, when)| **when <= now);
                    let ready: BTreeSet<_> = ready.map(|(key, when)| (*when, key.clone())).collect();
                    let namespaces: BTreeSet<_> =
                        ready.iter().map(|(_, key)| key.name.namespace.clone()).collect();
                    served.retain(|namespace, _| namespaces.contains(namespace));
                    let taken = match schedule.take(at(now)) {
                        Ok(taken) => taken,
                        Err(next) => {
                            prop_assert!(ready.is_empty());
                            prop_assert_eq!(next, due.values().min().map(|when| at(*when)));
                            continue;
                        }
                    };
                    let namespace = &taken.name.namespace;
                    let first = ready.iter().find(|(_, key)| key.name.namespace == *namespace);
                    prop_assert_eq!(first.map(|(_, key)| key), Some(&taken));
                    for other in namespaces.iter().filter(|other| *other != namespace) {
                        prop_assert!(served.entry(other.clone()).or_default().insert(namespace.clone()));
                    }
                    served.remove(namespace);
                    due.remove(&taken);
                }
            }
        }
    }
}
