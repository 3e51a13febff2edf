//! API keys of clients. Only digests are kept: a snapshot has nothing to give away.

use std::collections::HashMap;
use std::fmt;
use std::iter::repeat;

use aws_lc_rs::{constant_time, digest};
use foldhash::fast::RandomState;

/// Clients by their keys, as one object has them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientKeys {
    /// By the beginning of the key's SHA-256.
    by_digest: HashMap<[u8; 8], Vec<Client>, RandomState>,
}

/// The digest of a key, and its beginning.
#[derive(Clone, Copy)]
pub(crate) struct KeyDigest([u8; 32], [u8; 8]);

#[derive(Clone, PartialEq, Eq)]
struct Client {
    /// SHA-256 of its key.
    digest: [u8; 32],
    name: Box<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientKeyError {
    #[error("the key of client {0} is empty")]
    Empty(Box<str>),
    #[error("the key of client {0} has a character that no header field can have")]
    Character(Box<str>),
    #[error("clients {0} and {1} have the same key")]
    Shared(Box<str>, Box<str>),
}

// === impl ClientKeys ===

impl ClientKeys {
    /// Adds a client. White space around a key does not count: files end with a newline, and header
    /// fields have none.
    ///
    /// # Errors
    /// When no request could have the key, or another client has it.
    pub fn add(&mut self, client: &str, key: &[u8]) -> Result<(), ClientKeyError> {
        let key = key.trim_ascii();
        if key.is_empty() {
            return Err(ClientKeyError::Empty(client.into()));
        }
        if !key.iter().all(|byte| (b' '..=b'~').contains(byte)) {
            return Err(ClientKeyError::Character(client.into()));
        }
        let digest = KeyDigest::of(key);
        if let Some(other) = self.client(digest) {
            return Err(ClientKeyError::Shared(other.into(), client.into()));
        }
        let KeyDigest(digest, beginning) = digest;
        self.by_digest.entry(beginning).or_default().push(Client { digest, name: client.into() });
        Ok(())
    }

    /// # Errors
    /// When a client of both has the same key.
    pub fn check_beside(&self, others: &Self) -> Result<(), ClientKeyError> {
        let mut clients =
            self.by_digest.iter().flat_map(|(beginning, alike)| alike.iter().zip(repeat(beginning)));
        let shared = clients.find_map(|(client, beginning)| {
            Some((client, others.client(KeyDigest(client.digest, *beginning))?))
        });
        shared
            .map_or(Ok(()), |(client, other)| Err(ClientKeyError::Shared(other.into(), client.name.clone())))
    }

    /// The client whose key this is. The time it takes tells nothing of the keys there are.
    pub(crate) fn client(&self, KeyDigest(digest, beginning): KeyDigest) -> Option<&str> {
        let mut alike = self.by_digest.get(&beginning)?.iter();
        let found = alike.find(|own| constant_time::verify_slices_are_equal(&own.digest, &digest).is_ok())?;
        Some(&found.name)
    }

    pub fn len(&self) -> usize {
        self.by_digest.values().map(Vec::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }
}

// === impl KeyDigest ===

impl KeyDigest {
    pub(crate) fn of(key: &[u8]) -> Self {
        let mut all = [0; 32];
        all.copy_from_slice(digest::digest(&digest::SHA256, key).as_ref());
        let mut beginning = [0; 8];
        beginning.copy_from_slice(&all[..8]);
        Self(all, beginning)
    }
}

impl fmt::Debug for ClientKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKeys({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_clients() {
        let mut keys = ClientKeys::default();
        keys.add("shop", b"s3cret\n").unwrap();
        keys.add("billing", b"other").unwrap();
        for (key, client) in
            [("s3cret", Some("shop")), ("other", Some("billing")), ("s3cre", None), ("", None)]
        {
            assert_eq!(keys.client(KeyDigest::of(key.as_bytes())), client, "{key}");
        }
        for (key, problem) in [
            (" \n", "the key of client c is empty"),
            ("a\u{7f}", "the key of client c has a character that no header field can have"),
            ("other", "clients billing and c have the same key"),
        ] {
            assert_eq!(keys.add("c", key.as_bytes()).unwrap_err().to_string(), problem);
        }
        assert_eq!(format!("{keys:?}"), "ClientKeys(2)");
        let mut others = ClientKeys::default();
        others.add("till", b"third").unwrap();
        assert_eq!(others.check_beside(&keys), Ok(()));
        others.add("kiosk", b"s3cret").unwrap();
        let error = others.check_beside(&keys).unwrap_err();
        assert_eq!(error.to_string(), "clients shop and kiosk have the same key");
    }
}
