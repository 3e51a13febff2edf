//! Keys that are derived from those of the agents' ring, one for each purpose: what is sealed for
//! one cannot be opened for another.

use aws_lc_rs::aead::{AES_256_GCM_SIV, LessSafeKey, UnboundKey};
use aws_lc_rs::hkdf;
use portcullis_model::RingKey;

/// Bytes that tell the keys of a ring apart.
pub(crate) const KEY_ID: usize = 4;

pub(crate) fn id(key: &RingKey) -> [u8; KEY_ID] {
    let [.., a, b, c, d] = key.created.to_be_bytes();
    [a, b, c, d]
}

/// AES-GCM-SIV, because agents choose nonces without knowing each other's.
pub(crate) fn derive(key: &RingKey, purpose: &[&[u8]]) -> Option<LessSafeKey> {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"portcullis");
    let secret = salt.extract(&key.secret);
    let key = secret.expand(purpose, &AES_256_GCM_SIV).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(key)))
}
