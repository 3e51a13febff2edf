//! Heads of HTTP/1 messages: bytes of requests out, bytes of responses in. What a response says of
//! the length of its body is taken strictly: where two readers could differ, it is refused.

use std::fmt;
use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{Method, StatusCode, Version, request, response};

use crate::core::head::{self, Fields, FieldsMut, KnownField, KnownFields};

/// Fields that are parsed without asking for memory.
const USUAL_FIELDS: usize = 100;

/// The head of a response.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub parts: response::Parts,
    /// The known fields among those of the response.
    pub known: KnownFields,
    pub length: BodyLength,
    /// The backend may keep the connection for another request.
    pub is_persistent: bool,
}

/// The end of a body, as its head declares it (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    Bytes(u64),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadLimits {
    pub bytes: usize,
    pub fields: usize,
}

/// A limit of response heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadLimit {
    Bytes(usize),
    Fields(usize),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum HeadError {
    #[error("a response head of {0}")]
    TooLarge(HeadLimit),
    #[error("a malformed response head: {0}")]
    Malformed(#[from] httparse::Error),
    #[error("a response with a status or a header field that HTTP does not have")]
    Invalid,
    #[error("a response whose Content-Length is no single number")]
    ContentLength,
    #[error("a response with a transfer coding other than chunked")]
    TransferCoding,
}

/// Appends the head of a request to `out`.
pub(crate) fn write_request(parts: &request::Parts, out: &mut Vec<u8>) {
    out.extend_from_slice(parts.method.as_str().as_bytes());
    out.push(b' ');
    let target = parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_section(&parts.headers, out);
}

/// Appends header or trailer fields, and the empty line after them.
pub(crate) fn write_section(fields: &HeaderMap, out: &mut Vec<u8>) {
    head::write_fields(fields, out);
    out.extend_from_slice(b"\r\n");
}

/// HTTP/1 has one `Cookie` field where HTTP/2 may have many (RFC 9113 section 8.2.3).
pub(crate) fn join_cookies(fields: &mut impl FieldsMut) {
    if fields.get_all(&COOKIE).nth(1).is_none() {
        return;
    }
    let joined = head::joined(fields, &COOKIE);
    if let Some(Ok(cookie)) = joined.map(|joined| HeaderValue::from_bytes(&joined)) {
        fields.insert(COOKIE, cookie);
    }
}

/// Parses the head of the response to a request of this method, and returns its size in bytes;
/// `None` if there is more to come.
pub(crate) fn parse_response(
    bytes: &Bytes,
    method: &Method,
    limits: HeadLimits,
) -> Result<Option<(ResponseHead, usize)>, HeadError> {
    let mut usual = [const { MaybeUninit::uninit() }; USUAL_FIELDS];
    let mut unusual;
    let fields = match usual.get_mut(..limits.fields) {
        Some(fields) => fields,
        None => {
            unusual = vec![MaybeUninit::uninit(); limits.fields];
            &mut unusual
        }
    };
    let mut response = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let size = match parser.parse_response_with_uninit_headers(&mut response, bytes, fields) {
        Ok(httparse::Status::Complete(size)) => size,
        Ok(httparse::Status::Partial) if bytes.len() < limits.bytes => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(HeadError::TooLarge(HeadLimit::Bytes(limits.bytes))),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(HeadError::TooLarge(HeadLimit::Fields(limits.fields)));
        }
        Err(error) => return Err(error.into()),
    };
    if size > limits.bytes {
        return Err(HeadError::TooLarge(HeadLimit::Bytes(limits.bytes)));
    }
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(HeadError::Invalid)?;
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = status;
    parts.version = if response.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    parts.headers = to_map(bytes, response.headers)?;
    let known = KnownFields::of(&parts.headers);
    let length = body_length((status, parts.version), &parts.headers, known, method)?;
    let is_persistent =
        is_persistent(parts.version, &parts.headers, known) && length != BodyLength::UntilClose;
    if known.has(KnownField::ContentLength) {
        say_once(&mut parts.headers, length);
    }
    Ok(Some((ResponseHead { parts, known, length, is_persistent }, size)))
}

/// Header or trailer fields whose values share the memory of the bytes that they were parsed from.
pub(crate) fn to_map(bytes: &Bytes, fields: &[httparse::Header<'_>]) -> Result<HeaderMap, HeadError> {
    // The date comes to them, and hyper asks for room for a length whether it is there or not.
    let mut map = HeaderMap::with_capacity(fields.len() + 2);
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| HeadError::Invalid)?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value));
        map.append(name, value.map_err(|_| HeadError::Invalid)?);
    }
    Ok(map)
}

/// RFC 9112 section 6.3. `Transfer-Encoding` overrides `Content-Length`.
pub(crate) fn body_length(
    (status, version): (StatusCode, Version),
    fields: &impl Fields,
    known: KnownFields,
    method: &Method,
) -> Result<BodyLength, HeadError> {
    let has_none = *method == Method::HEAD
        || status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if has_none {
        return Ok(BodyLength::Bytes(0));
    }
    if known.has(KnownField::TransferEncoding) {
        let mut codings = fields.get_all(&TRANSFER_ENCODING);
        let is_chunked = codings.next().is_some_and(|first| first.eq_ignore_ascii_case(b"chunked"));
        let is_chunked = is_chunked && codings.next().is_none();
        let may_be = is_chunked && version == Version::HTTP_11;
        return if may_be { Ok(BodyLength::Chunked) } else { Err(HeadError::TransferCoding) };
    }
    let mut lengths = fields.get_all(&CONTENT_LENGTH).map(number);
    match lengths.next() {
        None => Ok(BodyLength::UntilClose),
        Some(Some(bytes)) if lengths.all(|other| other == Some(bytes)) => Ok(BodyLength::Bytes(bytes)),
        Some(_) => Err(HeadError::ContentLength),
    }
}

/// Has one field say the length as one number: what is passed on must not be for others to
/// interpret.
fn say_once(fields: &mut HeaderMap, length: BodyLength) {
    let mut said = fields.get_all(CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
    let first = said.next().filter(|first| !first.is_empty() && first.iter().all(u8::is_ascii_digit));
    if first.is_some() && said.next().is_none() {
        return;
    }
    match length {
        BodyLength::Bytes(bytes @ 1..) => {
            fields.insert(CONTENT_LENGTH, bytes.into());
        }
        BodyLength::Bytes(0) | BodyLength::Chunked | BodyLength::UntilClose => {
            fields.remove(CONTENT_LENGTH);
        }
    }
}

/// A decimal number without sign, or a list of one that is always the same.
fn number(value: &[u8]) -> Option<u64> {
    let mut numbers = value.split(|byte| *byte == b',').map(|number| {
        let digits = Some(number.trim_ascii()).filter(|digits| !digits.is_empty())?;
        digits.iter().try_fold(0_u64, |number, digit| {
            let digit = char::from(*digit).to_digit(10)?;
            number.checked_mul(10)?.checked_add(digit.into())
        })
    });
    let first = numbers.next()??;
    numbers.all(|other| other == Some(first)).then_some(first)
}

/// RFC 9112 section 9.3. What has two lengths might be an attempt at response splitting (section
/// 6.3).
pub(crate) fn is_persistent(version: Version, fields: &impl Fields, known: KnownFields) -> bool {
    let says = |option: &[u8]| {
        let mut options = fields.get_all(&CONNECTION).flat_map(|value| value.split(|byte| *byte == b','));
        options.any(|said| said.trim_ascii().eq_ignore_ascii_case(option))
    };
    let has_options = known.has(KnownField::Connection);
    let stays = if version == Version::HTTP_11 {
        !(has_options && says(b"close"))
    } else {
        has_options && says(b"keep-alive")
    };
    stays && !(known.has(KnownField::TransferEncoding) && known.has(KnownField::ContentLength))
}

// === impl HeadLimit ===

impl fmt::Display for HeadLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(formatter, "more than {} KiB (--max-response-header)", bytes >> 10),
            Self::Fields(fields) => write!(formatter, "more than {fields} fields (--max-response-fields)"),
        }
    }
}
