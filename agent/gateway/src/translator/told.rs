//! What statuses said when they were told last, as fingerprints: a status is many times as big as what it is computed from,
//! and all there is to know of an old one is whether the new one is different.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::io;

use foldhash::quality::RandomState;

use crate::ObjectKey;
use crate::status::Status;

/// Two different statuses of an object have the same fingerprint once in 2⁶⁴ changes; the hash is seeded, so nobody can
/// make it happen.
#[derive(Debug, Default)]
pub(super) struct Told {
    fingerprints: BTreeMap<ObjectKey, u64>,
    hasher: RandomState,
}

/// Hashes what is written.
struct Sponge<H>(H);

// === impl Told ===

impl Told {
    /// The objects that have a status.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.fingerprints.keys()
    }

    /// Whether the object has a status, be it that of an orphan.
    pub(super) fn knows(&self, key: &ObjectKey) -> bool {
        self.fingerprints.contains_key(key)
    }

    /// Returns whether the status is another than before.
    pub(super) fn tell(&mut self, key: &ObjectKey, status: &Status) -> bool {
        let now = self.fingerprint(status);
        match self.fingerprints.get_mut(key) {
            Some(before) => std::mem::replace(before, now) != now,
            None => self.fingerprints.insert(key.clone(), now).is_none(),
        }
    }

    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.fingerprints.remove(key);
    }

    fn fingerprint(&self, status: &Status) -> u64 {
        let mut sponge = Sponge(self.hasher.build_hasher());
        let written = match status {
            Status::GatewayClass(status) => serde_json::to_writer(&mut sponge, status),
            Status::Gateway(status) => serde_json::to_writer(&mut sponge, status),
            Status::ListenerSet(status) => serde_json::to_writer(&mut sponge, status),
            Status::Route(status) => serde_json::to_writer(&mut sponge, status),
        };
        debug_assert!(
            written.is_ok(),
            "generated types have string keys only, and a hasher takes everything"
        );
        sponge.0.finish()
    }
}

impl<H: Hasher> io::Write for Sponge<H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
