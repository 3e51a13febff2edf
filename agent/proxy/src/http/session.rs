//! Sessions of rules that have them: the token by which a client's further requests find their
//! endpoint. It is encrypted and authenticated with the agents' common keys, so it says nothing
//! about endpoints, no client can make one, and any agent continues what another began. What it
//! says is a wish all the same: only endpoints that the rule has now are asked.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use aws_lc_rs::{digest, rand};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;
use http::header::{COOKIE, SET_COOKIE};
use portcullis_model::{
    Action, BackendName, BackendTarget, CookieLifetime, KeyRing, RingKey, Rule, SessionCarrier,
    SessionCookie, SessionPersistence, SessionTerms, WeightedBackend,
};

use crate::core::derived_key::{KEY_ID, derive, id};
use crate::core::head::{Fields, FieldsMut};
use crate::upstream::pool::Pools;

/// Tokens of a request that are looked at: a cookie of one name may come once per path.
const TOKENS: usize = 4;
const TAG: usize = 16;
/// Version, time, backend, address, port.
const CONTENT: usize = 1 + 8 + 8 + 16 + 2;
const TOKEN: usize = KEY_ID + NONCE_LEN + CONTENT + TAG;
/// A token in Base64, without padding.
const ENCODED: usize = (TOKEN * 4).div_ceil(3);
const VERSION: u8 = 1;
/// Between tokens of several rules in one place. No token has it.
const SEPARATOR: char = '.';

/// A backend of a rule, and its name.
pub(crate) type Home<'s> = Option<(&'s WeightedBackend, &'s BackendName)>;

/// A core's part in sessions.
pub(crate) struct Sessions {
    pub pools: Rc<Pools>,
    keys: RefCell<Rc<SessionKeys>>,
}

/// The keys of a ring, as tokens have them.
#[derive(Default)]
pub(crate) struct SessionKeys {
    ring: Arc<KeyRing>,
    derived: Vec<Option<LessSafeKey>>,
}

/// A request of a rule with sessions, on its way.
pub(crate) struct SessionPlan<'s> {
    persistence: &'s SessionPersistence,
    keys: Rc<SessionKeys>,
    /// The session that the request belongs to.
    resumed: Option<Session>,
    /// Tokens of other rules that came in the same places. They stay there beside a new one.
    others: Vec<(&'s SessionCarrier, [u8; ENCODED])>,
}

/// The contents of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Session {
    /// Milliseconds since 1970.
    since: u64,
    /// By [`fingerprint`].
    backend: u64,
    endpoint: SocketAddr,
    freshness: Freshness,
}

/// The key of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freshness {
    Signing,
    /// The client is to get another token while this one is good.
    Older,
}

// === impl Sessions ===

impl Sessions {
    pub(crate) fn new(pools: Rc<Pools>, ring: Arc<KeyRing>) -> Self {
        Self { pools, keys: RefCell::new(Rc::new(SessionKeys::of(ring))) }
    }

    pub(crate) fn use_keys(&self, ring: Arc<KeyRing>) {
        self.keys.replace(Rc::new(SessionKeys::of(ring)));
    }

    /// The session of a request, with the backend that has it, if its endpoint takes requests now.
    pub(crate) fn plan<'s>(
        &self,
        rule: &'s Rule,
        fields: &impl Fields,
    ) -> Option<(SessionPlan<'s>, Home<'s>)> {
        let persistence = rule.session.as_deref()?;
        let keys = self.keys.borrow().clone();
        let (now, scope) = (now(), persistence.scope.as_bytes());
        let weighted = match &rule.action {
            Action::Forward(split) => split.backends(),
            Action::Redirect(_) | Action::Respond(_) | Action::Fail(_) => &[],
        };
        let home = |session: &Session| {
            let mut backends =
                weighted.iter().chain(&persistence.drained).filter_map(|backend| match &backend.target {
                    BackendTarget::Known(name) => Some((backend, name)),
                    BackendTarget::Respond(_) | BackendTarget::Invalid(_) => None,
                });
            let found = backends.find(|(_, name)| fingerprint(name.as_str()) == session.backend);
            found.filter(|(_, name)| self.pools.takes(name, session.endpoint))
        };
        let (mut found, mut others) = (None, Vec::new());
        for (only, terms) in persistence.kept.terms() {
            for token in tokens(&terms.carrier, fields).take(TOKENS) {
                let Some(session) = keys.open(scope, token, now) else {
                    let other = (&terms.carrier, *token);
                    // Backends may have one place together, and clients several of a name.
                    others.extend((keys.know(token) && !others.contains(&other)).then_some(other));
                    continue;
                };
                let is_meant = only.is_none_or(|name| fingerprint(name.as_str()) == session.backend)
                    && !session.is_over(terms.absolute_timeout, now);
                if found.is_none() && is_meant {
                    found = home(&session).map(|home| (session, home));
                }
            }
        }
        let (resumed, home) = found.unzip();
        Some((SessionPlan { persistence, keys, resumed, others }, home))
    }
}

// === impl SessionPlan ===

impl SessionPlan<'_> {
    /// The endpoint that the request is for.
    pub(crate) fn endpoint(&self) -> Option<SocketAddr> {
        self.resumed.map(|session| session.endpoint)
    }

    /// Tells the client of its session, if the response begins or renews one. `scheme` is that of
    /// the client's connection.
    pub(crate) fn edit(
        &self,
        fields: &mut impl FieldsMut,
        backend: &str,
        endpoint: SocketAddr,
        scheme: &str,
    ) {
        let Some(terms) = self.persistence.kept.at(backend) else { return };
        let now = now();
        let kept = self.resumed.filter(|session| session.endpoint == endpoint);
        if kept.is_some_and(|session| session.freshness == Freshness::Signing) {
            return;
        }
        let since = kept.map_or(now, |session| session.since);
        let session =
            Session { since, backend: fingerprint(backend), endpoint, freshness: Freshness::Signing };
        let Some(token) = self.keys.seal(self.persistence.scope.as_bytes(), &session, now) else { return };
        let token = self.beside_others(token, terms);
        match &terms.carrier {
            SessionCarrier::Header(name) => {
                if let Ok(value) = HeaderValue::from_str(&token) {
                    fields.insert(name.clone(), value);
                }
            }
            SessionCarrier::Cookie(cookie) => {
                let left = terms.absolute_timeout.map(|limit| session.left(limit, now));
                if let Ok(value) = HeaderValue::from_str(&set_cookie(cookie, &token, left, scheme)) {
                    fields.append(SET_COOKIE, value);
                }
            }
        }
    }

    /// The token, and those that other rules have in the same place: a client has one cookie of a
    /// name and path, and "each route rule should have different persistent sessions".
    fn beside_others(&self, token: String, terms: &SessionTerms) -> String {
        let others = self.others.iter().filter(|(carrier, _)| **carrier == terms.carrier);
        let others = others.filter_map(|(_, other)| std::str::from_utf8(other).ok()).take(TOKENS - 1);
        others.fold(token, |all, other| format!("{all}{SEPARATOR}{other}"))
    }
}

/// "Enabling `Secure` and `HttpOnly`, and setting `SameSite` to `Strict`" (GEP-1619); without TLS,
/// browsers would not take a cookie that is `Secure`.
fn set_cookie(cookie: &SessionCookie, token: &str, left: Option<Duration>, scheme: &str) -> String {
    let SessionCookie { name, path, lifetime } = cookie;
    let secure = if scheme == "https" { "; Secure" } else { "" };
    let age = match (lifetime, left) {
        (CookieLifetime::Permanent, Some(left)) => format!("; Max-Age={}", left.as_secs().max(1)),
        (CookieLifetime::Permanent, None) | (CookieLifetime::Session, _) => String::new(),
    };
    format!("{name}={token}; Path={path}{age}{secure}; HttpOnly; SameSite=Strict")
}

/// Values that may be tokens, of all rules that have the same carrier.
fn tokens<'f>(
    carrier: &'f SessionCarrier,
    fields: &'f impl Fields,
) -> impl Iterator<Item = &'f [u8; ENCODED]> {
    let tokens = values(carrier, fields).flat_map(|value| value.split(|b| char::from(*b) == SEPARATOR));
    tokens.filter_map(|token| token.try_into().ok())
}

fn values<'f>(
    carrier: &'f SessionCarrier,
    fields: &'f impl Fields,
) -> Box<dyn Iterator<Item = &'f [u8]> + 'f> {
    match carrier {
        SessionCarrier::Header(name) => Box::new(fields.get_all(name)),
        SessionCarrier::Cookie(cookie) => {
            let pairs = fields.get_all(&COOKIE).flat_map(|pairs| pairs.split(|b| *b == b';'));
            Box::new(pairs.filter_map(|pair| {
                pair.trim_ascii().strip_prefix(cookie.name.as_bytes())?.strip_prefix(b"=")
            }))
        }
    }
}

/// Of a backend's name, the same in all agents.
fn fingerprint(backend: &str) -> u64 {
    let hash = digest::digest(&digest::SHA256, backend.as_bytes());
    hash.as_ref().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A ring of this agent's own, until there is one that all have.
pub(crate) fn own_ring() -> Arc<KeyRing> {
    let mut secret = [0; 32];
    // Without randomness there are no sessions.
    let key = rand::fill(&mut secret).ok().map(|()| RingKey { created: now() / 1000, secret });
    Arc::new(KeyRing::new(key.into_iter().collect()))
}

// === impl SessionKeys ===

impl SessionKeys {
    fn of(ring: Arc<KeyRing>) -> Self {
        let derived = ring.keys().iter().map(|key| derive(key, &[b"session"])).collect();
        Self { ring, derived }
    }

    /// `scope` is no part of the token, and has to be the same when it is opened.
    fn seal(&self, scope: &[u8], session: &Session, now: u64) -> Option<String> {
        let at = self.ring.signing(now / 1000)?;
        let (key, derived) = (self.ring.keys().get(at)?, self.derived.get(at)?.as_ref()?);
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut content = session.to_bytes();
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        let tag = derived.seal_in_place_separate_tag(nonce_used, Aad::from(scope), &mut content).ok()?;
        let token = [&id(key)[..], &nonce, &content, tag.as_ref()].concat();
        Some(URL_SAFE_NO_PAD.encode(token))
    }

    /// True if the token names one of the keys. That it is one is not said by this.
    fn know(&self, token: &[u8; ENCODED]) -> bool {
        let mut bytes = [0; TOKEN + 2];
        let is_read = URL_SAFE_NO_PAD.decode_slice(token, &mut bytes).is_ok();
        is_read
            && bytes.first_chunk().is_some_and(|named| self.ring.keys().iter().any(|key| id(key) == *named))
    }

    fn open(&self, scope: &[u8], token: &[u8], now: u64) -> Option<Session> {
        let mut bytes = [0; TOKEN + 2];
        let length = URL_SAFE_NO_PAD.decode_slice(token, &mut bytes).ok()?;
        let (named, rest) = bytes.get(..length)?.split_first_chunk::<KEY_ID>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let at = self.ring.keys().iter().position(|key| id(key) == *named)?;
        let derived = self.derived.get(at)?.as_ref()?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let content = derived.open_in_place(nonce, Aad::from(scope), &mut sealed).ok()?;
        let freshness = match self.ring.signing(now / 1000) == Some(at) {
            true => Freshness::Signing,
            false => Freshness::Older,
        };
        Session::from_bytes(content, freshness)
    }
}

// === impl Session ===

impl Session {
    fn to_bytes(self) -> [u8; CONTENT] {
        let address = match self.endpoint.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let mut bytes = [0; CONTENT];
        let parts = [
            &[VERSION][..],
            &self.since.to_be_bytes(),
            &self.backend.to_be_bytes(),
            &address.octets(),
            &self.endpoint.port().to_be_bytes(),
        ];
        for (to, from) in bytes.iter_mut().zip(parts.concat()) {
            *to = from;
        }
        bytes
    }

    fn from_bytes(bytes: &[u8], freshness: Freshness) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (since, rest) = rest.split_first_chunk()?;
        let (backend, rest) = rest.split_first_chunk()?;
        let (address, rest) = rest.split_first_chunk::<16>()?;
        let (port, rest) = rest.split_first_chunk()?;
        let address = IpAddr::V6(Ipv6Addr::from(*address)).to_canonical();
        let is_whole = *version == VERSION && rest.is_empty();
        is_whole.then(|| Self {
            since: u64::from_be_bytes(*since),
            backend: u64::from_be_bytes(*backend),
            endpoint: SocketAddr::new(address, u16::from_be_bytes(*port)),
            freshness,
        })
    }

    fn is_over(&self, absolute_timeout: Option<Duration>, now: u64) -> bool {
        absolute_timeout.is_some_and(|limit| self.left(limit, now).is_zero())
    }

    fn left(&self, limit: Duration, now: u64) -> Duration {
        limit.saturating_sub(Duration::from_millis(now.saturating_sub(self.since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    const HOUR: u64 = 3_600_000;

    fn keys(created: &[u64]) -> SessionKeys {
        let key =
            |created: &u64| RingKey { created: *created, secret: [u8::try_from(created % 251).unwrap(); 32] };
        SessionKeys::of(Arc::new(KeyRing::new(created.iter().map(key).collect())))
    }

    fn session(endpoint: &str) -> Session {
        let endpoint = endpoint.parse().unwrap();
        Session { since: HOUR, backend: fingerprint("a/b:80"), endpoint, freshness: Freshness::Signing }
    }

    #[test]
    fn tokens_are_opened_by_whoever_has_the_key() {
        for endpoint in ["10.0.0.1:80", "[fd00::1]:8443"] {
            let (one, other) = (keys(&[1]), keys(&[1]));
            let token = one.seal(b"rule", &session(endpoint), HOUR).unwrap();
            assert_eq!(token.len(), 90);
            assert_eq!(other.open(b"rule", token.as_bytes(), HOUR), Some(session(endpoint)));
            let again = one.seal(b"rule", &session(endpoint), HOUR).unwrap();
            assert_ne!(token, again, "equal endpoints are not to be recognised");
        }
    }

    #[test]
    fn what_was_not_sealed_for_the_rule_is_nothing() {
        let keys = keys(&[1]);
        let token = keys.seal(b"rule", &session("10.0.0.1:80"), HOUR).unwrap();
        assert_eq!(keys.open(b"other rule", token.as_bytes(), HOUR), None);
        let foreign = SessionKeys::of(Arc::new(KeyRing::new(vec![RingKey { created: 1, secret: [9; 32] }])));
        assert_eq!(foreign.open(b"rule", token.as_bytes(), HOUR), None);
        assert_eq!(SessionKeys::default().open(b"rule", token.as_bytes(), HOUR), None);
        for at in 0..token.len() {
            let mut forged = token.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(keys.open(b"rule", &forged, HOUR), None, "{at}");
        }
        assert_eq!(token.len(), ENCODED);
        for forged in ["", "A", &token[1..], &format!("{token}A"), &"=".repeat(90), &"A".repeat(90)] {
            assert_eq!(keys.open(b"rule", forged.as_bytes(), HOUR), None, "{forged}");
        }
    }

    #[test]
    fn all_keys_of_a_ring_verify_and_one_signs() {
        let (old, both) = (keys(&[1]), keys(&[1, 1000]));
        let by_old = old.seal(b"", &session("10.0.0.1:80"), HOUR).unwrap();
        let older = Session { freshness: Freshness::Older, ..session("10.0.0.1:80") };
        assert_eq!(both.open(b"", by_old.as_bytes(), HOUR), Some(older));
        // Not before the others have heard of it.
        let early = both.seal(b"", &session("10.0.0.1:80"), 1_059_999).unwrap();
        assert!(old.open(b"", early.as_bytes(), HOUR).is_some());
        let late = both.seal(b"", &session("10.0.0.1:80"), 1_060_000).unwrap();
        assert!(old.open(b"", late.as_bytes(), HOUR).is_none());
    }

    #[test]
    fn sessions_end_by_their_absolute_timeout() {
        let limit = Some(Duration::from_millis(1500));
        let session = session("10.0.0.1:80");
        for (now, is_over) in
            [(0, false), (HOUR, false), (HOUR + 1499, false), (HOUR + 1500, true), (u64::MAX, true)]
        {
            assert_eq!(session.is_over(limit, now), is_over, "{now}");
            assert!(!session.is_over(None, now));
        }
    }

    #[test]
    fn cookies_are_told_apart_by_their_whole_names() {
        let cookie = SessionCookie { name: "s".into(), path: "/".into(), lifetime: CookieLifetime::Session };
        let carrier = SessionCarrier::Cookie(cookie);
        let fields =
            PlainFields::of(&[("cookie", "ss=0; s=1;s=2 ; x=s=3; S=4"), ("cookie", "s=5"), ("s", "6")]);
        let found: Vec<_> = values(&carrier, &fields).collect();
        assert_eq!(found, [b"1", b"2", b"5"]);
    }

    #[test]
    fn cookies_have_their_attributes() {
        let cookie = |lifetime| SessionCookie { name: "s".into(), path: "/a".into(), lifetime };
        let left = Some(Duration::from_millis(299_900));
        for (lifetime, scheme, expected) in [
            (CookieLifetime::Session, "http", "s=t; Path=/a; HttpOnly; SameSite=Strict"),
            (CookieLifetime::Session, "https", "s=t; Path=/a; Secure; HttpOnly; SameSite=Strict"),
            (
                CookieLifetime::Permanent,
                "https",
                "s=t; Path=/a; Max-Age=299; Secure; HttpOnly; SameSite=Strict",
            ),
        ] {
            assert_eq!(set_cookie(&cookie(lifetime), "t", left, scheme), expected);
        }
    }
}
