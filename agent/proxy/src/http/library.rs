//! The HTTP library as it reads HTTP/1 here: the limits that it is given, and what it refuses by
//! itself.

use hyper::server::conn::http1;
use portcullis_model::Limits;

use crate::core::reason::Reason;
use crate::http::service::Service;

/// The HTTP library takes no smaller limit for a head; what is left of it is ours to enforce.
const SMALLEST_BUFFER: usize = 8 << 10;

/// Fields that the HTTP library takes unless it is told a number, which costs two lists of so many
/// for each request.
const USUAL_FIELDS: u32 = 100;

/// Counts a request that the HTTP library answered by itself, without a call of the service.
pub(super) fn note_unreadable(error: &hyper::Error, service: &Service) {
    unreadable(error).into_iter().for_each(|reason| service.router.counters.answered(reason));
}

/// The reason why the HTTP library refused a request, if that is what ended the connection.
fn unreadable(error: &hyper::Error) -> Option<Reason> {
    match (error.is_parse_too_large(), error.is_parse()) {
        (true, _) => Some(Reason::FieldsTooLarge),
        (false, true) => Some(Reason::Malformed),
        (false, false) => None,
    }
}

/// Without the library's time-outs: [`Clients`](crate::client::clients::Clients) has them.
pub(super) fn http1_builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).half_close(false);
    builder.max_buf_size(head_bytes(limits).max(SMALLEST_BUFFER));
    if limits.header_fields != USUAL_FIELDS {
        builder.max_headers(limits.header_fields as usize);
    }
    builder
}

/// Bytes that the HTTP library may take in before we look at target and fields on their own.
pub(super) fn head_bytes(limits: &Limits) -> usize {
    limits.target_bytes as usize + limits.header_bytes as usize
}
