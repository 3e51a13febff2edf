//! Tokens of sessions, for `tests/fuzz` alone.

use std::net::SocketAddr;
use std::sync::Arc;

use http::HeaderMap;
use portcullis_model::{CookieLifetime, KeyRing, RingKey, SessionCarrier, SessionCookie};

use super::{Freshness, Session, SessionKeys, tokens};

const SCOPE: &[u8] = b"rule";

fn keys() -> SessionKeys {
    SessionKeys::of(Arc::new(KeyRing::new(vec![RingKey { created: 1, secret: [7; 32] }])))
}

/// The values among these fields that have the form of tokens: of a cookie of this name, or of a
/// field.
pub fn session_tokens(fields: &HeaderMap, cookie: &str) -> Vec<Vec<u8>> {
    let cookie = SessionCookie { name: cookie.into(), path: "/".into(), lifetime: CookieLifetime::Session };
    tokens(&SessionCarrier::Cookie(cookie), fields).map(|token| token.to_vec()).collect()
}

/// A token of a session with this endpoint.
pub fn session_token(endpoint: SocketAddr) -> Option<String> {
    let session = Session { since: 1, backend: 2, endpoint, freshness: Freshness::Signing };
    keys().seal(SCOPE, &session, 1)
}

/// The endpoint that a token names.
pub fn session_endpoint(token: &[u8]) -> Option<SocketAddr> {
    keys().open(SCOPE, token, 1).map(|session| session.endpoint)
}

/// The contents of a token as they are written again once they were read.
pub fn session_contents(bytes: &[u8]) -> Option<Vec<u8>> {
    Session::from_bytes(bytes, Freshness::Signing).map(|session| session.to_bytes().to_vec())
}
