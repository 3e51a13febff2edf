//! A request that is served without the HTTP library, and its response. Most are plain: the head is
//! edited as spans of the bytes that came, and so is the response's. Others have their decision
//! carried out as requests of the library do.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::client::progress::Awaited;
use crate::core::durations::Extent;
use crate::core::head::{FieldName, Fields, Head};
use crate::core::pipe::Pipes;
use crate::core::snapshot::Current;
use crate::core::untaken::TakenBody;
use crate::http::body::{self, Body};
use crate::http::decide::Decision;
use crate::http::h1::head::{self, Doubt, Reading, RequestBody, RequestHead};
use crate::http::h1::response::{self, Asked, Framing, Persistence};
use crate::http::h1::stream::OwnStream;
use crate::http::plain::{self, plain_backend};
use crate::http::plan::ForwardPlan;
use crate::http::router::Routed;
use crate::http::service::Service;
use crate::log::record::Record;
use crate::upstream::balance::Preference;
use crate::upstream::http1::plain::{PlainRequest, PlainResponse};
use crate::upstream::http1::{BodyLength, LARGEST_PIECE};
use crate::upstream::plain::{self as upstream, PlainAnswer};
use crate::upstream::pool::PlainBackend;
use crate::upstream::request::{IncomingBody, Outgoing, Upload};

pub(super) enum Taken<'s> {
    Request(Box<TakenRequest<'s>>),
    Partial,
    Uncertain(Doubt),
}

pub(super) struct TakenRequest<'s> {
    exchange: Exchange,
    routed: Routed<'s>,
    way: Way,
    asked: Asked,
    persistence: Persistence,
}

enum Way {
    Plain(PlainWay),
    Other(Box<Outgoing>),
}

struct PlainWay {
    backend: PlainBackend,
    request: PlainRequest,
    preference: Preference,
    /// Of a request that has a body.
    body: Option<TakenBody>,
}

/// A response, up to its body. It needs nothing of what is served at the moment.
pub(super) struct Answer {
    content: Content,
    persistence: Persistence,
}

enum Content {
    /// All of it, and the bytes of the body among these.
    Whole { out: Vec<u8>, body: usize, exchange: Exchange, record: Option<Box<Record>> },
    /// The head, and perhaps a part of the body.
    Begun(Vec<u8>, Box<Body>, Framing),
    /// As the library would have it.
    Response(Box<http::Response<Body>>, Asked),
}

/// The beginning of a response, and what is to follow.
struct Begun {
    out: Vec<u8>,
    framing: Framing,
    status: StatusCode,
    /// Bytes of the body that are in it.
    body: usize,
    persistence: Persistence,
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
    let available = bytes.len();
    let (mut head, size) = match head::read(bytes) {
        Reading::Head(head, size) => (head, size),
        Reading::Partial => {
            stream.unread = bytes.to_vec();
            return Taken::Partial;
        }
        Reading::Uncertain(doubt) => {
            stream.unread = bytes.to_vec();
            return Taken::Uncertain(doubt);
        }
    };
    stream.is_partial = false;
    stream.has_served = true;
    stream.progress.head_is_complete();
    let exchange = Exchange::begin(client);
    let routed = service.router.route(current, client, &head);
    let body = head.body;
    let takes_trailers = head.takes_trailers;
    let asked = Asked { method: head.method().clone(), version: head.version(), takes_trailers };
    let persistence = if head.is_last { Persistence::Ends } else { Persistence::Stays };
    let whole = whole(body, available - size, &routed, client);
    let mut way = match &routed.decision {
        Decision::Forward(plan)
            if let Some(length) = whole
                && let Some(backend) = plain_backend(plan, &routed, service) =>
        {
            let (request, preference) =
                plain_request(&mut head, length as u64, (plan, &routed), client, service);
            Way::Plain(PlainWay { backend, request, preference, body: None })
        }
        Decision::Forward(_) | Decision::Own(_) | Decision::Guarded(_) => Way::Other(outgoing(&head, client)),
    };
    drop(head);
    let rest = bytes.get(size..).unwrap_or_default();
    match (&mut way, body) {
        (_, RequestBody::Bytes(0)) => stream.unread = rest.to_vec(),
        (Way::Plain(plain), _) => {
            let (body, rest) = rest.split_at_checked(whole.unwrap_or_default()).unwrap_or_default();
            plain.request.bytes.extend_from_slice(body);
            plain.body = Some(TakenBody::begin(&client.progress.untaken));
            client.progress.untaken.came(body.len());
            stream.unread = rest.to_vec();
        }
        (Way::Other(outgoing), _) => {
            let fed = IncomingBody::Own(stream.begin_body(body, rest));
            outgoing.upload = Upload::new(fed, client.limits().body_bytes, &client.progress.untaken);
        }
    }
    Taken::Request(Box::new(TakenRequest { exchange, routed, way, asked, persistence }))
}

/// Bytes of the body, if all of it has come and it is no longer than it may be.
fn whole(body: RequestBody, available: usize, routed: &Routed<'_>, client: &Client) -> Option<usize> {
    let RequestBody::Bytes(bytes) = body else { return None };
    let most = routed.most_body_bytes().into_iter().chain(client.limits().body_bytes).min();
    let is_small = bytes == 0 || most.is_none_or(|most| bytes <= most);
    usize::try_from(bytes).ok().filter(|bytes| is_small && *bytes <= available)
}

fn plain_request(
    head: &mut RequestHead<'_>,
    length: u64,
    decided: (&ForwardPlan<'_>, &Routed<'_>),
    client: &Client,
    service: &Service,
) -> (PlainRequest, Preference) {
    let mut fields = std::mem::take(&mut head.fields);
    let asking = plain::Asking { head: &*head, length, read_ahead: LARGEST_PIECE };
    plain::request(asking, &mut fields, decided, client, service)
}

/// The request as the library would have it.
fn outgoing(head: &RequestHead<'_>, client: &Rc<Client>) -> Box<Outgoing> {
    let mut request = Request::new(Upload::Empty);
    *request.method_mut() = head.method().clone();
    *request.version_mut() = head.version();
    *request.uri_mut() = head.target().map_or_else(Uri::default, Uri::from);
    for (name, value) in head.fields.iter() {
        let name = header::HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, header::HeaderValue::from_bytes(value)) {
            request.headers_mut().append(name, value);
        }
    }
    Outgoing::of(request, &client.windows)
}

// === impl TakenRequest ===

impl TakenRequest<'_> {
    /// Gets the response, up to its body. The request stays in its box meanwhile: connections
    /// without one have no room for it.
    pub(super) async fn answer(
        self: Box<Self>,
        stream: &mut OwnStream,
        client: &Rc<Client>,
        service: &Service,
    ) -> io::Result<Answer> {
        let (Way::Plain(way), Decision::Forward(plan)) = (&self.way, &self.routed.decision) else {
            return Box::pin(self.respond(stream, client, service)).await;
        };
        let answered = {
            let see = |_: SocketAddr, response: PlainResponse<'_>| {
                begin(plan, &self.asked, self.persistence(client), response)
            };
            let sending = pin!(upstream::send(&way.backend, way.preference, &way.request, see));
            stream.watch(sending).await?
        };
        match answered {
            Ok(PlainAnswer { seen, endpoint, body }) => {
                let Begun { out, framing, status, body: bytes, persistence } = seen;
                let mut exchange = self.exchange;
                let extent = if body.is_some() { Extent::Begun } else { Extent::Whole };
                let head = (status, extent);
                let record = service.router.forwarded(&mut exchange, &self.routed, head, endpoint);
                let content = match body {
                    None => Content::Whole { out, body: bytes, exchange, record },
                    Some(incoming) => {
                        let body = Body::new(body::Content::upstream(incoming, None), exchange, record);
                        Content::Begun(out, Box::new(body), framing)
                    }
                };
                Ok(Answer { content, persistence })
            }
            Err(error) => {
                let persistence = self.persistence(client);
                let mut exchange = self.exchange;
                let (answer, record) = plain::failed(&error, (plan, &self.routed), &mut exchange, service);
                let asked = self.asked;
                let response = Box::new(answer.map(|text| Body::new(text.into(), exchange, record)));
                Ok(Answer { content: Content::Response(response, asked), persistence })
            }
        }
    }

    /// Has the decision carried out as for requests of the library.
    async fn respond(
        self: Box<Self>,
        stream: &mut OwnStream,
        client: &Rc<Client>,
        service: &Service,
    ) -> io::Result<Answer> {
        let Self { exchange, mut routed, way, asked, persistence } = *self;
        let Way::Other(outgoing) = way else { return Err(io::ErrorKind::InvalidInput.into()) };
        let responding = pin!(service.respond_to(client, exchange, outgoing, &mut routed));
        let response = Box::new(stream.watch(responding).await?);
        Ok(Answer { content: Content::Response(response, asked), persistence })
    }

    fn persistence(&self, client: &Client) -> Persistence {
        if client.is_last_response() { Persistence::Ends } else { self.persistence }
    }
}

// === impl Answer ===

impl Answer {
    /// Writes it. Returns what is left of the connection's persistence.
    pub(super) async fn write(self, stream: &mut OwnStream, pipes: &Pipes) -> io::Result<Persistence> {
        let Self { content, mut persistence } = self;
        match content {
            Content::Whole { out, body, mut exchange, mut record } => {
                exchange.wait(Awaited::Client);
                if let Some(record) = &mut record {
                    record.sent += body as u64;
                }
                let out = Bytes::from(out);
                let out = if out.len() > body::SMALL as usize { exchange.hold(out) } else { out };
                stream.write(out).await?;
                exchange.complete();
                if let Some(record) = &mut record {
                    record.complete = true;
                }
            }
            Content::Begun(out, body, framing) => {
                Box::pin(response::write_body(stream, out, *body, &framing, pipes)).await?;
            }
            Content::Response(response, asked) => {
                let closes = response.headers().get(header::CONNECTION).is_some_and(|value| value == "close");
                // It may turn out to be the last one.
                if closes || poll_fn(|cx| Poll::Ready(stream.is_cut_off(cx))).await {
                    persistence = Persistence::Ends;
                }
                let written = response::write(stream, *response, &asked, persistence, pipes);
                persistence = Box::pin(written).await?;
            }
        }
        Ok(if stream.end_body().await { persistence } else { Persistence::Ends })
    }
}

/// The beginning of the client's response, as soon as the head of the backend's is here.
fn begin(
    plan: &ForwardPlan<'_>,
    asked: &Asked,
    persistence: Persistence,
    response: PlainResponse<'_>,
) -> Begun {
    let PlainResponse { status, mut fields, known, length, body, .. } = response;
    plan.edit_response(&mut fields, known, None);
    let length = match length {
        BodyLength::Bytes(bytes) => Some(bytes),
        BodyLength::Chunked | BodyLength::UntilClose => None,
    };
    let mut out = Vec::with_capacity(response::HEAD + body.map_or(0, <[u8]>::len));
    let (framing, persistence) =
        response::write_head(asked, persistence, status, &mut fields, length, &mut out);
    out.extend_from_slice(body.unwrap_or_default());
    Begun { out, framing, status, body: body.map_or(0, <[u8]>::len), persistence }
}
