//! Codings that a client takes: one gets what it asks for by the grammar, and never a coding that
//! it does not name, or refuses. The head of a response that is compressed says so.

use std::sync::{Arc, LazyLock};

use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, VARY};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use portcullis_model::{Coding, Compression};
use portcullis_proxy::fuzzing::coding;

const CODINGS: [Coding; 3] = [Coding::Zstd, Coding::Brotli, Coding::Gzip];

static TERMS: LazyLock<Arc<Compression>> =
    LazyLock::new(|| Arc::new(Compression { codings: CODINGS.into(), least_bytes: 1 }));

pub(crate) fn run(bytes: &[u8]) {
    let lines = bytes.split(|byte| *byte == b'\n');
    let values: Vec<_> = lines.filter_map(|line| HeaderValue::from_bytes(line.trim_ascii()).ok()).collect();
    let mut request = HeaderMap::new();
    for value in &values {
        request.append(ACCEPT_ENCODING, value.clone());
    }
    let mut response = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("text/plain")),
        (CONTENT_LENGTH, HeaderValue::from_static("5000")),
        (ETAG, HeaderValue::from_static("\"tag\"")),
    ]);
    let chosen = coding(&TERMS, &request, (StatusCode::OK, &mut response));
    assert_eq!(response.get(VARY), Some(&HeaderValue::from_name(ACCEPT_ENCODING)));
    let name = chosen.map(|coding| coding.name());
    let has = |name: HeaderName| response.get(name).map(HeaderValue::as_bytes);
    assert_eq!(has(CONTENT_ENCODING), name.map(str::as_bytes));
    assert_eq!(has(CONTENT_LENGTH).is_some(), name.is_none());
    let tag = if name.is_some() { &b"W/\"tag\""[..] } else { b"\"tag\"" };
    assert_eq!(has(ETAG), Some(tag));

    let elements = values.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let elements: Vec<_> = elements.map(<[u8]>::trim_ascii).filter(|it| !it.is_empty()).collect();
    if let Some(name) = name {
        let is_it = |element: &&[u8]| {
            let named = element.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            let names = [name, "*", if name == "gzip" { "x-gzip" } else { name }];
            names.iter().any(|name| named.eq_ignore_ascii_case(name.as_bytes()))
        };
        assert!(elements.iter().any(is_it), "{name} of {values:?}");
    }
    let Some(weights) = elements.into_iter().map(weighed).collect::<Option<Vec<_>>>() else { return };
    let of = |name: &str| weights.iter().find(|(named, _)| named == name).map(|(_, weight)| *weight);
    let twice = weights.iter().enumerate().any(|(at, one)| weights[..at].iter().any(|it| it.0 == one.0));
    if twice {
        return;
    }
    let mut best = None;
    for coding in CODINGS {
        let weight = of(coding.name()).or(of("*")).unwrap_or(0);
        if weight > best.map_or(0, |(greatest, _)| greatest) {
            best = Some((weight, coding));
        }
    }
    let expected = best.filter(|(weight, _)| *weight >= of("identity").unwrap_or(0));
    assert_eq!(chosen, expected.map(|(_, coding)| coding), "of {values:?}");
}

/// `codings [ weight ]` (RFC 9110 section 12.5.3), with the weight in thousandths; `None` of what
/// is something else.
fn weighed(element: &[u8]) -> Option<(String, u32)> {
    let element = std::str::from_utf8(element).ok()?;
    let (coding, weight) = element.split_once(';').map_or((element, None), |(it, weight)| (it, Some(weight)));
    let blank = |c| c == ' ' || c == '\t';
    let coding = coding.trim_end_matches(blank).to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if coding.is_empty() || !coding.bytes().all(is_token) {
        return None;
    }
    let coding = if coding == "x-gzip" { "gzip".to_owned() } else { coding };
    let Some(weight) = weight else { return Some((coding, 1000)) };
    let weight = weight.trim_start_matches(blank);
    let weight = weight.strip_prefix("q=").or_else(|| weight.strip_prefix("Q="))?;
    let (whole, decimals) = weight.split_once('.').unwrap_or((weight, ""));
    let is_one = whole == "1" && decimals.bytes().all(|digit| digit == b'0');
    let is_less = whole == "0" && decimals.bytes().all(|digit| digit.is_ascii_digit());
    if decimals.len() > 3 || !(is_one || is_less) {
        return None;
    }
    let thousandths = format!("{decimals:0<3}").parse::<u32>().ok()?;
    Some((coding, if is_one { 1000 } else { thousandths }))
}
