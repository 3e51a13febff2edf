//! Sets of keys, and files of passwords: of Secrets and ConfigMaps, and of issuers on the network.

use portcullis_model::{KeyKinds, KeySet, PasswordFile};

pub(crate) fn run(bytes: &[u8]) {
    for kinds in [KeyKinds::Public, KeyKinds::PublicAndSecret] {
        let Ok(keys) = KeySet::parse(bytes, kinds) else { continue };
        // Whatever the keys are, a signature of no bytes is none, and `none` is no algorithm.
        for algorithm in ["none", "HS256", "RS256", "ES256"] {
            let mut tries = 8;
            assert!(!keys.verifies((algorithm, None), b"", b"", &mut tries), "{algorithm}");
        }
    }
    if let Ok(file) = PasswordFile::parse(bytes) {
        assert!(file.len() > 0 && file.len() <= bytes.len(), "{file:?}");
    }
}
