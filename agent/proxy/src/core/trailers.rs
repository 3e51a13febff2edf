//! Trailers of requests, held to what header fields are held to.

use http::header::{self, HeaderName};

use crate::core::head::{FieldName, FieldsMut, is_padded};
use crate::core::origin::is_alike;

/// Removes from the trailers of a request what its header fields could not have brought to the
/// backend, which may take both for the same: claims, `edited` names that a filter removes or sets,
/// and what a trailer must not have, "message framing, routing, authentication, request modifiers
/// … or content format" (RFC 9110 section 6.5.1).
///
/// So goes what would be malformed at a backend of HTTP/2.
pub(crate) fn restrict_trailers(trailers: &mut impl FieldsMut, edited: &[HeaderName]) {
    const NAMES: [HeaderName; 7] = [
        header::AUTHORIZATION,
        header::PROXY_AUTHORIZATION,
        header::CACHE_CONTROL,
        header::MAX_FORWARDS,
        header::RANGE,
        header::TRAILER,
        header::PRAGMA,
    ];
    const PREFIXES: [&[u8]; 2] = [b"content-", b"if-"];
    let padded = trailers.iter().filter(|(_, value)| is_padded(value));
    let padded: Vec<_> = padded.map(|(name, _)| name.as_bytes().to_owned()).collect();
    trailers.remove_if(|name| {
        let name_bytes = name.as_bytes();
        name.known().is_some()
            || padded.iter().any(|removed| removed == name_bytes)
            || NAMES.iter().chain(edited).any(|removed| is_alike(removed.as_str(), name_bytes))
            || PREFIXES.iter().any(|prefix| name_bytes.starts_with(prefix))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::head::plain::PlainFields;

    #[test]
    fn trailers_keep_what_is_about_the_content() {
        let mut trailers = PlainFields::of(&[
            ("x-checksum", "1"),
            ("x-secret", "1"),
            ("x_secret", "1"),
            ("x-forwarded-for", "6.6.6.6"),
            ("x_real_ip", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("authorization", "x"),
            ("cookie", "a=b"),
            ("host", "b.test"),
            ("connection", "x-checksum"),
            ("content-length", "3"),
            ("x-padded", "3 "),
            ("if-match", "a"),
            ("digest", "2"),
        ]);
        restrict_trailers(&mut trailers, &[HeaderName::from_static("x-secret")]);
        assert_eq!(trailers, PlainFields::of(&[("x-checksum", "1"), ("digest", "2")]));
    }
}
