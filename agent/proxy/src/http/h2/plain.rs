//! Plain requests on streams: the head goes to the backend as bytes, and the response's comes back
//! as the map of fields that the `h2` crate wants.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use http::request::Parts;
use http::{HeaderMap, StatusCode};

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::client::progress::Awaited;
use crate::core::durations::Extent;
use crate::core::head::spans::Spans;
use crate::http::body::{self, Body, Content};
use crate::http::h2::response::{self, Rest, SendError, begin, send_complete, send_data};
use crate::http::plain;
use crate::http::plan::ForwardPlan;
use crate::http::router::Routed;
use crate::http::service::{Response, Service};
use crate::log::record::Record;
use crate::upstream::attempt::AttemptError;
use crate::upstream::http1::plain::PlainResponse;
use crate::upstream::http1::{BodyLength, HeadError};
use crate::upstream::plain::{self as upstream, PlainAnswer};
use crate::upstream::pool::PlainBackend;
use crate::upstream::request::READ_AHEAD_OF_STREAM;

/// A response, up to its body.
pub(super) struct PlainStream {
    head: (StatusCode, HeaderMap),
    content: PlainContent,
}

enum PlainContent {
    /// All of it.
    Whole {
        bytes: Bytes,
        exchange: Exchange,
        record: Option<Box<Record>>,
    },
    Body(Box<Body>),
}

/// Sends a request that has no body, and has the head of its response edited.
pub(super) async fn answer(
    head: &Parts,
    mut exchange: Exchange,
    (plan, routed): (&ForwardPlan<'_>, &Routed<'_>),
    backend: PlainBackend,
    client: &Rc<Client>,
    service: &Service,
) -> Result<PlainStream, Box<Response>> {
    let mut fields = Spans::of(&head.headers);
    let asking = plain::Asking { head, length: 0, read_ahead: READ_AHEAD_OF_STREAM };
    let (request, preference) = plain::request(asking, &mut fields, (plan, routed), client, service);
    drop(fields);
    let see = |endpoint: SocketAddr, response: PlainResponse<'_>| {
        see(plan, response).ok_or(AttemptError::Head(endpoint, HeadError::Invalid))
    };
    let answered = upstream::send(&backend, preference, &request, see).await;
    let answered = answered.and_then(|PlainAnswer { seen, endpoint, body }| Ok((seen?, endpoint, body)));
    match answered {
        Ok(((head, bytes), endpoint, body)) => {
            let extent = if body.is_some() { Extent::Begun } else { Extent::Whole };
            let record = service.router.forwarded(&mut exchange, routed, (head.0, extent), endpoint);
            let content = match body {
                None => PlainContent::Whole { bytes, exchange, record },
                Some(incoming) => {
                    let body = Body::new(Content::upstream(incoming, None), exchange, record);
                    PlainContent::Body(Box::new(body))
                }
            };
            Ok(PlainStream { head, content })
        }
        Err(error) => {
            let (answer, record) = plain::failed(&error, (plan, routed), &mut exchange, service);
            Err(Box::new(answer.map(|text| Body::new(text.into(), exchange, record))))
        }
    }
}

/// The head that the client gets, and the body if it is whole. `None` if the head has what HTTP/2
/// does not.
fn see(plan: &ForwardPlan<'_>, response: PlainResponse<'_>) -> Option<((StatusCode, HeaderMap), Bytes)> {
    let PlainResponse { status, head, mut fields, known, length, body } = response;
    let length = match length {
        BodyLength::Bytes(bytes) => Some(bytes),
        BodyLength::Chunked | BodyLength::UntilClose => None,
    };
    plan.edit_response(&mut fields, known, None);
    response::complete(&mut fields, status, length);
    let body = body.unwrap_or_default();
    let mut bytes = BytesMut::with_capacity(head.len() + body.len());
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(body);
    let mut copy = bytes.freeze();
    let body = copy.split_off(head.len());
    Some(((status, fields.to_map(head, &copy)?), body))
}

// === impl PlainStream ===

impl PlainStream {
    pub(super) async fn send(self, respond: &mut SendResponse<Bytes>) -> Result<(), SendError> {
        let Self { head, content } = self;
        match content {
            PlainContent::Body(body) => Box::pin(send_complete(respond, head, *body)).await,
            PlainContent::Whole { bytes, mut exchange, mut record } => {
                exchange.wait(Awaited::Client);
                if let Some(record) = &mut record {
                    record.sent += bytes.len() as u64;
                }
                if bytes.is_empty() {
                    begin(respond, head, Rest::Nothing)?;
                } else {
                    let bytes = if bytes.len() as u64 > body::SMALL { exchange.hold(bytes) } else { bytes };
                    send_data(&mut begin(respond, head, Rest::More)?, bytes, Rest::Nothing).await?;
                }
                exchange.complete();
                if let Some(record) = &mut record {
                    record.complete = true;
                }
                Ok(())
            }
        }
    }
}
