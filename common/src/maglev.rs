//! Maglev's table of backends (Eisenbud et al., NSDI 2016, section 3.4): every backend has its
//! share of the slots, and few slots change hands when a backend comes or goes.

use crate::steer::half_sip_hash;

/// Numbers of slots; primes, so that any step reaches all of them.
pub const SLOTS: [u32; 3] = [1_021, 4_093, 16_381];

/// Slots for so many backends: a hundred for each, if there are as many.
pub const fn slots(backends: usize) -> u32 {
    if backends <= 10 {
        SLOTS[0]
    } else if backends <= 40 {
        SLOTS[1]
    } else {
        SLOTS[2]
    }
}

/// A backend as the table knows it: by a name that stays the same, with its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Words that no other backend has.
    pub name: [u32; 5],
    pub weight: u32,
}

/// A backend's order of preference, and how far it has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    next: u32,
    step: u32,
    /// Saved up for its next slot.
    credit: u64,
}

const KEYS: [[u32; 2]; 2] = [[0x6d61_676c, 0x6576_2d31], [0x6d61_676c, 0x6576_2d32]];
const NONE: u32 = u32::MAX;

/// Fills `table`, whose length is one of [`SLOTS`], with the places of backends in `shares`.
/// `turns` is for this function's own use, and as long as `shares`. Returns false, and leaves the
/// table as it was, if no backend has a weight.
pub fn fill(table: &mut [u32], shares: &[Share], turns: &mut [Turn]) -> bool {
    let slots = table.len() as u32;
    let most = shares.iter().map(|share| u64::from(share.weight)).max().unwrap_or(0);
    if most == 0 || slots < 3 || turns.len() < shares.len() {
        return false;
    }
    for (share, turn) in shares.iter().zip(turns.iter_mut()) {
        let next = half_sip_hash::<2, 4>(KEYS[0], share.name) % slots;
        let step = half_sip_hash::<2, 4>(KEYS[1], share.name) % (slots - 1) + 1;
        *turn = Turn { next, step, credit: 0 };
    }
    table.fill(NONE);
    let mut left = slots;
    while left > 0 {
        for ((index, share), turn) in (0..).zip(shares).zip(turns.iter_mut()) {
            turn.credit += u64::from(share.weight);
            if turn.credit < most || left == 0 {
                continue;
            }
            turn.credit -= most;
            while let Some(slot) = table.get_mut(turn.next as usize) {
                turn.next = (turn.next + turn.step) % slots;
                if *slot == NONE {
                    *slot = index;
                    left -= 1;
                    break;
                }
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn share(name: u32, weight: u32) -> Share {
        Share { name: [name, 0, 0, 0xffff, 80], weight }
    }

    /// The name of the backend in each slot.
    fn table(slots: u32, shares: &[Share]) -> Vec<u32> {
        let mut table = vec![0; slots as usize];
        assert!(fill(&mut table, shares, &mut vec![Turn::default(); shares.len()]));
        table.into_iter().map(|index| shares[index as usize].name[0]).collect()
    }

    fn count(table: &[u32], name: u32) -> usize {
        table.iter().filter(|it| **it == name).count()
    }

    #[test]
    fn equal_backends_have_equal_shares() {
        for backends in [1, 2, 3, 7, 30, 150] {
            let slots = slots(backends);
            let shares: Vec<_> = (0..backends as u32).map(|name| share(name, 1)).collect();
            let table = table(slots, &shares);
            let counts = (0..backends as u32).map(|name| count(&table, name));
            let fair = slots as usize / backends;
            assert!(counts.clone().all(|count| count == fair || count == fair + 1), "{backends}");
        }
    }

    #[test]
    fn weights_are_shares() {
        let table = table(SLOTS[0], &[share(1, 1), share(2, 3), share(3, 0), share(4, 96)]);
        let percent = |name| (count(&table, name) as f64 / 10.21).round() as u32;
        assert_eq!([1, 2, 3, 4].map(percent), [1, 3, 0, 96]);
    }

    #[test]
    fn few_slots_change_hands() {
        for backends in [2, 5, 10] {
            let shares: Vec<_> = (0..backends).map(|name| share(name, 1)).collect();
            let before = table(SLOTS[0], &shares);
            let after = table(SLOTS[0], &shares[1..]);
            let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
            let needed = count(&before, 0);
            let more = (changed - needed) * 100 / SLOTS[0] as usize;
            assert!(more < 15, "{backends} backends: {more} % more than need be");
            let mut reordered = shares.clone();
            reordered.reverse();
            let same = table(SLOTS[0], &reordered).iter().zip(&before).filter(|(a, b)| a == b).count();
            assert!(same * 100 / SLOTS[0] as usize > 80, "the order matters little");
        }
    }

    #[test]
    fn without_weights_there_is_no_table() {
        let mut table = vec![7; SLOTS[0] as usize];
        assert!(!fill(&mut table, &[share(1, 0)], &mut [Turn::default()]));
        assert!(!fill(&mut table, &[], &mut []));
        assert!(table.iter().all(|slot| *slot == 7));
    }
}
