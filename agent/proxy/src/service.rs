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
use crate::edge::Rejection;
use crate::forward;

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
    let mut response = match decision {
        Decision::Forward(plan) => forward::forward(&core, &client, plan, parts, body).await,
        Decision::Redirect { rule, status, location } => answer::redirect(rule, status, &location),
        Decision::Answer(status) => answer::status(status),
        Decision::Reject(rejection) => rejected(&client, rejection, version),
    };
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
fn rejected(client: &Client, rejection: Rejection, version: Version) -> Response {
    let Rejection { status, reason } = rejection;
    tracing::debug!(client = %client.peer, status = status.as_u16(), reason = reason.trim_end(), "refused");
    let mut response = answer::text(status, reason);
    let spoilt = status == StatusCode::BAD_REQUEST || status == StatusCode::NOT_IMPLEMENTED;
    if spoilt && version < Version::HTTP_2 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
