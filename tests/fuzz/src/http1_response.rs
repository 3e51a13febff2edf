//! The head of a response, which is read into a map for responses that are changed, and as spans
//! for all others: the two agree, on what is refused and where the body ends.

use http::Method;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use portcullis_proxy::fuzzing::{ResponseSeen, responses};

pub(crate) fn run(bytes: &[u8]) {
    for method in [Method::GET, Method::HEAD] {
        let (map, spans) = responses(bytes, &method);
        // A head is the same whatever follows it, and is not taken before its end.
        if let Ok(Some(seen)) = &map {
            assert!(seen.size <= bytes.len() && seen.size <= 4 << 10, "{} bytes", seen.size);
            let (alone, _) = responses(&bytes[..seen.size], &method);
            assert_eq!(alone, map, "without its body, to {method}");
        }
        let (mut map, mut spans) = (map, spans);
        if let (Ok(Some(map)), Ok(Some(spans))) = (&mut map, &mut spans) {
            leave_out_odd_lengths(map, spans);
        }
        // Too many fields are refused when they have been counted, which one does before the end.
        if matches!((&map, &spans), (Ok(None), Err(_)) | (Err(_), Ok(None))) {
            continue;
        }
        assert_eq!(map, spans, "as a map, and as spans, to {method}");
    }
}

/// Lengths that are not said once, as a number: the map has what they mean, and writers that have
/// spans take them for nothing that was said.
fn leave_out_odd_lengths(map: &mut ResponseSeen, spans: &mut ResponseSeen) {
    if !says_length_once(&spans.fields) {
        map.fields.remove(CONTENT_LENGTH);
        spans.fields.remove(CONTENT_LENGTH);
    }
}

fn says_length_once(fields: &HeaderMap) -> bool {
    let mut said = fields.get_all(CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
    let is_number =
        said.next().is_some_and(|first| !first.is_empty() && first.iter().all(u8::is_ascii_digit));
    is_number && said.next().is_none()
}
