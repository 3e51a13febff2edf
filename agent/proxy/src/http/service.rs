//! The service that answers requests, of the HTTP library and others. It cannot fail: anything that
//! goes wrong becomes a status and a line in the log. The [`router`](crate::http::router) decides.

use std::convert::Infallible;
use std::rc::Rc;

use http::{HeaderValue, Request, StatusCode, Version, header};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::client::clients::Client;
use crate::client::exchange::Exchange;
use crate::core::durations::Extent;
use crate::core::pipe::Pipes;
use crate::core::reason::Reason;
use crate::core::settings::Http1;
use crate::core::snapshot::SnapshotCell;
use crate::http::answer;
use crate::http::auth::{Authorizer, Passed, Refusal};
use crate::http::body::{Body, Content};
use crate::http::change::Change;
use crate::http::compress::{self, Negotiated};
use crate::http::decide::{Decision, OwnAnswer};
use crate::http::encoder::Encoders;
use crate::http::forward::Forwarder;
use crate::http::router::{Routed, Router, Ruled};
use crate::http::websocket;
use crate::upstream::request::Outgoing;

pub(crate) type Response = http::Response<Body>;

/// Answers the requests of a core.
pub(crate) struct Service {
    pub snapshot: Rc<SnapshotCell>,
    pub router: Router,
    pub forwarder: Forwarder,
    pub authorizer: Authorizer,
    pub encoders: Rc<Encoders>,
    pub pipes: Rc<Pipes>,
    pub http1: Http1,
}

// === impl Service ===

impl Service {
    /// Answers a request of the HTTP library. It is put on the heap before anything waits: the
    /// future of every request is moved, and would hold it several times.
    pub(crate) fn answer(
        self: Rc<Self>,
        client: Rc<Client>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response, Infallible>> {
        self.router.counters.http1_by_library.increment();
        let exchange = Exchange::begin(&client);
        let version = request.version();
        let outgoing = Outgoing::new(request, client.limits(), &client.progress.untaken, &client.windows);
        async move {
            let mut response = self.respond(&client, exchange, outgoing).await;
            // The library would say that the connection stays, and end the body with it.
            if version == Version::HTTP_10 && response.body().size_hint().exact().is_none() {
                close(&mut response);
            }
            Ok(response)
        }
    }

    pub(crate) async fn respond(
        &self,
        client: &Rc<Client>,
        exchange: Exchange,
        outgoing: Box<Outgoing>,
    ) -> Response {
        let current = self.snapshot.load();
        let mut request = self.router.route(&current, client, &outgoing.parts);
        self.respond_to(client, exchange, outgoing, &mut request).await
    }

    /// Responds to a request that has been routed.
    pub(crate) async fn respond_to(
        &self,
        client: &Rc<Client>,
        mut exchange: Exchange,
        mut outgoing: Box<Outgoing>,
        request: &mut Routed<'_>,
    ) -> Response {
        let is_connect = websocket::is_extended_connect(&outgoing.parts);
        let expects =
            outgoing.parts.version < Version::HTTP_2 && outgoing.parts.headers.contains_key(header::EXPECT);
        // Messages of gRPC come and are taken whenever the application likes.
        if request.is_grpc() {
            exchange.take_any_time();
        }
        if request.may_take_any_time() {
            exchange.take_any_time();
        }
        // An HTTP/1 connection has one body at a time, and is watched as a whole.
        if outgoing.parts.version == Version::HTTP_2
            && !exchange.may_take_any_time()
            && let Some(upload) = outgoing.upload.track()
        {
            client.watch_upload(&upload);
        }
        limit_body(request, &mut outgoing);
        let mut changes = Vec::new();
        while let Decision::Guarded(_) = request.decision {
            // Boxed: few requests are guarded, and the future of every one would have room for it.
            match Box::pin(self.pass(client, request, &mut outgoing)).await {
                Ok(of_response) => {
                    request.pass();
                    changes.extend(of_response);
                    limit_body(request, &mut outgoing);
                }
                Err(refusal) => {
                    let mut response = self.refuse(client, request, exchange, refusal);
                    if expects {
                        close(&mut response);
                    }
                    if is_connect && response.status().is_success() {
                        *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
                    }
                    return response;
                }
            }
        }
        let compression = request.compression();
        let negotiated = compression.and_then(|terms| Negotiated::of(terms, &outgoing.parts.headers));
        let forwarded = match &request.decision {
            Decision::Forward(plan) => {
                let passage = self.router.passage(request);
                let forwarding = self.forwarder.forward(client, plan, passage, outgoing);
                let forwarded = forwarding.await;
                forwarded.map_err(|reason| self.router.answer(&mut exchange, request, &reason.into()))
            }
            Decision::Own(own) => Err(self.router.answer(&mut exchange, request, own)),
            // There is none any more.
            Decision::Guarded(_) => {
                Err(self.router.answer(&mut exchange, request, &Reason::AuthFailed.into()))
            }
        };
        let mut response = match forwarded {
            Ok((mut response, endpoint)) => {
                if let Some(negotiated) = negotiated {
                    self.compress(&negotiated, request, &mut response);
                }
                // "MUST NOT send a Content-Length header field in any response with a status code
                // of … 204" (RFC 9110 section 8.6).
                if response.status() == StatusCode::NO_CONTENT {
                    response.headers_mut().remove(header::CONTENT_LENGTH);
                }
                let head = (response.status(), Extent::Begun);
                let record = self.router.forwarded(&mut exchange, request, head, endpoint);
                response.map(|content| Body::new(content, exchange, record))
            }
            Err((answer, record)) => {
                let mut response = answer.map(|text| Body::new(text.into(), exchange, record));
                // The library ends a connection whose client was not told to continue.
                if expects {
                    close(&mut response);
                }
                // A success would open a tunnel that leads nowhere.
                if is_connect && response.status().is_success() {
                    *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
                }
                response
            }
        };
        changes.iter().for_each(|change| change.apply(response.headers_mut()));
        finish(client, &mut response);
        response
    }

    /// Takes the request past the filters in its way. Returns the changes to its response.
    async fn pass<'s>(
        &self,
        client: &Client,
        request: &mut Routed<'s>,
        outgoing: &mut Outgoing,
    ) -> Result<Vec<Change>, Refusal> {
        let decision = std::mem::replace(&mut request.decision, Reason::AuthFailed.into());
        let Decision::Guarded(mut guarded) = decision else {
            request.decision = decision;
            return Ok(Vec::new());
        };
        let ruled = if guarded.next.rule().is_some() { Ruled::Before } else { Ruled::Now };
        let filled_id = guarded.next.filled().map(|filled| filled.request_id.clone());
        let mut passage = self.router.passage(request);
        passage.request_id = filled_id.as_ref().or(passage.request_id);
        let passed = self.authorizer.pass(client, passage, &mut guarded, outgoing).await;
        match passed {
            Ok(Passed { decision, response }) => {
                request.decision = decision;
                self.router.passed(request, client, &outgoing.parts, ruled);
                Ok(response)
            }
            Err(refusal) => {
                request.decision = Decision::Guarded(guarded);
                Err(refusal)
            }
        }
    }

    fn refuse(
        &self,
        client: &Client,
        request: &Routed<'_>,
        mut exchange: Exchange,
        refusal: Refusal,
    ) -> Response {
        let own = match refusal {
            Refusal::Own(own) => own,
            // gRPC reads no status.
            Refusal::Denied(denied) if request.is_grpc() => {
                OwnAnswer::Reason(Reason::AuthDenied, denied.status())
            }
            Refusal::Denied(denied) => {
                let record = self.router.denied(&mut exchange, request, denied.status());
                let denied = if request.is_head() { denied.map(|_| Content::Text(None)) } else { *denied };
                let mut response = denied.map(|content| Body::new(content, exchange, record));
                if let Some(rule) = request.decision.rule() {
                    answer::edit(&rule.filters, request.decision.filled(), response.headers_mut());
                }
                if let Some(cross_origin) = request.decision.cross_origin() {
                    cross_origin.edit(response.headers_mut());
                }
                finish(client, &mut response);
                return response;
            }
        };
        let (answer, record) = self.router.answer(&mut exchange, request, &own);
        let mut response = answer.map(|text| Body::new(text.into(), exchange, record));
        finish(client, &mut response);
        response
    }

    /// Compresses a backend's response for a client that takes it. HEAD gets the fields that GET
    /// would get.
    fn compress(
        &self,
        negotiated: &Negotiated,
        request: &Routed<'_>,
        response: &mut http::Response<Content>,
    ) {
        let status = response.status();
        if status == StatusCode::NOT_MODIFIED {
            negotiated.edit_not_modified(response.headers_mut());
            return;
        }
        if response.body().is_empty() && !request.is_head() {
            return;
        }
        let Some(coding) = negotiated.choose(status, response.headers_mut()) else { return };
        if !request.is_head() {
            // Without memory for one more it goes as it is.
            let namespace = request.decision.rule().map_or("", |rule| &rule.id.route.namespace);
            let Some(encoder) = self.encoders.make(coding, namespace) else { return };
            response.body_mut().compress(encoder);
        }
        compress::announce(coding, response.headers_mut());
    }
}

/// Holds the body to what policies leave to it.
fn limit_body(request: &mut Routed<'_>, outgoing: &mut Outgoing) {
    if let Some(most) = request.most_body_bytes()
        && outgoing.upload.limit(most).is_err()
    {
        let own = OwnAnswer::from(Reason::BodyTooLarge);
        request.decision = Decision::Own(match request.decision.rule() {
            Some(rule) => OwnAnswer::OfRule { rule, own: Box::new(own), cross_origin: None },
            None => own,
        });
    }
}

/// Tells a client that is to come again on another connection.
fn finish(client: &Client, response: &mut Response) {
    if client.is_last_response() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        close(response);
    }
}

/// Says that the connection ends with this response.
fn close(response: &mut Response) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}
