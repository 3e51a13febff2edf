//! Answers of our own: short, plain, and saying what is wrong without saying what the configuration holds.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderValue, StatusCode};
use portcullis_model::{Filter, Rule};

use crate::body::Body;
use crate::headers;
use crate::reason::Reason;

pub(crate) type Response = http::Response<Body>;

/// A line of words for the client.
pub(crate) fn of(reason: Reason, status: StatusCode) -> Response {
    let mut response = http::Response::new(Body::text(Bytes::from_static(reason.words().as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// The rule's response filters apply to its redirect, too.
pub(crate) fn redirect(rule: &Rule, status: StatusCode, location: &str) -> Response {
    let Ok(location) = HeaderValue::from_str(location) else {
        return of(Reason::Rule, StatusCode::INTERNAL_SERVER_ERROR);
    };
    let mut response = http::Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().insert(LOCATION, location);
    for filter in &rule.filters {
        if let Filter::ResponseHeaders(edit) = filter {
            headers::edit(response.headers_mut(), edit);
        }
    }
    response
}
