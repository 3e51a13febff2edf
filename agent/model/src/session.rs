//! Session persistence (GEP-1619): whose sessions are kept, for how long, and the places where
//! requests and responses have them.

use std::time::Duration;

use http::HeaderName;
use serde::{Serialize, Serializer};

use crate::BackendName;

/// The sessions of a rule that are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptSessions {
    /// All, as the rule says.
    All(SessionTerms),
    /// Those at these backends, as the policy of each says; the others have none.
    At(Vec<(BackendName, SessionTerms)>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTerms {
    pub carrier: SessionCarrier,
    /// The time after which a session is over, however much it is used. `None`: as long as its
    /// endpoint is there.
    pub absolute_timeout: Option<Duration>,
}

/// The place of a session in requests and responses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum SessionCarrier {
    Cookie(SessionCookie),
    Header(#[serde(serialize_with = "name")] HeaderName),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionCookie {
    pub name: Box<str>,
    pub path: Box<str>,
    pub lifetime: CookieLifetime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CookieLifetime {
    /// Until the browser's session ends.
    Session,
    /// For the absolute time-out, which there is then.
    Permanent,
}

// === impl KeptSessions ===

impl KeptSessions {
    /// The terms, with the only backend that each is for; `None` for all backends.
    pub fn terms(&self) -> impl Iterator<Item = (Option<&BackendName>, &SessionTerms)> {
        let (all, at) = match self {
            Self::All(terms) => (Some((None, terms)), &[][..]),
            Self::At(backends) => (None, backends.as_slice()),
        };
        all.into_iter().chain(at.iter().map(|(backend, terms)| (Some(backend), terms)))
    }

    /// The terms of sessions at a backend; `None` if it has none.
    pub fn at(&self, backend: &str) -> Option<&SessionTerms> {
        let mut terms = self.terms();
        let found = terms.find(|(only, _)| only.is_none_or(|only| only.as_str() == backend));
        found.map(|(_, terms)| terms)
    }
}

fn name<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}
