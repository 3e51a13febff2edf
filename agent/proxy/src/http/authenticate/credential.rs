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
            if parts(cookie).skip(1).any(|part| is_named(part, name)) {
                return Err(Rejection::Invalid);
            }
            let value = cookie.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
            value.map(<[u8]>::trim_ascii).ok_or(Rejection::Invalid)
        }
    }
}

fn only<'f>(mut values: impl Iterator<Item = &'f [u8]>) -> Result<&'f [u8], Rejection> {
    let value = values.next().ok_or(Rejection::Missing)?;
    if values.next().is_some() { Err(Rejection::Invalid) } else { Ok(value.trim_ascii()) }
}

/// The rest of `Authorization`, if it is of the scheme. Between them is a space: a backend may take
/// other bytes for white space, or drop those in front.
fn with_scheme<'f>(fields: &'f HeaderMap, scheme: &[u8]) -> Result<&'f [u8], Rejection> {
    let value = only(fields.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes))?;
    let end = value.iter().position(|byte| !is_token(*byte)).unwrap_or(value.len());
    let (given, rest) = value.split_at_checked(end).unwrap_or_default();
    match rest.first() {
        Some(_) if given.is_empty() => Err(Rejection::Invalid),
        Some(b' ') if given.eq_ignore_ascii_case(scheme) => Ok(rest.trim_ascii()),
        Some(_) if given.eq_ignore_ascii_case(scheme) => Err(Rejection::Invalid),
        // Another scheme, or one without a credential.
        Some(_) | None => Err(Rejection::Missing),
    }
}

/// The characters of names (RFC 9110 section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn cookies(fields: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let pairs = fields.get_all(COOKIE).iter().flat_map(|pairs| pairs.as_bytes().split(|byte| *byte == b';'));
    pairs.map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty())
}

/// The cookies that a pair is to backends which "accept comma (,) as the separator between
/// cookie-values" (RFC 2965 section 3.3.4).
fn parts(cookie: &[u8]) -> impl Iterator<Item = &[u8]> {
    cookie.split(|byte| *byte == b',')
}

/// True of a cookie of that name, as the most careless of backends read it.
fn is_cookie(cookie: &[u8], name: &str) -> bool {
    parts(cookie).any(|part| is_named(part, name))
}

fn is_named(part: &[u8], name: &str) -> bool {
    let own = part.split(|byte| *byte == b'=').next().unwrap_or_default();
    // Without quotes, and without what is white space in some character set.
    let first = own.iter().position(|byte| is_token(*byte)).unwrap_or(own.len());
    let end = own.iter().rposition(|byte| is_token(*byte)).map_or(first, |last| last + 1);
    own.get(first..end).unwrap_or_default().eq_ignore_ascii_case(name.as_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &CredentialSource, field: &'static str, value: &[u8]) -> Result<Vec<u8>, Rejection> {
        let mut fields = HeaderMap::new();
        fields.insert(field, HeaderValue::from_bytes(value).unwrap());
        find(source, &fields).map(<[u8]>::to_vec)
    }

    #[test]
    fn what_a_backend_may_take_for_the_scheme_is_not_missing() {
        for (value, expected) in [
            (&b"Bearer a.b"[..], Ok(&b"a.b"[..])),
            (b"bEARER   a.b ", Ok(b"a.b")),
            (b"Bearer\ta.b", Err(Rejection::Invalid)),
            (b"Bearer\xa0a.b", Err(Rejection::Invalid)),
            (b"Bearer,a.b", Err(Rejection::Invalid)),
            (b"Bearer\"a.b\"", Err(Rejection::Invalid)),
            (b"\xa0Bearer a.b", Err(Rejection::Invalid)),
            (b"\"Bearer a.b\"", Err(Rejection::Invalid)),
            (b"Bearer", Err(Rejection::Missing)),
            (b"", Err(Rejection::Missing)),
            (b"Bearers a.b", Err(Rejection::Missing)),
            (b"JWT a.b", Err(Rejection::Missing)),
            (b"Basic YTpi", Err(Rejection::Missing)),
        ] {
            let expected = expected.map(<[u8]>::to_vec);
            assert_eq!(found(&CredentialSource::Bearer, "authorization", value), expected, "{value:?}");
        }
    }

    #[test]
    fn a_cookie_of_a_similar_name_is_not_missing() {
        let source = CredentialSource::Cookie("tok".into());
        for (value, expected) in [
            (&b"a=b; tok=x"[..], Ok(&b"x"[..])),
            (b"a=b; TOK=x", Err(Rejection::Invalid)),
            (b"\"tok\"=x", Err(Rejection::Invalid)),
            (b"tok =x", Err(Rejection::Invalid)),
            (b"\xa0tok=x", Err(Rejection::Invalid)),
            (b"tok", Err(Rejection::Invalid)),
            (b"tok=x; \"tok\"=y", Err(Rejection::Invalid)),
            (b"token=x; a=tok", Err(Rejection::Missing)),
            (b"z=1,tok=y; tok=x", Err(Rejection::Invalid)),
            (b"z=1, \"TOK\" =y; tok=x", Err(Rejection::Invalid)),
            (b"z=1,tok=x", Err(Rejection::Invalid)),
            (b"tok=x,tok=y", Err(Rejection::Invalid)),
            (b"z=1,2,token=3,a=tok; tok=x", Ok(b"x")),
            (b"z=1,2", Err(Rejection::Missing)),
        ] {
            let expected = expected.map(<[u8]>::to_vec);
            assert_eq!(found(&source, "cookie", value), expected, "{value:?}");
        }
    }
}
