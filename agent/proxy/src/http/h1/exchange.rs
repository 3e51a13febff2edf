//! A request that is served without the HTTP library, and its response. Most are plain: the head is
//! edited as spans of the bytes that came, and so is the response's. Others have their decision
//! carried out as requests of the library do.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode, Uri, header};

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::client::progress::Awaited;
use crate::core::head::{FieldName, Fields, FieldsMut, Head};
use crate::core::snapshot::Current;
use crate::http::body::{Body, Content};
use crate::http::decide::Decision;
use crate::http::h1::head::{self, Reading, RequestHead};
use crate::http::h1::response::{self, Framing};
use crate::http::h1::stream::OwnStream;
use crate::http::plan::ForwardPlan;
use crate::http::router::Routed;
use crate::http::sender;
use crate::http::service::Service;
use crate::upstream::balance::Preference;
use crate::upstream::http1::BodyLength;
use crate::upstream::http1::plain::{PlainRequest, PlainResponse};
use crate::upstream::plain::{self, PlainAnswer};
use crate::upstream::request::{Outgoing, Upload};

/// Bytes of a usual request head.
const HEAD: usize = 1 << 10;

pub(super) enum Taken<'s> {
    Request(Box<TakenRequest<'s>>),
    Partial,
    Uncertain,
}

pub(super) struct TakenRequest<'s> {
    exchange: Exchange,
    routed: Routed<'s>,
    way: Way,
    is_head: bool,
    is_last: bool,
}

enum Way {
    Plain(PlainRequest, Preference),
    Other(Box<Outgoing>),
}

pub(super) enum Exchanged {
    Continues,
    IsLast,
}

/// Takes a request from the bytes, which are not the stream's any more, and decides about it. All
/// that is of no request, or of one that is not taken, goes back to the stream.
pub(super) fn take<'s>(
    bytes: &mut [u8],
    stream: &mut OwnStream,
    client: &Rc<Client>,
    service: &Service,
    current: &'s Current,
) -> Taken<'s> {
    let (mut head, size) = match head::read(bytes) {
        Reading::Head(head, size) => (head, size),
        Reading::Partial => {
            stream.unread = bytes.to_vec();
            return Taken::Partial;
        }
        Reading::Uncertain => {
            stream.unread = bytes.to_vec();
            return Taken::Uncertain;
        }
    };
    stream.is_partial = false;
    stream.has_served = true;
    stream.progress.head_is_complete();
    let exchange = Exchange::begin(client);
    let routed = service.router.route(current, client, &head);
    let (is_head, is_last) = (*head.method() == Method::HEAD, head.is_last);
    let way = way(&mut head, &routed, client, service);
    drop(head);
    stream.unread = bytes.get(size..).unwrap_or_default().to_vec();
    Taken::Request(Box::new(TakenRequest { exchange, routed, way, is_head, is_last }))
}

fn way(head: &mut RequestHead<'_>, routed: &Routed<'_>, client: &Rc<Client>, service: &Service) -> Way {
    match &routed.decision {
        Decision::Forward(plan) if is_plain(plan, routed, service) => {
            let passage = service.router.passage(routed);
            let target = plan.target(head);
            let address = sender::client(&head.fields, passage.proxies, client.peer.ip());
            plan.edit_request(&mut head.fields, client, passage, None);
            let mut bytes = Vec::with_capacity(HEAD);
            head.write_line(target.as_ref().map(PathAndQuery::as_str), &mut bytes);
            head.fields.write(&mut bytes);
            bytes.extend_from_slice(b"\r\n");
            let preference = Preference { client: address, session: None };
            Way::Plain(PlainRequest { method: head.method().clone(), bytes }, preference)
        }
        Decision::Forward(_) | Decision::Own(_) | Decision::Guarded(_) => Way::Other(outgoing(head, client)),
    }
}

fn is_plain(plan: &ForwardPlan<'_>, routed: &Routed<'_>, service: &Service) -> bool {
    !routed.is_grpc()
        && routed.compression().is_none()
        && plan.is_plain()
        && service.forwarder.pools.serving(service.router.passage(routed).listener).is_plain(plan.name)
}

/// The request as the library would have it.
fn outgoing(head: &RequestHead<'_>, client: &Rc<Client>) -> Box<Outgoing> {
    let mut request = Request::new(Upload::Empty);
    *request.method_mut() = head.method().clone();
    *request.uri_mut() = head.target().map_or_else(Uri::default, Uri::from);
    for (name, value) in head.fields.iter() {
        let name = header::HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, header::HeaderValue::from_bytes(value)) {
            request.headers_mut().append(name, value);
        }
    }
    Outgoing::of(request, &client.windows)
}

// === impl TakenRequest ===

impl TakenRequest<'_> {
    pub(super) async fn respond(
        self: Box<Self>,
        stream: &mut OwnStream,
        client: &Rc<Client>,
        service: &Service,
    ) -> io::Result<Exchanged> {
        let Self { exchange, routed, way, is_head, is_last } = *self;
        match way {
            Way::Plain(request, preference) => {
                plain(stream, client, service, (exchange, routed), request, preference, is_last).await
            }
            Way::Other(outgoing) => {
                // Boxed: most requests are plain, and have no room for it.
                let responding = Box::pin(service.respond_to(client, exchange, outgoing, routed));
                let response = stream.watch(responding).await?;
                write(stream, response, is_head, is_last).await
            }
        }
    }
}

async fn write(
    stream: &mut OwnStream,
    response: http::Response<Body>,
    is_head: bool,
    is_last: bool,
) -> io::Result<Exchanged> {
    let closes = response.headers().get(header::CONNECTION).is_some_and(|value| value == "close");
    let is_last = is_last || closes;
    Box::pin(response::write(stream, response, is_head, is_last)).await?;
    Ok(if is_last { Exchanged::IsLast } else { Exchanged::Continues })
}

/// The beginning of a response, and what is to follow.
struct Begun {
    out: Vec<u8>,
    framing: Framing,
    status: StatusCode,
    /// Bytes of the body that are in it.
    body: usize,
}

async fn plain(
    stream: &mut OwnStream,
    client: &Rc<Client>,
    service: &Service,
    (mut exchange, routed): (Exchange, Routed<'_>),
    request: PlainRequest,
    preference: Preference,
    is_last: bool,
) -> io::Result<Exchanged> {
    let Decision::Forward(plan) = &routed.decision else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let is_last = is_last || client.is_last_response();
    let pools = service.forwarder.pools.serving(service.router.passage(&routed).listener);
    let see = |_: SocketAddr, response: PlainResponse<'_>| begin(plan, response, is_last);
    let sending = plain::send(&pools, plan.name, preference, &request, see);
    let answer = stream.watch(sending).await?;
    match answer {
        Ok(PlainAnswer { seen: Begun { out, framing, status, body: bytes }, endpoint, body }) => {
            let mut record = service.router.forwarded(client, &routed, status, endpoint);
            match body {
                None => {
                    exchange.wait(Awaited::Client);
                    stream.write_all(&out).await?;
                    exchange.complete();
                    if let Some(record) = &mut record {
                        record.sent += bytes as u64;
                        record.complete = true;
                    }
                }
                Some(incoming) => {
                    let body = Body::new(Content::upstream(incoming, None), exchange, record);
                    Box::pin(response::write_body(stream, out, body, framing)).await?;
                }
            }
            Ok(if is_last { Exchanged::IsLast } else { Exchanged::Continues })
        }
        Err(error) => {
            let listener = service.router.passage(&routed).listener;
            let reason = service.forwarder.failed(plan, listener, &error);
            let (answer, record) = service.router.answer(client, &routed, &reason.into());
            let response = answer.map(|text| Body::new(text.into(), exchange, record));
            write(stream, response, request.method == Method::HEAD, is_last).await
        }
    }
}

/// The beginning of the client's response, as soon as the head of the backend's is here.
fn begin(plan: &ForwardPlan<'_>, response: PlainResponse<'_>, is_last: bool) -> Begun {
    let PlainResponse { status, mut fields, length, body } = response;
    plan.edit_response(&mut fields, None);
    if status == StatusCode::NO_CONTENT {
        fields.remove(&header::CONTENT_LENGTH);
    }
    let framing = match length {
        BodyLength::Bytes(_) => Framing::Announced,
        BodyLength::Chunked | BodyLength::UntilClose => Framing::Chunked,
    };
    let mut out = Vec::with_capacity(response::HEAD + body.map_or(0, <[u8]>::len));
    response::write_status(status, &mut out);
    fields.write(&mut out);
    response::write_rest(&fields, framing, is_last, &mut out);
    out.extend_from_slice(body.unwrap_or_default());
    Begun { out, framing, status, body: body.map_or(0, <[u8]>::len) }
}
