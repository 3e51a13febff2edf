//! TLS session tickets (RFC 5077, RFC 8446 section 4.6.1), sealed with keys that all agents have:
//! a client resumes its session at any of them, and after a restart. A listener's tickets are good
//! for that listener alone, whatever server name they were given for.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use portcullis_model::{KeyRing, ListenerId, ParentKind};
use rustls::server::ProducesTickets;

use crate::core::derived_key::{KEY_ID, derive, id};

/// Seconds for which a ticket is good: as long as those of the TLS library's own.
const LIFETIME: u32 = 12 * 60 * 60;
/// Bytes before what is sealed: the key, a nonce, and the time in seconds since 1970.
const SEALED_AT: usize = 8;

/// Seals the tickets of a listener, and opens them.
pub(crate) struct Ticketer {
    ring: Arc<KeyRing>,
    /// By the keys of the ring; `None` for one that cannot be used.
    keys: Vec<Option<LessSafeKey>>,
    now: fn() -> u64,
}

// === impl Ticketer ===

impl Ticketer {
    pub(crate) fn new(ring: Arc<KeyRing>, listener: &ListenerId) -> Self {
        Self::at(ring, listener, now)
    }

    fn at(ring: Arc<KeyRing>, listener: &ListenerId, now: fn() -> u64) -> Self {
        let listener = identity(listener);
        let keys = ring.keys().iter().map(|key| derive(key, &[b"tls ticket", &listener])).collect();
        Self { ring, keys, now }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The same for no other listener, and the same in all agents. No name has a NUL.
fn identity(ListenerId { gateway, kind, parent, name }: &ListenerId) -> [u8; 32] {
    let kind = match kind {
        ParentKind::Gateway => "Gateway",
        ParentKind::ListenerSet => "ListenerSet",
    };
    let parts = [&gateway.namespace, &gateway.name, kind, &parent.namespace, &parent.name, &**name];
    let mut identity = [0; 32];
    identity.copy_from_slice(digest(&SHA256, parts.join("\0").as_bytes()).as_ref());
    identity
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        !self.ring.is_empty()
    }

    fn lifetime(&self) -> u32 {
        LIFETIME
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let now = (self.now)();
        let at = self.ring.signing(now)?;
        let (key, derived) = (self.ring.keys().get(at)?, self.keys.get(at)?.as_ref()?);
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let sealed_at = now.to_be_bytes();
        let mut content = plain.to_vec();
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        derived.seal_in_place_append_tag(nonce_used, Aad::from(sealed_at), &mut content).ok()?;
        Some([&id(key)[..], &nonce, &sealed_at, &content].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (named, rest) = ticket.split_first_chunk::<KEY_ID>()?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>()?;
        let (sealed_at, sealed) = rest.split_first_chunk::<SEALED_AT>()?;
        if (self.now)().saturating_sub(u64::from_be_bytes(*sealed_at)) > u64::from(LIFETIME) {
            return None;
        }
        let at = self.ring.keys().iter().position(|key| id(key) == *named)?;
        let derived = self.keys.get(at)?.as_ref()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = derived.open_in_place(nonce, Aad::from(*sealed_at), &mut sealed).ok()?.len();
        sealed.truncate(length);
        Some(sealed)
    }
}

/// Without the keys, which belong in no log.
impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticketer").field("ring", &self.ring).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use portcullis_model::{ObjectName, RingKey};

    use super::*;

    const SOON: u64 = 100_000;

    fn listener(gateway: &str, name: &str) -> ListenerId {
        let gateway = ObjectName::new("infra", gateway);
        ListenerId { gateway: gateway.clone(), kind: ParentKind::Gateway, parent: gateway, name: name.into() }
    }

    fn ring(created: &[u64]) -> Arc<KeyRing> {
        let key = |created: &u64| RingKey { created: *created, secret: [(*created % 251) as u8; 32] };
        Arc::new(KeyRing::new(created.iter().map(key).collect()))
    }

    #[test]
    fn tickets_are_opened_by_every_agent_and_for_their_listener_only() {
        let https = listener("web", "https");
        let one = Ticketer::at(ring(&[1]), &https, || SOON);
        let ticket = one.encrypt(b"session").unwrap();
        let opened = |listener, ring, now| Ticketer::at(ring, &listener, now).decrypt(&ticket);
        assert_eq!(opened(https.clone(), ring(&[1]), || SOON).as_deref(), Some(&b"session"[..]));
        assert_eq!(opened(https.clone(), ring(&[1, SOON - 1]), || SOON).as_deref(), Some(&b"session"[..]));
        let of_set = ListenerId { kind: ParentKind::ListenerSet, ..https.clone() };
        for other in [listener("web", "other"), listener("other", "https"), of_set] {
            assert_eq!(opened(other, ring(&[1]), || SOON), None);
        }
        assert_eq!(opened(https.clone(), ring(&[2]), || SOON), None);
        assert_eq!(opened(https.clone(), Arc::default(), || SOON), None);
        assert!(!Ticketer::new(Arc::default(), &https).enabled());
        assert_eq!(
            opened(https.clone(), ring(&[1]), || SOON + u64::from(LIFETIME)).map(|it| it.len()),
            Some(7)
        );
        assert_eq!(opened(https, ring(&[1]), || SOON + u64::from(LIFETIME) + 1), None);
    }

    #[test]
    fn what_was_not_sealed_is_no_ticket() {
        let ticketer = Ticketer::at(ring(&[1]), &listener("web", "https"), || SOON);
        let ticket = ticketer.encrypt(b"session").unwrap();
        for at in 0..ticket.len() {
            let mut forged = ticket.clone();
            forged[at] ^= 1;
            assert_eq!(ticketer.decrypt(&forged), None, "{at}");
            assert_eq!(ticketer.decrypt(&ticket[..at]), None, "{at}");
        }
    }

    #[test]
    fn a_new_key_seals_once_all_agents_know_it() {
        let https = listener("web", "https");
        let new = SOON - 30;
        let both = Ticketer::at(ring(&[1, new]), &https, || SOON);
        let old = Ticketer::at(ring(&[1]), &https, || SOON);
        assert!(old.decrypt(&both.encrypt(b"session").unwrap()).is_some());
        let later = Ticketer::at(ring(&[1, new]), &https, || SOON + 30);
        assert!(old.decrypt(&later.encrypt(b"session").unwrap()).is_none());
    }
}
