//! Heads of responses of HTTP/1, which are read in two ways: into a map, and as spans of the bytes
//! that came.

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Version};

use super::Refused;
use crate::core::head::KnownFields;
use crate::upstream::http1::head::{self, HeadLimits, body_length, is_persistent};
use crate::upstream::http1::plain::locate;

/// A head, with its size in bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct ResponseSeen {
    pub status: StatusCode,
    pub version: Version,
    pub fields: HeaderMap,
    /// Length of the body, as a text.
    pub length: String,
    pub is_persistent: bool,
    pub size: usize,
}

const LIMITS: HeadLimits = HeadLimits { bytes: 4 << 10, fields: 16 };

/// The head as a map, and as spans; `Ok(None)` if there is more to come.
pub fn responses(
    bytes: &[u8],
    method: &Method,
) -> (Result<Option<ResponseSeen>, Refused>, Result<Option<ResponseSeen>, Refused>) {
    (as_map(bytes, method), as_spans(bytes, method))
}

fn as_map(bytes: &[u8], method: &Method) -> Result<Option<ResponseSeen>, Refused> {
    let bytes = Bytes::copy_from_slice(bytes);
    let Some((head, size)) = head::parse_response(&bytes, method, LIMITS).map_err(|_| Refused)? else {
        return Ok(None);
    };
    Ok(Some(ResponseSeen {
        status: head.parts.status,
        version: head.parts.version,
        fields: head.parts.headers,
        length: format!("{:?}", head.length),
        is_persistent: head.is_persistent,
        size,
    }))
}

fn as_spans(bytes: &[u8], method: &Method) -> Result<Option<ResponseSeen>, Refused> {
    let mut came = bytes.to_vec();
    let Some(located) = locate(&came, LIMITS).map_err(|_| Refused)? else { return Ok(None) };
    let (status, version, size) = (located.status, located.version, located.size);
    let (fields, head) = located.places.spans(&mut came[..size]).ok_or(Refused)?;
    let known = KnownFields::of(&fields);
    let length = body_length((status, version), &fields, known, method).map_err(|_| Refused)?;
    let persists = is_persistent(version, &fields, known) && length != head::BodyLength::UntilClose;
    Ok(Some(ResponseSeen {
        status,
        version,
        fields: fields.to_map(head, &Bytes::copy_from_slice(head)).ok_or(Refused)?,
        length: format!("{length:?}"),
        is_persistent: persists,
        size,
    }))
}
