//! A certificate chain with its key, parsed once and shared by every listener that refers to it.

use std::fmt;
use std::sync::Arc;

use rustls::sign::CertifiedKey;

/// Compared by the digest of chain and key, so that finding out whether a listener's certificate
/// changed costs nothing.
#[derive(Clone)]
pub struct Certificate {
    /// SHA-256 over chain and key.
    pub fingerprint: [u8; 32],
    /// The DNS names of the leaf (subject alternative names), lower case, for display and overlap
    /// checks.
    pub names: Arc<[Box<str>]>,
    /// End of validity of the chain, of which the first that ends counts; Unix seconds.
    pub not_after: i64,
    pub key: Arc<CertifiedKey>,
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Certificate {}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("names", &self.names).field("not_after", &self.not_after).finish()
    }
}
