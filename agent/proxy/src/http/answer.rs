//! Answers of our own: short and plain. They name what is wrong, and nothing of what is configured.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use portcullis_model::{DirectResponse, Filter, Rule};

use crate::core::head::Fields;
use crate::core::reason::{GrpcCode, Reason};
use crate::http::templates::{self, FilledTemplates};
use crate::http::{grpc, headers};

pub(crate) type Answer = http::Response<Bytes>;

/// The registered methods that are not refused; others pass as well. RFC 9110 section 15.5.6
/// requires the list.
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// Seconds after which what has too many requests now, a backend, the check of passwords or the
/// memory for bodies, is worth another one; and so are keys that could not be fetched.
const A_MOMENT: HeaderValue = HeaderValue::from_static("1");

/// A line of text for the client.
pub(crate) fn of(reason: Reason, status: StatusCode) -> Answer {
    let mut response = Answer::new(Bytes::from_static(reason.text().as_bytes()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    if matches!(reason, Reason::Method | Reason::Options) {
        response.headers_mut().insert(ALLOW, METHODS);
    }
    if is_worth_another(reason) {
        response.headers_mut().insert(RETRY_AFTER, A_MOMENT);
    }
    response
}

/// True if the same request may pass soon.
fn is_worth_another(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::BackendFull | Reason::RetryBudget | Reason::AuthBusy | Reason::NoKeys | Reason::AuthBodies
    )
}

/// The same for a gRPC client, which reads trailers and not the status: "Trailers-Only", a response
/// that consists of its head.
pub(crate) fn of_grpc(reason: Reason, code: GrpcCode, content_type: HeaderValue) -> Answer {
    trailers_only(code, HeaderValue::from_static(reason.text().trim_end()), content_type)
}

fn trailers_only(code: GrpcCode, message: HeaderValue, content_type: HeaderValue) -> Answer {
    let mut response = Answer::new(Bytes::new());
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, content_type);
    fields.insert(grpc::STATUS, HeaderValue::from(code as u16));
    fields.insert(grpc::MESSAGE, message);
    response
}

/// `application/grpc`, `application/grpc+proto`, `application/grpc-web`, …, if that is what a
/// request carries.
pub(crate) fn grpc_type(fields: &impl Fields) -> Option<HeaderValue> {
    const PREFIX: &[u8] = b"application/grpc";
    let (begin, rest) = fields.get(&CONTENT_TYPE)?.split_at_checked(PREFIX.len())?;
    let is_grpc =
        begin.eq_ignore_ascii_case(PREFIX) && matches!(rest.first(), None | Some(b'+' | b'-' | b';'));
    if is_grpc { fields.copy(&CONTENT_TYPE) } else { None }
}

/// The rule's response filters apply to its redirect, too.
pub(crate) fn redirect(
    rule: &Rule,
    status: StatusCode,
    location: &str,
    filled: Option<&FilledTemplates>,
) -> Answer {
    let Ok(location) = HeaderValue::from_str(location) else {
        return of(Reason::Rule, StatusCode::INTERNAL_SERVER_ERROR);
    };
    let mut response = Answer::new(Bytes::new());
    *response.status_mut() = status;
    response.headers_mut().insert(LOCATION, location);
    edit(&rule.filters, filled, response.headers_mut());
    response
}

/// The response of a RouteFilter. A gRPC client, whose content type is `grpc`, reads trailers and
/// not the status.
pub(crate) fn direct(response: &DirectResponse, grpc: Option<&HeaderValue>) -> Answer {
    if let Some(content_type) = grpc {
        let message = grpc_message(&response.body);
        return trailers_only(GrpcCode::of_http(response.status), message, content_type.clone());
    }
    let mut answer = Answer::new(Bytes::copy_from_slice(response.body.as_bytes()));
    *answer.status_mut() = response.status;
    if let Some(content_type) = &response.content_type {
        answer.headers_mut().insert(CONTENT_TYPE, headers::copy_value(content_type));
    }
    answer
}

/// The first line of a text, in the encoding of `grpc-message`: "percent-encoded", but for visible
/// ASCII and spaces.
fn grpc_message(text: &str) -> HeaderValue {
    const LONGEST: usize = 256;
    let line = text.lines().next().unwrap_or_default().bytes().take(LONGEST);
    let encoded = line.map(|byte| match byte {
        b' '..=b'$' | b'&'..=b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    HeaderValue::from_str(&encoded.collect::<String>()).unwrap_or(HeaderValue::from_static(""))
}

/// Applies response filters to an answer that comes from no backend.
pub(crate) fn edit<'f>(
    filters: impl IntoIterator<Item = &'f Filter>,
    filled: Option<&FilledTemplates>,
    fields: &mut HeaderMap,
) {
    let mut filled = FilledTemplates::response_edits(filled);
    filters.into_iter().for_each(|filter| templates::edit_response(fields, filter, &mut filled));
}
