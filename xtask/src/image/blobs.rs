//! Contents of an OCI image or artifact, by their digests.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[derive(Default)]
pub(crate) struct Blobs {
    pub(crate) bytes: BTreeMap<String, Vec<u8>>,
}

pub(crate) struct Blob {
    pub(crate) kind: &'static str,
    pub(crate) digest: String,
    pub(crate) size: usize,
}

impl Blobs {
    pub(crate) fn add(&mut self, kind: &'static str, bytes: Vec<u8>) -> Blob {
        let blob = Blob { kind, digest: digest(&bytes), size: bytes.len() };
        self.bytes.insert(blob.digest.clone(), bytes);
        blob
    }
}

impl Blob {
    pub(crate) fn json(&self) -> Value {
        json!({ "mediaType": self.kind, "digest": self.digest, "size": self.size })
    }

    /// In an image layout.
    pub(crate) fn path(&self) -> String {
        path(&self.digest)
    }
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The path of a blob in an image layout.
pub(crate) fn path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}
