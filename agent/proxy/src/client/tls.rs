//! TLS termination: from a listener's certificates to a rustls configuration, and from a client
//! hello to a listener.

use std::sync::Arc;

use portcullis_model::{
    Certificate, KeyRing, ListenerId, SessionTickets, TlsOptions, TlsTermination, TlsVersion,
};
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ServerConfig, version};

use crate::client::client_certificates;
use crate::client::tickets::Ticketer;
use crate::core::crypto::provider;

/// TLS 1.3 tickets a handshake hands out. Each costs CPU, and every resumption earns a new one.
const TICKETS: usize = 1;

/// A fatal `unrecognized_name` alert in plain text, as it is before keys exist (RFC 8446 section 6,
/// RFC 6066 section 3).
pub(crate) const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// The protocols inside TLS (RFC 7301) that a listener offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocols {
    Http,
    /// Whatever the backend speaks. None is chosen: with a list of ours, clients of others would be
    /// refused.
    Any,
}

/// Makes configurations.
#[derive(Clone)]
pub(crate) struct TlsFactory {
    provider: Arc<CryptoProvider>,
}

/// Picks among a listener's certificates, by the client's server name and the signatures it takes.
#[derive(Debug)]
struct CertificateChoice(Arc<[Certificate]>);

// === impl TlsFactory ===

impl TlsFactory {
    pub(crate) fn new() -> Self {
        Self { provider: Arc::new(provider()) }
    }

    /// `None` if no version of TLS is left to be spoken. `ring` has the keys of tickets.
    pub(crate) fn server_config(
        &self,
        listener: &ListenerId,
        termination: &TlsTermination,
        protocols: Protocols,
        ring: &Arc<KeyRing>,
    ) -> Option<Arc<ServerConfig>> {
        let TlsOptions { minimum_version, cipher_suites, tickets, .. } = &*termination.options;
        let versions: &[_] = match minimum_version {
            TlsVersion::Tls12 => &[&version::TLS13, &version::TLS12],
            TlsVersion::Tls13 => &[&version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(self.provider_of(cipher_suites));
        // Translation sees to it that a version has a suite.
        let builder = builder.with_protocol_versions(versions).ok()?;
        let choice = Arc::new(CertificateChoice(termination.certificates.clone()));
        let clients = client_certificates::verifier(&termination.clients, &self.provider);
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
        };
        let mut config = builder.with_cert_resolver(choice);
        config.ignore_client_order = true;
        config.alpn_protocols = match protocols {
            Protocols::Http => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Protocols::Any => Vec::new(),
        };
        // Sessions live in tickets only, which cost no memory and are good on every core.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // A client that resumes a session is not asked for a certificate again, whose authority may
        // be trusted no longer.
        let resumes = clients.is_none() && *tickets == SessionTickets::Given;
        config.send_tls13_tickets = if resumes { TICKETS } else { 0 };
        if resumes {
            config.ticketer = Arc::new(Ticketer::new(ring.clone(), listener));
        }
        Some(Arc::new(config))
    }

    /// With none but these suites, if there are any.
    fn provider_of(&self, suites: &[CipherSuite]) -> Arc<CryptoProvider> {
        if suites.is_empty() {
            return self.provider.clone();
        }
        let mut provider = (*self.provider).clone();
        provider.cipher_suites.retain(|suite| suites.contains(&suite.suite()));
        Arc::new(provider)
    }
}

// === impl CertificateChoice ===

impl ResolvesServerCert for CertificateChoice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let [certificate] = &*self.0 {
            return Some(certificate.key.clone());
        }
        let schemes = hello.signature_schemes();
        let suits = |certificate: &&Certificate| certificate.key.key.choose_scheme(schemes).is_some();
        let name = hello.server_name().map(normal_name);
        let by_name = name.and_then(|name| {
            let suited = longest_match(self.0.iter().filter(suits), &name);
            // A certificate of another name would be no better than one the client cannot verify.
            suited.or_else(|| longest_match(self.0.iter(), &name))
        });
        let best = by_name.or_else(|| self.0.iter().find(suits)).or_else(|| self.0.first());
        best.map(|certificate| certificate.key.clone())
    }
}

/// A server name as listeners and certificates spell theirs: in lower case and without the trailing
/// dot. Clients send it though "the hostname is represented as a byte string using ASCII encoding
/// without a trailing dot" (RFC 6066 section 3).
pub(crate) fn normal_name(server_name: &str) -> String {
    server_name.strip_suffix('.').unwrap_or(server_name).to_ascii_lowercase()
}

/// The certificate with the longest name that matches ("the GatewayClass MUST use the longest
/// matching SNI out of all available certificates"); the first of equals.
fn longest_match<'c>(
    certificates: impl DoubleEndedIterator<Item = &'c Certificate>,
    server_name: &str,
) -> Option<&'c Certificate> {
    let matching = certificates.filter_map(|certificate| {
        let names = certificate.names.iter().filter(|name| covers(name, server_name));
        let longest = names.map(|name| (!name.starts_with("*."), name.len())).max()?;
        Some((longest, certificate))
    });
    // The last of equals is taken, hence from the end.
    let longest = matching.rev().max_by_key(|(longest, _)| *longest);
    longest.map(|(_, certificate)| certificate)
}

/// Certificate wildcards stand for exactly one label (RFC 6125).
fn covers(name: &str, server_name: &str) -> bool {
    match name.strip_prefix("*.") {
        Some(suffix) => server_name.split_once('.').is_some_and(|(_, parent)| parent == suffix),
        None => name == server_name,
    }
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn a_certificate_wildcard_stands_for_one_label() {
        assert!(covers("*.a.com", "x.a.com") && covers("x.a.com", "x.a.com"));
        assert!(!covers("*.a.com", "y.x.a.com") && !covers("*.a.com", "a.com"));
    }
}
