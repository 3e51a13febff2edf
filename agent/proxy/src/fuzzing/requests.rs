//! Requests of HTTP/1: as they are read without the HTTP library, and where their framing says that
//! they end.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};

use crate::client::framing::{Framing, Violation};
use crate::core::head::{FieldName, Fields, Head};
use crate::http::h1::head::{self, Reading};
use crate::http::h1::intake::{Intake, Next};

#[derive(Debug, PartialEq, Eq)]
pub struct OwnRequest {
    pub method: Method,
    pub version: Version,
    pub target: String,
    pub fields: HeaderMap,
    pub body: Vec<u8>,
    /// All of the body came.
    pub is_whole: bool,
    pub is_last: bool,
}

/// The requests that are certain, up to one that is not, is the last, or is not whole. Their bodies
/// come in pieces of this size.
pub fn own_requests(bytes: &[u8], piece: usize) -> Vec<OwnRequest> {
    let mut requests = Vec::new();
    let mut rest = bytes;
    while let Some((request, length)) = own_request(rest, piece) {
        rest = rest.get(length..).unwrap_or_default();
        let goes_on = request.is_whole && !request.is_last;
        requests.push(request);
        if !goes_on {
            break;
        }
    }
    requests
}

fn own_request(bytes: &[u8], piece: usize) -> Option<(OwnRequest, usize)> {
    let mut head = bytes.to_vec();
    let Reading::Head(head, size) = head::read(&mut head) else { return None };
    let mut fields = HeaderMap::new();
    for (name, value) in head.fields().iter() {
        fields.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(value).ok()?);
    }
    let query = head.query().map(|query| format!("?{query}")).unwrap_or_default();
    let (method, version) = (head.method().clone(), head.version());
    let target = format!("{}{query}", head.path());
    let (mut intake, _fed) = Intake::new(head.body);
    let (mut body, mut length) = (Vec::new(), size);
    let is_whole = loop {
        match intake.next() {
            Ok(Next::Frame(frame)) => body.extend(frame.into_data().unwrap_or_default()),
            Ok(Next::End) => break true,
            Ok(Next::More) if length < bytes.len() => {
                let end = bytes.len().min(length + piece.max(1));
                length += intake.take(&bytes[length..end]);
            }
            Ok(Next::More) | Err(_) => break false,
        }
    };
    let is_last = head.is_last;
    Some((OwnRequest { method, version, target, fields, body, is_whole, is_last }, length))
}

/// Requests as their framing bounds them, and the bytes that are passed to the HTTP library.
#[derive(Debug, PartialEq, Eq)]
pub struct Framed {
    /// The end of each request that is whole.
    pub ends: Vec<usize>,
    /// Bytes for the HTTP library: with a NUL where a head is refused, and nothing of a
    /// body from where it is.
    pub passed: Vec<u8>,
    pub is_refused: bool,
}

/// Follows requests that come in pieces of this size.
pub fn framed(bytes: &[u8], piece: usize) -> Framed {
    let mut framing = Framing::default();
    let (mut ends, mut passed) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(piece.max(1)) {
        let mut rest = piece;
        while !rest.is_empty() {
            match framing.follow_request(rest) {
                Ok((length, is_whole)) => {
                    passed.extend_from_slice(&rest[..length]);
                    rest = &rest[length..];
                    ends.extend(is_whole.then_some(passed.len()));
                }
                Err(violation) => {
                    match violation {
                        Violation::Head(at) => {
                            passed.extend_from_slice(&rest[..at.min(rest.len())]);
                            passed.push(0);
                        }
                        Violation::Body(at) => passed.extend_from_slice(&rest[..at]),
                        Violation::NotHttp => {}
                    }
                    return Framed { ends, passed, is_refused: true };
                }
            }
        }
    }
    Framed { ends, passed, is_refused: false }
}
