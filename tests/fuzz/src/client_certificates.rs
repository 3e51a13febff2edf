//! Certificates of clients, as the header field that a backend gets: no name in them says more than
//! it is, so that the field is of one certificate, with one subject.

use http::HeaderValue;
use portcullis_proxy::fuzzing::client_certificate;

pub(crate) fn run(bytes: &[u8]) {
    let Some(element) = client_certificate(bytes) else { return };
    assert!(HeaderValue::from_str(&element).is_ok(), "{element:?}");
    let pairs = pairs(&element);
    let keys: Vec<_> = pairs.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys.get(..2), Some(&["Hash", "Subject"][..]), "{element:?}");
    assert!(keys[2..].iter().all(|key| matches!(*key, "URI" | "DNS")), "{element:?}");
    let hash = pairs[0].1;
    assert!(hash.len() == 64 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()), "{element:?}");
}

/// As a backend takes it apart: at semicolons and commas without quotation marks around them.
fn pairs(element: &str) -> Vec<(&str, &str)> {
    let (mut parts, mut begin, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, character) in element.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ';' if !is_quoted => {
                parts.push(&element[begin..at]);
                begin = at + 1;
            }
            ',' if !is_quoted => unreachable!("a second certificate in {element:?}"),
            _ => {}
        }
    }
    assert!(!is_quoted, "{element:?}");
    parts.push(&element[begin..]);
    let pair = |part| str::split_once(part, '=').unwrap_or_else(|| unreachable!("{part:?} of {element:?}"));
    parts.into_iter().map(pair).collect()
}
