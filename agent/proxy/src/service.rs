//! Answers one request. It cannot fail: whatever goes wrong becomes a status and a line in the log.

use std::convert::Infallible;
use std::rc::Rc;

use http::{Request, StatusCode};
use hyper::body::Incoming;

use crate::answer::{self, Response};
use crate::connection::Client;
use crate::core::Core;
use crate::decide::{self, Decision};
use crate::forward;

pub(crate) async fn answer(
    core: Rc<Core>,
    client: Rc<Client>,
    request: Request<Incoming>,
) -> Result<Response, Infallible> {
    let (parts, body) = request.into_parts();
    let (decision, worker) = decide::decide(&core, &client, &parts);
    let response = match decision {
        Decision::Forward(plan) => {
            forward::forward(&core, &client, plan, Request::from_parts(parts, body)).await
        }
        Decision::Redirect { status, location } => answer::redirect(status, &location),
        Decision::Answer(status) => ours(&client, answer::status(status)),
        Decision::Reject(rejection) => close(ours(&client, answer::text(rejection.status, rejection.reason))),
    };
    match &worker {
        Some(worker) => worker.counters().answered(response.status()),
        None => core.counters.unrouted.increment(),
    }
    Ok(response)
}

fn ours(client: &Client, response: Response) -> Response {
    tracing::debug!(client = %client.peer, status = response.status().as_u16(), "answered by the gateway");
    response
}

/// What follows a malformed request on the same connection cannot be trusted.
fn close(mut response: Response) -> Response {
    if response.status() == StatusCode::BAD_REQUEST || response.status() == StatusCode::NOT_IMPLEMENTED {
        response.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    response
}
