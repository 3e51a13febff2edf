//! The algorithms of TLS, with clients and with backends.

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};

/// The library's choice of algorithms, AES-128 first. What most clients prefer, AES-256 with
/// SHA-384, makes the key schedule of a handshake dearer than its signature: CPUs have instructions
/// for SHA-256, not for SHA-384.
pub(crate) fn provider() -> CryptoProvider {
    let cheap = [
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ];
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !cheap.contains(suite));
    provider
}

#[cfg(test)]
mod tests {
    use super::provider;

    #[test]
    fn the_cheapest_suites_come_first_and_none_is_lost() {
        let suites: Vec<_> = provider().cipher_suites.iter().map(|it| format!("{:?}", it.suite())).collect();
        assert_eq!(suites.len(), rustls::crypto::aws_lc_rs::default_provider().cipher_suites.len());
        assert!(suites[..3].iter().all(|name| name.contains("AES_128_GCM")), "{suites:?}");
    }
}
