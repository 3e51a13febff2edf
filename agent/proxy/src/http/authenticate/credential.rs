//! Credentials in the fields of requests. Where there could be two, there is none: the backend
//! might read the one that was not checked.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderValue};
use portcullis_model::CredentialSource;

use crate::http::authenticate::jwt::Rejection;
use crate::http::change::Change;

/// A user's name and password, with a colon between them.
pub(crate) struct Login {
    pub bytes: Vec<u8>,
    /// The length of the name, of bytes that are UTF-8.
    user: usize,
}

/// The credential in its place.
///
/// # Errors
/// When there is none, or more than one.
pub(crate) fn find<'f>(source: &CredentialSource, fields: &'f HeaderMap) -> Result<&'f [u8], Rejection> {
    match source {
        CredentialSource::Bearer => with_scheme(fields, b"bearer"),
        CredentialSource::Header(name) => only(fields.get_all(name).iter().map(HeaderValue::as_bytes)),
        CredentialSource::Cookie(name) => {
            // In any spelling: of two that a backend may take for the same, none counts.
            let alike = cookies(fields).filter(|cookie| is_cookie(cookie, name));
            let cookie = only(alike)?;
            let value = cookie.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
            value.map(<[u8]>::trim_ascii).ok_or(Rejection::Missing)
        }
    }
}

fn only<'f>(mut values: impl Iterator<Item = &'f [u8]>) -> Result<&'f [u8], Rejection> {
    let value = values.next().ok_or(Rejection::Missing)?;
    if values.next().is_some() { Err(Rejection::Invalid) } else { Ok(value.trim_ascii()) }
}

/// The rest of `Authorization`, if it is of the scheme.
fn with_scheme<'f>(fields: &'f HeaderMap, scheme: &[u8]) -> Result<&'f [u8], Rejection> {
    let value = only(fields.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes))?;
    let (given, rest) = value.split_at_checked(scheme.len()).ok_or(Rejection::Missing)?;
    if !given.eq_ignore_ascii_case(scheme) || rest.first() != Some(&b' ') {
        return Err(Rejection::Missing);
    }
    Ok(rest.trim_ascii())
}

fn cookies(fields: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let pairs = fields.get_all(COOKIE).iter().flat_map(|pairs| pairs.as_bytes().split(|byte| *byte == b';'));
    pairs.map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty())
}

/// True of a cookie of that name, as the most careless of backends read it.
fn is_cookie(cookie: &[u8], name: &str) -> bool {
    let own = cookie.split(|byte| *byte == b'=').next().unwrap_or_default();
    own.trim_ascii().eq_ignore_ascii_case(name.as_bytes())
}

/// The cookies but for those of these names.
pub(crate) fn without_cookies(fields: &HeaderMap, names: &[&str]) -> Vec<Change> {
    let is_named = |cookie: &[u8]| names.iter().any(|name| is_cookie(cookie, name));
    let kept: Vec<_> = cookies(fields).filter(|cookie| !is_named(cookie)).collect();
    let kept = if kept.is_empty() { None } else { HeaderValue::from_bytes(&kept.join(&b"; "[..])).ok() };
    Change::set(&COOKIE, kept)
}

/// The credential of the `Basic` scheme (RFC 7617).
///
/// # Errors
/// When there is none, or it is malformed.
pub(crate) fn login(fields: &HeaderMap) -> Result<Login, Rejection> {
    let bytes = STANDARD.decode(with_scheme(fields, b"basic")?).map_err(|_| Rejection::Invalid)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| Rejection::Invalid)?;
    // "The user-id and password MUST NOT contain any control characters."
    if text.chars().any(char::is_control) {
        return Err(Rejection::Invalid);
    }
    let user = text.find(':').ok_or(Rejection::Invalid)?;
    Ok(Login { bytes, user })
}

// === impl Login ===

impl Login {
    pub(crate) fn user(&self) -> &str {
        self.bytes.get(..self.user).and_then(|user| std::str::from_utf8(user).ok()).unwrap_or_default()
    }

    pub(crate) fn password(&self) -> &[u8] {
        self.bytes.get(self.user + 1..).unwrap_or_default()
    }
}
