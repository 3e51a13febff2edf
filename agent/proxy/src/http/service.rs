//! Answers one request. It cannot fail: whatever goes wrong becomes a status and a line in the log.

use std::convert::Infallible;
use std::rc::Rc;

use http::request::Parts;
use http::{HeaderValue, Method, Request, StatusCode, Version, header};
use hyper::body::Incoming;

use crate::client::clients::{Client, Exchange};
use crate::client::worker::Worker;
use crate::core::reason::Reason;
use crate::http::answer::{self, Response};
use crate::http::body::Body;
use crate::http::decide::{self, Decision};
use crate::http::forward;
use crate::http::headers;
use crate::log::record::{Answered, Noted, Trail};
use crate::thread::{self, Core};
use crate::upstream::attempt::Outgoing;

/// The request is put on the heap before anything waits: the future of every request is moved, and would hold it several times.
pub(crate) fn answer(
    core: Rc<Core>,
    client: Rc<Client>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response, Infallible>> {
    let exchange = Exchange::begin(&client);
    let outgoing = Outgoing::new(request, client.limits());
    async move { Ok(respond(&core, &client, exchange, outgoing).await) }
}

async fn respond(
    core: &Rc<Core>,
    client: &Rc<Client>,
    exchange: Exchange,
    outgoing: Box<Outgoing>,
) -> Response {
    let parts = &outgoing.parts;
    let asker = Asker::of(parts);
    let current = core.current();
    let group = thread::group(&current.snapshot, client.local).map(|group| &**group);
    let noted = group.and_then(|group| {
        let log = group.gateway.access_log?;
        let hops = core.settings.trusted_hops;
        Some(Box::new(Noted::new(log, parts, headers::chain(&parts.headers, hops, &client.address))))
    });
    let (decision, worker) = decide::decide(core, client, group, parts);
    let mut trail = Trail::of(&decision);
    let answered = match &decision {
        Decision::Forward(plan) => match forward::forward(core, client, plan, outgoing).await {
            Ok((response, endpoint)) => {
                trail.endpoint = Some(endpoint);
                Ok(response)
            }
            Err(reason) => Err((reason, reason.status())),
        },
        Decision::Redirect { rule, status, location } => Ok(answer::redirect(rule, *status, location)),
        Decision::Answer(reason, status) => Err((*reason, *status)),
    };
    // Failures count as such even where gRPC has them wrapped in a 200.
    let (mut response, status, reason) = match answered {
        Ok(response) => {
            let status = response.status();
            (response, status, None)
        }
        Err((reason, status)) => (ours(core, client, &asker, reason, status), status, Some(reason)),
    };
    count(core, worker.as_deref(), status);
    let record = noted.zip(group).and_then(|(noted, group)| {
        let listener = worker.as_ref().map(|worker| &worker.listener.id);
        let gateway = &group.gateway.name;
        noted.answered(core, client, &Answered { gateway, listener, trail, status, reason })
    });
    if asker.method == Method::HEAD {
        response = response.map(Body::for_head);
    }
    response.map(|body| body.during(exchange, record))
}

fn count(core: &Core, worker: Option<&Worker>, status: StatusCode) {
    match worker {
        Some(worker) => worker.counters().answered(status),
        None => core.counters.unrouted.increment(),
    }
}

/// What an answer of our own depends on when the request is no longer at hand.
struct Asker {
    version: Version,
    method: Method,
    /// The content type of a gRPC request.
    grpc: Option<HeaderValue>,
}

impl Asker {
    fn of(parts: &Parts) -> Self {
        let method = parts.method.clone();
        // gRPC is POST: others need no look at their fields.
        let grpc = if method == Method::POST { answer::grpc_type(&parts.headers) } else { None };
        Self { version: parts.version, method, grpc }
    }
}

fn ours(core: &Core, client: &Client, asker: &Asker, reason: Reason, status: StatusCode) -> Response {
    core.counters.answered(reason);
    tracing::debug!(client = %client.peer, reason = reason.name(), status = status.as_u16(), "answered by the gateway");
    if let (Some(content_type), Some(code)) = (&asker.grpc, reason.grpc_code()) {
        return answer::of_grpc(reason, code, content_type.clone());
    }
    let mut response = answer::of(reason, status);
    // What follows a malformed HTTP/1 request on the same connection cannot be trusted.
    let spoilt = status == StatusCode::BAD_REQUEST || status == StatusCode::NOT_IMPLEMENTED;
    if spoilt && asker.version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
