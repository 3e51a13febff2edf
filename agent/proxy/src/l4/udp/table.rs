//! The sessions of a UDP frontend by client, and the choice of those that go when there are too
//! many. Like connection tracking it tells sessions apart by what they prove: one that was never
//! answered may be a forgery; the client of one that sent again after an answer is real. Of real
//! ones those go whose network has the most, so that no client has all for itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::rc::Rc;

use foldhash::fast::RandomState;

use crate::core::clock;

/// Sessions that are looked at to find one that was not used lately.
const LOOKS: usize = 8;
/// Ticks after which a session with one question and its answer counts as over, if there is no
/// room.
const OVER_AFTER: u32 = 5 * clock::PER_SECOND;

pub(crate) struct SessionTable<K, S> {
    sessions: HashMap<K, Entry<S>, RandomState>,
    /// Each in the order in which they go, with the time at which they were put there.
    unanswered: Queue<K>,
    answered: Queue<K>,
    /// Those of real clients, by the network of the client.
    confirmed: HashMap<IpAddr, Queue<K>, RandomState>,
    /// The networks, by how many of those they have.
    by_number: BTreeSet<(usize, IpAddr)>,
    placed: u64,
}

/// The part of a session's key that says whose it is.
pub(crate) trait Network {
    /// The address, or what is delegated as one to a client: no more than 64 bits of IPv6.
    fn network(&self) -> IpAddr;
}

type Queue<K> = BTreeMap<u64, (K, u32)>;

struct Entry<S> {
    session: Rc<S>,
    state: State,
    /// Time of the last datagram, either way.
    last: u32,
}

/// With the place in the queue of that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unanswered(u64),
    Answered(u64),
    /// The client has sent something since an answer.
    Confirmed(u64),
}

/// The times after which a session is over, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expiry {
    pub idle: u32,
    pub unanswered: u32,
}

/// The time by which a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    Idle,
    Unanswered,
}

// === impl SessionTable ===

impl<K, S> Default for SessionTable<K, S> {
    fn default() -> Self {
        Self {
            sessions: HashMap::default(),
            unanswered: BTreeMap::new(),
            answered: BTreeMap::new(),
            confirmed: HashMap::default(),
            by_number: BTreeSet::new(),
            placed: 0,
        }
    }
}

impl<K: Copy + Eq + Hash + Network, S> SessionTable<K, S> {
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &Rc<S>)> {
        self.sessions.iter().map(|(key, entry)| (key, &entry.session))
    }

    pub(crate) fn insert(&mut self, key: K, session: Rc<S>) {
        let place = self.next_place();
        self.unanswered.insert(place, (key, clock::now()));
        let state = State::Unanswered(place);
        self.sessions.insert(key, Entry { session, state, last: clock::now() });
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<Rc<S>> {
        let entry = self.sessions.remove(key)?;
        match entry.state {
            State::Unanswered(place) => drop(self.unanswered.remove(&place)),
            State::Answered(place) => drop(self.answered.remove(&place)),
            State::Confirmed(place) => self.remove_confirmed(key, place),
        }
        Some(entry.session)
    }

    /// The session that a datagram of the client belongs to.
    pub(crate) fn asked(&mut self, key: &K) -> Option<Rc<S>> {
        let next = self.next_place();
        let entry = self.sessions.get_mut(key)?;
        entry.last = clock::now();
        let session = entry.session.clone();
        if let State::Answered(place) = entry.state {
            entry.state = State::Confirmed(next);
            self.answered.remove(&place);
            self.confirm(key, next);
        }
        Some(session)
    }

    fn confirm(&mut self, key: &K, place: u64) {
        let network = key.network();
        let sessions = self.confirmed.entry(network).or_default();
        self.by_number.remove(&(sessions.len(), network));
        sessions.insert(place, (*key, clock::now()));
        self.by_number.insert((sessions.len(), network));
    }

    fn remove_confirmed(&mut self, key: &K, place: u64) {
        let network = key.network();
        let Some(sessions) = self.confirmed.get_mut(&network) else { return };
        self.by_number.remove(&(sessions.len(), network));
        sessions.remove(&place);
        if sessions.is_empty() {
            self.confirmed.remove(&network);
        } else {
            self.by_number.insert((sessions.len(), network));
        }
    }

    /// The session's backend sent a datagram.
    pub(crate) fn answered(&mut self, key: &K) {
        let next = self.next_place();
        let Some(entry) = self.sessions.get_mut(key) else { return };
        entry.last = clock::now();
        if let State::Unanswered(place) = entry.state {
            self.unanswered.remove(&place);
            self.answered.insert(next, (*key, clock::now()));
            entry.state = State::Answered(next);
        }
    }

    /// The session that goes to make room: one that was never answered, else one that looks as if
    /// it were over; of these the one that was used longest ago, or nearly.
    pub(crate) fn dispensable(&mut self) -> Option<K> {
        let unanswered = Self::oldest(&mut self.unanswered, &mut self.sessions, &mut self.placed, 0);
        let over = |this: &mut Self| {
            Self::oldest(&mut this.answered, &mut this.sessions, &mut this.placed, OVER_AFTER)
        };
        unanswered.or_else(|| over(self))
    }

    /// The session of a real client that goes to make room: of the network that has the most, if
    /// that is more than one.
    pub(crate) fn excess(&mut self) -> Option<K> {
        let (_, network) = self.by_number.last().copied().filter(|(number, _)| *number > 1)?;
        let sessions = self.confirmed.get_mut(&network)?;
        Self::oldest(sessions, &mut self.sessions, &mut self.placed, 0)
    }

    /// The sessions that are over.
    pub(crate) fn expired(&self, expiry: Expiry) -> Vec<(K, Expired)> {
        let expired = self.sessions.iter().filter_map(|(key, entry)| {
            let (limit, expired) = match entry.state {
                State::Unanswered(_) => (expiry.unanswered, Expired::Unanswered),
                State::Answered(_) | State::Confirmed(_) => (expiry.idle, Expired::Idle),
            };
            (clock::now() - entry.last > limit).then_some((*key, expired))
        });
        expired.collect()
    }

    fn next_place(&mut self) -> u64 {
        self.placed += 1;
        self.placed
    }

    /// The first of the queue that was not used since it was put there, and not for so long. Those
    /// that were are put at the end.
    fn oldest(
        queue: &mut Queue<K>,
        sessions: &mut HashMap<K, Entry<S>, RandomState>,
        placed: &mut u64,
        unused: u32,
    ) -> Option<K> {
        for _ in 0..LOOKS {
            let (place, (key, since)) = queue.first_key_value().map(|(place, it)| (*place, *it))?;
            let entry = sessions.get_mut(&key)?;
            if entry.last <= since && clock::now() - entry.last >= unused {
                return Some(key);
            }
            queue.remove(&place);
            *placed += 1;
            queue.insert(*placed, (key, entry.last));
            entry.state = match entry.state {
                State::Unanswered(_) => State::Unanswered(*placed),
                State::Answered(_) => State::Answered(*placed),
                State::Confirmed(_) => State::Confirmed(*placed),
            };
        }
        let (key, _) = queue.first_key_value().map(|(_, it)| *it)?;
        sessions.get(&key).is_some_and(|entry| clock::now() - entry.last >= unused).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Network for u32 {
        fn network(&self) -> IpAddr {
            IpAddr::from((self / 10).to_be_bytes())
        }
    }

    fn table(sessions: u32) -> SessionTable<u32, u32> {
        let mut table = SessionTable::default();
        (0..sessions).for_each(|key| table.insert(key, Rc::new(key)));
        table
    }

    fn evict(table: &mut SessionTable<u32, u32>) -> Option<u32> {
        let key = table.dispensable()?;
        table.remove(&key).map(|session| *session)
    }

    #[test]
    fn what_was_never_answered_goes_first_and_what_was_confirmed_never() {
        let mut table = table(4);
        table.answered(&0);
        table.answered(&1);
        assert_eq!(table.asked(&1).as_deref(), Some(&1));
        assert_eq!((evict(&mut table), evict(&mut table)), (Some(2), Some(3)));
        // The answered one may still be in use.
        assert_eq!((evict(&mut table), table.len()), (None, 2));
        (0..OVER_AFTER).for_each(|_| clock::advance());
        assert_eq!((evict(&mut table), evict(&mut table), table.len()), (Some(0), None, 1));
    }

    /// One client with many ports, and others.
    #[test]
    fn no_network_has_all_for_itself() {
        let mut table = SessionTable::default();
        for key in [0, 1, 2, 3, 10, 11, 20] {
            table.insert(key, Rc::new(key));
            table.answered(&key);
            table.asked(&key);
        }
        clock::advance();
        table.asked(&0);
        let evicted = std::iter::from_fn(|| {
            assert_eq!(table.dispensable(), None);
            let key = table.excess()?;
            table.remove(&key).map(|session| *session)
        });
        let evicted: Vec<_> = evicted.collect();
        assert_eq!(evicted, [1, 2, 10, 3], "until each has one, the one that was used last");
        assert_eq!((table.len(), table.by_number.len(), table.confirmed.len()), (3, 3, 3));
    }

    #[test]
    fn of_those_that_go_the_ones_in_use_go_last() {
        let mut table = table(4);
        clock::advance();
        table.asked(&0);
        table.asked(&2);
        let evicted: Vec<_> = std::iter::from_fn(|| evict(&mut table)).collect();
        assert_eq!(evicted, [1, 3, 0, 2]);
    }

    #[test]
    fn sessions_are_over_sooner_when_they_were_never_answered() {
        let mut table = table(2);
        table.answered(&0);
        let expiry = Expiry { idle: 2, unanswered: 1 };
        assert!(table.expired(expiry).is_empty());
        clock::advance();
        clock::advance();
        assert_eq!(table.expired(expiry), [(1, Expired::Unanswered)]);
        table.remove(&1);
        clock::advance();
        assert_eq!(table.expired(expiry), [(0, Expired::Idle)]);
    }
}
