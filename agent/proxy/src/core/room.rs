//! Memory for bytes that no side takes: which of those who hold it go when it is used up. They are
//! the ones who hold more than an equal share of it, so that clients who fill it go before those
//! who are merely slow, and hold little for long.

use std::cmp::Reverse;
use std::ops::Add;

use crate::core::clock;

/// The time beyond which it does not count for how long something has been held: clients who come
/// with new connections all the time would otherwise rank behind all others.
const LONGEST: u32 = 5 * clock::PER_SECOND;

/// Bytes that are held, and by how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub bytes: usize,
    pub holders: usize,
}

/// One who holds memory.
pub(crate) struct Holder<T> {
    pub bytes: usize,
    /// The time for which there have been any.
    pub ticks: u32,
    pub it: T,
}

impl Held {
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.holders += usize::from(bytes > 0);
    }

    pub(crate) fn release(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.holders -= usize::from(bytes > 0);
    }
}

impl Add for Held {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, holders: self.holders + other.holders }
    }
}

/// Those to end so that what all hold fits into the room, in order. Once none has more than an
/// equal share it does, so the others stay.
pub(crate) fn to_end<T>(mut holders: Vec<Holder<T>>, all: Held, room: usize) -> Vec<Holder<T>> {
    let share = room / all.holders.max(1);
    holders.retain(|holder| holder.bytes > share);
    holders.sort_by_key(|it| Reverse(it.bytes as u64 * u64::from(it.ticks.min(LONGEST) + 1)));
    let mut left = all.bytes;
    let enough = holders.iter().take_while(|holder| {
        let is_too_much = left > room;
        left = left.saturating_sub(holder.bytes);
        is_too_much
    });
    let enough = enough.count();
    holders.truncate(enough);
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(holders: &[(usize, u32)], room: usize) -> Vec<usize> {
        let mut all = Held::default();
        holders.iter().for_each(|(bytes, _)| all.hold(*bytes));
        let holders = holders.iter().enumerate();
        let holders = holders.map(|(it, (bytes, ticks))| Holder { bytes: *bytes, ticks: *ticks, it });
        to_end(holders.collect(), all, room).into_iter().map(|holder| holder.it).collect()
    }

    #[test]
    fn whoever_holds_little_for_long_stays() {
        let hour = 3600 * clock::PER_SECOND;
        assert_eq!(ended(&[(56, hour), (56, hour), (1000, 0), (1000, 1)], 1500), [3]);
        assert_eq!(ended(&[(56, hour), (56, hour), (1000, 0), (1000, 1)], 400), [3, 2]);
        assert_eq!(ended(&[(56, hour), (1000, 0)], 2000), [0; 0]);
        // With nothing in memory, they do not make the shares smaller.
        assert_eq!(ended(&[(0, 0), (0, 0), (40, 9), (70, 0)], 100), [3]);
    }

    #[test]
    fn of_those_who_hold_more_the_most_goes_first_and_what_is_held_for_longest() {
        assert_eq!(ended(&[(100, 1), (100, 3), (100, 2), (1, 9)], 150), [1, 2]);
        assert_eq!(ended(&[(100, LONGEST), (101, LONGEST), (100, 9 * LONGEST)], 100), [1, 0]);
    }

    /// All of the same size are above the share as soon as there is too much.
    #[test]
    fn what_is_left_fits() {
        for count in 1..50 {
            let holders: Vec<_> = (0..count).map(|n| (100 + n, 5)).collect();
            let gone = ended(&holders, 1000);
            let left = (0..count).filter(|n| !gone.contains(n)).map(|n| 100 + n).sum::<usize>();
            assert!(left <= 1000 && (left > 1000 - 150 || gone.is_empty()), "{count}: {left}");
        }
    }
}
