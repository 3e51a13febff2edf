//! Fields of a request that a client cannot be believed about: where it comes from, by which way,
//! and under which id. Header fields and trailers are held to the same.

use http::header::{self, HeaderName};

use crate::core::head::{FieldName, FieldsMut};

pub(crate) const X_REAL_IP: &str = "x-real-ip";
pub(crate) const X_REQUEST_ID: &str = "x-request-id";
const X_FORWARDED: &[u8] = b"x-forwarded-";

/// Fields by which trusted proxies describe a request, others by their spelling only:
/// `X_Forwarded_For` reads as `X-Forwarded-For` where header fields become variables (CGI, WSGI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Plain,
    /// With underscores.
    Disguised,
}

/// The kind of claim that a field is; `None` for nearly all fields.
pub(crate) fn claim(name: &str) -> Option<Claim> {
    let name = name.as_bytes();
    if name.first() != Some(&b'x') {
        return None;
    }
    let begins = |claim: &[u8]| {
        name.len() >= claim.len() && name.iter().zip(claim).all(|(a, b)| a == b || (*a == b'_' && *b == b'-'))
    };
    let is = |claim: &str| name.len() == claim.len() && begins(claim.as_bytes());
    let claims = (name.len() > X_FORWARDED.len() && begins(X_FORWARDED)) || is(X_REAL_IP) || is(X_REQUEST_ID);
    claims.then(|| if name.contains(&b'_') { Claim::Disguised } else { Claim::Plain })
}

/// Removes from the trailers of a request what its header fields could not have brought to the
/// backend, which may take both for the same: claims, `edited` names that a filter removes or sets,
/// and what a trailer must not have, "message framing, routing, authentication, request modifiers
/// … or content format" (RFC 9110 section 6.5.1).
pub(crate) fn restrict_trailers(trailers: &mut impl FieldsMut, edited: &[HeaderName]) {
    const NAMES: [HeaderName; 8] = [
        header::FORWARDED,
        header::AUTHORIZATION,
        header::PROXY_AUTHORIZATION,
        header::CACHE_CONTROL,
        header::MAX_FORWARDS,
        header::RANGE,
        header::TRAILER,
        header::PRAGMA,
    ];
    const PREFIXES: [&str; 2] = ["content-", "if-"];
    trailers.remove_if(|name| {
        let text = name.as_str();
        name.known().is_some()
            || claim(text).is_some()
            || NAMES.iter().chain(edited).any(|removed| removed.as_str() == text)
            || PREFIXES.iter().any(|prefix| text.starts_with(prefix))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    #[test]
    fn claims_are_recognised_in_both_spellings() {
        for (name, expected) in [
            ("x-real-ip", Some(Claim::Plain)),
            ("x_real_ip", Some(Claim::Disguised)),
            ("x-real_ip", Some(Claim::Disguised)),
            ("x-request-id", Some(Claim::Plain)),
            ("x_request_id", Some(Claim::Disguised)),
            ("x-forwarded-for", Some(Claim::Plain)),
            ("x_forwarded_anything", Some(Claim::Disguised)),
            ("x-forwarded-", None),
            ("x-real-ips", None),
            ("x-request", None),
            ("accept", None),
        ] {
            assert_eq!(claim(name), expected, "{name}");
        }
    }

    #[test]
    fn trailers_keep_what_is_about_the_content() {
        let mut trailers = PlainFields::of(&[
            ("x-checksum", "1"),
            ("x-secret", "1"),
            ("x-forwarded-for", "6.6.6.6"),
            ("x_real_ip", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("authorization", "x"),
            ("cookie", "a=b"),
            ("host", "b.test"),
            ("connection", "x-checksum"),
            ("content-length", "3"),
            ("if-match", "a"),
            ("digest", "2"),
        ]);
        restrict_trailers(&mut trailers, &[HeaderName::from_static("x-secret")]);
        assert_eq!(trailers, PlainFields::of(&[("x-checksum", "1"), ("digest", "2")]));
    }
}
