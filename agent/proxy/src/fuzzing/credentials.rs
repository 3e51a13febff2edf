//! Credentials of requests: where they are, and what is in a token.

use http::{HeaderMap, HeaderValue};
use portcullis_model::{ClaimPath, CredentialSource, KeySet};

use super::Refused;
use crate::http::authenticate::{credential, jwt};

/// The credential in its place, if there is one and no other that it could be.
pub fn credential<'f>(source: &CredentialSource, fields: &'f HeaderMap) -> Option<&'f [u8]> {
    credential::find(source, fields).ok()
}

/// The fields as a backend gets them that is not to see the cookie.
pub fn without_cookie(fields: &HeaderMap, name: &str) -> HeaderMap {
    let mut kept = fields.clone();
    credential::without_cookies(fields, &[name]).iter().for_each(|change| change.apply(&mut kept));
    kept
}

/// User and password of the `Basic` scheme.
pub fn login(fields: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let login = credential::login(fields).ok()?;
    Some((login.user().to_owned(), login.password().to_vec()))
}

/// True if the token says that it is of the issuer.
pub fn names_issuer(issuer: &str, token: &[u8]) -> bool {
    jwt::names(issuer, token)
}

/// The claim of a token that one of the keys has signed, as a backend is told it.
pub fn claim(keys: &KeySet, token: &[u8], path: &ClaimPath) -> Result<Option<HeaderValue>, Refused> {
    let mut tries = 8;
    jwt::verify(keys, token, &mut tries).map(|claims| claims.header_value(path)).map_err(|_| Refused)
}
