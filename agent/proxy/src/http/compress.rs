//! The choice of responses to compress, and of their codings: a client has to take the coding, and
//! a response be of a kind that is worth it and that nothing forbids to transform. The compressed
//! bytes are made in [`encoder`](crate::http::encoder); here are the fields of both heads.

use std::sync::Arc;

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use portcullis_model::{Coding, Compression};

/// Fields that are true of the content as the backend sent it only: digests, and signatures, which
/// may cover one, or another field that compression changes.
const SEALS: [HeaderName; 5] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("signature"),
];

/// Types that are text, beside `text/*` and those that say it by their suffix. All others are
/// compressed already, or encrypted, or not known.
const TYPES: [&str; 7] = [
    "application/javascript",
    "application/json",
    "application/wasm",
    "application/x-javascript",
    "application/x-ndjson",
    "application/xml",
    "font/ttf",
];

/// Messages of their own that are delivered as they come, for as long as the client likes: an
/// encoder would be held all that time.
const EVENTS: &str = "text/event-stream";

/// The say of a request about the coding of its response.
pub(crate) struct Negotiated {
    terms: Arc<Compression>,
    /// `None` if the client takes none of them: what it gets depends on that all the same.
    coding: Option<Coding>,
    /// `If-None-Match`: entity tags of responses that the client has.
    known: Vec<HeaderValue>,
}

// === impl Negotiated ===

impl Negotiated {
    /// `None` if the terms compress nothing.
    pub(crate) fn of(terms: &Arc<Compression>, request: &HeaderMap) -> Option<Self> {
        if terms.codings.is_empty() {
            return None;
        }
        let coding = if has_no_transform(request) { None } else { preferred(&terms.codings, request) };
        let known = request.get_all(IF_NONE_MATCH).into_iter().cloned().collect();
        Some(Self { terms: terms.clone(), coding, known })
    }

    /// The coding of a response. Caches are told that it depends on the request, also where this
    /// client gets the response as it is.
    pub(crate) fn choose(&self, status: StatusCode, fields: &mut HeaderMap) -> Option<Coding> {
        if !self.is_compressible(status, fields) {
            return None;
        }
        add_vary(fields);
        self.coding
    }

    /// A 304 has the fields that the 200 would have (RFC 9110 section 15.4.5). A client that has
    /// the compressed response names it by its weak tag, and the backend answers with its own, by
    /// which caches would not find it (RFC 9111 section 4.3.4).
    pub(crate) fn edit_not_modified(&self, fields: &mut HeaderMap) {
        let is_other = fields.get(CONTENT_TYPE).is_some_and(|content_type| !is_text(content_type));
        if is_other || has_no_transform(fields) {
            return;
        }
        add_vary(fields);
        let is_known = |weak: &HeaderValue| {
            let mut tags = self.known.iter().flat_map(|known| known.as_bytes().windows(weak.len()));
            tags.any(|tag| tag == weak.as_bytes())
        };
        if let Some(weak) = fields.get(ETAG).and_then(weakened).filter(is_known) {
            fields.insert(ETAG, weak);
        }
    }

    fn is_compressible(&self, status: StatusCode, fields: &HeaderMap) -> bool {
        // Part of a representation stays part of the one that it is of.
        if status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::PARTIAL_CONTENT)
        {
            return false;
        }
        let length = fields.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        length.is_none_or(|length| length >= self.terms.least_bytes)
            && fields.get(CONTENT_TYPE).is_some_and(is_text)
            && !fields.contains_key(CONTENT_ENCODING)
            && !has_no_transform(fields)
            && !SEALS.iter().any(|name| fields.contains_key(name))
    }
}

/// Makes the fields of a response those of the compressed one.
pub(crate) fn announce(coding: Coding, fields: &mut HeaderMap) {
    fields.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    fields.remove(CONTENT_LENGTH);
    // Ranges would be of the bytes before (RFC 9110 section 14).
    fields.remove(ACCEPT_RANGES);
    if let Some(weak) = fields.get(ETAG).and_then(weakened) {
        fields.insert(ETAG, weak);
    }
}

/// Digests may come in trailers, too.
pub(crate) fn edit_trailers(trailers: &mut HeaderMap) {
    for name in SEALS {
        trailers.remove(name);
    }
}

/// The coding with the greatest weight (RFC 9110 section 12.5.3), then the first of the terms'.
/// Clients that say nothing may not know any.
fn preferred(codings: &[Coding], request: &HeaderMap) -> Option<Coding> {
    let any = weight("*", request);
    let weighed = codings.iter().rev().map(|coding| {
        let weight = weight(coding.name(), request).or(any).unwrap_or(0);
        (weight, *coding)
    });
    let (greatest, coding) = weighed.max_by_key(|(weight, _)| *weight)?;
    // A client that would rather have it as it is says so.
    let of_identity = weight("identity", request).unwrap_or(0);
    (greatest > 0 && greatest >= of_identity).then_some(coding)
}

/// In thousandths; `None` if the client does not name it.
fn weight(coding: &str, request: &HeaderMap) -> Option<u16> {
    entries(request, &ACCEPT_ENCODING).find_map(|entry| {
        let mut parts = entry.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let named = parts.next()?;
        // "A recipient SHOULD consider "x-gzip" to be equivalent to "gzip"" (RFC 9110 section
        // 8.4.1.3).
        let named = if named.eq_ignore_ascii_case(b"x-gzip") { b"gzip".as_slice() } else { named };
        if !named.eq_ignore_ascii_case(coding.as_bytes()) {
            return None;
        }
        let weight = parts.find_map(|part| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")));
        Some(weight.map_or(1000, thousandths))
    })
}

/// Text that is no weight refuses the coding.
fn thousandths(weight: &[u8]) -> u16 {
    let (whole, decimals) = match weight {
        [whole] => (whole, &[][..]),
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return 0,
    };
    if !decimals.iter().all(u8::is_ascii_digit) {
        return 0;
    }
    let digits = decimals.iter().chain(b"000").take(3);
    let fraction = digits.fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    match (whole, fraction) {
        (b'0', fraction) => fraction,
        (b'1', 0) => 1000,
        _ => 0,
    }
}

/// The elements of a list.
fn entries<'f>(fields: &'f HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'f [u8]> {
    let values = fields.get_all(name).into_iter().map(HeaderValue::as_bytes);
    values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// "An intermediary (regardless of whether it implements a cache) MUST NOT transform the content"
/// (RFC 9111 section 5.2.2.6); a request asks for the same (section 5.2.1.6).
fn has_no_transform(fields: &HeaderMap) -> bool {
    entries(fields, &CACHE_CONTROL).any(|directive| directive.eq_ignore_ascii_case(b"no-transform"))
}

fn add_vary(fields: &mut HeaderMap) {
    let is_there = entries(fields, &VARY)
        .any(|name| name == b"*" || name.eq_ignore_ascii_case(ACCEPT_ENCODING.as_str().as_bytes()));
    if !is_there {
        fields.append(VARY, HeaderValue::from_name(ACCEPT_ENCODING));
    }
}

fn is_text(content_type: &HeaderValue) -> bool {
    let Ok(content_type) = content_type.to_str() else { return false };
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    // `application/grpc+json` is messages with their lengths.
    if essence == EVENTS || essence.starts_with("application/grpc") {
        return false;
    }
    let is_text = essence.starts_with("text/") || essence.ends_with("+json") || essence.ends_with("+xml");
    is_text || TYPES.contains(&&*essence)
}

/// The bytes are others than those that a strong tag is of; what they say is the same (RFC 9110
/// section 8.8.1).
fn weakened(tag: &HeaderValue) -> Option<HeaderValue> {
    let tag = tag.as_bytes();
    if tag.starts_with(b"\"") { HeaderValue::from_bytes(&[b"W/", tag].concat()).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    fn terms(codings: &[Coding]) -> Arc<Compression> {
        Arc::new(Compression { codings: codings.into(), least_bytes: 100 })
    }

    #[test]
    fn the_clients_choice_goes_before_ours() {
        use Coding::{Brotli, Gzip, Zstd};
        for (accepted, expected) in [
            (&["gzip, deflate, br, zstd"][..], Some(Zstd)),
            (&["gzip", "br"], Some(Brotli)),
            (&["gzip;q=1.0, br;q=0.999"], Some(Gzip)),
            (&["GZIP; Q=0.5"], Some(Gzip)),
            (&["x-gzip"], Some(Gzip)),
            (&["*"], Some(Zstd)),
            (&["*;q=0.1, zstd;q=0, br;q=0"], Some(Gzip)),
            (&["gzip;q=0"], None),
            (&["gzip;q=x"], None),
            (&["gzip;q=2"], None),
            (&["gzip;q=0.0001"], None),
            (&["gzip;q=1.001"], None),
            (&["gzip;q=1.0000"], None),
            (&["gzip; q=0.010 ;x=y, br;q=0.009"], Some(Gzip)),
            (&["identity;q=0, gzip;q=0.001"], Some(Gzip)),
            (&["identity;q=0"], None),
            (&["*;q=0, br"], Some(Brotli)),
            (&["gzip, identity"], Some(Gzip)),
            (&["identity, gzip;q=0.9"], None),
            (&["identity, deflate, gzipped"], None),
            (&[""], None),
            (&[], None),
        ] {
            let fields: Vec<_> = accepted.iter().map(|value| ("accept-encoding", *value)).collect();
            let negotiated = Negotiated::of(&terms(&[Zstd, Brotli, Gzip]), &map(&fields)).unwrap();
            assert_eq!(negotiated.coding, expected, "{accepted:?}");
        }
        let fields = map(&[("accept-encoding", "gzip"), ("cache-control", "max-age=0, No-Transform")]);
        assert_eq!(Negotiated::of(&terms(&[Gzip]), &fields).unwrap().coding, None);
        assert!(Negotiated::of(&terms(&[]), &fields).is_none());
    }

    fn edited(status: u16, given: &[(&'static str, &str)]) -> (Option<Coding>, HeaderMap) {
        let mut fields = map(given);
        let request = map(&[("accept-encoding", "gzip")]);
        let negotiated = Negotiated::of(&terms(&[Coding::Gzip]), &request).unwrap();
        let coding = negotiated.choose(StatusCode::from_u16(status).unwrap(), &mut fields);
        if let Some(coding) = coding {
            announce(coding, &mut fields);
        }
        (coding, fields)
    }

    #[test]
    fn the_fields_say_what_was_done() {
        let given = [
            ("content-type", "Application/Problem+JSON; charset=utf-8"),
            ("content-length", "100"),
            ("accept-ranges", "bytes"),
            ("etag", "\"a\""),
            ("vary", "origin"),
        ];
        let (coding, fields) = edited(404, &given);
        assert_eq!(coding, Some(Coding::Gzip));
        let expected = [
            ("content-type", "Application/Problem+JSON; charset=utf-8"),
            ("etag", "W/\"a\""),
            ("vary", "origin"),
            ("vary", "accept-encoding"),
            ("content-encoding", "gzip"),
        ];
        assert_eq!(fields, map(&expected));
        let weak = edited(200, &[("content-type", "text/html"), ("etag", "W/\"a\""), ("vary", "*")]).1;
        assert_eq!((&weak["etag"], weak.get_all("vary").iter().count()), (&"W/\"a\"".parse().unwrap(), 1));
    }

    #[test]
    fn what_is_not_to_be_compressed_goes_as_it_came() {
        let text = ("content-type", "text/html");
        for (status, given) in [
            (200, vec![text, ("content-encoding", "br")]),
            (200, vec![text, ("content-length", "99")]),
            (200, vec![text, ("cache-control", "no-transform")]),
            (200, vec![text, ("cache-control", "no-transform, x=\"\u{e9}\"")]),
            (200, vec![text, ("content-digest", "sha-256=:x:")]),
            (206, vec![text, ("content-range", "bytes 0-1/2")]),
            (204, vec![text]),
            (101, vec![text]),
            (200, vec![("content-type", "image/png")]),
            (200, vec![("content-type", "application/octet-stream")]),
            (200, vec![("content-type", "application/jose")]),
            (200, vec![("content-type", "application/grpc+json")]),
            (200, vec![("content-type", "application/grpc-web+json")]),
            (200, vec![("content-type", "Text/Event-Stream; charset=utf-8")]),
            (200, vec![]),
        ] {
            let (coding, fields) = edited(status, &given);
            assert_eq!((coding, fields), (None, map(&given)));
        }
        let (mut fields, other) = (map(&[text]), map(&[("accept-encoding", "br")]));
        let negotiated = Negotiated::of(&terms(&[Coding::Gzip]), &other).unwrap();
        assert_eq!(negotiated.choose(StatusCode::OK, &mut fields), None);
        assert_eq!(fields, map(&[text, ("vary", "accept-encoding")]), "a cache has to know");
    }

    #[test]
    fn a_304_is_about_the_response_that_the_client_has() {
        let weak = "\"other\", W/\"a\"";
        for (known, given, expected) in [
            (weak, vec![("etag", "\"a\"")], vec![("etag", "W/\"a\""), ("vary", "accept-encoding")]),
            ("\"a\"", vec![("etag", "\"a\"")], vec![("etag", "\"a\""), ("vary", "accept-encoding")]),
            (weak, vec![("etag", "\"b\"")], vec![("etag", "\"b\""), ("vary", "accept-encoding")]),
            (weak, vec![("etag", "W/\"a\"")], vec![("etag", "W/\"a\""), ("vary", "accept-encoding")]),
            (weak, vec![("vary", "Accept-Encoding")], vec![("vary", "Accept-Encoding")]),
            (
                weak,
                vec![("etag", "\"a\""), ("content-type", "image/png")],
                vec![("etag", "\"a\""), ("content-type", "image/png")],
            ),
            (
                weak,
                vec![("etag", "\"a\""), ("cache-control", "no-transform")],
                vec![("etag", "\"a\""), ("cache-control", "no-transform")],
            ),
        ] {
            let negotiated =
                Negotiated::of(&terms(&[Coding::Gzip]), &map(&[("if-none-match", known)])).unwrap();
            let mut fields = map(&given);
            negotiated.edit_not_modified(&mut fields);
            assert_eq!(fields, map(&expected), "{known} {given:?}");
        }
        let lines = map(&[("if-none-match", "\"other\""), ("if-none-match", "W/\"a\"")]);
        let mut fields = map(&[("etag", "\"a\"")]);
        Negotiated::of(&terms(&[Coding::Gzip]), &lines).unwrap().edit_not_modified(&mut fields);
        assert_eq!(fields["etag"], "W/\"a\"", "a list may be on several lines");
    }
}
