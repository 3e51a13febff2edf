//! Hashes of the last published statuses, used to tell whether one changed: a status is many times
//! as big as what it is computed from.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::io;

use foldhash::quality::RandomState;
use portcullis_api::ObjectKey;

use crate::status::Status;

/// Two different statuses of an object have the same hash once in 2⁶⁴ changes; the hash is seeded,
/// so no tenant can make it happen.
#[derive(Debug, Default)]
pub(super) struct Published {
    hashes: BTreeMap<ObjectKey, u64>,
    hasher: RandomState,
}

/// Hashes what is written.
struct HashWriter<H>(H);

// === impl Published ===

impl Published {
    /// The objects that have a status.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.hashes.keys()
    }

    /// True if the object has a status, be it the last one of an orphan.
    pub(super) fn contains(&self, key: &ObjectKey) -> bool {
        self.hashes.contains_key(key)
    }

    /// Returns whether the status is another than before.
    pub(super) fn replace(&mut self, key: &ObjectKey, status: &Status) -> bool {
        let now = self.hash(status);
        match self.hashes.get_mut(key) {
            Some(before) => std::mem::replace(before, now) != now,
            None => self.hashes.insert(key.clone(), now).is_none(),
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) {
        self.hashes.remove(key);
    }

    fn hash(&self, status: &Status) -> u64 {
        let mut writer = HashWriter(self.hasher.build_hasher());
        let written = match status {
            Status::GatewayClass(status) => serde_json::to_writer(&mut writer, status),
            Status::Gateway(status) => serde_json::to_writer(&mut writer, status),
            Status::ListenerSet(status) => serde_json::to_writer(&mut writer, status),
            Status::Route(status) => serde_json::to_writer(&mut writer, status),
            Status::Policy(status) => serde_json::to_writer(&mut writer, status),
            Status::RouteFilter(status) => serde_json::to_writer(&mut writer, status),
        };
        debug_assert!(
            written.is_ok(),
            "generated types have string keys only, and a hasher takes everything"
        );
        writer.0.finish()
    }
}

impl<H: Hasher> io::Write for HashWriter<H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
