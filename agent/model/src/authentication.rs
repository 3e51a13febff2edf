//! Authentication of requests: the credentials that a rule wants of each, and what the backend gets
//! to know of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use crate::client_keys::KeyDigest;
use crate::{ClaimPath, ClientKeys, KeySet, ObjectName, PasswordFile, RateLimit, RemoteKeySet};

/// The authentication in force for a listener, or for a rule. A request meets every requirement, or
/// goes nowhere: each level of policies has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    pub requirements: Vec<Arc<Requirement>>,
    /// Limits by what tokens say, which are taken once all requirements are met.
    pub limits: Arc<[ClaimLimit]>,
}

/// A limit of requests by a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimLimit {
    /// Of the policy, which has the limit.
    pub target: Arc<str>,
    pub policy: ObjectName,
    pub limit: RateLimit,
    /// The place among the requirements of the one whose token has the claim.
    pub requirement: usize,
    pub claim: ClaimPath,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// A token of any of these providers.
    Jwt(Vec<JwtProvider>),
    ApiKey(ApiKeys),
    Basic(BasicPasswords),
}

/// An issuer of JSON Web Tokens (RFC 7519), and what a token of it has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtProvider {
    pub name: Box<str>,
    /// `iss`, to the letter.
    pub issuer: Box<str>,
    /// `aud` has to have one of them. None: it may say anything.
    pub audiences: Vec<Box<str>>,
    pub keys: KeySource,
    pub source: CredentialSource,
    pub forwarding: CredentialForwarding,
    /// All of them.
    pub required: Vec<RequiredClaim>,
    pub headers: Vec<ClaimHeader>,
    pub clock_skew: Duration,
    pub expiry: Expiry,
}

/// The origin of an issuer's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    Given(Arc<KeySet>),
    /// Known once it has been fetched; until then no token passes.
    Remote(Arc<RemoteKeySet>),
}

/// The place of a credential in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// `Authorization: Bearer`, or of another field the whole value.
    Bearer,
    Header(HeaderName),
    Cookie(Box<str>),
}

/// The fate of a credential that is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialForwarding {
    /// The backend gets it.
    Keep,
    Remove,
}

/// Tokens without `exp` are good for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    Required,
    Optional,
}

/// A claim that has to have one of some values, or as a list, to contain one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredClaim {
    pub claim: ClaimPath,
    pub values: Vec<Box<str>>,
}

/// The header field that tells the backend of a claim. A client cannot set it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimHeader {
    pub claim: ClaimPath,
    pub header: HeaderName,
}

/// Keys by which applications identify themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeys {
    /// No two clients have the same. Each of them may be part of many requirements.
    pub keys: Box<[Arc<ClientKeys>]>,
    pub source: CredentialSource,
    pub forwarding: CredentialForwarding,
    /// The header field that tells the backend which client it is.
    pub client_header: Option<HeaderName>,
}

/// Names and passwords (RFC 7617).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicPasswords {
    /// Of the policy. Namespaces take turns, since passwords are slow to check.
    pub namespace: Arc<str>,
    pub users: Arc<PasswordFile>,
    pub forwarding: CredentialForwarding,
    /// The header field that tells the backend the user's name.
    pub user_header: Option<HeaderName>,
}

// === impl Authentication ===

impl Authentication {
    /// `None` where nothing is wanted.
    pub fn of(requirements: Vec<Arc<Requirement>>, limits: Arc<[ClaimLimit]>) -> Option<Self> {
        (!requirements.is_empty()).then_some(Self { requirements, limits })
    }

    /// The fields that requirements write: none of a client's gets to a backend.
    pub fn written(&self) -> impl Iterator<Item = &HeaderName> {
        self.requirements.iter().flat_map(|requirement| requirement.written())
    }
}

// === impl Requirement ===

impl Requirement {
    fn written(&self) -> Vec<&HeaderName> {
        match self {
            Self::Jwt(providers) => {
                let headers = providers.iter().flat_map(|provider| &provider.headers);
                headers.map(|header| &header.header).collect()
            }
            Self::ApiKey(keys) => keys.client_header.iter().collect(),
            Self::Basic(basic) => basic.user_header.iter().collect(),
        }
    }
}

// === impl ApiKeys ===

impl ApiKeys {
    /// The client whose key this is.
    pub fn client(&self, key: &[u8]) -> Option<&str> {
        let digest = KeyDigest::of(key);
        self.keys.iter().find_map(|keys| keys.client(digest))
    }

    fn len(&self) -> usize {
        self.keys.iter().map(|keys| keys.len()).sum()
    }
}

/// `a token of issuer https://a or https://b`
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jwt(providers) => {
                let issuer = |provider: &JwtProvider| match &provider.keys {
                    KeySource::Given(_) => provider.issuer.to_string(),
                    KeySource::Remote(set) => format!("{} (keys fetched from {set})", provider.issuer),
                };
                let issuers: Vec<_> = providers.iter().map(issuer).collect();
                write!(f, "a token of issuer {}", issuers.join(" or "))
            }
            Self::ApiKey(keys) => write!(f, "the key of one of {} clients", keys.len()),
            Self::Basic(basic) => write!(f, "the password of one of {} users", basic.users.len()),
        }
    }
}

// === impl CredentialSource ===

impl fmt::Display for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("Authorization: Bearer"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Cookie(name) => write!(f, "cookie {name}"),
        }
    }
}
