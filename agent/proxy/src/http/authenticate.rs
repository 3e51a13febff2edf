//! Authentication of requests by the agent itself: tokens, API keys, names with passwords. A
//! request goes on with the credentials that every level wants, and in no other case. Nothing of a
//! credential gets to a log.

mod cache;
pub(crate) mod credential;
pub(crate) mod jwt;
mod passwords;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::{hmac, rand};
use http::{HeaderMap, HeaderName, HeaderValue};
use portcullis_model::{
    ApiKeys, Authentication, BasicPasswords, ClaimLimit, CredentialForwarding, CredentialSource, JwtProvider,
    KeySet, KeySource, PasswordFile, RemoteKeySet, Requirement,
};
use tokio::time::timeout;

pub(crate) use passwords::PasswordThread;

use crate::core::origin::is_alike;
use crate::core::reason::Reason;
use crate::http::authenticate::cache::{Cache, Digest};
use crate::http::authenticate::jwt::{Claims, Rejection};
use crate::http::authenticate::passwords::Turns;
use crate::http::change::Change;
use crate::http::decide::OwnAnswer;
use crate::http::rate_limit::RateLimits;
use crate::upstream::key_sets::KnownKeys;

/// Signatures that are checked for one request: who has no good token is not to take a core.
const MOST_TRIES: u32 = 16;
/// The time that a password may take: its turn, and the check.
const LONGEST_CHECK: Duration = Duration::from_secs(10);

/// Checks the credentials of a core's requests.
pub(crate) struct Authenticator {
    /// Of the keys of caches: no client can choose tokens that have the same.
    secret: hmac::Key,
    key_sets: Rc<KnownKeys>,
    limits: Rc<RateLimits>,
    tokens: RefCell<Cache<KeySet, Claims>>,
    logins: RefCell<Cache<PasswordFile, ()>>,
    turns: Turns,
}

/// The changes to a request that has the credentials, by the order in which they are made.
#[derive(Default)]
struct Changes<'a> {
    /// Of fields that are not there, and others that read alike: those have not been checked.
    absent: Vec<Change>,
    kept: Vec<Change>,
    removed: Vec<Change>,
    removed_cookies: Vec<&'a str>,
    written: Vec<(HeaderName, HeaderValue)>,
}

// === impl Authenticator ===

impl Authenticator {
    pub(crate) fn new(
        passwords: Arc<PasswordThread>,
        key_sets: Rc<KnownKeys>,
        limits: Rc<RateLimits>,
    ) -> Self {
        let mut secret = [0; 32];
        // Without randomness there is no TLS either.
        let _ = rand::fill(&mut secret);
        Self {
            secret: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            key_sets,
            limits,
            tokens: RefCell::default(),
            logins: RefCell::default(),
            turns: Turns::new(passwords),
        }
    }

    /// The changes to a request that meets all requirements.
    ///
    /// # Errors
    /// The answer to one that does not.
    pub(crate) async fn check(
        &self,
        wanted: &[&Authentication],
        fields: &HeaderMap,
    ) -> Result<Vec<Change>, OwnAnswer<'static>> {
        let (mut changes, mut tries) = (Changes::default(), MOST_TRIES);
        // By requirement, of those whose claims a limit goes by.
        let mut verified = Vec::new();
        for (at, wanted) in wanted.iter().enumerate() {
            for (index, requirement) in wanted.requirements.iter().enumerate() {
                match &**requirement {
                    Requirement::Jwt(providers) => {
                        let claims = self.jwt(providers, fields, &mut tries, &mut changes).await?;
                        if wanted.limits.iter().any(|limit| limit.requirement == index) {
                            verified.push(((at, index), claims));
                        }
                    }
                    Requirement::ApiKey(keys) => api_key(keys, fields, &mut changes)?,
                    Requirement::Basic(basic) => self.basic(basic, fields, &mut changes).await?,
                }
            }
        }
        // Of requests that meet all of them. The narrowest levels' come first.
        for (at, wanted) in wanted.iter().enumerate().rev() {
            let key = |limit: &ClaimLimit| {
                let found = verified.iter().find(|(place, _)| *place == (at, limit.requirement));
                let claims = found.and_then(|(_, claims)| claims.as_ref());
                claims.map(|claims| claims.rate_key(&limit.claim)).unwrap_or_default()
            };
            self.limits.take_by_claim(&wanted.limits, key).map_err(OwnAnswer::Exhausted)?;
        }
        Ok(changes.ordered(wanted, fields))
    }

    /// Every place that has a token needs a provider that takes it: a backend might read the one
    /// that was not checked. The fields with claims are those of the first that does, which are
    /// returned.
    async fn jwt<'a>(
        &self,
        providers: &'a [JwtProvider],
        fields: &HeaderMap,
        tries: &mut u32,
        changes: &mut Changes<'a>,
    ) -> Result<Option<Rc<Claims>>, OwnAnswer<'static>> {
        let (mut good, mut refused, mut first) = (Vec::new(), Vec::new(), None);
        for provider in providers {
            if good.contains(&&provider.source) {
                continue;
            }
            let verified = match credential::find(&provider.source, fields) {
                Ok(token) => self.verified(provider, token, tries).await.map(|claims| (token, claims)),
                Err(rejection) => Err(rejection),
            };
            match verified {
                Ok((token, claims)) => {
                    changes.credential(&provider.source, provider.forwarding, token);
                    for header in provider.headers.iter().filter(|_| good.is_empty()) {
                        if let Some(value) = claims.header_value(&header.claim) {
                            changes.write(&header.header, value);
                        }
                    }
                    good.push(&provider.source);
                    first.get_or_insert(claims);
                }
                Err(rejection) => {
                    tracing::debug!(provider = %provider.name, ?rejection, "a token is refused");
                    refused.push((&provider.source, rejection));
                }
            }
        }
        for (source, rejection) in &refused {
            if let (CredentialSource::Header(name), Rejection::Missing) = (source, rejection) {
                changes.absent.push(Change::Remove(name.clone()));
            }
        }
        refused.retain(|(source, rejection)| {
            !good.contains(source) && (good.is_empty() || *rejection != Rejection::Missing)
        });
        let worst = refused.into_iter().map(|(_, rejection)| rejection).max();
        worst.map_or(Ok(first), |worst| Err(worst.bearer_answer()))
    }

    /// The claims of a token that is good now.
    async fn verified(
        &self,
        provider: &JwtProvider,
        token: &[u8],
        tries: &mut u32,
    ) -> Result<Rc<Claims>, Rejection> {
        let claims = match &provider.keys {
            KeySource::Given(keys) => self.claims(&provider.issuer, keys, token, tries)?,
            KeySource::Remote(set) => self.claims_by_remote(&provider.issuer, set, token, tries).await?,
        };
        jwt::check(provider, &claims, jwt::now())?;
        Ok(claims)
    }

    /// The same as [`Authenticator::claims`], by keys that are fetched: they are fetched anew if
    /// the token names one that is not among them. Where they cannot be now, it may be good: other
    /// clients, with tokens of no worth, may have brought the last fetch about.
    async fn claims_by_remote(
        &self,
        issuer: &str,
        set: &Arc<RemoteKeySet>,
        token: &[u8],
        tries: &mut u32,
    ) -> Result<Rc<Claims>, Rejection> {
        let known = self.key_sets.get(set);
        let claims = match known.as_ref().and_then(|known| known.keys.as_ref()) {
            Some(keys) => self.claims(issuer, keys, token, tries),
            None if jwt::names(issuer, token) => Err(Rejection::NoKeys),
            None => Err(Rejection::Issuer),
        };
        let Err(Rejection::UnknownKey | Rejection::NoKeys) = claims else { return claims };
        // Boxed: few requests wait for keys, and every one would have room for it.
        match Box::pin(self.key_sets.renewed(set, known.as_deref())).await {
            Some(keys) => self.claims(issuer, &keys, token, tries),
            None => Err(Rejection::NoKeys),
        }
    }

    /// The claims of a token that one of the keys has signed. They are kept: a client sends its
    /// token with every request. Whether they are good now is not asked here.
    fn claims(
        &self,
        issuer: &str,
        keys: &Arc<KeySet>,
        token: &[u8],
        tries: &mut u32,
    ) -> Result<Rc<Claims>, Rejection> {
        if token.len() > jwt::LONGEST {
            return Err(Rejection::Invalid);
        }
        let digest = self.digest(Arc::as_ptr(keys).addr(), token);
        if let Some(claims) = self.tokens.borrow_mut().get(keys, &digest) {
            return Ok(claims);
        }
        if !jwt::names(issuer, token) {
            return Err(Rejection::Issuer);
        }
        let claims = jwt::verify(keys, token, tries)?;
        let bytes = claims.bytes();
        Ok(self.tokens.borrow_mut().insert(keys, digest, claims, bytes))
    }

    async fn basic<'a>(
        &self,
        basic: &'a BasicPasswords,
        fields: &HeaderMap,
        changes: &mut Changes<'a>,
    ) -> Result<(), OwnAnswer<'static>> {
        const CHALLENGE: HeaderValue =
            HeaderValue::from_static("Basic realm=\"restricted\", charset=\"UTF-8\"");
        let refused = |reason| OwnAnswer::Challenge(reason, CHALLENGE);
        let login = credential::login(fields).map_err(|rejection| refused(rejection.reason()))?;
        let digest = self.digest(Arc::as_ptr(&basic.users).addr(), &login.bytes);
        let is_known = || self.logins.borrow_mut().get(&basic.users, &digest).is_some();
        if !is_known() {
            let checked = async {
                // Many requests come with the same password at once: they wait for the first.
                let turn = self.turns.wait(&basic.users).await.ok_or(Reason::AuthBusy)?;
                if is_known() { Ok(true) } else { turn.verify(basic, &login).await }
            };
            if !timeout(LONGEST_CHECK, checked).await.map_err(|_| Reason::AuthBusy)?? {
                return Err(refused(Reason::CredentialsInvalid));
            }
            self.logins.borrow_mut().insert(&basic.users, digest, (), login.bytes.len());
        }
        if let (Some(header), Some(value)) = (&basic.user_header, jwt::text_value(login.user())) {
            changes.write(header, value);
        }
        if basic.forwarding == CredentialForwarding::Remove {
            changes.removed.push(Change::Remove(http::header::AUTHORIZATION));
        }
        Ok(())
    }

    /// The key of a cache. `source` is a part of it, so that sources do not drive each other out.
    fn digest(&self, source: usize, credential: &[u8]) -> Digest {
        let mut context = hmac::Context::with_key(&self.secret);
        context.update(&source.to_ne_bytes());
        context.update(credential);
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }
}

fn api_key<'a>(
    keys: &'a ApiKeys,
    fields: &HeaderMap,
    changes: &mut Changes<'a>,
) -> Result<(), OwnAnswer<'static>> {
    /// A 401 has to have one (RFC 9110 section 15.5.2).
    const CHALLENGE: HeaderValue = HeaderValue::from_static("ApiKey realm=\"restricted\"");
    let refused = |reason| OwnAnswer::Challenge(reason, CHALLENGE);
    let key = credential::find(&keys.source, fields).map_err(|rejection| refused(rejection.reason()))?;
    let client = keys.client(key).ok_or_else(|| refused(Reason::CredentialsInvalid))?;
    changes.credential(&keys.source, keys.forwarding, key);
    if let (Some(header), Some(value)) = (&keys.client_header, jwt::text_value(client)) {
        changes.write(header, value);
    }
    Ok(())
}

// === impl Changes ===

impl<'a> Changes<'a> {
    fn credential(
        &mut self,
        source: &'a CredentialSource,
        forwarding: CredentialForwarding,
        credential: &[u8],
    ) {
        match (source, forwarding) {
            (CredentialSource::Bearer, CredentialForwarding::Remove) => {
                self.removed.push(Change::Remove(http::header::AUTHORIZATION));
            }
            (CredentialSource::Header(name), CredentialForwarding::Remove) => {
                self.removed.push(Change::Remove(name.clone()));
            }
            (CredentialSource::Cookie(name), CredentialForwarding::Remove) => self.removed_cookies.push(name),
            // No other that reads alike: it has not been checked.
            (CredentialSource::Header(name), CredentialForwarding::Keep) => {
                self.kept.extend(Change::set(name, HeaderValue::from_bytes(credential).ok()));
            }
            (CredentialSource::Bearer | CredentialSource::Cookie(_), CredentialForwarding::Keep) => {}
        }
    }

    /// The first word is the last: requirements of wider scope come first. Names that read alike
    /// are one: a backend could take what a narrower one writes for what the wider one does.
    fn write(&mut self, name: &HeaderName, value: HeaderValue) {
        if !self.written.iter().any(|(there, _)| is_alike(there.as_str(), name.as_str())) {
            self.written.push((name.clone(), value));
        }
    }

    fn ordered(self, wanted: &[&Authentication], fields: &HeaderMap) -> Vec<Change> {
        let mut all = self.absent;
        all.extend(self.kept);
        all.extend(self.removed);
        if !self.removed_cookies.is_empty() {
            all.extend(credential::without_cookies(fields, &self.removed_cookies));
        }
        all.extend(
            wanted.iter().flat_map(|wanted| wanted.written()).map(|name| Change::Remove(name.clone())),
        );
        all.extend(self.written.into_iter().map(|(name, value)| Change::Append(name, value)));
        all
    }
}
