//! The places where requests and responses have sessions (GEP-1619).

use http::HeaderName;
use serde::{Serialize, Serializer};

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

fn name<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}
