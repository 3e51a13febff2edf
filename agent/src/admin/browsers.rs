//! Fields by which browsers say where requests are from, and are told what to do with answers.

use http::header::{
    CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

/// Browsers say where a request is from; other clients say nothing.
pub(crate) fn is_of_another_site(fields: &HeaderMap) -> bool {
    let from = fields.get("sec-fetch-site").map(HeaderValue::as_bytes);
    from.is_some_and(|from| !matches!(from, b"same-origin" | b"none"))
}

/// True if a browser goes to a page itself: as by a link, and not for a frame or a script.
pub(crate) fn is_led_here(fields: &HeaderMap) -> bool {
    let says = |name: &str, value: &str| fields.get(name).is_some_and(|it| it == value);
    says("sec-fetch-mode", "navigate") && says("sec-fetch-dest", "document")
}

/// Keeps an answer out of caches and of other origins' pages.
pub(crate) fn guard(fields: &mut HeaderMap) {
    let set = [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    fields.extend(set.map(|(name, value)| (name, HeaderValue::from_static(value))));
}
