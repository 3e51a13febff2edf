//! Answers of our own: short, plain, and saying what is wrong without saying what the configuration holds.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderValue, StatusCode};
use portcullis_model::{Filter, Rule};

use crate::body::Body;
use crate::headers;

pub(crate) type Response = http::Response<Body>;

/// A status with a one-line body.
pub(crate) fn text(status: StatusCode, message: &'static str) -> Response {
    let mut response = http::Response::new(Body::text(Bytes::from_static(message.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// The standard words for a status.
pub(crate) fn status(status: StatusCode) -> Response {
    match status {
        StatusCode::NOT_FOUND => text(status, "no route matches this request\n"),
        StatusCode::SERVICE_UNAVAILABLE => text(status, "no healthy backend\n"),
        StatusCode::BAD_GATEWAY => text(status, "the backend failed\n"),
        StatusCode::GATEWAY_TIMEOUT => text(status, "the backend took too long\n"),
        StatusCode::BAD_REQUEST => text(status, "the request body is malformed or broke off\n"),
        StatusCode::MISDIRECTED_REQUEST => text(status, "this host is served on another connection\n"),
        StatusCode::INTERNAL_SERVER_ERROR => text(status, "the route has no usable backend\n"),
        _ => text(status, ""),
    }
}

/// The rule's response filters apply to its redirect, too.
pub(crate) fn redirect(rule: &Rule, status: StatusCode, location: &str) -> Response {
    let Ok(location) = HeaderValue::from_str(location) else {
        return self::status(StatusCode::INTERNAL_SERVER_ERROR);
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
