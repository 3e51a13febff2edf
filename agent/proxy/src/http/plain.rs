//! Requests to which nothing happens besides an edit of their heads, and of their responses': they
//! go to the backend as bytes, whichever version of HTTP they came in.

use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::core::head::{FieldsMut, Head, content_length, write_fields};
use crate::http::answer::Answer;
use crate::http::plan::ForwardPlan;
use crate::http::router::Routed;
use crate::http::sender;
use crate::http::service::Service;
use crate::log::record::Record;
use crate::upstream::attempt::AttemptError;
use crate::upstream::balance::Preference;
use crate::upstream::http1::join_cookies;
use crate::upstream::http1::plain::PlainRequest;
use crate::upstream::pool::PlainBackend;

/// Bytes of a usual request head.
const HEAD: usize = 1 << 10;

/// The backend of a request whose body is here, if that makes the request a plain one.
pub(super) fn plain_backend(
    plan: &ForwardPlan<'_>,
    routed: &Routed<'_>,
    service: &Service,
) -> Option<PlainBackend> {
    let is_plain =
        !routed.is_grpc() && !routed.is_recorded() && routed.compression().is_none() && plan.is_plain();
    if !is_plain {
        return None;
    }
    service.forwarder.pools.serving(routed.listener_id()).plain(plan.name)
}

/// A request, but for its fields.
pub(super) struct Asking<'h, H> {
    pub head: &'h H,
    /// Of its body.
    pub length: u64,
    /// Bytes of the response that are read before the client asks for them.
    pub read_ahead: usize,
}

/// The request as its backend gets it, up to its body, and what chooses its endpoint.
pub(super) fn request(
    Asking { head, length, read_ahead }: Asking<'_, impl Head>,
    fields: &mut impl FieldsMut,
    (plan, routed): (&ForwardPlan<'_>, &Routed<'_>),
    client: &Client,
    service: &Service,
) -> (PlainRequest, Preference) {
    let passage = service.router.passage(routed);
    let address = sender::client(fields, passage.proxies, client.peer.ip());
    plan.edit_request(fields, client, passage, None);
    // Filters may have added one.
    join_cookies(fields);
    say_length(length, fields);
    let mut bytes = Vec::with_capacity(HEAD);
    write_line(head, plan.target(head).as_ref(), &mut bytes);
    write_fields(fields, &mut bytes);
    bytes.extend_from_slice(b"\r\n");
    let request = PlainRequest { method: head.method().clone(), bytes, read_ahead };
    (request, Preference { client: address, session: None })
}

/// `None` as the target is the one that came.
fn write_line(head: &impl Head, target: Option<&PathAndQuery>, out: &mut Vec<u8>) {
    out.extend_from_slice(head.method().as_str().as_bytes());
    out.push(b' ');
    match target {
        Some(target) => out.extend_from_slice(target.as_str().as_bytes()),
        None => {
            out.extend_from_slice(head.path().as_bytes());
            if let Some(query) = head.query() {
                out.push(b'?');
                out.extend_from_slice(query.as_bytes());
            }
        }
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// Has the fields say how long the body is, whatever filters have made of them.
fn say_length(length: u64, fields: &mut impl FieldsMut) {
    fields.remove(&header::TRANSFER_ENCODING);
    let is_said = match fields.get(&header::CONTENT_LENGTH) {
        Some(_) => content_length(fields) == Some(length),
        None => length == 0,
    };
    if !is_said {
        fields.remove(&header::CONTENT_LENGTH);
        if length > 0 {
            fields.append(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
}

/// The answer to one that got no response, and its line of the access log.
pub(super) fn failed(
    error: &AttemptError,
    (plan, routed): (&ForwardPlan<'_>, &Routed<'_>),
    exchange: &mut Exchange,
    service: &Service,
) -> (Answer, Option<Box<Record>>) {
    let reason = service.forwarder.failed(plan, routed.listener_id(), error);
    service.router.answer(exchange, routed, &reason.into())
}
