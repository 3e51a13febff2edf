//! API keys of clients. Only digests are kept: a snapshot has nothing to give away.

use std::collections::HashMap;
use std::fmt;

use aws_lc_rs::{constant_time, digest};
use foldhash::fast::RandomState;

/// Clients by their keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientKeys {
    /// By the beginning of the key's SHA-256.
    by_digest: HashMap<[u8; 8], Vec<Client>, RandomState>,
}

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
        if let Some(other) = self.client(key) {
            return Err(ClientKeyError::Shared(other.into(), client.into()));
        }
        let (digest, beginning) = digests(key);
        self.by_digest.entry(beginning).or_default().push(Client { digest, name: client.into() });
        Ok(())
    }

    /// The client whose key this is. The time it takes tells nothing of the keys there are.
    pub fn client(&self, key: &[u8]) -> Option<&str> {
        let (digest, beginning) = digests(key);
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

fn digests(key: &[u8]) -> ([u8; 32], [u8; 8]) {
    let mut all = [0; 32];
    all.copy_from_slice(digest::digest(&digest::SHA256, key).as_ref());
    let mut beginning = [0; 8];
    beginning.copy_from_slice(&all[..8]);
    (all, beginning)
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
            assert_eq!(keys.client(key.as_bytes()), client, "{key}");
        }
        for (key, problem) in [
            (" \n", "the key of client c is empty"),
            ("a\u{7f}", "the key of client c has a character that no header field can have"),
            ("other", "clients billing and c have the same key"),
        ] {
            assert_eq!(keys.add("c", key.as_bytes()).unwrap_err().to_string(), problem);
        }
        assert_eq!(format!("{keys:?}"), "ClientKeys(2)");
    }
}
