//! Limits of requests, as policies state them.

use std::fmt;
use std::num::NonZeroU32;

use http::HeaderName;

use crate::ClaimPath;

/// So many requests a period, for each key that they have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RateLimit {
    pub requests: NonZeroU32,
    pub period: Period,
    /// As many may come at once.
    pub burst: NonZeroU32,
    pub key: RateKey,
    pub scope: RateScope,
}

/// The agents that a limit is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RateScope {
    /// Each one.
    #[default]
    Node,
    /// All that are ready, together: each lets its share pass. Approximate, since clients come
    /// unevenly.
    Cluster,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    Second,
    Minute,
    Hour,
}

/// The part of a request that has a bucket of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RateKey {
    /// All requests have the same one.
    All,
    /// Of IPv6, the network of 64 bits: any client has as many addresses.
    ClientAddress,
    /// All values of a field. Requests without it have one bucket.
    Header(HeaderName),
    /// A claim of the token that the same policy has verified. Those without it have one bucket for
    /// each issuer.
    Claim(ClaimPath),
}

// === impl Period ===

impl Period {
    pub const fn seconds(self) -> u32 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
        }
    }
}

// === impl RateKey ===

impl RateKey {
    /// True if it is known only once a token has been verified.
    pub fn is_claim(&self) -> bool {
        matches!(self, Self::Claim(_))
    }
}

// === impl RateLimit ===

/// `100 requests a minute, 20 at once, by client address`
impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = match self.period {
            Period::Second => "a second",
            Period::Minute => "a minute",
            Period::Hour => "an hour",
        };
        write!(f, "{} requests {period}, {} at once", self.requests, self.burst)?;
        match &self.key {
            RateKey::All => {}
            RateKey::ClientAddress => f.write_str(", by client address")?,
            RateKey::Header(name) => write!(f, ", by {name}")?,
            RateKey::Claim(path) => write!(f, ", by claim {}", path.0)?,
        }
        match self.scope {
            RateScope::Node => Ok(()),
            RateScope::Cluster => f.write_str(", of all agents together"),
        }
    }
}
