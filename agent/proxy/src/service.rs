//! Answers one request. It cannot fail: whatever goes wrong becomes a status and a line in the log.

use std::convert::Infallible;
use std::rc::Rc;

use http::{HeaderValue, Method, Request, StatusCode, Version, header};
use hyper::body::Incoming;

use crate::answer::{self, Response};
use crate::body::Body;
use crate::clients::{Client, Exchange};
use crate::core::Core;
use crate::decide::{self, Decision};
use crate::forward;
use crate::reason::Reason;

pub(crate) async fn answer(
    core: Rc<Core>,
    client: Rc<Client>,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let exchange = Exchange::begin(&client);
    let (parts, body) = request.into_parts();
    let (version, method) = (parts.version, parts.method.clone());
    let current = core.current();
    let (decision, worker) = decide::decide(&core, &client, &current.snapshot, &parts);
    let answered = match decision {
        Decision::Forward(plan) => {
            forward::forward(&core, &client, plan, parts, body).await.map_err(|it| (it, it.status()))
        }
        Decision::Redirect { rule, status, location } => Ok(answer::redirect(rule, status, &location)),
        Decision::Answer(reason, status) => Err((reason, status)),
    };
    let mut response =
        answered.unwrap_or_else(|(reason, status)| ours(&core, &client, reason, status, version));
    if method == Method::HEAD {
        response = response.map(Body::for_head);
    }
    match &worker {
        Some(worker) => worker.counters().answered(response.status()),
        None => core.counters.unrouted.increment(),
    }
    Ok(response.map(|body| body.during(exchange)))
}

/// What follows a malformed HTTP/1 request on the same connection cannot be trusted.
fn ours(core: &Core, client: &Client, reason: Reason, status: StatusCode, version: Version) -> Response {
    core.counters.answered(reason);
    tracing::debug!(client = %client.peer, reason = reason.name(), status = status.as_u16(), "answered by the gateway");
    let mut response = answer::of(reason, status);
    let spoilt = status == StatusCode::BAD_REQUEST || status == StatusCode::NOT_IMPLEMENTED;
    if spoilt && version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
