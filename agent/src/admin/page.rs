//! The page: one document with its style and its script inside, which a browser may run nothing
//! besides. It asks the API of where it is from, and changes nothing.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue};

const DOCUMENT: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

static PAGE: LazyLock<Bytes> = LazyLock::new(|| {
    let page = DOCUMENT.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT);
    Bytes::from(page)
});

/// Nothing but this style and this script, and questions to where the page is from. Strings are no
/// markup, wherever the script might take one for it (Trusted Types).
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(digest(&SHA256, text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// The document, with the fields that are its own.
pub(crate) fn page() -> (HeaderMap, Bytes) {
    let mut fields = HeaderMap::new();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    // It has no characters but those of base64.
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        fields.insert(CONTENT_SECURITY_POLICY, policy);
    }
    (fields, PAGE.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_small_document_that_loads_nothing() {
        let (fields, page) = page();
        let page = std::str::from_utf8(&page).unwrap();
        assert!(page.len() < 100_000, "{} bytes", page.len());
        for other in ["https://", "src=", "@import", "url(", "innerHTML", "insertAdjacentHTML", "eval("] {
            // What the form shows as an example is no address.
            let page = page.replace("http://shop.example/cart, https://…", "");
            assert!(!page.contains(other), "{other}");
        }
        assert!(page.contains(STYLE) && page.contains(SCRIPT));
        assert_eq!((page.matches("<script").count(), page.matches("<style").count()), (1, 1));
        let policy = fields[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
    }

    /// As `\u{1b}`, or as `\u001b`.
    fn character(text: &str) -> char {
        let digits = text.trim_start_matches("\\u").trim_matches(['{', '}']);
        char::from_u32(u32::from_str_radix(digits, 16).unwrap()).unwrap()
    }

    #[test]
    fn the_page_escapes_the_characters_that_terminals_are_spared() {
        let (_, rest) = SCRIPT.split_once("OBEYED = /[").unwrap();
        let (class, _) = rest.split_once("]/gu").unwrap();
        let escapes: Vec<_> = class.split("\\u").skip(1).collect();
        let mut shown = Vec::new();
        let mut escapes = escapes.into_iter();
        while let Some(first) = escapes.next() {
            let (first, last) = match first.strip_suffix('-') {
                Some(first) => (first, escapes.next().unwrap()),
                None => (first, first),
            };
            shown.extend(character(first)..=character(last));
        }
        let obeyed: Vec<_> = ('\0'..=char::MAX).filter(|c| portcullis_model::is_obeyed(*c)).collect();
        assert_eq!(shown, obeyed);
    }
}
