//! The terms on which a listener ends TLS, besides certificates: what its `tls.options` ask for.

use rustls::CipherSuite;
use serde::Serialize;

/// All of it is the library's choice by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    pub minimum_version: TlsVersion,
    /// None but these; with none of them, all that are known. A version of TLS of which there is no
    /// suite is not spoken.
    pub cipher_suites: Box<[CipherSuite]>,
    pub tickets: SessionTickets,
    /// The fields by which backends learn whose certificate the client has shown, in order; the
    /// chain only with the certificate.
    pub identity: Box<[IdentityField]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    #[default]
    Tls12,
    Tls13,
}

/// Tickets by which clients resume their sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum SessionTickets {
    #[default]
    Given,
    NotGiven,
}

/// A field of requests that says whose certificate the client has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdentityField {
    /// The certificate (RFC 9440 section 2.2).
    ClientCert,
    /// Those that the client sent with it (RFC 9440 section 2.3).
    ClientCertChain,
    /// Digest, subject and names of the certificate, in Envoy's form.
    ForwardedClientCert,
}

/// The cipher suites that are known, by the names that IANA has for them.
const CIPHER_SUITES: [(&str, CipherSuite); 9] = [
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

// === impl TlsOptions ===

impl TlsOptions {
    /// The cipher suite with a name of IANA's.
    pub fn cipher_suite(name: &str) -> Option<CipherSuite> {
        CIPHER_SUITES.iter().find(|(known, _)| *known == name).map(|(_, suite)| *suite)
    }

    /// The name that IANA has for a known cipher suite.
    pub fn cipher_suite_name(suite: CipherSuite) -> Option<&'static str> {
        CIPHER_SUITES.iter().find(|(_, known)| *known == suite).map(|(name, _)| *name)
    }

    /// The names of all known cipher suites.
    pub fn cipher_suite_names() -> impl Iterator<Item = &'static str> {
        CIPHER_SUITES.iter().map(|(name, _)| *name)
    }
}

// === impl TlsVersion ===

impl TlsVersion {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        }
    }

    /// The version that a known cipher suite is of.
    pub fn of(suite: CipherSuite) -> Self {
        let is_tls13 = matches!(
            suite,
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS13_AES_256_GCM_SHA384
                | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
        );
        if is_tls13 { Self::Tls13 } else { Self::Tls12 }
    }
}

// === impl IdentityField ===

impl IdentityField {
    pub const ALL: [Self; 3] = [Self::ClientCert, Self::ClientCertChain, Self::ForwardedClientCert];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ClientCert => "Client-Cert",
            Self::ClientCertChain => "Client-Cert-Chain",
            Self::ForwardedClientCert => "X-Forwarded-Client-Cert",
        }
    }
}
