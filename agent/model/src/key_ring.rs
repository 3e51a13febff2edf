//! Keys that all agents have in common, so that each can read what another one gave to a client.

use std::fmt;

/// The newest key signs, all of them verify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRing {
    /// The newest first.
    keys: Vec<RingKey>,
}

/// A secret from which keys for each purpose are derived.
#[derive(Clone, PartialEq, Eq)]
pub struct RingKey {
    /// Seconds since 1970; no two keys of a ring have the same.
    pub created: u64,
    pub secret: [u8; 32],
}

/// Time that the other agents have to learn of a new key before anything is signed with it.
const SPREADING: u64 = 60;

// === impl KeyRing ===

impl KeyRing {
    pub fn new(mut keys: Vec<RingKey>) -> Self {
        keys.sort_by_key(|key| std::cmp::Reverse(key.created));
        keys.dedup_by_key(|key| key.created);
        Self { keys }
    }

    pub fn keys(&self) -> &[RingKey] {
        &self.keys
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The position of the key that signs: the newest that all agents know by now, or else the
    /// oldest.
    pub fn signing(&self, now: u64) -> Option<usize> {
        let known = self.keys.iter().position(|key| key.created.saturating_add(SPREADING) <= now);
        known.or_else(|| self.keys.len().checked_sub(1))
    }
}

/// Without the secret, which belongs in no log.
impl fmt::Debug for RingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingKey").field("created", &self.created).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_key_that_all_know_signs() {
        let key = |created| RingKey { created, secret: [7; 32] };
        let ring = KeyRing::new(vec![key(100), key(1000), key(100), key(500)]);
        let created: Vec<_> = ring.keys().iter().map(|key| key.created).collect();
        assert_eq!(created, [1000, 500, 100]);
        for (now, signs) in [(0, 100), (160, 100), (559, 100), (560, 500), (1059, 500), (1060, 1000)] {
            assert_eq!(ring.keys()[ring.signing(now).unwrap()].created, signs, "{now}");
        }
        assert_eq!(KeyRing::default().signing(0), None);
        assert!(!format!("{ring:?}").contains('7'), "{ring:?}");
    }
}
