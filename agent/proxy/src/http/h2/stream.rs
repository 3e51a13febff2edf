//! A stream of a client's connection: a request, and its response.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::request::Parts;
use http::{Method, Request};

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::core::head::content_length;
use crate::http::decide::Decision;
use crate::http::h2::plain::{self, PlainStream};
use crate::http::h2::response::{self, SendError};
use crate::http::plain::plain_backend;
use crate::http::service::{Response, Service};
use crate::http::websocket;
use crate::upstream::request::{IncomingBody, Outgoing, StreamBody, Upload};

/// The answer to a request.
enum Answer {
    Plain(PlainStream),
    /// As it is made for any version of HTTP. Boxed: most are plain, and have no room for it.
    Response(Box<Response>),
}

/// Answers the request, unless the client resets its stream before. In a box, which a task moves
/// several times before it begins. What leads to the answer is in one of its own: it is gone while
/// a client takes its time for a body.
pub(super) fn serve(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    exchange: Exchange,
    client: Rc<Client>,
    service: Rc<Service>,
) -> Pin<Box<dyn Future<Output = ()>>> {
    let (parts, incoming) = request.into_parts();
    if parts.method == Method::CONNECT {
        return Box::pin(async move {
            note(&client, connect(parts, incoming, respond, exchange, &client, &service).await);
        });
    }
    let mut answering = Box::pin(answer(parts, incoming, exchange, client.clone(), service));
    Box::pin(async move {
        let answered = wanted(&mut respond, answering.as_mut()).await;
        drop(answering);
        let sent = match answered {
            None => return,
            Some(Answer::Plain(plain)) => plain.send(&mut respond).await,
            Some(Answer::Response(answer)) => Box::pin(response::send(&mut respond, *answer)).await,
        };
        note(&client, sent);
    })
}

fn note(client: &Client, sent: Result<(), SendError>) {
    if let Err(error) = sent {
        tracing::debug!(client = %client.peer, %error, "the response did not come to its end");
    }
}

/// Waits for the outcome, as long as the client wants it.
async fn wanted<T>(
    respond: &mut SendResponse<Bytes>,
    mut outcome: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    poll_fn(|cx| match outcome.as_mut().poll(cx) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => respond.poll_reset(cx).map(|_| None),
    })
    .await
}

async fn answer(
    parts: Parts,
    incoming: RecvStream,
    exchange: Exchange,
    client: Rc<Client>,
    service: Rc<Service>,
) -> Answer {
    let current = service.snapshot.load();
    let mut routed = service.router.route(&current, &client, &parts);
    if let Decision::Forward(plan) = &routed.decision
        && incoming.is_end_stream()
        && let Some(backend) = plain_backend(plan, &routed, &service)
    {
        return match plain::answer(&parts, exchange, (plan, &routed), backend, &client, &service).await {
            Ok(plain) => Answer::Plain(plain),
            Err(response) => Answer::Response(response),
        };
    }
    let length = content_length(&parts.headers);
    let body = IncomingBody::Stream(StreamBody::new(incoming, length));
    let upload = Upload::new(body, client.limits().body_bytes, &client.progress.untaken);
    let outgoing = Outgoing::of(Request::from_parts(parts, upload), &client.windows);
    // Boxed: most requests are plain, and have no room for it.
    let responding = Box::pin(service.respond_to(&client, exchange, outgoing, &mut routed));
    Answer::Response(Box::new(responding.await))
}

/// Answers a CONNECT: with a tunnel, if it is an extended one whose backend agrees.
async fn connect(
    mut parts: Parts,
    incoming: RecvStream,
    mut respond: SendResponse<Bytes>,
    exchange: Exchange,
    client: &Rc<Client>,
    service: &Service,
) -> Result<(), SendError> {
    let opening = websocket::into_upgrade(&mut parts);
    let outgoing = Outgoing::of(Request::from_parts(parts, Upload::Empty), &client.windows);
    let responding = pin!(service.respond(client, exchange, outgoing));
    let Some(response) = wanted(&mut respond, responding).await else { return Ok(()) };
    let Some(opening) = opening.filter(|_| response.status().is_success()) else {
        return response::send(&mut respond, response).await;
    };
    let (mut parts, body) = response.into_parts();
    response::complete(&mut parts.headers, parts.status, None);
    let outgoing = response::begin(&mut respond, (parts.status, parts.headers), response::Rest::More)?;
    opening.open((incoming, outgoing));
    drop(body);
    Ok(())
}
