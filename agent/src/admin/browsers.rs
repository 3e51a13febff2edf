//! Fields by which browsers say where requests are from, and are told what to do with answers.

use http::header::{
    CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

/// Browsers say where a request is from; other clients say nothing.
pub(crate) fn is_of_another_site(fields: &HeaderMap) -> bool {
    let mut from = fields.get_all("sec-fetch-site").iter().map(HeaderValue::as_bytes);
    from.any(|from| !matches!(from, b"same-origin" | b"none"))
}

/// True if a browser goes to a page itself: as by a link, and not for a frame or a script.
pub(crate) fn is_led_here(fields: &HeaderMap) -> bool {
    let says = |name: &str, value: &str| {
        fields.contains_key(name) && fields.get_all(name).iter().all(|it| it == value)
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_name_counts() {
        let fields = |name: &'static str, values: &[&'static str]| {
            let mut fields = HeaderMap::new();
            for value in values {
                fields.append(name, HeaderValue::from_static(value));
            }
            fields
        };
        for (values, expected) in [
            (&[][..], false),
            (&["none"], false),
            (&["same-origin", "none"], false),
            (&["cross-site"], true),
            (&["none", "cross-site"], true),
            (&["same-origin, cross-site"], true),
        ] {
            assert_eq!(is_of_another_site(&fields("sec-fetch-site", values)), expected, "{values:?}");
        }
        for (modes, expected) in [
            (&[][..], false),
            (&["navigate"], true),
            (&["navigate", "navigate"], true),
            (&["navigate", "no-cors"], false),
        ] {
            let mut led = fields("sec-fetch-mode", modes);
            led.extend(fields("sec-fetch-dest", &["document"]));
            assert_eq!(is_led_here(&led), expected, "{modes:?}");
        }
    }
}
