//! Wishes of clients beside a resource: a coding of the response, another protocol.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode};
use portcullis_model::{Coding, Compression};

use crate::http::compress::{Negotiated, announce};
use crate::http::headers;

/// The coding of a response to a request with these fields; makes the fields of the response those
/// of the compressed one.
pub fn coding(
    terms: &Arc<Compression>,
    request: &HeaderMap,
    (status, response): (StatusCode, &mut HeaderMap),
) -> Option<Coding> {
    let coding = Negotiated::of(terms, request)?.choose(status, response)?;
    announce(coding, response);
    Some(coding)
}

/// The protocols that a request is passed on with that wants to switch to another.
pub fn upgrade(request: &HeaderMap) -> Option<HeaderValue> {
    headers::upgrade(request)
}
